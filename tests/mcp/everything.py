"""server-everything over HTTP: the server that clients and frameworks are tried with."""

import contextlib

import rig


def npm(name, *arguments):
    """The argv of a Node server of the parts."""
    return [*rig.node_bin("node-servers", f"@modelcontextprotocol/server-{name}", "dist/index.js"), *arguments]


@contextlib.contextmanager
def everything_over_http(folder):
    """Yields its URL. It takes its port from the environment; a lost race for the port is run once more."""
    for last_try in (False, True):
        port = rig.parts.free_port()
        process = rig.parts.Process("everything", npm("everything", "streamableHttp"), folder, {"PORT": str(port)})
        try:
            rig.parts.wait_for("server-everything", lambda: not process.died() and rig.mcp_answers(port))
            break
        except TimeoutError:
            said = process.said()
            process.end()
            if last_try:
                raise SystemExit(said[-2000:]) from None
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.end()
