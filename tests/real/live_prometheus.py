"""A real Prometheus scrapes `checkrein demo` while its search breaks and heals: the shipped rules fire and end,
the dashboard's expressions answer, the exposition is clean. Loopback only; everything started here is ended here."""

import contextlib
import http.client
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
# Two tools of the demo, one that is always well and the one that can be switched.
STEADY, FLAKY = "check_order", "flaky_search"
# What the demo's own story leaves behind: a write whose reply was lost, and a tool that was too slow.
OF_THE_STORY = "flaky_search|send_notice|slow_report"


def binary():
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(parts.ROOT, "target"))
    return os.environ.get("CHECKREIN_BIN", os.path.join(target, "debug", "checkrein"))


@contextlib.contextmanager
def demo(folder):
    """Yields the ports of the data listener, the health listener and the demo's own tools, once its story is told."""
    process = parts.Process("demo", [binary(), "demo"], folder)
    lines = {"data": r"http://127.0.0.1:(\d+)/v1/tools\?", "tools": r"http://127.0.0.1:(\d+)/switch/",
             "health": r"http://127.0.0.1:(\d+)/metrics"}
    try:
        def ports():
            if process.died():
                raise SystemExit(f"the demo ended:\n{process.said()}")
            found = {name: re.search(line, process.said()) for name, line in lines.items()}
            return all(found.values()) and {name: int(match[1]) for name, match in found.items()}

        found = parts.wait_for("the demo's story is told", ports, 60)
        yield found["data"], found["health"], found["tools"]
    finally:
        code = process.end(patience=40)
        if code != 0:
            print(f"the demo ended with {code}:\n{process.said()[-3000:]}", file=sys.stderr)


def switch_search(tools_port, word):
    """Breaks the demo's search (`down`) or mends it (`up`)."""
    connection = http.client.HTTPConnection("127.0.0.1", tools_port, timeout=5)
    connection.request("POST", f"/switch/search/{word}")
    assert connection.getresponse().status == 200
    connection.close()


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
            for tool, arguments in ((STEADY, {"order_id": f"A{self.number}"}), (FLAKY, {"q": f"try {self.number}"})):
                answer = self.call(tool, arguments)
                outcome = answer.get("error", "ok")
                self.errors[tool, outcome] = self.errors.get((tool, outcome), 0) + 1

    def call(self, tool, arguments):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            # A run every twenty rounds: the budgets of one must not end before this does.
            headers = {"Content-Type": "application/json", "Checkrein-Run": f"live-{self.number // 20}"}
            connection.request("POST", f"/v1/tools/{tool}", json.dumps(arguments), headers)
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
        data, health, tools = started.enter_context(demo(folder))
        server = started.enter_context(prometheus(folder, health))
        callers = started.enter_context(Callers(data))
        exposition_is_clean(health)
        parts.wait_for("the gateway is scraped", lambda: [found for found in server.query("up == 1")], 20)
        parts.wait_for("calls are counted", lambda: server.query('sum(rate(checkrein_tool_calls_total{outcome="ok"}[10s])) > 0'), 20)
        parts.wait_for("the alert is quiet while the tool is well", lambda: not server.firing(ALERT), 30)

        switch_search(tools, "down")
        broken = time.monotonic()
        fired = parts.wait_for(f"{ALERT} fires", lambda: (one_state_each(health), server.firing(ALERT))[1], 30)
        assert [found["labels"]["tool"] for found in fired] == [FLAKY], fired
        print(f"{ALERT} fired {time.monotonic() - broken:.1f} s after the tool broke")
        dashboard_answers(server)

        switch_search(tools, "up")
        healed = time.monotonic()
        print(f"calls until then: {callers.errors}")
        parts.wait_for(f"{ALERT} ends", lambda: (one_state_each(health), not server.firing(ALERT))[1], 30)
        print(f"{ALERT} ended {time.monotonic() - healed:.1f} s after the tool healed")
        exposition_is_clean(health)
        # The failure ratio looks back five minutes and so outlives this run; nobody else may have a word to say.
        others = server.query(f'ALERTS{{alertstate="firing",tool!~"{OF_THE_STORY}"}}')
        assert not others, f"firing for a well tool or gateway: {others}"
        assert callers.errors.get((STEADY, "ok"), 0) > 50 and (STEADY, "circuit_open") not in callers.errors, callers.errors


if __name__ == "__main__":
    main()
