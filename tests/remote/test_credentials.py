"""Credentials that change: they are read again after the first refusal, once, and a refusal that stays is reported."""

from __future__ import annotations

import configparser
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ckstore import RemoteDenied, RemoteError, Store
from ckstore.remote.service import engine, engine_clients
from ckstore.remote.service.engine import ServiceObjects
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.s3_server import CREDENTIALS, KEY, SECRET, Service
from tests.support.stores import check_store

NEW = "AKIACKSTORENEWKEY"
_WAIT_S = 120.0


def _environment(key: str) -> None:
    os.environ["AWS_ACCESS_KEY_ID"] = key


def _profile(key: str) -> None:
    path = Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"])
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n", encoding="ascii")


def _token(key: str) -> None:
    # The service exchanges the token x for the key ASIAx.
    Path(os.environ["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]).write_text(key.removeprefix("ASIA"), encoding="ascii")


class _ProfileProvider:
    """Reads the file once, as a session of boto3 does, which is not installed."""

    def __init__(self) -> None:
        found = configparser.ConfigParser()
        found.read(os.environ["AWS_SHARED_CREDENTIALS_FILE"])
        if "default" not in found:
            raise ValueError("Received None from session.get_credentials")
        self._key = found["default"]["aws_access_key_id"]
        self.config: dict[str, str] = {}

    def __call__(self) -> dict[str, Any]:
        return {"access_key_id": self._key, "secret_access_key": SECRET, "token": None, "expires_at": None}


Change = Callable[[str], None]


@pytest.fixture(params=["environment", "profile", "token"])
def change(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, service: Service, tmp_path: Path) -> Change:
    """Return a function that changes the credentials, which are in one of the places that a process may have them."""
    if request.param == "environment":
        return _environment
    if request.param == "profile":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        boto3 = ModuleType("obstore.auth.boto3")
        boto3.Boto3CredentialProvider = _ProfileProvider  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "obstore.auth.boto3", boto3)
        monkeypatch.setenv("AWS_PROFILE", "default")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        _profile(KEY)
        return _profile
    _with_token(monkeypatch, service, tmp_path)
    return _token


def _with_token(monkeypatch: pytest.MonkeyPatch, service: Service, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{service.port}{CREDENTIALS}")
    service.habits.keys = frozenset({"ASIAfirst"})
    _token("ASIAfirst")


def new_key(change: Change) -> str:
    return "ASIAsecond" if change is _token else NEW


def made(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list to which each making of clients is added."""
    times: list[float] = []
    make = engine_clients._make

    def counted(*arguments: Any) -> Any:
        times.append(time.monotonic())
        return make(*arguments)

    monkeypatch.setattr(engine_clients, "_make", counted)
    return times


def test_credentials_that_change_during_a_push_are_read_again(tmp_path: Path, service: Service, change: Change) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cold", service.target("run").address, endpoint=service.target().endpoint)
    for step in (1, 2):
        store.save(state(step), step=step)
    store.push(1, remote="cold")
    sent: list[str] = []

    def rewrite(done_bytes: int, all_bytes: int) -> None:
        if done_bytes and not sent:
            sent.append(new_key(change))
            service.habits.keys = frozenset(sent)
            change(sent[0])
        del all_bytes

    store.push(2, remote="cold", progress=rewrite)

    assert sent
    assert 1 <= service.refused <= 32  # at most one by each thread
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.remotes.add("cold", service.target("run").address, endpoint=service.target().endpoint)
    other.pull(remote="cold", all=True)
    assert same(other.load(2), state(2))
    for one in (store, other):
        check_store(one.path)


@pytest.mark.parametrize("call", ["get", "read_into", "head", "put", "large put", "create", "update", "delete", "list"])
def test_each_call_goes_on_with_new_credentials(service: Service, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    objects = ServiceObjects(service.target("run"))
    old = objects.put("x", b"data")
    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: objects.get("x", 10) == b"data",
        "read_into": lambda: objects.read_into("x", 1, memoryview(bytearray(3))),
        "head": lambda: objects.head("x"),
        "put": lambda: objects.put("y", b"1"),
        "large put": lambda: objects.put("y", bytes(2**20)),
        "create": lambda: objects.create("y", b"1"),
        "update": lambda: objects.update("x", b"new", old.tag),
        "delete": lambda: (objects.delete(["x"]), "run/x" not in service.objects)[1],  # type: ignore[func-returns-value]
        "list": lambda: [entry.key for entry in objects.list("")] == ["x"],
    }
    if call == "large put":
        objects.put("z", bytes(2**20))
    service.habits.keys = frozenset({NEW})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", NEW)

    assert calls[call]()
    assert service.refused == 1


def test_a_listing_that_is_refused_between_two_pages_has_every_object_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_BATCH", 10)
    objects = ServiceObjects(service.target("run"))
    objects.put("a", b"")
    for i in range(2500):
        service.objects[f"run/a{i:04}"] = service.objects["run/a"]

    keys = []
    for entry in objects.list(""):
        keys.append(entry.key)
        if len(keys) == 20:
            service.habits.keys = frozenset({NEW})
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", NEW)

    assert service.refused == 1
    assert keys == ["a", *(f"a{i:04}" for i in range(2500))]


def test_a_refusal_that_stays_is_an_error_after_one_retry(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    times = made(monkeypatch)
    objects = ServiceObjects(service.target("run"))
    service.habits.keys = frozenset({NEW})

    assert len(times) == 1
    with pytest.raises(RemoteDenied, match=r"reading x at .* was refused: .*AccessDenied") as refused:
        objects.get("x", 10)
    assert refused.value.hint == (
        "check the credentials of this process in AWS_ACCESS_KEY_ID; they are read again after each refusal"
    )
    assert (service.refused, len(times)) == (2, 2)
    # Soon after, nothing is read again: some requests are always refused.
    for call in (lambda: objects.get("x", 10), lambda: objects.put("x", b"1"), lambda: [*objects.list("")]):
        with pytest.raises(RemoteDenied):
            call()
    assert (service.refused, len(times)) == (5, 2)

    monkeypatch.setattr(engine_clients, "_RENEW_AGAIN_S", 0.0)
    objects._clients._renew_at_s = 0.0
    with pytest.raises(RemoteDenied):
        [*objects.list("")]
    assert (service.refused, len(times)) == (7, 3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", NEW)
    assert objects.get("x", 10) is None


def test_threads_that_are_refused_at_once_read_the_credentials_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 8
    times = made(monkeypatch)
    objects = ServiceObjects(service.target("run"))
    at_once = threading.Barrier(count)
    begun = threading.local()
    renew = engine_clients.Clients.renew

    def together(self: engine_clients.Clients, refused: int) -> bool:
        if not getattr(begun, "waited", False):
            begun.waited = True
            at_once.wait(_WAIT_S)
        return renew(self, refused)

    monkeypatch.setattr(engine_clients.Clients, "renew", together)
    service.habits.keys = frozenset({NEW})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", NEW)
    with ThreadPoolExecutor(count) as pool:
        assert [*pool.map(lambda _: objects.get("x", 10), range(count))] == [None] * count

    assert (service.refused, len(times)) == (count, 2)


def test_an_ended_token_is_a_refusal(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _with_token(monkeypatch, service, tmp_path)
    service.habits.ended_tokens = frozenset({"first"})

    with pytest.raises(RemoteDenied, match="ExpiredTokenException") as refused:
        ServiceObjects(service.target("run")).get("x", 10)
    assert f"in AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE={tmp_path / 'token'}" in refused.value.hint
    assert service.exchanged == ["first"] * 2


def test_credentials_that_cannot_be_read_again_are_a_refusal(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = ServiceObjects(service.target("run"))
    service.habits.keys = frozenset({NEW})

    def fail(*_: Any) -> Any:
        raise RemoteError("s3://ck-test cannot be used: Received None")

    monkeypatch.setattr(engine_clients, "_make", fail)
    with pytest.raises(RemoteDenied, match=r"refused the credentials, and they cannot be read again: .*None"):
        objects.get("x", 10)


def test_a_mirror_process_whose_token_ends_goes_on_with_the_next_one(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _with_token(monkeypatch, service, tmp_path)
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cold", service.target("run").address, endpoint=service.target().endpoint)
    store.config.mirror = "cold"
    store.save(state(1), step=1)
    _wait(lambda: not _status(store).behind, "the first checkpoint is pushed")

    service.habits.keys = frozenset({"ASIAsecond"})
    service.habits.ended_tokens = frozenset({"first"})
    store.save(state(2), step=2)
    _wait(lambda: bool(_status(store).refused_since), "the refusal is reported")
    status = _status(store)
    assert "ExpiredTokenException" in status.problem
    assert f"the credentials are refused since {status.refused_since[:19].replace('T', ' ')} UTC" in str(status)
    finding = next(one for one in store.doctor().findings if one.what == "mirror")
    assert str(status) == finding.found
    assert "files of credentials and tokens again" in finding.do
    assert f'ckstore_mirror_refused_timestamp_seconds{{remote="cold",store="{store.path}"}} 0' not in store.metrics()

    _token("ASIAsecond")
    _wait(lambda: not _status(store).behind, "the mirror goes on")
    _wait(lambda: _status(store).ok, "the refusal is over")
    assert _status(store).refused_since == ""
    assert f'ckstore_mirror_refused_timestamp_seconds{{remote="cold",store="{store.path}"}} 0' in store.metrics()
    store.config.mirror = None
    check_store(store.path)


def _status(store: Store) -> Any:
    return store.mirror_status() or pytest.fail("no mirror")


def _wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _no_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)  # an import of it fails


def test_a_profile_without_boto3_is_an_error_that_names_it(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without an error, the credentials of the machine's role would be used, which may be those of another account.
    _no_boto3(monkeypatch)
    monkeypatch.setenv("AWS_PROFILE", "team")
    store = Store.init(tmp_path / "store")

    with pytest.raises(
        RemoteDenied, match="the profile AWS_PROFILE=team is read with boto3, which is not installed"
    ) as no:
        store.remotes.add("cold", service.target("run").address, endpoint=service.target().endpoint)

    assert "pip install boto3" in str(no.value.hint)
    check_store(store.path)


def test_a_file_of_credentials_that_is_not_read_is_named_by_a_refusal(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The engine then asks the service of roles of the machine, whose error says nothing of the file.
    _with_token(monkeypatch, service, tmp_path)
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[default]\n", encoding="ascii")
    service.habits.keys = frozenset({NEW})

    with pytest.raises(RemoteDenied) as refused:
        ServiceObjects(service.target("run")).get("x", 10)

    assert str(refused.value.hint).endswith("; ~/.aws is not read, since boto3 is not installed: pip install boto3")
