"""LangGraph: LangChain's agent over langchain-mcp-adapters, a fake chat model as the script."""

import asyncio

import loop
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_mcp_adapters.client import MultiServerMCPClient


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


def asking(n, tool, given):
    return AIMessage("", tool_calls=[{"name": tool, "args": given, "id": f"call_{n}", "type": "tool_call"}])


async def main():
    turns = [*(asking(n, *call) for n, call in enumerate(loop.parsed())), AIMessage("done")]
    client = MultiServerMCPClient({"gateway": {"transport": "streamable_http", "url": loop.URL}})
    agent = create_agent(Scripted(messages=iter(turns)), await client.get_tools())
    result = await agent.ainvoke({"messages": [("user", "go")]})
    for message in result["messages"]:
        if message.type == "tool":
            loop.told(message.content)
    loop.final(result["messages"][-1].content)


asyncio.run(main())
