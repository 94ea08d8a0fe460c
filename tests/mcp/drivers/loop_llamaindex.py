"""LlamaIndex: FunctionAgent over llama-index-tools-mcp, a scripted function-calling model."""

import asyncio

import loop
from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


class Scripted(FunctionCallingLLM):
    turns: list = []

    @property
    def metadata(self):
        return LLMMetadata(is_function_calling_model=True)

    def _prepare_chat_with_tools(self, tools, user_msg=None, chat_history=None, **_):
        return {"messages": chat_history or []}

    def get_tool_calls_from_response(self, response, error_on_no_tool_call=False, **_):
        return response.raw or []

    def next(self):
        if not self.turns:
            return ChatResponse(message=ChatMessage(role="assistant", content="done"), raw=[])
        left = len(self.turns)
        tool, given = self.turns.pop(0)
        asked = ToolSelection(tool_id=f"call_{left}", tool_name=tool, tool_kwargs=given)
        return ChatResponse(message=ChatMessage(role="assistant", content=""), raw=[asked])

    async def achat_with_tools(self, *_, **__):
        return self.next()

    async def achat(self, *_, **__):
        return self.next()

    def chat(self, *_, **__):
        return self.next()

    def unused(self, *_, **__):
        raise NotImplementedError

    async def aunused(self, *_, **__):
        raise NotImplementedError

    complete = stream_chat = stream_complete = unused
    acomplete = astream_chat = astream_complete = aunused


async def main():
    tools = await McpToolSpec(client=BasicMCPClient(loop.URL)).to_tool_list_async()
    run = FunctionAgent(tools=tools, llm=Scripted(turns=loop.parsed()), streaming=False).run("go")
    async for event in run.stream_events():
        if isinstance(event, ToolCallResult):
            loop.told(str(event.tool_output.content))
    loop.final(await run)


asyncio.run(main())
