"""Started by the conformance suite with the URL of its server as last argument: drives the official client against it,
with a gateway in between where --gateway is said."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import rig  # noqa: E402


# No tools there, or none that is exposed: its schema refers to the network. A list waits for the server all the same.
WITHOUT_TOOLS = ("initialize", "request-metadata", "json-schema-ref-no-deref")


def main(arguments):
    url = arguments[-1]
    command = [rig.parts.node(), rig.beside("sdk", "drivers", "conformance_client.mjs")]
    if "--gateway" not in arguments:
        os.execve(command[0], [*command, url], rig.environment())
    with rig.parts.temporary("client") as folder:
        with rig.gateway(rig.policy("any", folder, URL=url), folder) as gateway:
            if os.environ.get("MCP_CONFORMANCE_SCENARIO") not in WITHOUT_TOOLS:
                rig.parts.wait_for("a tool", lambda: rig.listed(gateway.url))
            status, out, err = rig.run([*command, gateway.url], within=30)
            sys.stdout.write(out)
            sys.stderr.write(err + gateway.process.said()[-2000:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
