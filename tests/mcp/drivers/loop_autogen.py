"""AutoGen: AssistantAgent over McpWorkbench, its replaying model client as the script."""

import asyncio

import loop
from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StreamableHttpServerParams

CAN = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False}


def turn(content, reason):
    usage = RequestUsage(prompt_tokens=1, completion_tokens=1)
    return CreateResult(finish_reason=reason, content=content, usage=usage, cached=False)


async def main():
    calls = [FunctionCall(id=f"call_{n}", name=tool, arguments=given) for n, (tool, given) in enumerate(loop.CALLS)]
    turns = [*(turn([call], "function_calls") for call in calls), turn("done", "stop")]
    model = ReplayChatCompletionClient(turns, model_info=CAN)
    async with McpWorkbench(StreamableHttpServerParams(url=loop.URL)) as workbench:
        agent = AssistantAgent("t", model_client=model, workbench=workbench, max_tool_iterations=20)
        result = await agent.run(task="go")
    for message in result.messages:
        if message.type == "ToolCallExecutionEvent":
            for execution in message.content:
                loop.told(execution.content)
    loop.final(result.messages[-1].content)


asyncio.run(main())
