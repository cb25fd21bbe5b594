"""A small S3 service in this process, which can lack what real ones lack; a mock costs five seconds to start."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from ckstore.remote.service.target import Target

KEY, SECRET = "AKIACKSTORETEST", "verysecretverysecretverysecret00"
BUCKET = "ck-test"
CREDENTIALS = "/credentials"
"""Path at which a token is exchanged for an access key."""
_EDGE = "/edge/"
"""Path to which reads are redirected, at another name of this host."""
_REFUSED_KEY = re.compile(r"^/|/$|//|\.\./|^\./|\.\.$|\\\\|\0")


@dataclass
class Habits:
    """What the service does otherwise than S3.

    Attributes:
        conditions: ``kept``; ``ignored`` (rclone); ``unquoted``: If-Match matches only without its quotes (Ceph 16);
            ``late``: compared before the body is written, so that racing updates are lost (moto).
        loser: The status of a create that finds an object: 412, or 409 (CoreWeave).
        conflicts: So many creates are answered 409 though nothing is there (S3 under contention).
        ranges: Whether a range is answered with 206; else with 200 and the whole object (rclone).
        checks: Whether a body is compared with its signed digest.
        marks_multipart: Whether the answer to a multipart upload has an ETag (Ceph has none).
        denies: Every request is answered 403.
        keys: The access keys that are not refused.
        ended_tokens: The tokens that are refused. Others are exchanged for the access key ASIA{token}.
        is_full: Every write is answered as that over a quota (Ceph).
        takes_writes: Else those that write are answered so.
        late_s: A listing shows objects only so long after they were written.
        namespace: Buckets are below this segment of the path (Hugging Face).
        redirects: A read of an object is answered with the URL of another host, which has only its bytes (Hugging
            Face). Keys are refused that the Hub refuses.
    """

    conditions: str = "kept"
    loser: int = 412
    conflicts: int = 0
    ranges: bool = True
    checks: bool = True
    denies: bool = False
    keys: frozenset[str] = frozenset({KEY})
    ended_tokens: frozenset[str] = frozenset()
    is_full: bool = False
    takes_writes: bool = True
    late_s: float = 0.0
    namespace: str = ""
    redirects: bool = False


class Objects(UserDict[str, tuple[bytes, str, datetime]]):
    """Bytes, mark and time by key; the keys stay in order while none is added or removed, so pages are cheap."""

    _ordered: list[str] | None = None

    def __setitem__(self, key: str, value: tuple[bytes, str, datetime]) -> None:
        if key not in self:
            self._ordered = None
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._ordered = None
        super().__delitem__(key)

    def listed(self, prefix: str, after: str) -> Iterator[str]:
        """Yield the keys with a prefix that come after a key."""
        if self._ordered is None:
            self._ordered = sorted(self)
        ordered = self._ordered
        for at in range(max(bisect_left(ordered, prefix), bisect_right(ordered, after)), len(ordered)):
            if not ordered[at].startswith(prefix):
                return
            yield ordered[at]


@dataclass
class Service:
    """What it holds, and what it was asked."""

    port: int = 0
    habits: Habits = field(default_factory=Habits)
    objects: Objects = field(default_factory=Objects)
    requests: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    exchanged: list[str] = field(default_factory=list)  # the tokens that were exchanged
    followed: int = 0  # reads at the host to which reads are redirected
    exposed: list[str] = field(default_factory=list)  # headers with credentials that this host got
    mutex: threading.RLock = field(default_factory=threading.RLock)

    def target(self, prefix: str = "", port: int = 0) -> Target:
        """Return it as a target, itself or by a proxy on another port."""
        endpoint = f"http://127.0.0.1:{port or self.port}/{self.habits.namespace}".rstrip("/")
        return Target("url", f"s3://{BUCKET}{'/' if prefix else ''}{prefix}", endpoint)

    def bytes_of(self, key: str) -> bytes:
        """Return what an object holds."""
        return self.objects[key][0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: ClassVar[Service]
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def _begin(self) -> tuple[str, dict[str, str], bytes] | None:
        service = self.service
        parts = urlsplit(self.path.removeprefix(f"/{service.habits.namespace}" if service.habits.namespace else ""))
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with service.mutex:
            service.requests[self.command] += 1
        known = re.search("Credential=([^/]+)/", self.headers.get("Authorization", ""))
        if service.habits.denies or known is None or known[1] not in service.habits.keys:
            with service.mutex:
                service.refused += 1
            self._refuse(403, "AccessDenied" if known is None or known[1] == KEY else "InvalidAccessKeyId")
            return None
        if parts.path.split("/")[1] != BUCKET:
            self._refuse(404, "NoSuchBucket")
            return None
        signed = self.headers.get("x-amz-content-sha256", "")
        if service.habits.checks and len(signed) == 64 and hashlib.sha256(body).hexdigest() != signed:
            self._refuse(400, "XAmzContentSHA256Mismatch")
            return None
        return key, query, body

    def do_PUT(self) -> None:
        begun = self._begin()
        if begun is None:
            return
        key, _, body = begun
        service = self.service
        if service.habits.redirects and (_REFUSED_KEY.search(key) or any("x-amz-meta" in one for one in self.headers)):
            self._refuse(400, "InvalidArgument")
            return
        if not service.habits.takes_writes or service.habits.is_full:
            self._refuse(403, "QuotaExceeded" if service.habits.is_full else "AccessDenied")
            return
        refused = 0
        if service.habits.conditions == "late":
            refused = self._refused(key)
            time.sleep(0.03)  # so long that racing clients surely meet in it
        with service.mutex:
            refused = refused or (self._refused(key) if service.habits.conditions != "late" else 0)
            if refused:
                self._refuse(refused, "ConditionalRequestConflict" if refused == 409 else "PreconditionFailed")
                return
            etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
            service.objects[key] = body, etag, datetime.now(UTC)
        self._answer(200, ETag=etag)

    def _refused(self, key: str) -> int:
        habits, there = self.service.habits, self.service.objects.get(key)
        if habits.conditions == "ignored":
            return 0
        if self.headers.get("If-None-Match") == "*":
            if habits.conflicts:
                habits.conflicts -= 1
                return 409
            return habits.loser if there else 0
        wanted = self.headers.get("If-Match")
        if wanted is None:
            return 0
        found = there[1] if there else None
        if habits.conditions == "unquoted" and found is not None:
            found = found.strip('"')
        if wanted == found or (habits.conditions != "unquoted" and f'"{wanted}"' == found):
            return 0
        return 501 if habits.loser == 501 else 412

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == CREDENTIALS:
            self._exchange(self.headers["Authorization"])
            return
        if self.path.startswith(_EDGE):
            self._answer_at_edge()
            return
        begun = self._begin()
        if begun is None:
            return
        key, query, _ = begun
        if not key:
            if self.service.habits.redirects and query.get("list-type") != "2":
                self._refuse(501, "NotImplemented")
                return
            self._list(query)
            return
        found = self.service.objects.get(key)
        if found is None:
            self._refuse(404, "NoSuchKey")
            return
        if self.service.habits.redirects and self.command == "GET":
            self._answer(302, Location=f"http://localhost:{self.service.port}{_EDGE}{quote(key)}?signature=once")
            return
        body, etag, modified = found
        headers: Any = {"ETag": etag, "Last_Modified": format_datetime(modified, usegmt=True)}
        asked = self.headers.get("Range", "")
        if self.command == "HEAD":
            self._answer(200, b"", length=len(body), **headers)
        elif asked:
            low, high = asked.removeprefix("bytes=").split("-")
            start, end = int(low), min(int(high or len(body)), len(body) - 1)
            if start >= len(body):
                self._refuse(416, "InvalidRange")
                return
            headers["Content_Range"] = f"bytes {start}-{end}/{len(body)}"
            if self.service.habits.ranges:
                self._answer(206, body[start : end + 1], **headers)
            else:
                self._answer(200, body[start : end + 1], **headers)
        else:
            self._answer(200, body, **headers)

    def _answer_at_edge(self) -> None:
        """Answer as the other host: only the bytes, without a mark or a time, without asking for credentials."""
        service = self.service
        with service.mutex:
            service.followed += 1
            service.exposed += [
                name for name in self.headers if name.lower() in ("authorization", "x-amz-security-token")
            ]
        found = service.objects.get(unquote(urlsplit(self.path).path.removeprefix(_EDGE)))
        if found is None:
            self._answer(404)
            return
        body, asked = found[0], self.headers.get("Range", "")
        if not asked:
            self._answer(200, body)
            return
        low, high = asked.removeprefix("bytes=").split("-")
        start, end = int(low), min(int(high or len(body)), len(body) - 1)
        self._answer(206, body[start : end + 1], Content_Range=f"bytes {start}-{end}/{len(body)}")

    def _list(self, query: dict[str, str]) -> None:
        prefix, after = query.get("prefix", ""), max(query.get("start-after", ""), query.get("continuation-token", ""))
        now, most = datetime.now(UTC), int(query.get("max-keys", 1000))
        with self.service.mutex:
            late_s, objects = self.service.habits.late_s, self.service.objects
            found = (key for key in objects.listed(prefix, after) if (now - objects[key][2]).total_seconds() >= late_s)
            keys = [*islice(found, most + 1)]
            lines = []
            for key in keys[:most]:
                body, etag, when = self.service.objects[key]
                stamp = when.strftime("%Y-%m-%dT%H:%M:%S.000Z")
                lines.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{stamp}</LastModified><ETag>{escape(etag)}</ETag>"
                    f"<Size>{len(body)}</Size></Contents>"
                )
        more = len(keys) > most
        token = f"<NextContinuationToken>{escape(keys[most - 1])}</NextContinuationToken>" if more else ""
        text = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(lines)}"
        self._answer(200, f"<ListBucketResult>{text}</ListBucketResult>".encode(), Content_Type="application/xml")

    def do_DELETE(self) -> None:
        begun = self._begin()
        if begun is not None:
            with self.service.mutex:
                self.service.objects.pop(begun[0], None)
            self._answer(204)

    def _exchange(self, token: str) -> None:
        """Answer as the agent of EKS Pod Identity does. STS does the same by TLS only."""
        self.service.exchanged.append(token)
        if token in self.service.habits.ended_tokens:
            self._refuse(400, "ExpiredTokenException")
            return
        given = {"AccessKeyId": f"ASIA{token}", "SecretAccessKey": SECRET, "Token": "session"}
        self._answer(200, json.dumps({**given, "Expiration": "2099-01-01T00:00:00Z"}).encode())

    def do_POST(self) -> None:
        begun = self._begin()
        if begun is None:
            return
        root = ET.fromstring(begun[2])  # noqa: S314 - of this process's own client
        keys = [one.text or "" for one in root.iter() if one.tag.rpartition("}")[2] == "Key"]
        with self.service.mutex:
            for key in keys:
                self.service.objects.pop(key, None)
        gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode(), Content_Type="application/xml")


@contextmanager
def s3_service(habits: Habits | None = None) -> Iterator[Service]:
    """Run a service on loopback while the block runs."""
    service = Service(habits=habits or Habits())
    handler = type("Handler", (_Handler,), {"service": service})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    service.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
