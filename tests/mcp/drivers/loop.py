"""What the scripted loops share. usage of each: loop_NAME.py URL [TOOL JSON_ARGUMENTS]…
The model is a script: it asks for the calls in order and then says `done`. Each prints `TOOL_RESULT` and, as JSON, what the
model would read, one line a call; then `FINAL` and the last words."""

import json
import sys

URL, CALLS = sys.argv[1], list(zip(sys.argv[2::2], sys.argv[3::2]))


def parsed():
    return [(tool, json.loads(given)) for tool, given in CALLS]


def told(value):
    print("TOOL_RESULT", json.dumps(value, default=str, ensure_ascii=False))


def final(words):
    print("FINAL", words)
