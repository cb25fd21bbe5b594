"""A failing checkpoint or duty of a mirror, push, pull or eviction stops no other one, and is named at the end."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import BytesElsewhere, CkstoreError, DamagedBlob, RemoteError, RemoteUnavailable, RetentionPolicy, Store
from ckstore.ops.free.drop import drop
from ckstore.ops.refs.find import open_directory
from ckstore.remote import pull as pulling
from ckstore.remote import push as pushing
from ckstore.remote import push_plan as planning
from ckstore.remote import transfer
from ckstore.remote.mirror import mirror_server as process
from ckstore.remote.mirror import mirror_step
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.remote.pruning import keep_remote
from ckstore.remote.pruning.keep_remote import KeepRemote
from ckstore.remote.pruning.needed_digests import remove_documents
from ckstore.remote.remote_only import evict as evicting
from ckstore.remote.service.target import Target
from ckstore.saver.server.status_page import StatusPage
from ckstore.store import context_of
from tests.remote.double import new_remote
from tests.remote.test_push import MIB, state
from tests.support.checkpoint_dirs import blobs_dir

pytestmark = pytest.mark.usefixtures("no_mirror_process")


@pytest.fixture
def store(store_with_mirror: Store) -> Store:
    return store_with_mirror


def damage(store: Store, step: int) -> None:
    """Flip bits of the largest blob of a checkpoint, so that only a read detects it."""
    blob = max(blobs_dir(store.path, "main", step).iterdir(), key=lambda path: path.stat().st_size)
    times = blob.stat()
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.write(b"rot")
    os.utime(blob, ns=(times.st_atime_ns, times.st_mtime_ns))
    blob.chmod(0o444)


def failing_for(step: int, original: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Return a function that fails if its arguments concern a step."""

    def call(*args: Any, **given: Any) -> Any:
        if any(getattr(getattr(one, "info", one), "step", None) == step for one in args):
            raise error
        return original(*args, **given)

    return call


def there(store: Store) -> list[int]:
    return sorted(
        {
            info.step
            for info in Store.clone(store.remotes.get("cold").target.address, store.path.parent / "c").checkpoints()
        }
    )


def test_a_checkpoint_that_cannot_be_pushed_stops_neither_others_nor_the_policies(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda *_: pytest.fail("it waits as for a mirror that is away"))
    store.config.keep_remote = RetentionPolicy(keep_last=2)
    store.config.keep_local = RetentionPolicy(keep_last=3)
    for step in range(1, 8):
        store.save(state(step), step=step)
    damage(store, 5)

    with StatusPage(str(store.path)) as page:
        # It ends, though the damaged one never gets there.
        process.serve(context_of(store), Mirror(context_of(store)), page, linger_s=0, patience_s=0)

    assert there(store) == [6, 7]
    assert [info.step for info in store.checkpoints() if info.elsewhere] == []
    assert [info.step for info in store.checkpoints()] == [5, 6, 7]
    status = store.mirror_status()
    assert status is not None
    assert [info.step for info in status.behind] == [5]
    assert "main@5" in status.problem


def test_a_failed_push_is_retried_ever_more_rarely_until_it_succeeds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        store.save(state(step), step=step)
    real, tried = transfer.push, []
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def push(context: Any, infos: Any, *args: Any, **given: Any) -> Any:
        if infos[0].step == 1 and now[0] < 1070:
            tried.append(now[0] - 1000)
            raise DamagedBlob("main@1: blob is damaged")
        return real(context, infos, *args, **given)

    monkeypatch.setattr(transfer, "push", push)
    with StatusPage(str(store.path)) as page:
        process.serve(context_of(store), Mirror(context_of(store)), page)

    assert [round(at) for at in tried] == [0, 1, 3, 7, 15, 31, 63]
    status = store.mirror_status()
    assert status is not None
    assert (status.behind, status.problem) == ((), "")


@pytest.mark.parametrize("duty", ["keep_local", "KeepRemote", "prune"])
def test_a_failing_duty_of_the_mirror_stops_no_other_duty(
    store: Store, monkeypatch: pytest.MonkeyPatch, duty: str
) -> None:
    store.config.keep_remote = RetentionPolicy(keep_last=1)
    store.config.keep_local = RetentionPolicy(keep_last=1)
    for step in (1, 2):
        store.save(state(step), step=step)
    done: list[str] = []

    def doing(name: str) -> Callable[..., Any]:
        def do(*_: Any, **__: Any) -> Any:
            done.append(name)
            if name == duty:
                raise CkstoreError(f"{name} failed")

        return do

    for name in ("keep_local", "prune"):
        monkeypatch.setattr(mirror_step, name, doing(name))
    monkeypatch.setattr(KeepRemote, "apply", doing("KeepRemote"))
    mirror = Mirror(context_of(store))
    mirror.tidy()

    assert done == ["keep_local", "KeepRemote", "prune"]
    assert str(mirror.problem).endswith(f"{duty} failed")
    done.clear()
    mirror.tidy()
    assert done == []
    mirror.try_again()
    mirror.tidy()
    assert done != []


@pytest.mark.parametrize("how", ["disk", "manifest", "service"])
def test_a_push_of_all_sends_the_others_and_names_each_failed_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    for step in range(1, 6):
        store.save(state(step), step=step, tags=[f"t{step}"])
    objects, remote = new_remote(store.settings)
    opening: Callable[..., Any] = open_directory
    for step in (2, 4):
        refused = OSError(errno.EIO, os.strerror(errno.EIO), f"main@{step}")
        error = RemoteError(f"the service takes no object of main@{step}") if how == "service" else refused
        opening = failing_for(step, opening, error)
    monkeypatch.setattr(planning if how == "manifest" else pushing, "open_listed", opening)

    with pytest.raises(CkstoreError, match=r"main@[24].*; 1 more item failed: main@[24]"):
        store.push(all=True, remote=remote)

    pushed = {match[1] for key in objects.held if (match := re.match(r"checkpoints/main/(\d)/.*/manifest", key))}
    assert pushed == {"1", "3", "5"}
    assert sorted(key for key in objects.held if key.startswith("refs/")) == [
        f"refs/t{step}.json" for step in (1, 3, 5)
    ]


def test_a_push_stops_if_the_remote_accepts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    for step in (1, 2):
        store.save(state(step), step=step)
    _, remote = new_remote(store.settings)
    tried: list[int] = []

    def away(_: Any, info: Any) -> Any:
        tried.append(info.step)
        raise RemoteUnavailable("no answer")

    monkeypatch.setattr(pushing, "open_listed", away)
    monkeypatch.setattr(pushing, "_BATCH", 1)
    with pytest.raises(RemoteUnavailable):
        store.push(all=True, remote=remote)
    assert tried == [2]


def test_a_pull_of_all_fetches_the_others_and_names_each_failed_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    for step in range(1, 6):
        store.save(state(step), step=step)
    _, remote = new_remote(store.settings)
    store.push(all=True, remote=remote)
    real = pulling.Pull._publish
    for step in (2, 4):
        refused = OSError(errno.EIO, os.strerror(errno.EIO), "x")
        real = failing_for(step, real, refused)
    monkeypatch.setattr(pulling.Pull, "_publish", real)

    with pytest.raises(CkstoreError, match=r"main@[24].*Input/output error.*; 1 more item failed: main@[24]"):
        other.pull(all=True, remote=remote)

    assert sorted(info.step for info in other.checkpoints()) == [1, 3, 5]


def test_an_eviction_of_several_evicts_the_others_and_names_the_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    for step in range(1, 4):
        store.save(state(step), step=step)
    _, remote = new_remote(store.settings)
    store.push(all=True, remote=remote)
    refused = OSError(errno.EIO, os.strerror(errno.EIO), "x")
    monkeypatch.setattr(evicting, "_free_bytes", failing_for(2, evicting._free_bytes, refused))

    with pytest.raises(CkstoreError, match="evicting main@2: Input/output error"):
        store.evict(all=True, remote=remote)

    assert [info.step for info in store.checkpoints() if info.elsewhere] == [1, 3]
    assert store.verify().ok


def test_keep_remote_removes_the_others_and_reports_the_failed_one(
    tmp_path: Path, memory: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cold", memory.address)
    store.config.mirror = "cold"
    store.config.keep_remote = RetentionPolicy(keep_last=1)
    for step in range(1, 6):
        store.save(state(step), step=step)
    store.push(all=True, remote="cold")
    store.evict([1, 2], "cold")
    monkeypatch.setattr(keep_remote, "drop", failing_for(1, drop, OSError(errno.EXDEV, os.strerror(errno.EXDEV))))
    monkeypatch.setattr(
        keep_remote,
        "remove_documents",
        failing_for(3, remove_documents, RemoteError("main@3 is held there")),
    )

    report = store.remotes.prune("cold").retention

    assert report is not None
    assert [info.step for info in report.dropped] == [2, 4]
    assert [(one.info.step, one.reason) for one in report.skipped] == [
        (1, "it could not be dropped from this store: Invalid cross-device link"),
        (3, "main@3 is held there"),
    ]


def test_a_prune_continues_if_keep_remote_cannot_be_planned(
    tmp_path: Path, memory: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cold", memory.address)
    store.config.mirror = "cold"
    store.config.keep_remote = RetentionPolicy(keep_last=1)
    store.save(state(1), step=1)
    store.push(all=True, remote="cold")
    pruned: list[str] = []
    from ckstore.remote.pruning import prune as pruning

    monkeypatch.setattr(pruning, "prune", lambda remote, *_, **__: pruned.append(remote.name))

    def unplanned(_: Any) -> Any:
        raise RemoteError("a tag there cannot be read")

    monkeypatch.setattr(KeepRemote, "plan", unplanned)
    with pytest.raises(RemoteError, match="a tag there cannot be read"):
        store.remotes.prune("cold")
    assert pruned == ["cold"]


@pytest.fixture
def evicted(tmp_path: Path) -> Iterator[Store]:
    """Return a store whose first two checkpoints are evicted to ``cold``. The remote ``spare`` has the first one."""
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        for name in ("cold", "spare"):
            store.remotes.add(name, tmp_path / name)
        for step in (1, 2, 3):
            store.save({"w": np.full(1000, step)}, step=step)
        store.push(all=True, remote="cold")
        store.push(1, remote="spare")
        store.evict([1, 2], remote="cold")
        yield store


def test_a_push_of_all_names_lost_checkpoints_with_commands_that_work_and_pushes_the_others(
    tmp_path: Path, evicted: Store
) -> None:
    kept = {path.name for path in blobs_dir(evicted.path, "main", 3).iterdir()}
    for path in (tmp_path / "cold" / "blobs").glob("*/*"):
        if path.name not in kept:
            path.unlink()
    evicted.save({"w": np.full(1000, 4)}, step=4)

    with pytest.raises(BytesElsewhere) as raised:
        evicted.push(all=True, remote="cold")

    told = (
        "data of main@2 is missing: it was evicted to cold, which no longer has all of it; 1 more item failed: main@1"
    )
    assert raised.value.message == told
    assert "ckstore pull REF --remote NAME restores it" in (raised.value.command_hint or "")
    assert len([*(tmp_path / "cold/checkpoints/main/4").glob("*/manifest.json")]) == 1
    evicted.pull(1, "spare")
    evicted.delete(2)
    evicted.push(all=True, remote="cold")
    evicted.evict(1, remote="cold")
    assert evicted.load(1)["w"][0] == 1


def test_a_push_of_checkpoints_that_another_remote_has_names_it_and_how_to_restore_them(evicted: Store) -> None:
    with pytest.raises(BytesElsewhere, match="data of main@2 is only on cold") as raised:
        evicted.push(all=True, remote="spare")

    assert raised.value.command_hint == "ckstore pull --remote cold main@2 restores it; then push again"
    evicted.pull(2, "cold")
    evicted.push(all=True, remote="spare")
