#!/bin/sh
# s3fs 2026.9.0, against moto 5.2.5: after a listing, a new object of that folder can neither be seen nor read by its name.
#
# Listings are cached without a time limit. It is documented that another `ls` returns the old answer. But `exists`, `cat`, `cat_file` and
# `open` of a full name also trust the cached listing: they report that the object does not exist and send no request. An evaluator that
# lists a folder of checkpoints once and then waits for the next name, written by another process, waits forever. `invalidate_cache()` before
# each look helps, and so does `use_listings_cache=False`.
#
# Seen: with the cache all four miss the new object, and find it after `invalidate_cache()`; without the cache all four find it at once.
set -eu
dir=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
server=
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 's3fs==2026.9.0' 'fsspec==2026.9.0'
python3 -m venv "$dir/server"
"$dir/server/bin/pip" -q install 'moto[s3]==5.2.5' flask flask-cors
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$dir/server/bin/moto_server" -H 127.0.0.1 -p "$port" >/dev/null 2>&1 &
server=$!
cat > "$dir/try.py" <<'PY'
import contextlib
import socket
import sys
import time

import s3fs

PORT = int(sys.argv[1])
for _ in range(300):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", PORT)).close()
        break
    time.sleep(0.1)


def made(**how):
    return s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{PORT}", key="a", secret="b", skip_instance_cache=True, **how)


trainer = made()
trainer.mkdir("bucket")


def tried(read):
    try:
        return read()
    except FileNotFoundError:
        return "FileNotFoundError"


def look(step, **how):
    trainer.pipe_file(f"bucket/run{step}/1", b"one")
    evaluator, path = made(**how), f"bucket/run{step}/2"
    evaluator.ls(f"bucket/run{step}")
    trainer.pipe_file(path, b"two")

    def ask():
        seen = {"exists": evaluator.exists(path), "cat": tried(lambda: evaluator.cat(path))}
        seen["cat_file"] = tried(lambda: evaluator.cat_file(path))
        seen["open"] = tried(lambda: evaluator.open(path).read())
        return seen

    before = ask()
    evaluator.invalidate_cache()
    return before, ask()


right = {"exists": True, "cat": b"two", "cat_file": b"two", "open": b"two"}
gone = "FileNotFoundError"
missing = {"exists": False, "cat": gone, "cat_file": gone, "open": gone}
cached, uncached = look(1), look(2, use_listings_cache=False)
print("cached:", *cached, sep="\n  ")
print("not cached:", *uncached, sep="\n  ")
assert cached == (missing, right) and uncached == (right, right)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$port"
