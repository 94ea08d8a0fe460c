#!/usr/bin/env bash
# What curl sees of httpbin at a base URL: statuses and bodies, to be compared.
set -euo pipefail
base=$1
see() { # see NAME CURL-ARGUMENT…
  echo "── $1"
  shift
  curl -sS --max-time 20 -A client/1 -w '\n%{http_code} %{content_type} %{num_redirects}\n' "$@" |
    grep -v '"\(url\|origin\|Host\|Via\|Connection\|Accept-Encoding\|Expect\|Content-Length\|Transfer-Encoding\|Upgrade\|Http2-Settings\)":'
}
see query "$base/get?q=a%20b"
see form -d a=1 -d b=2 "$base/post"
see json -X PUT -H 'Content-Type: application/json' -d '{"a":[1,2.5]}' "$base/put"
see upload -T - "$base/put" < <(head -c 100000 /dev/zero)
see chunked -H 'Transfer-Encoding: chunked' -d abc "$base/post"
see delete -X DELETE "$base/delete"
see compressed --compressed "$base/gzip"
see redirects -L "$base/redirect/3"
see range -r 0-9 "$base/range/100"
see stream -N "$base/stream/3"
see drip -N "$base/drip?duration=0.3&numbytes=9&delay=0"
see status "$base/status/404"
see offer --http2 "$base/get"
