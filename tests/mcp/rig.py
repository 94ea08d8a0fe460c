"""What the scripts of this folder share: where the parts are, how a fixture or a server is started, and the one seam to
the gateway. Standard library only."""

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "real"))

import parts  # noqa: E402  (the folder is known only now)

GATEWAY_WITHIN = 30  # seconds until `checkrein run` is ready
STEP_WITHIN = 180  # seconds for one client or framework run


def installed(path, part):
    found = os.path.join(parts.PARTS, path)
    if not os.path.exists(found):
        raise SystemExit(f"{part} is not installed: tests/mcp/install {part}")
    return found


def python(environment):
    return installed(f"{environment}/bin/python", environment)


def beside(part, folder, name):
    """A copy of a script of ours in the folder of a part: an ES module finds packages only beside itself."""
    home = os.path.join(installed(part, part), "checkrein")
    os.makedirs(home, exist_ok=True)
    for file in os.listdir(os.path.join(HERE, folder)):
        if file.endswith(".mjs"):
            target = os.path.join(home, file)
            shutil.copyfile(os.path.join(HERE, folder, file), f"{target}.{os.getpid()}")
            os.replace(f"{target}.{os.getpid()}", target)
    return os.path.join(home, name)


def node_bin(part, package, script):
    """The argv that starts the script of an npm package with our Node."""
    return [parts.node(), installed(f"{part}/node_modules/{package}/{script}", part)]


def environment(**more):
    """What a child gets: our Node first on the path, no colours, and a home of its own where one is named."""
    path = os.path.dirname(parts.node()) + os.pathsep + os.environ.get("PATH", "")
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}


def mcp_answers(port):
    """True once something speaks HTTP there: any status is an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/mcp", headers={"accept": "text/event-stream"})
        return connection.getresponse().status > 0
    finally:
        connection.close()


@contextlib.contextmanager
def serving(name, command, folder, env=None):
    """Starts `command(port)` and yields the URL of its MCP endpoint once it answers."""
    with parts.serving(name, command, folder, mcp_answers, env) as (port, _):
        yield f"http://127.0.0.1:{port}/mcp"


def fixture(era, folder):
    """The fixture server of an era: `legacy` or `modern`."""
    script = beside("sdk", "fixture", f"{era}.mjs")
    return serving(f"fixture-{era}", lambda port: [parts.node(), script, str(port)], folder)


# ── the seam to the gateway ────────────────────────────────────────────────────────────────────────────────────
def binary():
    """CHECKREIN_BIN, or what cargo built in this folder."""
    named = os.environ.get("CHECKREIN_BIN")
    found = [named] if named else [os.path.join(ROOT, "target", kind, "checkrein") for kind in ("debug", "release")]
    for path in found:
        if os.access(path, os.X_OK):
            return path
    raise SystemExit(f"no checkrein at {' or '.join(found)}: cargo build, or set CHECKREIN_BIN")


def policy(name, folder, **places):
    """policies/NAME.yaml with each @PLACE@ filled in, written into the folder."""
    with open(os.path.join(HERE, "policies", f"{name}.yaml"), encoding="utf-8") as file:
        text = file.read()
    unfilled = set(re.findall(r"@([A-Z_]+)@", text)) - set(places)
    if unfilled:
        raise SystemExit(f"policies/{name}.yaml has places that nobody fills: {unfilled}")
    text = re.sub(r"@([A-Z_]+)@", lambda place: str(places[place[1]]), text)
    path = os.path.join(folder, f"{name}.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def rpc(url, message, session=None):
    """One JSON-RPC message of revision 2025-11-25: (session id, the answer's result or None). No SDK: the scripts' own eyes."""
    host, path = url.removeprefix("http://").split("/", 1)
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream",
               "mcp-protocol-version": "2025-11-25", **({"mcp-session-id": session} if session else {})}
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.request("POST", f"/{path}", json.dumps({"jsonrpc": "2.0", **message}), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        events = [line[5:] for line in text.splitlines() if line.startswith("data:")] or [text]
        found = [json.loads(event) for event in events if event.strip()]
        results = [one["result"] for one in found if "result" in one]
        return answer.getheader("mcp-session-id") or session, results[-1] if results else None
    finally:
        connection.close()


def opened(url):
    """A session of its own."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "checkrein-rig", "version": "1"}}
    session, _ = rpc(url, {"id": 1, "method": "initialize", "params": hello})
    rpc(url, {"method": "notifications/initialized"}, session)
    return session


def answers_well(url, tool, arguments):
    """Whether one call, in a session of its own, succeeds."""
    _, result = rpc(url, {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}, opened(url))
    return result is not None and not result.get("isError")


def listed(url):
    """The names of the tools that an endpoint lists."""
    session = opened(url)
    names, cursor = set(), None
    while True:
        _, page = rpc(url, {"id": 2, "method": "tools/list", "params": {"cursor": cursor} if cursor else {}}, session)
        names |= {tool["name"] for tool in (page or {}).get("tools", [])}
        cursor = (page or {}).get("nextCursor")
        if not cursor:
            return names


class Gateway:
    """A running `checkrein run`: where agents reach it, and what it says of itself."""

    def __init__(self, process, ready):
        lines = dict(line.split("=", 1) for line in ready.splitlines() if "=" in line)
        self.process = process
        self.url = f"http://{lines['data']}/mcp"
        self.health = lines["health"]

    def with_tools(self, *some):
        """Itself, once it lists these tools: it starts without waiting for its servers, as it should."""
        try:
            parts.wait_for("tools of the gateway", lambda: set(some) <= listed(self.url), GATEWAY_WITHIN)
        except TimeoutError:
            missing = set(some) - listed(self.url)
            raise SystemExit(f"the gateway does not list {missing}:\n{self.process.said()[-4000:]}") from None
        return self

    def metric(self, series):
        """The sum of all series whose name and labels begin so."""
        host, port = self.health.rsplit(":", 1)
        status, body = parts.get(int(port), "/metrics")
        if status != 200 or not host:
            raise SystemExit(f"no metrics: {status}")
        lines = [line for line in body.decode().splitlines() if line.startswith(series)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@contextlib.contextmanager
def gateway(policy_path, folder, *flags):
    """`checkrein run` with this policy on a free port of its own choosing; ended with the block."""
    state, ready = os.path.join(folder, "state"), os.path.join(folder, "ready")
    os.makedirs(state, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.remove(ready)
    command = [binary(), "run", "--policy", policy_path, "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0",
               "--state", state, "--ready-file", ready, *flags]
    process = parts.Process("gateway", command, folder)

    def is_ready():
        if process.died():
            raise SystemExit(f"the gateway ended with {process.child.returncode}:\n{process.said()[-4000:]}")
        if not os.path.exists(ready):
            return False
        with open(ready, encoding="utf-8") as file:
            said = file.read()
        return said if "data=" in said and "health=" in said else False

    try:
        yield Gateway(process, parts.wait_for("the gateway", is_ready, GATEWAY_WITHIN))
    finally:
        process.end()


# ── running and telling ────────────────────────────────────────────────────────────────────────────────────────
def run(command, within=STEP_WITHIN, env=None, cwd=None):
    """(exit status, stdout, stderr); a command that does not end is killed with its group and counts as 124."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             errors="replace", env=env or environment(), cwd=cwd, start_new_session=True)
    try:
        out, err = child.communicate(timeout=within)
        return child.returncode, out, err
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        out, err = child.communicate()
        return 124, out, err + f"\nnot within {within} s"


class Report:
    """Checks, told as they come; the exit status at the end says whether all held."""

    def __init__(self, as_json=False):
        self.as_json, self.checks, self.began = as_json, [], time.monotonic()

    def say(self, line=""):
        print(line, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def check(self, what, held, saw=""):
        self.checks.append({"check": what, "held": bool(held), "saw": str(saw)})
        self.say(f"  {'ok    ' if held else 'FAILED'} {what}" + (f": {saw}" if saw and not held else ""))
        return held

    def done(self, **more):
        broken = [check["check"] for check in self.checks if not check["held"]]
        took = round(time.monotonic() - self.began, 1)
        self.say(f"{len(self.checks) - len(broken)} of {len(self.checks)} checks held, {took} s")
        for name in broken:
            self.say(f"  failed: {name}")
        if self.as_json:
            print(json.dumps({"checks": self.checks, "failed": broken, "seconds": took, **more}, indent=1))
        return 1 if broken else 0
