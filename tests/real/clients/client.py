"""What a program sees of httpbin at a base URL, by requests and by httpx: printed as JSON, to be compared."""

import json
import sys

import httpx
import requests

BASE = sys.argv[1]
AGENT = {"User-Agent": "client/1"}


def plain(answer):
    body = answer.content
    kind = answer.headers.get("content-type", "")
    if "json" in kind:
        body = answer.json()
        body = {key: value for key, value in body.items() if key not in ("headers", "origin", "url")}
    else:
        body = body.hex()
    return [answer.status_code, kind, body]


def requests_sees():
    session = requests.Session()
    session.headers.update(AGENT)
    yield "query", plain(session.get(f"{BASE}/get", params={"q": "a b&c", "n": ["1", "2"]}))
    yield "form", plain(session.post(f"{BASE}/post", data={"a": "1", "b": "ü"}))
    yield "json", plain(session.put(f"{BASE}/put", json={"a": [1, 2.5, None]}))
    yield "file", plain(session.post(f"{BASE}/post", files={"f": ("name.txt", b"abc", "text/plain")}))
    yield "chunked", plain(session.post(f"{BASE}/post", data=iter([b"one", b"two"])))
    yield "delete", plain(session.delete(f"{BASE}/delete"))
    yield "gzip", plain(session.get(f"{BASE}/gzip"))
    yield "redirects", plain(session.get(f"{BASE}/redirect/3"))
    yield "seen", [len(session.get(f"{BASE}/relative-redirect/2").history)]
    yield "status", plain(session.get(f"{BASE}/status/418"))
    with session.get(f"{BASE}/stream/4", stream=True) as stream:
        yield "stream", [json.loads(line)["id"] for line in stream.iter_lines()]
    with session.get(f"{BASE}/drip?duration=0.3&numbytes=9&delay=0", stream=True) as drip:
        yield "drip", [sum(len(piece) for piece in drip.iter_content(3))]


def httpx_sees():
    with httpx.Client(base_url=BASE, headers=AGENT, follow_redirects=True) as client:
        yield "query", plain(client.get("/get", params={"q": "a b&c"}))
        yield "json", plain(client.post("/post", json={"a": 1}))
        yield "chunked", plain(client.post("/post", content=iter([b"one", b"two"])))
        yield "head", [client.head("/get").status_code]
        yield "redirects", plain(client.get("/absolute-redirect/2"))
        yield "bytes", plain(client.get("/stream-bytes/3000?seed=7"))
        with client.stream("GET", "/stream/3") as stream:
            yield "stream", [json.loads(line)["id"] for line in stream.iter_lines()]


print(json.dumps({"requests": dict(requests_sees()), "httpx": dict(httpx_sees())}, indent=1, sort_keys=True))
