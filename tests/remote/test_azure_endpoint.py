"""The endpoint of an Azure remote: requests are sent to the given endpoint, whether an emulator or a service."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from ckstore import RemoteError
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target

Asked = list[tuple[str, str]]
_OWN = ("/own", "own")


@pytest.fixture
def service() -> Iterator[tuple[int, Asked]]:
    """Return the port of a service that refuses all requests, and the received request lines with their signers."""
    asked: Asked = []
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            with link:
                lines = link.recv(65536).decode("latin-1").split("\r\n")
                signed = [line.partition(": ")[2] for line in lines if line.lower().startswith("authorization")]
                asked.append((lines[0], signed[0].partition(":")[0] if signed else ""))
                link.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield listener.getsockname()[1], asked
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture(autouse=True)
def _no_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURITE_BLOB_STORAGE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "endpoint, environment, wanted",
    [
        ("http://127.0.0.1:{}/devstoreaccount1", {}, ("/devstoreaccount1", "devstoreaccount1")),
        ("http://localhost:{}/devstoreaccount1", {}, ("/devstoreaccount1", "devstoreaccount1")),
        ("http://127.0.0.1:{}", {}, ("/devstoreaccount1", "devstoreaccount1")),
        ("http://127.0.0.1:{}/own", {"AZURE_STORAGE_ACCOUNT_NAME": "own"}, _OWN),
        ("http://127.0.0.1:{}", {"AZURE_STORAGE_ACCOUNT_NAME": "own"}, _OWN),
        ("http://127.0.0.1:{}/own", {"AZURE_STORAGE_ACCOUNT_NAME": "own", "AZURE_STORAGE_USE_EMULATOR": "true"}, _OWN),
        ("http://127.0.0.1:{}/some/proxy", {"AZURE_STORAGE_ACCOUNT_NAME": "own"}, ("/some/proxy", "own")),
    ],
)  # fmt: skip
def test_requests_go_to_the_endpoint_that_was_given(
    service: tuple[int, Asked],
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str,
    environment: dict[str, str],
    wanted: tuple[str, str],
) -> None:
    port, asked = service
    path, account = wanted
    # Where the engine would look for an emulator: another service has that port.
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:1")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if account == "own":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "b3du")

    with pytest.raises(RemoteError, match="403"):
        ServiceObjects(Target("url", "az://container/p", endpoint.format(port))).put("key", b"1")

    # The server refuses it, so it is asked once more.
    assert asked == [(f"PUT {path}/container/p/key HTTP/1.1", f"SharedKey {account}")] * 2
