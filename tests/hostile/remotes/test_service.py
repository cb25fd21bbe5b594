"""A service that answers as none should: each call ends with a typed error, in bounded memory and time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ckstore import CkstoreError, RemoteError, Store
from ckstore.remote.objects import ObjectEntry
from ckstore.remote.service import engine, engine_calls, engine_clients, engine_errors
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.engine_errors import scrubbed
from ckstore.remote.service.target import Target
from tests.support.s3_server import BUCKET, KEY, SECRET, Service, s3_service

Answer = Callable[[socket.socket], None]
_MIB = 2**20
_ENDLESS_MIB = 64
"""What a service sends that goes on: far more than any bound that is tried here."""
_SLACK_MIB = 24
_HEAD = b'Connection: close\r\nLast-Modified: Thu, 26 Nov 2026 10:00:00 GMT\r\nETag: "x"\r\n'


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(
        engine_clients, "_CLIENT_OPTIONS", {"timeout": "2s", "read_timeout": "1s", "connect_timeout": "2s"}
    )
    monkeypatch.setattr(engine_clients, "_RETRIES", 0)


@contextmanager
def answering(answer: Answer) -> Iterator[ServiceObjects]:
    """Run a service that gives one answer to every request, and closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head and (part := client.recv(65536)):
                head += part
            answer(client)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    objects = ServiceObjects(Target("url", f"s3://{BUCKET}/run", f"http://127.0.0.1:{listener.getsockname()[1]}"))
    try:
        yield objects
    finally:
        objects.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _chunks(client: socket.socket, first: bytes = b"") -> None:
    chunk = b"%x\r\n" % _MIB + b" " * _MIB + b"\r\n"
    if first:
        client.sendall(b"%x\r\n" % len(first) + first + b"\r\n")
    for _ in range(_ENDLESS_MIB):
        client.sendall(chunk)
    client.sendall(b"0\r\n\r\n")


def _in_chunks(status: bytes, head: bytes = b"", first: bytes = b"") -> Answer:
    def answer(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 " + status + b"\r\n" + _HEAD + head + b"Transfer-Encoding: chunked\r\n\r\n")
        _chunks(client, first)

    return answer


def _plain(status: bytes, body: bytes, head: bytes = b"") -> Answer:
    def answer(client: socket.socket) -> None:
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        client.sendall(b"HTTP/1.1 " + status + b"\r\n" + _HEAD + head + length + body)

    return answer


def _drip(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n" + _HEAD + b"Content-Length: 100000\r\n\r\n")
    for _ in range(100):
        client.sendall(b" ")
        time.sleep(0.2)


def _grown_mib(act: Callable[[], object]) -> float:
    """Return by how much the memory of this process grew at the most."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak_kib()
    act()
    return (_peak_kib() - before) / 1024


def _peak_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _read(objects: ServiceObjects, nbytes: int = 10) -> bytes:
    into = bytearray(nbytes)
    objects.read_into("k", 5, memoryview(into))
    return bytes(into)


@pytest.mark.parametrize(
    "answer",
    [
        _in_chunks(b"200 OK", b"Content-Length: 10\r\n"),
        _in_chunks(b"206 Partial", b"Content-Length: 10\r\nContent-Range: bytes 5-14/100\r\n"),
        _in_chunks(b"200 OK"),
    ],
    ids=["a length and chunks", "a range and chunks", "chunks alone"],
)
def test_a_body_that_goes_on_takes_no_memory(answer: Answer) -> None:
    with answering(answer) as objects:
        for act in (lambda: objects.get("k", 1000), lambda: _read(objects), lambda: objects.update("k", b"", "tag")):
            assert _grown_mib(lambda act=act: _in_words(act)) < _SLACK_MIB  # type: ignore[misc]


def _in_words(act: Callable[[], object]) -> None:
    with suppress(CkstoreError):
        act()


def test_a_body_that_is_longer_than_it_says_is_refused() -> None:
    with (
        answering(_in_chunks(b"200 OK", b"Content-Length: 10\r\n")) as objects,
        pytest.raises(RemoteError, match="sends more than the announced 10 bytes"),
    ):
        objects.get("k", 1000)


@pytest.mark.parametrize(
    "answer",
    [
        _plain(b"206 Partial", b"y" * 100, b"Content-Range: bytes 0-99/100\r\n"),
        _plain(b"206 Partial", b"y" * 3, b"Content-Range: bytes 5-14/100\r\n"),
        _plain(b"206 Partial", b"y" * 10, b"Content-Range: bytes 5-14/9\r\n"),
        _plain(b"206 Partial", b"y" * 10, b"Content-Range: bytes " + b"9" * 3000 + b"-1/2\r\n"),
        _plain(b"200 OK", b"y" * 10),
        _plain(b"302 Found", b"", b"Location: file:///etc/passwd\r\n"),
        _plain(b"200 OK", b"y" * 10, b"x: " + b"y" * 10**6 + b"\r\n"),
        lambda client: client.sendall(b"\xff" * 1000),
        lambda client: client.sendall(b""),
        _drip,
    ],
)
def test_an_answer_of_another_form_is_an_error_soon(answer: Answer) -> None:
    with answering(answer) as objects:
        begun_s = time.monotonic()
        for act in (lambda: _read(objects), lambda: [*objects.list("k")]):
            with pytest.raises(RemoteError) as caught:
                act()
            assert len(str(caught.value)) < 1000
        assert time.monotonic() - begun_s < 60


def test_a_time_that_no_clock_has_is_no_time() -> None:
    head = b"Last-Modified: Thu, 26 Nov 99999 10:00:00 GMT\r\n"
    with answering(_plain(b"200 OK", b"", head)) as objects, suppress(RemoteError):
        assert isinstance(objects.head("k"), ObjectEntry)


def test_pages_without_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_calls, "_CALL_S", 1.0)
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>%b"
    with (
        answering(_plain(b"200 OK", page % b"</ListBucketResult>")) as objects,
        pytest.raises(RemoteError, match="no answer came within 1 s"),
    ):
        [*objects.list("blobs/")]


def test_names_without_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_LISTED", 5000)
    names = b"".join(
        b"<Contents><Key>run/blobs/%d</Key><LastModified>2026-11-26T10:00:00.000Z</LastModified><ETag>x</ETag>"
        b"<Size>1</Size></Contents>" % at
        for at in range(1000)
    )
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>%b"
    with (
        answering(_plain(b"200 OK", page % (names + b"</ListBucketResult>"))) as objects,
        pytest.raises(RemoteError, match="more than 5,000 objects"),
    ):
        [*objects.list("blobs/")]


def test_a_page_full_of_entities_is_no_bomb() -> None:
    levels = b"".join(b'<!ENTITY a%d "%b">' % (at, b"&a%d;" % (at - 1) * 10) for at in range(1, 20))
    page = b'<!DOCTYPE x [<!ENTITY a0 "xxxxxxxxxx">' + levels + b"]><ListBucketResult>&a19;</ListBucketResult>"
    with answering(_plain(b"200 OK", page)) as objects:
        assert _grown_mib(lambda: _in_words(lambda: [*objects.list("k")])) < _SLACK_MIB


@pytest.mark.parametrize("odd", ["checkpoints/../x", "blobs//x", "checkpoints/./x", "refs/a\nb.json", "blobs/\x01"])
def test_a_key_that_is_no_path_is_said_and_leads_nowhere(tmp_path: Path, odd: str) -> None:
    with s3_service() as service:
        objects = ServiceObjects(service.target("run"))
        objects.put("blobs/a", b"1")
        service.objects[f"run/{odd}"] = b"x", '"x"', datetime.now(UTC)
        with pytest.raises(RemoteError, match="delete it"):
            [*objects.list("")]
        target = service.target("run")
        with Store.init(tmp_path / "store") as store:
            store.save({"x": 1}, step=1)
            with suppress(RemoteError):  # of what is listed below another folder nothing is seen
                store.remotes.add("far", target.address, endpoint=target.endpoint)
                store.push(1, "far")
                store.pull(remote="far", all=True)
                assert not odd.startswith("checkpoints")
        assert {path.name for path in tmp_path.iterdir()} <= {"store", ".home"}


@pytest.mark.parametrize("body", [b" " * 4_000_000, b"?" * 4_000_000, b"://" * 1_000_000, b"<Code>" * 700_000])
def test_a_long_text_of_an_error_takes_no_time(body: bytes) -> None:
    begun_s = time.process_time()
    assert len(scrubbed(body.decode())) <= engine_errors._SHOWN + 100
    assert time.process_time() - begun_s < 1


def test_a_service_that_asks_to_go_elsewhere_gets_no_credentials_there(service_elsewhere: Service) -> None:
    to = b"Location: http://127.0.0.1:%d/x\r\n" % service_elsewhere.port
    with answering(_plain(b"307 Elsewhere", b"", to)) as objects:
        _in_words(lambda: objects.get("k", 100))
        _in_words(lambda: objects.put("k", b"secret weights"))
    assert not service_elsewhere.objects


@pytest.fixture
def service_elsewhere() -> Iterator[Service]:
    with s3_service() as running:
        yield running


def _late(client: socket.socket) -> None:
    """Take a body of any length, and answer after longer than an answer may take."""
    time.sleep(1.6)
    client.settimeout(0.2)
    with suppress(TimeoutError):
        while client.recv(65536):
            pass
    _plain(b"200 OK", b"")(client)


def test_the_upload_of_a_large_body_may_take_longer_than_an_answer() -> None:
    with answering(_late) as objects:
        assert objects.send("k", bytes(_MIB)) == '"x"'
        with pytest.raises(RemoteError):
            objects.send("k", b"small")
