"""OpenAI Agents SDK: its runner and MCP client, a scripted model."""

import asyncio
import os

import loop
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

os.environ.setdefault("OPENAI_API_KEY", "none")
from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled  # noqa: E402
from agents.mcp import MCPServerStreamableHttp  # noqa: E402


class Scripted(Model):
    def __init__(self, calls):
        self.calls = list(calls)

    async def get_response(self, *_, **__):
        if self.calls:
            left = len(self.calls)
            tool, given = self.calls.pop(0)
            output = ResponseFunctionToolCall(type="function_call", id=f"fc_{left}", call_id=f"call_{left}", name=tool,
                                              arguments=given)
        else:
            words = ResponseOutputText(type="output_text", text="done", annotations=[], logprobs=[])
            output = ResponseOutputMessage(id="m1", type="message", role="assistant", status="completed", content=[words])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    async def stream_response(self, *_, **__):
        raise NotImplementedError
        yield


async def main():
    set_tracing_disabled(True)
    async with MCPServerStreamableHttp(params={"url": loop.URL}, cache_tools_list=True) as server:
        agent = Agent(name="t", model=Scripted(loop.CALLS), mcp_servers=[server])
        result = await Runner.run(agent, "go", max_turns=20)
    for item in result.new_items:
        if item.type == "tool_call_output_item":
            loop.told(item.output)
    loop.final(result.final_output)


asyncio.run(main())
