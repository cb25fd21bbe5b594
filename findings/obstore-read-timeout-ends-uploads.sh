#!/bin/sh
# obstore 0.12.1: the client option `read_timeout` also ends an upload whose body is still being sent.
#
# The name suggests a limit on the time between two reads of an answer. The wait for that answer begins with the first byte
# of the request's body, so a PUT that takes longer than `read_timeout` fails although bytes flow all the time and the
# service is well. With the documented example of 30 s no object above 30 s of link time can be written in one request.
#
# Seen: a service that takes 4 MiB at about 1 MiB/s. With read_timeout=2s the PUT fails; with read_timeout=20s, and
# without the option, it is stored.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'obstore==0.12.1'
cat > "$dir/try.py" <<'PY'
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import obstore
from obstore.store import S3Store

STORED = []


class Slow(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        left = int(self.headers["Content-Length"])
        try:
            while left:
                left -= len(self.rfile.read(min(left, 256 * 1024)))
                time.sleep(0.25)  # about 1 MiB a second, without a pause longer than that
        except OSError:
            return
        STORED.append(self.path)
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
threading.Thread(target=server.serve_forever, daemon=True).start()


def put(**options):
    store = S3Store(
        "bucket", endpoint=f"http://127.0.0.1:{server.server_port}", region="x", access_key_id="a",
        secret_access_key="b", client_options={"allow_http": True, **options}, retry_config={"max_retries": 0},
    )
    begun = time.monotonic()
    try:
        obstore.put(store, "key", bytes(4 * 2**20), use_multipart=False)
        found = "stored"
    except Exception as error:
        found = "failed"
        assert "HTTP error" in str(error) or "error" in str(error).lower(), error
    took = time.monotonic() - begun
    print(f"{options or 'no read_timeout'}: {found} after {took:.1f} s")
    return found


seen = [put(read_timeout="2s"), put(read_timeout="20s"), put()]
assert seen == ["failed", "stored", "stored"], seen
print(f"obstore {obstore.__version__}: as described")
PY
"$dir/venv/bin/python" "$dir/try.py"
