"""A real Prometheus scrapes a real gateway in front of a tool that breaks and heals: the shipped rules fire and end,
the dashboard's expressions answer, the exposition is clean. Loopback only; everything started here is ended here."""

import contextlib
import http.client
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse

import parts

RULES = os.path.join(parts.ROOT, "deploy", "prometheus", "rules.yaml")
DASHBOARD = os.path.join(parts.ROOT, "deploy", "grafana", "checkrein.json")
ALERT = "CheckreinBreakerOpen"
# Rows of the dashboard in which every panel must show something after this run.
MUST_SHOW = {"Summary", "Circuit breakers", "Calls", "Policy and process"}


class Tool(http.server.BaseHTTPRequestHandler):
    """Answers /steady always, /flaky only while it is well, takes every write."""

    well = True
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200 if self.path.startswith("/steady") or Tool.well else 500)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(200)

    def answer(self, status):
        body = b'{"ok":true}'
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass


@contextlib.contextmanager
def tool_server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tool)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def policy(tool_port):
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}

    def tool(path, **more):
        return {"description": f"The tool at {path}.", "schema": schema, "profile": "internal_rpc",
                "http": {"upstream": "shop", "method": "GET", "path": path}, "effect": "read",
                "retry": {"max_retries": 0}, "rate_limit": {"rate": "500/s", "burst": 500},
                "breaker": {"consecutive_failures": 2, "open_for": "1s", "open_max": "1s"}, **more}

    write = tool("/write", effect="write", http={"upstream": "shop", "method": "POST", "path": "/write"})
    del write["retry"]
    return json.dumps({
        "apiVersion": "checkrein/v1", "kind": "Policy", "name": "live",
        "upstreams": {"shop": {"base_url": f"http://127.0.0.1:{tool_port}", "addresses": ["loopback"]}},
        # one run asks all the time: its budgets must outlast it
        "runs": {"default": {"calls": 1_000_000, "failures": 1_000_000, "result_bytes": "1GiB", "argument_bytes": "1GiB"}},
        "tools": {"steady": tool("/steady"), "flaky": tool("/flaky"), "write": write},
        "agents": {"default": {"allow": ["steady", "flaky", "write"]}},
    })


def binary():
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(parts.ROOT, "target"))
    return os.environ.get("CHECKREIN_BIN", os.path.join(target, "debug", "checkrein"))


@contextlib.contextmanager
def gateway(folder, text):
    """Yields the ports of the data and the health listener."""
    with open(os.path.join(folder, "policy.yaml"), "w", encoding="utf-8") as file:
        file.write(text)
    ready = os.path.join(folder, "ready")
    process = parts.Process("checkrein", [binary(), "run", "--policy", os.path.join(folder, "policy.yaml"),
                                          "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0",
                                          "--ready-file", ready], folder)
    try:
        def addresses():
            if process.died():
                raise SystemExit(f"the gateway ended:\n{process.said()}")
            with contextlib.suppress(FileNotFoundError), open(ready, encoding="utf-8") as file:
                found = dict(line.strip().split("=", 1) for line in file if "=" in line)
                return found if {"data", "health"} <= found.keys() else None

        found = parts.wait_for("the gateway is ready", addresses, 20)
        yield tuple(int(found[name].rsplit(":", 1)[1]) for name in ("data", "health"))
    finally:
        code = process.end(patience=40)
        if code != 0:
            print(f"the gateway ended with {code}:\n{process.said()[-3000:]}", file=sys.stderr)


class Callers:
    """Asks every tool about twenty times a second until told to stop."""

    def __init__(self, port):
        self.port, self.stopped, self.errors, self.number = port, threading.Event(), {}, 0
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.stopped.set()
        self.thread.join()

    def run(self):
        while not self.stopped.wait(0.05):
            self.number += 1
            for tool in ("steady", "flaky", "write"):
                answer = self.call(tool, {"n": self.number})
                outcome = answer.get("error", "ok")
                self.errors[tool, outcome] = self.errors.get((tool, outcome), 0) + 1

    def call(self, tool, arguments):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", f"/v1/tools/{tool}", json.dumps(arguments), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


class Prometheus:
    def __init__(self, port):
        self.port = port

    def ask(self, path):
        status, body = parts.get(self.port, path, timeout=10)
        answer = json.loads(body)
        if status != 200 or answer.get("status") != "success":
            raise AssertionError(f"{path}: {status} {body[:500]!r}")
        return answer["data"]

    def query(self, expression):
        return self.ask("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))["result"]

    def firing(self, alert):
        return [found for found in self.ask("/api/v1/alerts")["alerts"]
                if found["labels"]["alertname"] == alert and found["state"] == "firing"]


@contextlib.contextmanager
def prometheus(folder, health_port):
    with open(RULES, encoding="utf-8") as file:
        # Seconds instead of minutes, and nothing else changed; that the shipped times are right is rules_test.yaml's.
        rules = re.sub(r"(?m)^(\s+for:) .*$", r"\1 2s", file.read())
    with open(os.path.join(folder, "rules.yaml"), "w", encoding="utf-8") as file:
        file.write(rules)
    config = os.path.join(folder, "prometheus.yaml")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                   "rule_files": ["rules.yaml"],
                   "scrape_configs": [{"job_name": "checkrein", "static_configs": [
                       {"targets": [f"127.0.0.1:{health_port}"], "labels": {"namespace": "test", "pod": "p1"}}]}]}, file)
    subprocess.run(["promtool", "check", "config", config], check=True, stdout=subprocess.DEVNULL)

    def command(port):
        return ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data{port}",
                f"--web.listen-address=127.0.0.1:{port}"]

    with parts.serving("prometheus", command, folder, parts.answers("/-/ready")) as (port, _):
        yield Prometheus(port)


def one_state_each(health_port):
    """In every scrape exactly one state of a breaker is 1."""
    text = parts.get(health_port, "/metrics")[1].decode()
    sums = {}
    for name, who, value in re.findall(r'^checkrein_(upstream_)?breaker_state\{[^}]*(?:tool|upstream)="([^"]*)"[^}]*\} (\S+)$',
                                       text, re.M):
        sums[name, who] = sums.get((name, who), 0) + float(value)
    assert sums, "no breaker_state in the scrape"
    wrong = {who: total for who, total in sums.items() if total != 1}
    assert not wrong, f"not exactly one state: {wrong}"


def exposition_is_clean(health_port):
    status, text = parts.get(health_port, "/metrics")
    assert status == 200, status
    judged = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    said = (judged.stdout + judged.stderr).decode()
    assert judged.returncode == 0 and not said.strip(), f"promtool check metrics: {judged.returncode}\n{said}"


def dashboard_answers(server):
    with open(DASHBOARD, encoding="utf-8") as file:
        dashboard = json.load(file)
    row, empty, asked = None, [], 0
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "10s")
            expression = re.sub(r"\$(namespace|pod|tool)\b", ".*", expression)
            asked += 1
            if not server.query(expression):
                empty.append((row, panel["title"]))
    for annotation in dashboard["annotations"]["list"]:
        server.query(annotation["expr"])
    missing = [title for title in empty if title[0] in MUST_SHOW]
    assert not missing, f"panels that show nothing: {missing}"
    print(f"dashboard: {asked} expressions answer; nothing to show in this run: {[title for _, title in empty]}")


def main():
    parts.raise_on_term()
    with contextlib.ExitStack() as started:
        folder = started.enter_context(parts.temporary("prometheus"))
        data, health = started.enter_context(gateway(folder, policy(started.enter_context(tool_server()))))
        server = started.enter_context(prometheus(folder, health))
        callers = started.enter_context(Callers(data))
        exposition_is_clean(health)
        parts.wait_for("the gateway is scraped", lambda: [found for found in server.query("up == 1")], 20)
        parts.wait_for("calls are counted", lambda: server.query('sum(rate(checkrein_tool_calls_total{outcome="ok"}[10s])) > 0'), 20)
        assert not server.firing(ALERT), "the alert fires on a well tool"

        Tool.well, broken = False, time.monotonic()
        fired = parts.wait_for(f"{ALERT} fires", lambda: (one_state_each(health), server.firing(ALERT))[1], 30)
        assert [found["labels"]["tool"] for found in fired] == ["flaky"], fired
        print(f"{ALERT} fired {time.monotonic() - broken:.1f} s after the tool broke")
        dashboard_answers(server)

        Tool.well, healed = True, time.monotonic()
        print(f"calls until then: {callers.errors}")
        parts.wait_for(f"{ALERT} ends", lambda: (one_state_each(health), not server.firing(ALERT))[1], 30)
        print(f"{ALERT} ended {time.monotonic() - healed:.1f} s after the tool healed")
        exposition_is_clean(health)
        # The failure ratio looks back five minutes and so outlives this run; nobody else may have a word to say.
        others = server.query('ALERTS{alertstate="firing",tool!="flaky"}')
        assert not others, f"firing for a well tool or gateway: {others}"
        assert callers.errors.get(("steady", "ok"), 0) > 50 and ("steady", "circuit_open") not in callers.errors, callers.errors


if __name__ == "__main__":
    main()
