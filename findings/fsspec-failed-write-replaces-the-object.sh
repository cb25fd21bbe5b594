#!/bin/sh
# s3fs 2026.9.0 and obstore 0.12.1 (its fsspec class), against moto 5.2.5: a write that fails midway replaces the old object by its
# beginning.
#
# `with fs.open(path, "wb") as file:` closes the file also when the body raises, and closing uploads what was written so far. So when a
# serializer fails or is interrupted, the good checkpoint of that name is gone and a truncated one stands in its place. s3fs discards the
# write inside `with fs.transaction:`. The class of obstore accepts the transaction and ignores it: the truncated object is stored at once.
# It also ignores `mode="create"` of `pipe_file`, which s3fs honours: an existing object is overwritten without an error.
#
# Seen: after a body that wrote 3 of 10 bytes and raised, the object holds 3 bytes; in a transaction 10 with s3fs and 3 with obstore.
set -eu
dir=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
server=
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 's3fs==2026.9.0' 'fsspec==2026.9.0' 'obstore==0.12.1'
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
from obstore.fsspec import FsspecStore

PORT = int(sys.argv[1])
for _ in range(300):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", PORT)).close()
        break
    time.sleep(0.1)
URL = f"http://127.0.0.1:{PORT}"
ONE = s3fs.S3FileSystem(endpoint_url=URL, key="a", secret="b")
TWO = FsspecStore(
    "s3", endpoint=URL, access_key_id="a", secret_access_key="b", region="us-east-1", client_options={"allow_http": True}
)
ONE.mkdir("bucket")


def left(fs, guarded):
    ONE.pipe_file("bucket/checkpoint", b"0123456789")
    with contextlib.suppress(RuntimeError), fs.transaction if guarded else contextlib.nullcontext():
        with fs.open("bucket/checkpoint", "wb") as file:
            file.write(b"abc")
            raise RuntimeError("the serializer failed")
    return ONE.cat_file("bucket/checkpoint")


def create_twice(fs, path):
    fs.pipe_file(path, b"first", mode="create")
    with contextlib.suppress(FileExistsError):
        fs.pipe_file(path, b"second", mode="create")
    return ONE.cat_file(path)


for name, fs, guarded, created in (("s3fs", ONE, b"0123456789", b"first"), ("obstore", TWO, b"abc", b"second")):
    seen = left(fs, False), left(fs, True), create_twice(fs, f"bucket/{name}")
    print(f"{name}: failed write leaves {seen[0]}, in a transaction {seen[1]}; created twice: {seen[2]}")
    assert seen == (b"abc", guarded, created)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$port"
