"""A scripted agent that must get N writes done through whatever stands before the tool.

For each operation it asks under a fresh call id. When the answer does not say "done", it asks for the same operation
again under a new call id with probability `again`, at most `most` times, whatever the answer advised: the way a model
"tries once more". What it believes in the end is the last answer it saw.
"""

import asyncio
import json

from faulttool import draw


class Agent:
    """Speaks to the tool, or to a proxy that hands its requests on: a whole 2xx is done, all else has failed."""

    path = "/write"

    def __init__(self, port, seed="1", again=0.6, most=3, patience=15.0):
        self.port, self.seed, self.again, self.most, self.patience = port, seed, again, most, patience
        self.belief = {}  # operation -> done | failed | unknown
        self.person = set()  # operations whose last answer said that a person must check
        self.answers = {}  # what came back -> how often

    async def run(self, operations, concurrency):
        todo = iter(operations)

        async def worker():
            for op in todo:
                await self.operation(op)

        await asyncio.gather(*(worker() for _ in range(concurrency)))

    async def operation(self, op):
        for n in range(self.most + 1):
            try:
                seen, belief, person = await self.ask(op, f"call-{op}-{n}")
            except asyncio.TimeoutError:
                seen, belief, person = "timeout", "failed", False
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                seen = "cut" if getattr(error, "head_seen", False) else "no answer"
                belief, person = "failed", False
            self.answers[seen] = self.answers.get(seen, 0) + 1
            self.belief[op] = belief
            (self.person.add if person else self.person.discard)(op)
            if belief == "done" or draw(self.seed, "again", op, n) >= self.again:
                return

    async def ask(self, op, call_id):
        return self.read(*await asyncio.wait_for(self.call(op, call_id), self.patience))

    def read(self, status, _body):
        return str(status), "done" if 200 <= status < 300 else "failed", False

    def fields(self, op, call_id):
        return {"idempotency-key": op, "x-tool-call-id": call_id}

    async def call(self, op, call_id):
        """One request on its own connection; ValueError or IncompleteReadError if the answer is not whole."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            body = json.dumps({"operation_id": op, "amount": 25, "currency": "EUR"}).encode()
            fields = {"host": f"127.0.0.1:{self.port}", "content-type": "application/json", "content-length": len(body),
                      "connection": "close", **self.fields(op, call_id)}
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"POST {self.path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            await writer.drain()
            line, *got = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            got = {k.strip().lower(): v.strip() for k, _, v in (field.partition(":") for field in got if field)}
            try:
                return int(line.split(" ")[1]), await whole_body(reader, got)
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                error.head_seen = True
                raise
        finally:
            writer.transport.abort()


class ToolsApiAgent(Agent):
    """Speaks Checkrein's tools API and takes its answer object at its word. It sends no key of its own: a model has none."""

    path = "/v1/tools/write"
    waits = 100  # for one call

    async def ask(self, op, call_id):
        """"Not executed, come back after n ms" is obeyed, under a further call id; it is not one of the agent's tries."""
        for wait in range(self.waits):
            status, body = await asyncio.wait_for(self.call(op, f"{call_id}-{wait}"), self.patience)
            answer = json.loads(body)
            if answer.get("error") != "rate_limited":
                break
            self.answers["rate_limited (no)"] = self.answers.get("rate_limited (no)", 0) + 1
            await asyncio.sleep(answer["retry_after_ms"] / 1000)
        return self.read(status, body)

    def fields(self, op, call_id):
        # It says how long it has: an answer must come before it stops listening.
        return {"checkrein-call-id": call_id, "checkrein-timeout-ms": int(self.patience * 1000 / 3)}

    def read(self, _status, body):
        answer = json.loads(body)
        if answer.get("ok") is True:
            return "ok", "done", False
        # "yes" comes with a lost result: the effect is there, and the agent was told so.
        belief = {"yes": "done", "no": "failed", "unknown": "unknown"}[answer["executed"]]
        return f"{answer['error']} ({answer['executed']})", belief, answer["retry"] == "person" and belief == "unknown"


async def whole_body(reader, fields):
    if fields.get("transfer-encoding", "").lower() == "chunked":
        text = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            text += (await reader.readexactly(size + 2))[:-2]
        return text
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    return await reader.read()
