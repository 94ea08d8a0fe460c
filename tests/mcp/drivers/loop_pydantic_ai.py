"""Pydantic AI: its agent and MCP toolset, a function as the script."""

import asyncio

import loop
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel


async def main():
    turns = list(loop.CALLS)

    def script(_messages, _info):
        if not turns:
            return ModelResponse(parts=[TextPart("done")])
        left = len(turns)
        tool, given = turns.pop(0)
        return ModelResponse(parts=[ToolCallPart(tool, given, tool_call_id=f"call_{left}")])

    # Else two failures of one tool in a row end the loop: it counts a tool's error as the model's mistake.
    server = MCPToolset(loop.URL, tool_error_behavior="failed")
    agent = Agent(FunctionModel(script), toolsets=[server])
    async with agent:
        result = await agent.run("go")
    for message in result.all_messages():
        for part in message.parts:
            if isinstance(part, (ToolReturnPart, RetryPromptPart)):
                loop.told(part.content)
    loop.final(result.output)


asyncio.run(main())
