"""Remotes have names. A place is probed when it is added, and the result is stored."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ckstore import BadInput, CkstoreError, MissingExtra, NoSuchRemote, RemoteDenied, RemoteError, Store
from ckstore.ops import config_file
from ckstore.remote.documents.remote_info import RemoteInfo
from ckstore.remote.service import engine_clients, service_probe
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.engine_calls import CallThreads
from ckstore.remote.service.remote_entries import open_objects
from ckstore.remote.service.service_probe import probe
from ckstore.remote.service.target import Target, parse_target
from ckstore.store import context_of
from tests.support.s3_proxy import Proxy
from tests.support.s3_server import BUCKET, KEY, SECRET, Habits, Service, s3_service
from tests.support.stores import check_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.init(tmp_path / "store")


@pytest.mark.parametrize(
    "habits, seen",
    [
        (Habits(), Abilities(checks_bodies=True)),
        (Habits(conditions="ignored"), Abilities(create=False, cas="no", checks_bodies=True)),
        (Habits(conditions="unquoted"), Abilities(cas="unquoted", checks_bodies=True)),
        (Habits(conditions="late"), Abilities(cas="no", checks_bodies=True)),
        (Habits(loser=409), Abilities(checks_bodies=True)),
        (Habits(loser=501), Abilities(create=False, cas="no", checks_bodies=True)),
        (Habits(ranges=False), Abilities(ranges=False, checks_bodies=True)),
        (Habits(checks=False), Abilities(checks_bodies=False)),
        (Habits(late_s=60), Abilities(lists_writes=False, checks_bodies=True)),
        (Habits(namespace="org", redirects=True), Abilities(checks_bodies=True)),
    ],
    ids=lambda value: str(value)[7:70] if isinstance(value, Habits) else "",
)
def test_a_probe_detects_the_features_of_a_service(habits: Habits, seen: Abilities) -> None:
    with s3_service(habits) as service:
        assert probe(service.target("run"))[0] == seen
        assert [key for key in service.objects if "probe" in key] == []


def test_the_address_of_a_bucket_of_the_hub() -> None:
    found = parse_target("hf://buckets/my-org/my-bucket//gpt/")
    assert found == Target("url", "s3://my-bucket/gpt", "https://s3.hf.co/my-org", "us-east-1")
    assert parse_target("HF://Buckets/me/bo") == Target("url", "s3://bo", "https://s3.hf.co/me", "us-east-1")
    for text in ("hf://buckets/me", "hf://buckets/me/", "hf://models/me/b", "hf://me/b", "hf://buckets//b"):
        with pytest.raises(BadInput, match=r"hf://buckets/NAMESPACE/NAME/PREFIX"):
            parse_target(text)
    with pytest.raises(BadInput, match="its own endpoint"):
        parse_target("hf://buckets/me/b", endpoint="https://s3.example.org")
    with pytest.raises(BadInput, match="no user, password, query or fragment"):
        parse_target("hf://buckets/me/b/x?token=1")


def test_a_probe_detects_the_features_of_objects_in_memory(memory: Target) -> None:
    assert probe(memory)[0] == Abilities(checks_bodies=None)


def test_each_ability_has_a_plain_sentence() -> None:
    weak = Abilities(create=False, cas="no", ranges=False, lists_writes=False, checks_bodies=False)

    assert not set(Abilities(checks_bodies=True).lines()) & set(weak.lines())
    assert Abilities(writes=False).lines() == ["cannot be written with these credentials: only pulls are possible"]
    for abilities in (weak, Abilities(), Abilities(writes=False), Abilities(cas="unquoted", checks_bodies=True)):
        assert Abilities.from_json(abilities.to_json(), "x") == abilities
    with pytest.raises(BadInput):
        Abilities.from_json({**weak.to_json(), "cas": "perhaps"}, "x")


def test_a_remote_is_added_listed_probed_and_removed(store: Store, service: Service) -> None:
    target = service.target("team/run")
    entry = store.remotes.add("cold", f"{target.address}/", endpoint=target.endpoint)
    info = json.loads(service.bytes_of("team/run/remote.json"))

    assert entry.name == "cold"
    assert entry.target == target
    assert entry.abilities == Abilities(checks_bodies=True)
    assert (info["uuid"], info["hash"]) == (entry.uuid, "xxh3_128")
    assert store.remotes.list() == (entry,)
    assert Store.open(store.path, readonly=True).remotes.get("cold") == entry
    assert store.remotes.add("cold", target.address, endpoint=target.endpoint) == entry
    service.habits.conditions = "ignored"
    assert store.remotes.probe("cold") == replace(
        entry, abilities=Abilities(create=False, cas="no", checks_bodies=True)
    )
    before = dict(service.objects)
    store.remotes.remove("cold")
    assert store.remotes.list() == ()
    assert service.objects == before
    with pytest.raises(NoSuchRemote, match="has no remote"):
        store.remotes.remove("cold")


def during_probe(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Change the remotes in another handle while a place is being probed."""

    def probing(target: Target) -> tuple[Abilities, datetime | None]:
        monkeypatch.undo()
        found = probe(target)
        other = threading.Thread(target=change)  # one thread may not call two methods at once
        other.start()
        other.join()
        return found

    monkeypatch.setattr(service_probe, "probe", probing)


def test_a_remote_that_is_removed_during_its_probe_stays_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Store.open(store.path)
    store.remotes.add("cold", tmp_path / "cold")
    during_probe(monkeypatch, lambda: other.remotes.remove("cold"))

    with pytest.raises(NoSuchRemote, match="has no remote"):
        store.remotes.probe("cold")

    assert store.remotes.list() == ()


def test_a_remote_that_is_replaced_during_a_probe_or_an_add_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Store.open(store.path)
    store.remotes.add("cold", tmp_path / "cold")

    def replace_it() -> None:
        other.remotes.remove("cold")
        other.remotes.add("cold", tmp_path / "new")

    during_probe(monkeypatch, replace_it)
    with pytest.raises(BadInput, match=f"cold is the remote at {tmp_path / 'new'}"):
        store.remotes.probe("cold")
    during_probe(monkeypatch, lambda: other.remotes.add("warm", tmp_path / "new"))
    with pytest.raises(BadInput, match=f"warm is the remote at {tmp_path / 'new'}"):
        store.remotes.add("warm", tmp_path / "warm")

    assert {entry.name: entry.target.path.name for entry in store.remotes.list()} == {"cold": "new", "warm": "new"}


def test_a_remote_name_that_is_a_number_is_refused(store: Store) -> None:
    name: Any = 10**30
    for call in (store.remotes.remove, store.remotes.prune, store.remotes.claims, store.remotes.get):
        with pytest.raises(BadInput, match="the name of a remote is text, got int"):
            call(name)


def test_the_remote_that_is_the_mirror_is_not_removed(store: Store, tmp_path: Path) -> None:
    store.remotes.add("cold", tmp_path / "cold")
    store.config.mirror = "cold"

    with pytest.raises(BadInput, match="cold is the mirror of the store; nothing was removed") as refused:
        store.remotes.remove("cold")

    assert refused.value.hint.startswith("store.config.mirror = None")
    assert refused.value.command_hint.startswith("ckstore config mirror off")
    assert [entry.name for entry in store.remotes.list()] == ["cold"]
    store.config.mirror = None
    store.remotes.remove("cold")
    assert store.remotes.list() == ()


def test_doctor_reports_a_mirror_that_is_not_among_the_remotes(store: Store, tmp_path: Path) -> None:
    store.remotes.add("cold", tmp_path / "cold")
    store.config.mirror = "cold"
    config_file.edit(context_of(store).layout, "remotes", lambda _: None)  # as an earlier version removed a remote

    finding = next(one for one in store.doctor().findings if one.what == "mirror")

    assert (finding.level, finding.found) == (
        "warning",
        "no checkpoint is copied to the mirror: the store has no remote cold",
    )
    assert finding.do.startswith("turn the mirror off (ckstore config mirror off), or add the remote again (")


def test_the_error_for_a_place_without_a_remote_names_its_content(
    store: Store, tmp_path: Path, memory: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.init(tmp_path / "other").close()
    store.save({"w": b"1"}, step=1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoSuchRemote) as unknown:
        store.push(remote=memory.address)
    with pytest.raises(BadInput, match="a remote is a directory or s3://BUCKET/PREFIX"):
        store.push(remote="ftp://example.org/run")
    with pytest.raises(BadInput, match="is neither a URL nor a directory"):
        store.pull(remote="s3:/bucket/run")
    with pytest.raises(NoSuchRemote) as bare:
        store.push(remote="other")
    store.remotes.add("cold", memory.address)
    assert store.push(remote=memory.address).remote == "cold"

    assert unknown.value.hint == f"ckstore remote add NAME {memory.address}"
    assert bare.value.hint == "for the directory, write ./other"


def test_two_stores_share_a_remote(store: Store, tmp_path: Path, memory: Target) -> None:
    other = Store.init(tmp_path / "other")

    assert store.remotes.add("a", memory.address).uuid == other.remotes.add("b", memory.address).uuid


def test_two_clients_that_create_one_remote_without_conditions_agree(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = RemoteInfo.of(Store.init(tmp_path / "other")._context.settings, "2026-11-27T03:00:00.000000Z")
    waits = list[float]()

    def overwritten_once(seconds: float) -> None:
        if not waits:
            service.objects["run/remote.json"] = other.render(), '"b"', datetime.now(UTC)
        waits.append(seconds)

    with s3_service(Habits(conditions="ignored")) as service:
        target = service.target("run")
        monkeypatch.setattr(time, "sleep", overwritten_once)
        entry = store.remotes.add("cold", target.address, endpoint=target.endpoint)

    assert entry.uuid == other.uuid
    assert len(waits) == 2


def test_a_remote_that_is_created_again_and_again_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwritten(_: float) -> None:
        made = RemoteInfo.of(store._context.settings, "2026-11-27T03:00:00.000000Z")
        service.objects["run/remote.json"] = made.render(), '"b"', datetime.now(UTC)

    with s3_service(Habits(conditions="ignored")) as service:
        target = service.target("run")
        monkeypatch.setattr(time, "sleep", overwritten)
        with pytest.raises(RemoteError, match="could not be added"):
            store.remotes.add("cold", target.address, endpoint=target.endpoint)
    assert store.remotes.list() == ()


def test_a_remote_of_another_hash_is_refused(store: Store, tmp_path: Path, memory: Target) -> None:
    store.remotes.add("a", memory.address)
    with pytest.raises(BadInput, match="blake3"):
        Store.init(tmp_path / "other", hash="blake3").remotes.add("a", memory.address)


def test_another_remote_at_the_place_is_noticed(store: Store, memory: Target) -> None:
    store.remotes.add("a", memory.address)
    engine_clients._memory.clear()
    with pytest.raises(RemoteError, match=r"remote.json is missing"):
        store.remotes.probe("a")
    store.remotes.add("b", memory.address)

    with pytest.raises(RemoteError, match="another remote is now at"):
        store.remotes.probe("a")


def test_no_secret_is_kept(store: Store, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    target = service.target("run")
    store.remotes.add("cold", target.address, endpoint=target.endpoint)
    text = (store.path / "config.json").read_text()

    assert "cold" in text
    assert KEY not in text
    assert SECRET not in text
    for key, (body, _, _) in service.objects.items():
        assert SECRET.encode() not in body, key


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:secret@bucket/run",
        "s3://bucket/run?X-Amz-Signature=secret",
        "s3://bucket/run#secret",
        "ftp://bucket/run",
        "s3:///run",
        "s3://b",
        "s3://bucket/a b",
        "s3://bucket/../x",
    ],
)
def test_an_invalid_address_is_refused_without_showing_secrets(store: Store, text: str) -> None:
    with pytest.raises(BadInput) as raised:
        store.remotes.add("cold", text)

    assert "secret" not in str(raised.value)
    assert store.remotes.list() == ()


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://x", "http://key:secret@host", "https://x?secret=1"])
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_target("s3://bucket/run", endpoint=endpoint)

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_an_invalid_endpoint_of_the_environment_is_an_error_and_no_panic(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "127.0.0.1:9000")

    with pytest.raises(CkstoreError, match=f"{name} must be a URL such as https://.*, got '127.0.0.1:9000'"):
        store.remotes.add("cold", "s3://bucket/run")


def test_a_panic_of_the_engine_is_an_error_of_ckstore() -> None:
    class Panic(BaseException):
        """A panic like that of the engine, which is no `Exception`."""

    def call() -> None:
        raise Panic("request valid")

    with pytest.raises(RemoteError, match="the engine crashed: request valid"):
        CallThreads().call(call)


@pytest.mark.parametrize(
    "text, hint",
    [
        ("s3:/bucket/run", "with two slashes"),
        ("gs:bucket", "with two slashes"),
        ("http://127.0.0.1:9000/bucket/run", "URL of the service as the endpoint"),
    ],
)
def test_a_mistyped_address_is_not_taken_for_a_directory(store: Store, text: str, hint: str) -> None:
    with pytest.raises(BadInput) as raised:
        store.remotes.add("cold", text)

    assert hint in raised.value.hint


def test_a_service_that_cannot_be_used_does_not_blame_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(variable, raising=False)

    with pytest.raises(RemoteError, match=r"az://box/run cannot be used: .*Account") as raised:
        open_objects(parse_target("AZ://box/run"))

    assert "environment" in raised.value.hint


@pytest.mark.parametrize("name", ["", "a/b", "-x", ".x", "a b", "x" * 101])
def test_an_invalid_name_is_refused(store: Store, memory: Target, name: str) -> None:
    with pytest.raises(BadInput, match="the name of a remote"):
        store.remotes.add(name, memory.address)


def test_a_name_in_use_keeps_its_remote(store: Store, memory: Target) -> None:
    store.remotes.add("a", memory.address)

    with pytest.raises(BadInput, match="a is the remote at memory://"):
        store.remotes.add("a", f"{memory.address}/other")


def test_targets_are_values() -> None:
    for target in (
        parse_target("s3://bucket//a/b//", endpoint="https://s3.example.org/", region="eu-1"),
        parse_target("gs://bucket"),
        parse_target("~/x"),
        parse_target(Path("/a/b")),
    ):
        assert Target.from_json(json.loads(json.dumps(target.to_json())), "x") == target
    target = parse_target("s3://bucket//a/b//", endpoint="https://s3.example.org/")

    assert (target.scheme, target.bucket, target.prefix) == ("s3", "bucket", "a/b/")
    assert str(target) == "s3://bucket/a/b (https://s3.example.org)"
    assert parse_target("az://box").prefix == ""
    with pytest.raises(BadInput, match="neither an endpoint nor a region"):
        parse_target("/a", region="x")


def test_a_store_in_a_directory_is_a_remote(store: Store, tmp_path: Path) -> None:
    other = Store.init(tmp_path / "other")
    entry = store.remotes.add("nas", tmp_path / "other")

    assert (entry.target.kind, entry.target.address, entry.abilities) == ("store", str(tmp_path / "other"), None)
    assert entry.uuid == other._context.settings.uuid
    with pytest.raises(BadInput, match="this store itself"):
        store.remotes.add("x", store.path)
    with pytest.raises(BadInput, match="nothing is pushed to a store"):
        store.config.mirror = "nas"


def test_a_directory_is_a_remote(store: Store, tmp_path: Path) -> None:
    entry = store.remotes.add("nas", tmp_path / "m")

    assert (entry.target.kind, entry.target.address) == ("directory", str(tmp_path / "m"))
    assert entry.abilities is not None
    assert (entry.abilities.create, entry.abilities.cas, entry.abilities.lists_writes) == (True, "yes", True)
    assert store.remotes.add("again", f"file://{tmp_path}/m").uuid == entry.uuid
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    with pytest.raises(BadInput, match="holds other files, such as notes"):
        store.remotes.add("x", tmp_path / "full")
    with pytest.raises(BadInput, match="no remote could be created"):
        store.remotes.add("x", tmp_path / "no" / "m")
    with pytest.raises(BadInput, match="three slashes"):
        store.remotes.add("x", "file://host/m")
    with pytest.raises(BadInput, match="is in the store"):
        store.remotes.add("x", store.path / "trash" / "m")
    assert not (store.path / "trash" / "m").exists()


def test_without_credentials_nothing_is_added(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_service(Habits(denies=True)) as service, pytest.raises(RemoteDenied):
        store.remotes.add("cold", service.target().address, endpoint=service.target().endpoint)
    assert store.remotes.list() == ()


def test_a_remote_that_can_only_be_read_is_not_pushed_to(store: Store, service: Service, proxy: Proxy) -> None:
    store.save({"x": 1})
    store.remotes.add("cold", f"s3://{BUCKET}/run", endpoint=service.target().endpoint)
    proxy.always("403", of="PUT")
    entry = store.remotes.add("seen", f"s3://{BUCKET}/run", endpoint=service.target(port=proxy.port).endpoint)

    assert entry.abilities is not None
    assert not entry.abilities.writes
    with pytest.raises(RemoteError, match="seen cannot be pushed to"):
        store.push(remote="seen")


def test_a_push_and_a_pull_by_name(store: Store, tmp_path: Path, service: Service) -> None:
    store.save({"x": list(range(2000))}, step=3)
    target = service.target("run")
    store.remotes.add("cold", target.address, endpoint=target.endpoint)
    store.push()
    other = Store.init(tmp_path / "other")
    other.remotes.add("cold", target.address, endpoint=target.endpoint)
    other.pull("latest")

    assert other.load(3) == {"x": list(range(2000))}


@pytest.mark.parametrize("change", [lambda entry: entry.pop("uuid"), lambda entry: entry["target"].update(kind="x")])
def test_damaged_settings_of_remotes_are_reported(
    store: Store, memory: Target, change: Callable[[dict[str, object]], object]
) -> None:
    store.remotes.add("a", memory.address)
    path = store.path / "config.json"
    settings = json.loads(path.read_text())
    del settings["digest"]
    change(settings["remotes"]["a"])
    path.write_text(json.dumps(settings))

    with pytest.raises(BadInput, match=r"config.json"):
        store.remotes.list()


def test_an_engine_that_cannot_be_loaded_is_not_called_missing(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "packages" / "obstore"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libssl.so.3: cannot open shared object file')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(package.parent))

    with pytest.raises(MissingExtra, match=r"obstore, which cannot be loaded: libssl.so.3: cannot open") as raised:
        store.remotes.add("far", "memory://broken-engine/run")
    assert "not installed" not in str(raised.value)
    assert "pip install --force-reinstall 'ckstore[remote]'" in raised.value.hint
    check_store(store.path)


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch, memory: Target) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)

    with pytest.raises(MissingExtra, match="obstore") as raised:
        ServiceObjects(memory)
    assert "pip install 'ckstore[remote]'" in raised.value.hint
