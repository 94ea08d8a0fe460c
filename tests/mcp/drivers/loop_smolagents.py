"""smolagents: ToolCallingAgent over its MCP client, a scripted model. It turns `get-sum` into `get_sum`."""

import loop
from smolagents import MCPClient, Model, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole


class Scripted(Model):
    def __init__(self, turns):
        super().__init__(model_id="scripted")
        self.turns = turns

    def generate(self, messages, **_):
        left = len(self.turns)
        tool, given = self.turns.pop(0) if self.turns else ("final_answer", {"answer": "done"})
        asked = ChatMessageToolCallFunction(name=tool.replace("-", "_"), arguments=given)
        call = ChatMessageToolCall(id=f"call_{left}", type="function", function=asked)
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call])


with MCPClient({"url": loop.URL, "transport": "streamable-http"}, structured_output=False) as tools:
    agent = ToolCallingAgent(tools=tools, model=Scripted(loop.parsed()), max_steps=20, verbosity_level=0)
    answer = agent.run("go")
steps = [step for step in agent.memory.steps if getattr(step, "observations", None) or getattr(step, "error", None)]
for step in steps[:len(loop.CALLS)]:
    loop.told(str(step.error) if step.error else step.observations)
loop.final(answer)
