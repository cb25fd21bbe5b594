#!/bin/sh
# fsspec 2026.9.0 with s3fs 2026.9.0, against moto 5.2.5: `blockcache` with `check_files=True` returns blocks of a replaced object.
#
# The option asks the remote whether the object has changed since it was cached. It has, so a new entry is made; but the list of blocks of
# the old object is added to it, and the local file remains. So blocks that were read from the old object are returned for the new one, the others
# are fetched. From then on the mixture is recorded under the ETag of the new object, so later processes read it too. `filecache` with the same
# option reads the new object. A checkpoint that is replaced under one name, such as `last.ckpt`, is read partly old and partly new.
#
# Seen: the first block is read, the object is replaced by one of the same size, and all of it is read: the first third is old, the rest new.
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
import os
import socket
import sys
import tempfile
import time

import fsspec
import s3fs

PORT = int(sys.argv[1])
BLOCK = 1 << 20
for _ in range(300):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", PORT)).close()
        break
    time.sleep(0.1)

REMOTE = {"endpoint_url": f"http://127.0.0.1:{PORT}", "key": "a", "secret": "b", "use_listings_cache": False}
REMOTE["skip_instance_cache"] = True
trainer = s3fs.S3FileSystem(**REMOTE)
trainer.mkdir("bucket")


def read(kind, folder, size):
    """What a new process reads: a new filesystem with the same folder of cached files."""
    how = {"target_protocol": "s3", "target_options": REMOTE, "cache_storage": folder, "check_files": True}
    with fsspec.filesystem(kind, skip_instance_cache=True, **how).open("bucket/last.ckpt", "rb", block_size=BLOCK) as file:
        return file.read(size)


def blocks(data):
    return [data[start : start + BLOCK][:1].decode() for start in range(0, len(data), BLOCK)]


print("fsspec", fsspec.__version__, "s3fs", s3fs.__version__)
for kind, found in (("filecache", ["B", "B", "B"]), ("blockcache", ["A", "B", "B"])):
    folder = tempfile.mkdtemp(dir=os.environ["DIR"])
    trainer.pipe_file("bucket/last.ckpt", b"A" * 3 * BLOCK)
    read(kind, folder, 100)
    trainer.pipe_file("bucket/last.ckpt", b"B" * 3 * BLOCK)
    first, second = (blocks(read(kind, folder, 3 * BLOCK)) for _ in range(2))
    print(kind, "after the object was replaced:", first, "and read again:", second)
    assert first == second == found
PY
DIR="$dir" "$dir/venv/bin/python" -W ignore "$dir/try.py" "$port"
