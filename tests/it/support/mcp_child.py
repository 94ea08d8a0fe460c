"""An MCP server on its standard streams that misbehaves on demand. Standard library alone; what it does is its
arguments: `era=legacy|modern`, and faults by name. Every effect is one line in the file `effects`."""

import json
import os
import signal
import subprocess
import sys
import time

NESTED = "[" * 100000 + "]" * 100000
CAPABILITIES = {"tools": {}, "resources": {"subscribe": True}}
asked = dict(word.partition("=")[::2] for word in sys.argv[1:])

# Questions of the era that are not answered yet.
late = []


def put(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def send(message):
    put(json.dumps(message, ensure_ascii=False) + "\n")


def note(name, text):
    """One line in a file that a test reads."""
    if name in asked:
        with open(asked[name], "a", encoding="utf-8") as file:
            file.write(text + "\n")


def fail(ident, code, message="no"):
    send({"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": message}})


def begin():
    note("started", str(os.getpid()))
    if "deaf" in asked:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "grandchild" in asked:
        # Ignores SIGTERM, holds no pipe, and says which process it is.
        code = "import signal,time;signal.signal(signal.SIGTERM,signal.SIG_IGN);time.sleep(600)"
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        away = asked["grandchild"] == "away"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=away, **options)
        note("started", str(child.pid))
    if "banner" in asked:
        put("Server listening\n\nINFO ready\n{\"jsonrpc\": \"2.0\", \"me\n\x00\x7f\n[1]\n")
    if "stderr" in asked:
        sys.stderr.write("e" * int(asked["stderr"]))
        sys.stderr.write("\nlast words\n")
        sys.stderr.flush()


def discover(ident):
    how = asked.get("discover", "")
    if how == "silent":
        return
    if how == "late":
        # Answered in order, once the next question is there.
        return late.append(ident)
    if how == "exit":
        os._exit(3)
    if how == "null":
        return fail(None, -32600)
    if how:
        return fail(ident, int(how))
    if asked.get("era", "legacy") == "legacy":
        return fail(ident, -32601)
    discovered(ident)


def discovered(ident):
    result = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "ttlMs": 0,
              "cacheScope": "private", "resultType": "complete"}
    send({"jsonrpc": "2.0", "id": ident, "result": result})


def initialize(ident, params):
    if "mute" in asked:
        return
    if late:
        discovered(late.pop())
        return fail(ident, -32022)
    result = {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES,
              "serverInfo": {"name": "child", "version": "1"}}
    send({"jsonrpc": "2.0", "id": ident, "result": result})


def tools(ident):
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    names = ["echo", "effect", "die_before", "die_after", "slow", "long", "endless", "environment", "stop_reading",
             "half", "progress", "ask", "count", "close", "touch", "deep"] + (["task"] if "tasks" in asked else [])
    listed = [{"name": name, "description": name, "inputSchema": schema} for name in names]
    result = json.dumps({"tools": listed, "resultType": "complete"})
    if "deep" in asked:
        bad = '{"name": "too_deep", "inputSchema": {"type": "object", "x": %s}}' % NESTED
        result = result.replace("[{", "[%s, {" % bad, 1)
    put('{"jsonrpc": "2.0", "id": %s, "result": %s}\n' % (json.dumps(ident), result))


def task(status, **more):
    return dict({"resultType": "complete", "taskId": "t-1", "status": status, "ttlMs": 60000, "pollIntervalMs": 50,
                 "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z"}, **more)


def asked_of_task(ident, params):
    """Working for as often as `tasks=` says, then done."""
    global count
    note("effects", "asked of " + params["taskId"])
    count += 1
    result = {"content": [{"type": "text", "text": "made by a child"}], "isError": False}
    done = count > int(asked["tasks"])
    send({"jsonrpc": "2.0", "id": ident, "result": task("completed", result=result) if done else task("working")})


waiting = {}
listens = []
count = 0


def call(ident, params):
    global count
    name, text = params["name"], params["arguments"].get("text", "")

    def answer(told):
        content = [{"type": "text", "text": told}]
        send({"jsonrpc": "2.0", "id": ident, "result": {"content": content, "resultType": "complete"}})

    if name == "die_before":
        os._exit(4)
    if name not in ("echo", "count", "environment", "touch"):
        note("effects", name + " " + text)
    if name == "die_after":
        os._exit(5)
    if name == "slow":
        waiting[ident] = answer
        return
    if name == "half":
        put('{"jsonrpc": "2.0", "id": %d, "resu' % ident)
        os._exit(6)
    if name == "endless":
        while True:
            put("x" * 65536)
    if name == "long":
        put("y" * int(text) + "\n")
    if name == "environment":
        return answer(json.dumps({"env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv[1:]}))
    if name == "stop_reading":
        answer("deaf from now on")
        time.sleep(600)
    if name == "count":
        count += 1
        return answer(str(count))
    if name == "close":
        answer("bye")
        os.close(1)
        time.sleep(600)
    if name == "progress":
        token = params.get("_meta", {}).get("progressToken")
        told = {"progressToken": token, "progress": 1}
        send({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})
    if name == "task":
        return send({"jsonrpc": "2.0", "id": ident, "result": dict(task("working"), resultType="task")})
    if name == "touch":
        told = {"uri": text}
        for listen in listens or [None]:
            if listen is not None:
                told["_meta"] = {"io.modelcontextprotocol/subscriptionId": listen}
            send({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": told})
    if name == "deep":
        return put('{"jsonrpc": "2.0", "result": {"content": %s}, "id": %s}\n' % (NESTED, json.dumps(ident)))
    if name == "ask":
        waiting["question"] = answer
        send({"jsonrpc": "2.0", "id": "q\u00e9", "method": text, "params": {}})
        return
    answer(text)


def heard(message):
    method, ident = message.get("method"), message.get("id")
    note("heard", method or "answer")
    if method == "server/discover":
        discover(ident)
    elif method == "initialize":
        initialize(ident, message["params"])
    elif method == "tools/list":
        tools(ident)
    elif method == "tools/call":
        call(ident, message["params"])
    elif method == "tasks/get" and "tasks" in asked:
        asked_of_task(ident, message["params"])
    elif method in ("resources/subscribe", "resources/unsubscribe"):
        note("effects", method + " " + message["params"]["uri"])
        send({"jsonrpc": "2.0", "id": ident, "result": {}})
    elif method == "subscriptions/listen":
        wanted = message["params"]["notifications"]
        note("effects", method + " " + " ".join(wanted.get("resourceSubscriptions", [])))
        if "resourceSubscriptions" in wanted:
            listens.append(ident)
        params = {"notifications": wanted, "_meta": {"io.modelcontextprotocol/subscriptionId": ident}}
        send({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
    elif method == "notifications/cancelled":
        if message["params"]["requestId"] in listens:
            listens.remove(message["params"]["requestId"])
        gone = waiting.pop(message["params"]["requestId"], None)
        if gone:
            gone("taken back")
    elif method is None and "question" in waiting:
        told = message.get("result", message.get("error"))
        waiting.pop("question")(json.dumps([message["id"], told]))
    elif ident is not None:
        fail(ident, -32601)


begin()
while line := sys.stdin.readline():
    heard(json.loads(line))
while "deaf" in asked:
    time.sleep(1)
note("started", "bye")
