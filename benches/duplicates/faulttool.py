#!/usr/bin/env python3
"""A write tool that fails in chosen ways and counts what it really did.

    faulttool.py PORT [--seed N] [--mix ok=30,apply_rst=10,...] [--stall SECONDS] [--keys]

POST /write with a JSON body {"operation_id": ...} "executes" the operation, or not, as the fault says. The fault of the
k-th request that arrives for one operation depends on (seed, operation, k) alone, so everything that is put in front
meets the same faults, in whatever order its requests come.

With --keys it recognises Idempotency-Key: an operation it has executed under a key is not executed again under that
key, though the fault drawn may still spoil the answer. Without, it acts as often as it is asked: that is what is being
counted. GET /status/OPERATION tells what became of one ("executed" or "none"), never faulted. GET /report has the counts.
"""

import argparse
import asyncio
import hashlib
import json
import socket
import struct
from collections import defaultdict

FAULTS = {
    "ok": "applied, 200",
    "reset_unapplied": "not applied: connection reset without an answer (what closing before reading looks like)",
    "apply_rst": "applied, then the connection is reset without an answer",
    "apply_stall": "applied, then silence for longer than anybody's timeout",
    "apply_503": "applied, then 503",
    "503": "not applied, 503",
    "apply_cut": "applied, then 200 whose body is cut off half-way",
    "429": "not applied, 429",
}
DEFAULT_MIX = "ok=30,reset_unapplied=10,apply_rst=10,apply_stall=10,apply_503=10,503=10,apply_cut=10,429=10"
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 503: "Service Unavailable"}


def draw(*key):
    """A number in [0, 1) that depends on the key only."""
    digest = hashlib.sha256("|".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def parse_mix(text):
    mix = [(name, float(weight)) for name, _, weight in (part.partition("=") for part in text.split(","))]
    strange = [name for name, _ in mix if name not in FAULTS]
    if strange:
        raise SystemExit(f"no such faults: {strange}; there are {', '.join(FAULTS)}")
    return mix


def pick(mix, point):
    point *= sum(weight for _, weight in mix)
    for name, weight in mix:
        if point < weight:
            return name
        point -= weight
    return mix[-1][0]


class Tool:
    def __init__(self, seed, mix, stall, keys):
        self.seed, self.mix, self.stall = seed, mix, stall
        self.known = set() if keys else None  # keys under which something was executed
        self.wire = defaultdict(int)  # operation -> write requests seen
        self.done = defaultdict(lambda: defaultdict(int))  # operation -> call id -> executions
        self.faults = defaultdict(int)
        self.asked = self.malformed = 0

    def report(self):
        return {"wire": self.wire, "executions": self.done, "faults": self.faults, "asked": self.asked,
                "malformed": self.malformed}

    async def serve(self, reader, writer):
        try:
            while await self.one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def one(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        method, path, _ = line.split(" ", 2)
        headers = {k.strip().lower(): v.strip() for k, _, v in (f.partition(":") for f in fields if f)}
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await read_body(reader, headers)
        if method == "GET" and path == "/report":
            return answer(writer, 200, json.dumps(self.report()).encode())
        if method == "GET" and path.startswith("/status/"):
            self.asked += 1
            state = "executed" if path[len("/status/"):] in self.done else "none"
            return answer(writer, 200, json.dumps({"state": state}).encode())
        if method != "POST":
            return answer(writer, 404, b"{}")
        try:
            op = json.loads(body)["operation_id"]
        except (ValueError, KeyError, TypeError):
            self.malformed += 1
            return answer(writer, 400, b'{"error":"no operation_id"}')
        self.wire[op] += 1
        fault = pick(self.mix, draw(self.seed, op, self.wire[op]))
        self.faults[fault] += 1
        if fault in ("ok", "apply_rst", "apply_stall", "apply_503", "apply_cut"):
            self.execute(op, headers)
        return await self.reply(fault, op, reader, writer)

    def execute(self, op, headers):
        key = headers.get("idempotency-key")
        if self.known is not None and key is not None:
            if key in self.known:
                return
            self.known.add(key)
        self.done[op][headers.get("x-tool-call-id", "?")] += 1

    async def reply(self, fault, op, reader, writer):
        if fault in ("reset_unapplied", "apply_rst"):
            return reset(writer)
        if fault == "apply_stall":
            try:
                await asyncio.wait_for(reader.read(1), self.stall)  # until the other side gives up
            except asyncio.TimeoutError:
                pass
            return reset(writer)
        if fault in ("503", "apply_503"):
            return answer(writer, 503, b'{"error":"unavailable"}')
        if fault == "429":  # this caller may come back at once; the others are not meant
            return answer(writer, 429, b'{"error":"slow down"}', b"retry-after: 0\r\n")
        text = json.dumps({"operation_id": op, "state": "done", "pad": "x" * 400}).encode()
        if fault == "apply_cut":
            writer.write(head_of(200, len(text)) + text[: len(text) // 2])
            await writer.drain()
            await asyncio.sleep(0.005)  # let the first half leave before the end of the stream
            return False
        return answer(writer, 200, text)


async def read_body(reader, headers):
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return body
    return await reader.readexactly(int(headers.get("content-length", 0)))


def head_of(status, length, extra=b""):
    line = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n"
    return line.encode() + extra + b"\r\n"


def answer(writer, status, body, extra=b""):
    writer.write(head_of(status, len(body), extra) + body)
    return True


def reset(writer):
    sock = writer.get_extra_info("socket")
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    writer.transport.abort()
    return False


async def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("port", type=int)
    ap.add_argument("--seed", default="1")
    ap.add_argument("--mix", default=DEFAULT_MIX)
    ap.add_argument("--stall", type=float, default=4)
    ap.add_argument("--keys", action="store_true")
    args = ap.parse_args()
    tool = Tool(args.seed, parse_mix(args.mix), args.stall, args.keys)
    server = await asyncio.start_server(tool.serve, "127.0.0.1", args.port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
