#!/usr/bin/env python3
"""Side-by-side performance rig for HTTP and MCP proxies on one small machine.

  rig.py http  --peer NAME[=COMMAND:PORT[/PATH]] ...   tool calls over HTTP
  rig.py mcp   --peer NAME[=COMMAND:PORT[/PATH]] ...   MCP tools/call
  rig.py instr --peer NAME[=COMMAND:PORT[/PATH]] ...   user-space instructions a request

A peer is either a name from peers.json or NAME=COMMAND:PORT. See README.md.
"""

import argparse
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TICK = os.sysconf("SC_CLK_TCK")
BODY_HTTP = json.dumps(
    {
        "order_id": "ord-@@@@@@@@@@",
        "region": "eu-central-1",
        "limit": 25,
        "note": "look the order up and give back its state, carrier and expected day of delivery for the customer",
        "fields": ["state", "carrier", "eta"],
    }
)
HEADERS_HTTP = (
    "authorization: Bearer rig-agent-token;;x-agent-id: rig-agent;;x-run-id: run-0001;;"
    "accept: application/json;;user-agent: perf-rig/1"
)


# ---------------------------------------------------------------- processes


def children(pid):
    """pid and every process under it."""
    out, todo = [], [pid]
    while todo:
        p = todo.pop()
        out.append(p)
        try:
            for t in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{t}/children") as f:
                    todo += [int(c) for c in f.read().split()]
        except OSError:
            pass
    return out


def cpu_seconds(pid):
    """CPU time of a process tree: nanosecond run time where the kernel keeps it."""
    total = 0.0
    for p in children(pid):
        try:
            ns = 0
            for t in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{t}/schedstat") as f:
                    ns += int(f.read().split()[0])
            if ns == 0:
                raise OSError
            total += ns / 1e9
        except OSError:
            try:
                with open(f"/proc/{p}/stat") as f:
                    v = f.read().rsplit(")", 1)[1].split()
                total += (int(v[11]) + int(v[12])) / TICK
            except OSError:
                pass
    return total


def memory(pid, field):
    """Sum of VmRSS or VmHWM over a process tree, MiB (shared pages count once a process)."""
    kb = 0
    for p in children(pid):
        try:
            with open(f"/proc/{p}/status") as f:
                m = re.search(field + r":\s+(\d+)", f.read())
            kb += int(m.group(1)) if m else 0
        except OSError:
            pass
    return kb / 1024


def threads(pid):
    n = 0
    for p in children(pid):
        try:
            n += len(os.listdir(f"/proc/{p}/task"))
        except OSError:
            pass
    return n


def stop(proc, grace=3.0):
    """Ends a process tree that this rig started: by id, nothing else."""
    pids = children(proc.pid)
    for sig, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 3.0)):
        for p in pids:
            try:
                os.kill(p, sig)
            except OSError:
                pass
        end = time.monotonic() + wait
        while time.monotonic() < end:
            proc.poll()
            if not any(os.path.exists(f"/proc/{p}/task") and alive(p) for p in pids):
                return
            time.sleep(0.02)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def pinned(core, argv):
    return argv if core is None or core == "" else ["taskset", "-c", str(core), *argv]


# -------------------------------------------------------------------- peers


def merged(*blocks):
    """Header blocks 'k: v;;k2: v2' as one dict; later ones win."""
    out = {}
    for b in blocks:
        for h in b.split(";;"):
            if ": " in h:
                k, v = h.split(": ", 1)
                out[k.strip().lower()] = v.strip()
    return out


def flat(headers):
    return ";;".join(f"{k}: {v}" for k, v in headers.items())


MCP_ACCEPT = "accept: application/json, text/event-stream"


class Peer:
    def __init__(self, spec, known, args):
        name, _, rest = spec.partition("=")
        self.name = name
        entry = {}
        if rest:
            m = re.match(r"(?s)(.*):(\d+)(/\S*)?$", rest)
            if not m:
                raise SystemExit(f"peer {name}: expected COMMAND:PORT[/PATH], got {rest!r}")
            entry = {"command": m.group(1), "port": int(m.group(2)), "path": m.group(3) or ""}
        elif name in known:
            entry = known[name]
        elif name != "direct":
            raise SystemExit(f"peer {name}: not in peers.json (known: {', '.join(sorted(known))})")
        self.direct = name == "direct"
        self.command = entry.get("command", "")
        self.port = int(entry.get("port", args.upstream_port))
        self.path = entry.get("path", "/mcp" if args.mode == "mcp" else "")
        self.setup = entry.get("setup", "")
        self.env = entry.get("env", {})
        self.wait = float(entry.get("wait", 60))
        self.headers = entry.get("headers", "")
        self.envelope = entry.get("envelope", False)  # the tool's reply comes inside another one
        self.args = args
        self.proc = None

    def fill(self, text, work):
        up = f"127.0.0.1:{self.args.upstream_port}"
        table = {
            "PORT": str(self.port),
            "UPSTREAM": up,
            "UPSTREAM_HOST": "127.0.0.1",
            "UPSTREAM_PORT": str(self.args.upstream_port),
            "WORK": work,
            "RIG": str(HERE),
            "BIN": str(self.args.bin),
        }

        def one(m):
            key = m.group(1)
            if key.startswith("CONF:"):
                src = HERE / "configs" / key[5:]
                dst = Path(work) / key[5:]
                dst.write_text(self.fill(src.read_text(), work))
                return str(dst)
            if key.startswith("ENV:"):
                var, _, default = key[4:].partition("|")
                return os.environ.get(var, default)
            return table[key]

        return re.sub(r"@((?:CONF:[\w.-]+|ENV:\w+(?:\|[^@]*)?|[A-Z_]+))@", one, text)

    def start(self, work):
        """Starts the peer and waits until a request through it succeeds. Returns seconds."""
        os.makedirs(work, exist_ok=True)
        argv = pinned(self.args.pin_proxy, shlex.split(self.fill(self.command, work)))
        env = dict(os.environ, **{k: self.fill(v, work) for k, v in self.env.items()})
        log = open(f"{work}/log", "wb")
        t0 = time.monotonic()
        self.proc = subprocess.Popen(argv, stdout=log, stderr=log, cwd=work, env=env, start_new_session=True)
        while True:
            try:
                s = socket.create_connection(("127.0.0.1", self.port), 0.5)
                s.close()
                if self.setup or self.args.mode == "mcp":
                    break
                if self.one_request():
                    break
            except OSError:
                pass
            if self.proc.poll() is not None or time.monotonic() - t0 > self.wait:
                tail = Path(f"{work}/log").read_text(errors="replace")[-2000:]
                stop(self.proc)
                raise RuntimeError(f"{self.name} did not start: {tail}")
            time.sleep(0.001)
        if self.setup:
            # A set-up command may leave headers for the rig's requests in WORK/headers.
            subprocess.run(self.fill(self.setup, work), shell=True, check=True, cwd=work, env=env, stdout=log, stderr=log)
            if os.path.exists(f"{work}/headers"):
                self.headers = Path(f"{work}/headers").read_text().strip()
        if self.args.mode == "mcp":
            while not self.mcp_ready():
                if self.proc.poll() is not None or time.monotonic() - t0 > self.wait:
                    tail = Path(f"{work}/log").read_text(errors="replace")[-2000:]
                    stop(self.proc)
                    raise RuntimeError(f"{self.name} did not become ready: {tail}")
                time.sleep(0.02)
        return time.monotonic() - t0

    def one_request(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        h = merged(HEADERS_HTTP, "content-type: application/json", self.headers)
        try:
            c.request("POST", self.path + "/small", BODY_HTTP, h)
            return c.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            c.close()

    # MCP -------------------------------------------------------------------

    def rpc(self, payload, session=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        h = merged(HEADERS_HTTP, "content-type: application/json", MCP_ACCEPT, self.headers)
        if session:
            h["mcp-session-id"] = session
            h["mcp-protocol-version"] = "2025-06-18"
        try:
            c.request("POST", self.path, json.dumps(payload), h)
            r = c.getresponse()
            sid = r.getheader("mcp-session-id")
            text = ""
            if (r.getheader("content-type") or "").startswith("text/event-stream"):
                while True:  # the first data event that is a reply
                    line = r.readline().decode()
                    if not line:
                        break
                    if line.startswith("data:") and line[5:].strip():
                        msg = json.loads(line[5:])
                        if "result" in msg or "error" in msg:
                            return r.status, sid, msg
                return r.status, sid, None
            text = r.read().decode()
            return r.status, sid, json.loads(text) if text.strip() else None
        finally:
            c.close()

    def session(self):
        st, sid, msg = self.rpc(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "perf-rig", "version": "1"},
                },
            }
        )
        if st != 200 or not msg or "result" not in msg:
            raise RuntimeError(f"initialize: {st} {msg}")
        self.rpc({"jsonrpc": "2.0", "method": "notifications/initialized"}, sid)
        return sid

    def tool(self, sid):
        st, _, msg = self.rpc({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, sid)
        names = [t["name"] for t in (msg or {}).get("result", {}).get("tools", [])]
        for n in names:
            if n.endswith("lookup"):
                return n
        raise RuntimeError(f"tools/list: {st} {names}")

    def mcp_ready(self):
        try:
            return bool(self.tool(self.session()))
        except (OSError, RuntimeError, ValueError, http.client.HTTPException):
            return False


# --------------------------------------------------------------------- runs


def load(args, peer, upstream_pid, url, conns, secs, rate=None, body=None, headers="", header_file=None, expect_text=None, expect_len=None):
    cmd = [str(args.bin / "loadgen"), "--url", url, "--conns", str(conns), "--secs", str(secs), "--warm", str(args.warm)]
    cmd += ["--body", body, "--header", headers]
    if rate:
        cmd += ["--rate", str(rate)]
    if header_file:
        cmd += ["--header-file", header_file]
    if expect_text:
        cmd += ["--expect-text", expect_text]
    if expect_len:
        cmd += ["--expect-len", str(expect_len)]
    p = subprocess.Popen(pinned(args.pin_load, cmd), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    marks = []

    def sample():
        return (
            time.monotonic(),
            cpu_seconds(peer.proc.pid) if peer.proc else 0.0,
            cpu_seconds(upstream_pid) + cpu_seconds(p.pid),
        )

    def watch():
        for line in p.stderr:
            if line.startswith("measur"):
                marks.append(sample())

    t = threading.Thread(target=watch)
    t.start()
    out = p.stdout.read()
    p.wait()
    t.join()
    if p.returncode or len(marks) < 2:
        raise RuntimeError(f"loadgen failed for {peer.name}: {out}")
    r = json.loads(out)
    wall = marks[1][0] - marks[0][0]
    cpu = marks[1][1] - marks[0][1]
    done = r["ok"] + r["bad_status"] + r["bad_len"]
    r["cpu_us"] = cpu * 1e6 / done if done else float("nan")
    r["busy"] = cpu / wall
    r["load_busy"] = (marks[1][2] - marks[0][2]) / wall
    r["errors"] = r["bad_status"] + r["bad_len"] + r["io_errors"]
    return r


def start_upstream(args):
    cmd = pinned(args.pin_load, [str(args.bin / "upstream"), "--listen", f"127.0.0.1:{args.upstream_port}"])
    p = subprocess.Popen(cmd)
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", args.upstream_port), 0.2).close()
            return p
        except OSError:
            time.sleep(0.01)
    raise SystemExit("upstream did not start")




def cases(args):
    """(key, path, conns, rate) of each measurement in one visit to a peer."""
    out = []
    for key in args.cases.split(","):
        m = re.fullmatch(r"(?:(\w+)/)?(?:c(\d+)|rate(\d+))", key)
        if not m:
            raise SystemExit(f"case {key!r}: expected small/c64, big/c1, c16, small/rate2000, rate500 …")
        path = "" if args.mode == "mcp" else "/" + (m.group(1) or "small")
        conns, rate = (int(m.group(2)), None) if m.group(2) else (args.rate_conns, int(m.group(3)))
        out.append((key, path, conns, rate))
    return out


def visit(args, peer, upstream_pid, round_no):
    """One start of one peer, every case once, then its end."""
    res = {"peer": peer.name, "round": round_no, "cases": {}}
    work = tempfile.mkdtemp(prefix=f"rig-{peer.name}-", dir=args.tmp)
    try:
        if not peer.direct:
            res["start_ms"] = peer.start(work) * 1000
            time.sleep(args.settle)
            res["idle_rss"] = memory(peer.proc.pid, "VmRSS")
            res["threads"] = threads(peer.proc.pid)
            exe = os.readlink(f"/proc/{peer.proc.pid}/exe")
            if "python" not in os.path.basename(exe):  # an interpreter's size says nothing
                res["binary_mib"] = os.path.getsize(exe) / 2**20
        for key, path, conns, rate in cases(args):
            kw = dict(conns=conns, secs=args.secs, rate=rate)
            if args.mode == "mcp":
                base = peer.path
                sids = [peer.session() for _ in range(conns)]
                name = peer.tool(sids[0])
                hf = f"{work}/sessions"
                Path(hf).write_text("\n".join(f"mcp-session-id: {s}" if s else "" for s in sids) + "\n")
                body = (
                    '{"jsonrpc":"2.0","id":@@@@@@@@@@,"method":"tools/call","params":{"name":"'
                    + name
                    + '","arguments":{"order_id":"ord-000017","region":"eu-central-1","limit":25,'
                    '"note":"look the order up and give back its state, carrier and day of delivery"}}}'
                )
                hdr = merged(HEADERS_HTTP, MCP_ACCEPT, "mcp-protocol-version: 2025-06-18", peer.headers)
                kw.update(body=body, headers=flat(hdr), header_file=hf, expect_text='abcdefghijklmnop')
                url = f"http://127.0.0.1:{peer.port}{base}"
            else:
                kw.update(body=BODY_HTTP, headers=flat(merged(HEADERS_HTTP, peer.headers)), 
                          **({"expect_text": "abcdefghijklmnop"} if peer.envelope else {"expect_len": {"/small": 1024, "/big": 65536}.get(path)}))
                url = f"http://127.0.0.1:{peer.port}{peer.path}{path}"
            res["cases"][key] = load(args, peer, upstream_pid, url, **kw)
        if peer.proc:
            res["peak_rss"] = memory(peer.proc.pid, "VmHWM")
    finally:
        if peer.proc:
            stop(peer.proc)
            peer.proc = None
        shutil.rmtree(work, ignore_errors=True)
    return res


def median(xs):
    xs = [x for x in xs if x is not None]
    return statistics.median(xs) if xs else float("nan")


def spread(xs):
    """Half the distance between the quartiles over the median, in per cent."""
    if len(xs) < 4:
        return (max(xs) - min(xs)) / 2 / median(xs) * 100 if xs and median(xs) else 0.0
    q = statistics.quantiles(xs, n=4)
    return (q[2] - q[0]) / 2 / q[1] * 100 if q[1] else 0.0


def report(args, results, names):
    keys = [k for k, *_ in cases(args)]
    by = {n: [r for r in results if r["peer"] == n] for n in names}
    base = by.get("direct") or []

    def col(n, key, field):
        return [r["cases"][key][field] for r in by[n] if key in r["cases"]]

    lines = []
    for key in keys:
        rows = []
        for n in names:
            if not by[n] or not col(n, key, "rps"):
                continue
            g = lambda f: median(col(n, key, f))
            d = lambda f: median([r["cases"][key][f] for r in base]) if base else 0.0
            added = n != "direct" and base
            cpu = g("cpu_us")
            rows.append(
                [
                    n,
                    f"{g('rps'):.0f}",
                    f"{spread(col(n, key, 'rps')):.1f}",
                    f"{cpu:.1f}" if n != "direct" else "-",
                    f"{spread(col(n, key, 'cpu_us')):.1f}" if n != "direct" else "-",
                    f"{1e6 / cpu:.0f}" if n != "direct" and cpu else "-",
                    f"{g('busy') * 100:.0f}",
                    f"{g('load_busy') * 100:.0f}",
                    f"{g('p50_us'):.0f}",
                    f"{g('p99_us'):.0f}",
                    f"{g('p999_us'):.0f}",
                    *([f"{g(f) - d(f):+.0f}" for f in ("p50_us", "p99_us", "p999_us")] if added else ["-"] * 3),
                    f"{sum(col(n, key, 'errors'))}",
                ]
            )
        lines.append(f"\n### {key}\n")
        lines += table(
            ["peer", "req/s", "±%", "CPU µs/req", "±%", "1e6/CPU", "proxy core %", "load core %", "p50 µs", "p99", "p99.9", "added p50", "added p99", "added p99.9", "errors"],
            rows,
        )
    for target in [t for t in args.ratio_to.split(",") if t]:
        rows = []
        for n in names:
            if n in ("direct", target) or not by[n]:
                continue
            row = [n]
            for key in keys:
                # Paired by round, which takes out what drifts between rounds. Repeated
                # invocations number their rounds anew, so pairs follow file order.
                xs = [
                    a["cases"][key]["cpu_us"] / b["cases"][key]["cpu_us"]
                    for a, b in zip(by[n], by.get(target, []))
                    if key in a["cases"] and key in b["cases"] and b["cases"][key]["cpu_us"]
                ]
                row.append(f"{median(xs):.2f} ({min(xs):.2f}–{max(xs):.2f})" if xs else "-")
            rows.append(row)
        lines.append(f"\n### CPU time a request over that of {target}: median (least–most) of paired rounds\n")
        lines += table(["peer", *keys], rows)
    rows = []
    for n in names:
        if n == "direct" or not by[n]:
            continue
        m = lambda f: median([r.get(f) for r in by[n]])
        rows.append([n, "-" if m("binary_mib") != m("binary_mib") else f"{m('binary_mib'):.1f}", f"{m('start_ms'):.0f}", f"{m('idle_rss'):.1f}", f"{m('peak_rss'):.1f}", f"{m('threads'):.0f}", str(len(by[n]))])
    lines.append("\n### footprint\n")
    lines += table(["peer", "binary MiB", "start to first reply ms", "idle RSS MiB", "peak RSS MiB", "threads", "runs"], rows)
    return "\n".join(lines)


def table(head, rows):
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return out + ["| " + " | ".join(r) + " |" for r in rows]


# ------------------------------------------------------------- instructions


def instr(args, peers):
    """User-space instructions a request, from the slope between two callgrind runs."""
    rows = []
    up = start_upstream(args)
    try:
        for peer in peers:
            if peer.direct:
                continue
            counts = []
            for n in args.instr_n:
                work = tempfile.mkdtemp(prefix=f"rig-cg-{peer.name}-", dir=args.tmp)
                plain, peer.wait = peer.command, max(peer.wait, 280)  # everything is some 50 times slower
                peer.command = f"valgrind --tool=callgrind --trace-children=yes --callgrind-out-file={work}/cg.%p {plain}"
                try:
                    peer.start(work)
                finally:
                    peer.command = plain
                cmd = [str(args.bin / "loadgen"), "--url", f"http://127.0.0.1:{peer.port}{peer.path}/small", "--conns", "4",
                       "--requests", str(n), "--body", BODY_HTTP, "--header", HEADERS_HTTP]
                r = json.loads(subprocess.run(pinned(args.pin_load, cmd), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
                stop(peer.proc, 60.0)  # callgrind writes its file at the end
                peer.proc = None
                total = 0
                for f in Path(work).glob("cg.*"):
                    m = re.search(r"(?m)^(?:totals|summary): (\d+)", f.read_text(errors="replace"))
                    total += int(m.group(1)) if m else 0
                counts.append((r["ok"], total))
            (n1, i1), (n2, i2) = counts
            rows.append([peer.name, f"{(i2 - i1) / (n2 - n1):.0f}", str(n1), str(n2)])
    finally:
        stop(up)
    return "\n".join(table(["peer", "user instructions/request", "requests, run 1", "run 2"], rows))


# --------------------------------------------------------------------- main


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("mode", choices=["http", "mcp", "instr"])
    ap.add_argument("--peer", action="append", default=[], required=True, help="NAME or NAME=COMMAND:PORT[/PATH]; repeat")
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--secs", type=float, default=3)
    ap.add_argument("--warm", type=float, default=0.5)
    ap.add_argument("--settle", type=float, default=0.3, help="idle seconds before the idle RSS is read")
    ap.add_argument("--cases", default="", help="e.g. small/c1,small/c64,big/c64,small/rate2000 (mcp: c1,c16,rate500); cN: N connections, "
                    "closed loop; rateN: N requests/s, open loop")
    ap.add_argument("--ratio-to", default="", help="also print CPU ratios to these peers, e.g. nginx-full,envoy-full")
    ap.add_argument("--rate-conns", type=int, default=32, help="connections of the open-loop cases")
    ap.add_argument("--pin-proxy", default="0", help="core(s) of the proxy; '' for none")
    ap.add_argument("--pin-load", default="1", help="core(s) of the load generator and the upstream")
    ap.add_argument("--upstream-port", type=int, default=9900)
    ap.add_argument("--bin", default=os.environ.get("RIG_BIN", str(HERE / "target/release")))
    ap.add_argument("--tmp", default=None)
    ap.add_argument("--peers-file", default=str(HERE / "peers.json"))
    ap.add_argument("--json", default="", help="append raw results to this file, one JSON line a visit")
    ap.add_argument("--from-json", action="store_true", help="only print the tables of the --json file")
    ap.add_argument("--instr-n", default="400,2400")
    ap.add_argument("--no-isolate", action="store_true", help="do not move into a network namespace with nothing but loopback")
    args = ap.parse_args()
    if not args.no_isolate and not args.from_json and os.geteuid() == 0 and "RIG_NETNS" not in os.environ:
        # Some peers can only listen on every address; here every address is loopback.
        os.environ["RIG_NETNS"] = "1"
        inner = 'ip link set lo up && exec "$@"'
        os.execvp("unshare", ["unshare", "-n", "sh", "-c", inner, "sh", sys.executable, *sys.argv])
    if not args.cases:
        args.cases = "c1,c16,c64" if args.mode == "mcp" else "small/c1,small/c16,small/c64,small/c256,big/c1,big/c64,small/rate2000"
    args.instr_n = [int(x) for x in args.instr_n.split(",")]
    args.bin = Path(args.bin)
    known = {k: v for k, v in json.loads(Path(args.peers_file).read_text()).items() if not k.startswith("_")}
    peers = [Peer(s, known, args) for s in args.peer]
    names = [p.name for p in peers]
    if args.mode == "instr":
        print(instr(args, peers))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    results = []
    if args.from_json:
        results = [json.loads(l) for l in Path(args.json).read_text().splitlines()]
    else:
        up = start_upstream(args)
        try:
            for i in range(args.runs):
                # Rotate, so that no peer always runs after the same neighbour.
                order = peers[i % len(peers):] + peers[: i % len(peers)]
                for p in order:
                    try:
                        r = visit(args, p, up.pid, i)
                    except (RuntimeError, OSError, subprocess.CalledProcessError) as e:
                        print(f"! {p.name} round {i}: {e}", file=sys.stderr)
                        continue
                    results.append(r)
                    if args.json:
                        with open(args.json, "a") as f:
                            f.write(json.dumps(r) + "\n")
                    print(f". {p.name} round {i} " + " ".join(f"{k}={v['rps']:.0f}" for k, v in r["cases"].items()), file=sys.stderr)
        finally:
            stop(up)
    print(report(args, results, names))


if __name__ == "__main__":
    main()
