"""A stdio server whose reply can be lost: passes both ways, and when the flag file exists, lets the server carry the named
call out and then discards its answer, or dies with it.

usage: losing.py FLAG JOURNAL -- COMMAND…
FLAG     a file `discard TOOL` or `die TOOL`; taken away once it was done
JOURNAL  gets one line for each tools/call that reached the server: the count that nobody can argue with"""

import json
import os
import subprocess
import sys
import threading


def asked(flag):
    try:
        with open(flag, encoding="utf-8") as file:
            return tuple(file.read().split())
    except FileNotFoundError:
        return None


def inwards(child, journal, calls):
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message.get("method") == "tools/call":
            calls[json.dumps(message["id"])] = message["params"]["name"]
            with open(journal, "a", encoding="utf-8") as file:
                file.write(json.dumps(message["params"], sort_keys=True) + "\n")
        child.stdin.write(line)
        child.stdin.flush()
    child.stdin.close()


def outwards(child, flag, calls):
    for line in child.stdout:
        message = json.loads(line)
        tool = calls.pop(json.dumps(message.get("id")), None) if "method" not in message else None
        for how in ("discard", "die"):
            if tool and asked(flag) == (how, tool):
                os.remove(flag)
                if how == "discard":
                    break
                child.kill()
                child.wait()
                os._exit(1)
        else:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def main(arguments):
    at = arguments.index("--")
    flag, journal = arguments[:at]
    calls = {}
    child = subprocess.Popen(arguments[at + 1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    threading.Thread(target=inwards, args=(child, journal, calls), daemon=True).start()
    outwards(child, flag, calls)
    os._exit(child.wait())


if __name__ == "__main__":
    main(sys.argv[1:])
