"""Scripted models in front of a dead tool: what they ask is fixed, what they do next follows from what they are told.

A round is lost when it asked the dead tool and got no value. The loop of an agent ends when the state is not `continue`, when
the model has an answer, or when it is told not to ask that again (`retry: changed` or `never`): then it says what is missing.
"""

import json
import time
import uuid

import common

MOST_ROUNDS = 60


def ask(port, run, tool, arguments):
    """One round by the chat form: the state, and the answer object of its one call."""
    call = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    _, _, body = common.request(port, "POST", "/v1/batches/openai-chat", message, {"Checkrein-Run": run})
    said = json.loads(body)
    return said["state"], json.loads(said["messages"][0]["content"])


def takes_advice(answer, number):
    """Another tool, where one is named; else it waits as told."""
    named = answer.get("alternatives")
    if named:
        return named[0], {"order": "A17"}
    return waits(answer, number)


def waits(answer, number):
    """The same again, once the time it was told has passed."""
    time.sleep(min(answer.get("retry_after_ms", 0), 1000) / 1000)
    return repeats(answer, number)


def repeats(answer, _number):
    """The same again at once, until it is told that this very call is of no use."""
    return None if answer["retry"] in ("changed", "never", "person") else ("lookup", {"order": "A17"})


def varies(_answer, number):
    """Another argument each time, whatever it is told."""
    return "lookup", {"order": f"A{number}"}


# Name, script, and whether the goal is put to it: the last one heeds nothing, and only its run's budget ends it.
MODELS = [("takes advice", takes_advice, True), ("waits and asks again", waits, True), ("asks again at once", repeats, True), ("changes an argument each time, heeds nothing", varies, False)]


def play(name, script, port, tool_port):
    """Its rounds until it has an answer or stops."""
    run, before = f"rounds-{uuid.uuid4().hex}", json.loads(common.get(tool_port, "/report"))["outage"]
    following, lost, told, state = ("lookup", {"order": "A17"}), 0, [], "continue"
    for number in range(MOST_ROUNDS):
        state, answer = ask(port, run, *following)
        told.append("a value" if answer["ok"] else answer["error"])
        stopped = not answer["ok"] and answer["retry"] in ("changed", "never", "person")
        # The answer that says so ends the matter; the model that reads it loses nothing more.
        lost += not answer["ok"] and (not stopped or script is varies)
        following = None if answer["ok"] or state != "continue" else script(answer, number)
        if following is None:
            state = "answered" if answer["ok"] else "told to stop" if state == "continue" else state
            break
    wire = json.loads(common.get(tool_port, "/report"))["outage"] - before
    return {"model": name, "lost": lost, "wire": wire, "state": state, "told": folded(told)}


def folded(told):
    """`a, a, a, b` as `3 × a, b`."""
    out = []
    for one in told:
        if out and out[-1][1] == one:
            out[-1][0] += 1
        else:
            out.append([1, one])
    return [one if times == 1 else f"{times} × {one}" for times, one in out]


def rounds(program):
    """Each model before a gateway of its own, whose circuit has seen nothing yet."""
    policy, found = (common.HERE / "policies" / "rounds.yaml").read_text(), []
    for name, script, judged in MODELS:
        dead = alive = gateway = None
        with common.folder("rounds") as work:
            try:
                dead, dead_port = common.start_tool(100)
                alive, alive_port = common.start_instant_tool()
                common.request(dead_port, "POST", "/dead")
                marks = {"DEAD": f"127.0.0.1:{dead_port}", "ALIVE": f"127.0.0.1:{alive_port}"}
                gateway = common.Gateway(program, common.fill(policy, marks, work), work, store="memory")
                found.append({**play(name, script, gateway.data, dead_port), "judged": judged})
            finally:
                for process in (gateway and gateway.process, alive, dead):
                    common.stop(process)
    return found
