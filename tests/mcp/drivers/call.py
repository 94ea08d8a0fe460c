"""One session of the official Python client: lists the tools, makes the calls, prints one JSON document.

usage: call.py '{"url": URL | "command": [ARGV], "env": {…}, "calls": [[TOOL, ARGUMENTS], …], "wait": SECONDS,
                 "mode": "modern" for a session of revision 2026-07-28, "progress": true to hear of it}'
→ {"protocol": REVISION, "tools": {NAME: DESCRIPTION}, "results": [{"text", "is_error", "raised"}]}"""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import PaginatedRequestParams

try:
    from mcp.client.streamable_http import streamable_http_client as http_client
except ImportError:  # the first generation's name
    from mcp.client.streamable_http import streamablehttp_client as http_client


def transport(wish):
    if "url" in wish:
        return http_client(wish["url"])
    command = wish["command"]
    return stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=wish.get("env")))


def plain(value):
    return value.model_dump(by_alias=True, exclude_none=True, mode="json")


def text_of(result):
    return "\n".join(block.get("text") or block.get("resource", {}).get("text") or "" for block in result.get("content", []))


async def heard(progress, total, message):
    """Who wants to hear of progress is answered on a stream."""


async def one(session, tool, arguments, wait, progress):
    more = {"progress_callback": heard} if progress else {}
    try:
        result = plain(await asyncio.wait_for(session.call_tool(tool, arguments, **more), wait))
    except Exception as error:  # whatever a client raises is what is told
        return {"raised": f"{type(error).__name__}: {error}", "text": "", "is_error": None}
    return {"text": text_of(result), "is_error": bool(result.get("isError")), "raised": None,
            "structured": result.get("structuredContent")}


async def main():
    wish = json.loads(sys.argv[1])
    async with transport(wish) as streams, ClientSession(streams[0], streams[1]) as session:
        hello = plain(await (session.discover() if wish.get("mode") == "modern" else session.initialize()))
        tools, page = {}, None
        while True:
            params = PaginatedRequestParams(cursor=page) if page else None
            listed = plain(await session.list_tools(params=params))
            tools.update({tool["name"]: tool.get("description", "") for tool in listed["tools"]})
            page = listed.get("nextCursor")
            if not page:
                break
        wait, progress = wish.get("wait", 60), wish.get("progress")
        results = [await one(session, tool, given, wait, progress) for tool, given in wish["calls"]]
    protocol = hello.get("protocolVersion") or hello["supportedVersions"][0]
    print(json.dumps({"protocol": protocol, "tools": tools, "results": results}))


asyncio.run(main())
