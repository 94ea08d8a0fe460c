"""Policies and requests of any size: so many tools, agents, runs and sessions."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import common

BUDGETS = ("{ calls: 1000000000, rounds: 1000000000, failures: unlimited, argument_bytes: unlimited, result_bytes: unlimited, wall_clock: 24h, idle: 24h, "
           "max_live: 100000, fuse: { same_failures: 1000000000, same_results: 1000000000 } }")


def token(number):
    return f"rig-agent-token-{number:06d}"


def policy(tool_port, tools=1, agents=1, folder="/tmp"):
    """`tools` reads, each allowed to each of `agents` agents with a token of its own. A policy has at most 1 MiB: the schema of all tools
    is one file beside it."""
    with open(f"{folder}/s", "w") as file:
        json.dump({"type": "object", "properties": {"n": {"type": "string", "maxLength": 40}, "limit": {"type": "integer", "minimum": 1, "maximum": 100}}}, file)
    for number in range(agents):
        with open(os.open(f"{folder}/t{number}", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(token(number))
    lines = ["apiVersion: checkrein/v1", "kind: Policy", "name: sizes", "limits: {bulkhead: 4096}", f"runs: {{ default: {BUDGETS} }}",
             f'upstreams: {{ u: {{ base_url: "http://127.0.0.1:{tool_port}", addresses: [loopback], bulkhead: 4096 }} }}', "tools:"]
    lines += [f" t{number}: {{description: d, effect: read, http: {{upstream: u, method: GET, path: /}}, schema: {{file: s}}}}" for number in range(tools)]
    lines += ["agents:"]
    lines += [f" a{number}: {{identities: [{{token: {{file: {folder}/t{number}}}}}], allow: [t*]}}" for number in range(agents)]
    return "\n".join(lines) + "\n"


def calls(tools=1, agents=1, runs=1, most=20000):
    """Requests that go round all tools, agents and runs; run r belongs to agent r modulo their number."""
    found = []
    for at in range(min(most, max(tools, agents, runs))):
        agent, run = at % agents, at % runs
        fields = [f"authorization: Bearer {token(agent)}", f"checkrein-run: run-{run}-{agent}"]
        found.append(("POST", f"/v1/tools/t{at % tools}", fields, '{"n":"@@@@@@@@@@"}'))
    return common.lines(*found)


def open_runs(port, runs, agents, work):
    """Each run by its first call, as any run opens."""
    each = common.lines(*[("POST", "/v1/tools/t0", [f"authorization: Bearer {token(at % agents)}", f"checkrein-run: run-{at}-{at % agents}"], '{"n":"1"}')
                          for at in range(runs)])
    return each


def open_sessions(port, sessions, agents=0):
    """MCP sessions, 512 an agent at most; their ids. Without agents: as the agent that shows no credential."""

    def one(number):
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize",
                "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "rig", "version": "1"}}}
        fields = {"accept": "application/json, text/event-stream"}
        if agents:
            fields["authorization"] = f"Bearer {token(number % agents)}"
        status, said, text = common.request(port, "POST", "/mcp", body, fields)
        session = said.get("mcp-session-id")
        if status != 200 or not session:
            raise RuntimeError(f"initialize: {status} {text[:300]}")
        common.request(port, "POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, {**fields, "mcp-session-id": session,
                                                                                                   "mcp-protocol-version": "2025-06-18"})
        return session

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(sessions)))
