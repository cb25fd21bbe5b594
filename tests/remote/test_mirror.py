"""The mirror: every durable checkpoint is pushed to a remote, and a training continues from it on another node."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from click.testing import CliRunner

from ckstore import BadInput, CkstoreError, NoSuchRemote, RemoteDenied, RemoteError, RetentionPolicy, Store
from ckstore.model.times import time_of_text
from ckstore.ops import mirror_record
from ckstore.remote.mirror import mirror_process as starting
from ckstore.remote.mirror import mirror_server as process
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.remote.mirror.ownership import Ownership
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_opener import named_remote
from ckstore.remote.service.target import Target
from ckstore.saver import helper_start
from ckstore.saver.server.status_page import StatusPage
from ckstore.store import context_of
from ckstore_cli.app import app
from tests.remote.double import Double, new_remote
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.plans import plan_of
from tests.support.s3_server import SECRET, Service
from tests.support.stores import check_store

_WAIT_S = 240.0


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start no process, because the test runs the steps itself; return the processes that would have been started."""
    started: list[str] = []
    monkeypatch.setattr(starting, "_starts", {})
    monkeypatch.setattr(helper_start, "start", lambda entry, *_: _told(started, entry, Ended(0)))
    return started


def _told(started: list[str], entry: str, ended: Ended) -> Ended:
    started.append(entry)
    return ended


class Ended(NamedTuple):
    """A process that has ended with a status."""

    returncode: int | None
    pid: int = 0  # none has it

    def poll(self) -> int | None:
        return self.returncode


def wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def all_steps(store: Store) -> Mirror:
    mirror = Mirror(context_of(store))
    while mirror.step():
        pass
    return mirror


def mirrors_of(store: Path) -> list[int]:
    """Return the processes that mirror a store."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        about = json.dumps(str(store)).encode()
        if starting.ENTRY.encode() in words and any(about in word for word in words):
            found.append(int(folder.name))
    return found


@pytest.fixture
def no_process_left(tmp_path: Path) -> Iterator[None]:
    yield
    for name in ("a", "b"):
        for pid in mirrors_of(tmp_path / name):
            os.kill(pid, signal.SIGKILL)


def test_the_newest_is_pushed_first_and_the_status_shows_the_progress(tmp_path: Path, quiet: list[str]) -> None:
    store = Store.open_or_init(tmp_path / "a", chunk_bytes=MIB, mirror=tmp_path / "m")
    for step in (1, 2, 3):
        store.save(state(step), step=step)
    assert len(quiet) >= 3
    status = store.mirror_status()
    assert status is not None
    assert [info.step for info in status.behind] == [3, 2, 1]
    assert "3 checkpoints are not at the mirror yet" in str(status)
    begun: list[int] = []
    mirror = Mirror(context_of(store), lambda info: begun.append(info.step))
    assert mirror.step()
    store.save(state(4), step=4)
    while mirror.step():
        pass
    assert begun == [3, 4, 2, 1]
    there = Store.open(f"file://{tmp_path}/m")
    assert [info.id for info in there.checkpoints()] != []
    assert {info.id for info in there.checkpoints()} == {info.id for info in store.checkpoints()}
    status = store.mirror_status()
    assert status is not None
    assert (status.behind, status.oldest_s, status.missed) == ((), 0.0, False)
    mirrored = [event for event in store.events() if event.event == "mirrored"]
    assert [event.step for event in mirrored] == [3, 4, 2, 1]


def test_opening_for_writing_catches_up(tmp_path: Path, quiet: list[str]) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    store.save(state(1), step=1)
    quiet.clear()
    Store.open(tmp_path / "a", readonly=True)
    assert quiet == []
    Store.open(tmp_path / "a")
    assert len(quiet) == 1
    all_steps(store)
    Store.open(tmp_path / "a")
    assert len(quiet) == 1


def test_a_new_store_lists_the_checkpoints_of_its_mirror_and_continues(tmp_path: Path, quiet: list[str]) -> None:
    store = Store.open_or_init(tmp_path / "a", chunk_bytes=MIB, mirror=tmp_path / "m")
    store.save(state(1), step=1)
    store.save(state(2), step=2)
    all_steps(store)
    shutil.rmtree(tmp_path / "a")
    other = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    assert other.settings.chunk_bytes == MIB
    assert same(other.load(), state(2))
    quiet.clear()
    other.save(state(3))
    assert len(quiet) == 1
    all_steps(other)
    assert [info.step for info in Store.open(f"file://{tmp_path}/m").checkpoints()] == [1, 2, 3]


def test_retention_keeps_checkpoints_that_the_mirror_lacks_and_gives_the_reason(
    tmp_path: Path, quiet: list[str]
) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    store.config.retention = RetentionPolicy(keep_last=1)
    store.config.mirror_keep = 2
    for step in range(1, 6):
        store.save(state(step), step=step)
    assert [info.step for info in store.checkpoints()] == [4, 5]
    kept = plan_of(store, RetentionPolicy(keep_last=1)).kept
    assert "it is not at the mirror yet" in kept[0].reasons
    all_steps(store)
    store.save(state(6), step=6)
    # The one before was mirrored, and goes.
    assert [info.step for info in store.checkpoints()] == [6]
    store.config.mirror_keep = 0
    store.save(state(7), step=7)
    assert [info.step for info in store.checkpoints()] == [7]
    del quiet


def test_an_unavailable_mirror_fails_no_save_and_is_retried(
    tmp_path: Path, quiet: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / "away")
    store.save(state(1), step=1)
    # It is set already: opening asks nothing of the mirror.
    assert Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m").latest() is not None
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            (tmp_path / "away").rename(tmp_path / "m")

    with StatusPage(str(tmp_path / "a")) as page, monkeypatch.context() as patched:
        patched.setattr(time, "sleep", pause)
        process.serve(context_of(store), Mirror(context_of(store)), page, linger_s=0)
    assert [info.step for info in Store.open(f"file://{tmp_path}/m").checkpoints()] == [1]
    assert pauses[0] <= 1.0 < pauses[5]
    assert max(pauses) <= 300.0
    del quiet


def test_another_process_may_push_while_a_failed_mirror_process_waits(
    tmp_path: Path, quiet: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / "away")
    store.save(state(1), step=1)
    taken = []

    def pause(_: float) -> None:
        taken.append(starting.lock_mirror(context_of(store)))
        if len(taken) == 3:
            raise InterruptedError

    with StatusPage(str(tmp_path / "a")) as page, monkeypatch.context() as patched:
        patched.setattr(time, "sleep", pause)
        with pytest.raises(InterruptedError):
            process.serve(context_of(store), Mirror(context_of(store)), page, linger_s=0)
    lock = taken[0]
    assert lock is not None
    lock.release()
    # Who has the lock may fail, or only ask: this one goes on waiting.
    assert taken[1:] == [None, None]
    del quiet


def test_a_training_with_new_credentials_does_not_wait_for_the_old_mirror_process(
    tmp_path: Path, no_process_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(helper_start, "start", lambda *_: Ended(0))
        store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / "away")

    store.save(state(1), step=1)
    wait_for(lambda: [one.state for one in store.savers()] == ["waiting"], "it has not failed")
    (first,) = mirrors_of(tmp_path / "a")
    store.save(state(2), step=2)
    assert mirrors_of(tmp_path / "a") == [first]

    starting._starts.clear()  # as in another process
    wait_for(lambda: store.save(state(3)) is not None and mirrors_of(tmp_path / "a") != [first], "none was started")
    # Of two that wait the one with the older credentials ends.
    wait_for(lambda: first not in mirrors_of(tmp_path / "a"), "the one before goes on")
    (tmp_path / "away").rename(tmp_path / "m")
    wait_for(lambda: not store.mirror_status().behind, "nothing was pushed")  # type: ignore[union-attr]
    del no_process_left


def test_doctor_and_metrics_report_checkpoints_that_are_only_local(
    tmp_path: Path, quiet: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    store.save(state(1), step=1)
    found = {finding.what: finding for finding in store.doctor().findings}
    assert found["mirror"].level == "ok"
    store.config.mirror_age_s = 1
    time.sleep(1.1)
    found = {finding.what: finding for finding in store.doctor().findings}
    assert found["mirror"].level == "warning"
    assert "ckstore_mirror_behind" in store.metrics()
    assert "ckstore_mirror_oldest_seconds" in store.metrics()
    del quiet, monkeypatch


def test_a_damaged_local_checkpoint_does_not_hold_up_the_others(tmp_path: Path, quiet: list[str]) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    store.save(state(1), step=1)
    info = store.save(state(2), step=2)
    blob = max(blobs_dir(store.path, "main", 2).iterdir(), key=lambda path: path.stat().st_size)
    os.chmod(blob, 0o600)
    with blob.open("r+b") as file:
        file.write(b"rot")
    mirror = Mirror(context_of(store))
    for _ in range(2):
        with suppress(RemoteError):
            mirror.step()
    assert [one.step for one in Store.open(f"file://{tmp_path}/m").checkpoints()] == [1]
    status = store.mirror_status()
    assert status is not None
    assert [one.id for one in status.behind] == [info.id]
    del quiet


def test_a_mirror_name_must_be_the_name_of_a_remote(tmp_path: Path, quiet: list[str]) -> None:
    with pytest.raises(BadInput, match="has no remote named cold"):
        Store.open_or_init(tmp_path / "a", mirror="cold")
    assert not (tmp_path / "a").exists()
    store = Store.init(tmp_path / "a")
    with pytest.raises(NoSuchRemote):
        Store.open_or_init(tmp_path / "a", mirror="cold")
    with pytest.raises(BadInput, match="has no remote"):
        store.config.mirror = "cold"
    store.remotes.add("cold", tmp_path / "m")
    store.config.mirror = "cold"
    assert Store.open_or_init(tmp_path / "a", mirror="cold").config.mirror == "cold"
    store.config.mirror = None
    assert store.mirror_status() is None
    del quiet


def test_a_new_store_is_not_created_while_its_mirror_does_not_answer(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{service.port}")
    service.habits.denies = True
    with pytest.raises(RemoteError):
        Store.open_or_init(tmp_path / "a", mirror="s3://ck-test/run")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("place", ["no bucket", "read-only", "no directory", "a file", "a file in it", "the store"])
def test_no_store_is_left_behind_if_its_mirror_cannot_be_created(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{service.port}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    mirror, error, says = {
        "no bucket": ("s3://no-such/run", RemoteError, "NoSuchBucket"),
        "read-only": ("s3://ck-test/run", RemoteDenied, "AccessDenied"),
        "no directory": (str(tmp_path / "no" / "m"), BadInput, "no remote could be created"),
        "a file": (str(tmp_path / "full" / "file"), BadInput, "no remote could be created"),
        "a file in it": (str(tmp_path / "full"), BadInput, "holds other files"),
        "the store": (str(tmp_path / "a"), BadInput, "this store itself"),
    }[place]
    service.habits.takes_writes = place != "read-only"

    with pytest.raises(error, match=says):
        Store.open_or_init(tmp_path / "a", mirror=mirror)

    assert not (tmp_path / "a").exists()
    assert service.objects == {}
    # Of a store that was there nothing goes.
    Store.init(tmp_path / "a")
    with pytest.raises(CkstoreError):
        Store.open_or_init(tmp_path / "a", mirror=mirror)
    assert Store.open(tmp_path / "a").checkpoints() == []


def test_no_mirror_is_left_behind_if_its_store_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(BadInput):
        Store.open_or_init(tmp_path / "full", mirror=tmp_path / "m")
    assert not (tmp_path / "m").exists()


_TRAINING = """
import json, sys, time
import torch
from ckstore import Store

if __name__ == "__main__":
    path, mirror, steps, result = sys.argv[1:]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    store = Store.open_or_init(path, mirror=mirror)
    begun = 0
    if store.latest() is not None:
        begun = store.latest().step
        store.load_into({"model": model, "optimizer": optimizer})
    for step in range(begun + 1, int(steps) + 1):
        generator = torch.Generator().manual_seed(step)
        loss = model(torch.randn(8, 64, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        store.save_async({"model": model, "optimizer": optimizer}, step=step)
        print(step, flush=True)
        time.sleep(0.05)
    store.background.wait()
    torch.save([begun, model.state_dict()], result)
"""


def _trained(steps: int) -> dict[str, torch.Tensor]:
    """Return the weights of an uninterrupted training by the same code, without a store."""
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(1, steps + 1):
        generator = torch.Generator().manual_seed(step)
        loss = model(torch.randn(8, 64, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict()


def _train(folder: Path, node: str, mirror: str, steps: int) -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(_TRAINING)
    command = [sys.executable, str(script), str(folder / node), mirror, str(steps), str(folder / f"{node}.pt")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("kind", [pytest.param("directory", marks=pytest.mark.whole), "s3"])
def test_a_training_on_a_lost_node_continues_bit_for_bit_on_another_node(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{service.port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    mirror = str(tmp_path / "m") if kind == "directory" else "s3://ck-test/run"
    with _train(tmp_path, "a", mirror, 10_000) as training:

        def is_mirrored() -> bool:
            if kind == "directory":
                return any(tmp_path.glob("m/checkpoints/main/*/*/manifest.json"))
            return any(key.endswith("manifest.json") for key in service.objects)

        wait_for(is_mirrored, "the first checkpoint is at the mirror")
        training.send_signal(signal.SIGKILL)
        assert training.stdout is not None
        done = max(int(line) for line in training.stdout.read().split())
    shutil.rmtree(tmp_path / "a", ignore_errors=True)
    # The process that mirrors sees that its store is gone.
    wait_for(lambda: not mirrors_of(tmp_path / "a"), "the process of the node that is gone has ended")
    shutil.rmtree(tmp_path / "a", ignore_errors=True)
    with _train(tmp_path, "b", mirror, done + 3) as training:
        assert training.wait(_WAIT_S) == 0
    begun, went_on = torch.load(tmp_path / "b.pt")
    assert begun > 0
    wanted = _trained(done + 3)
    assert all(torch.equal(went_on[name], wanted[name]) for name in wanted)
    # The last ones get there, too, though the training has ended.
    other = Store.open(tmp_path / "b", readonly=True)
    wait_for(lambda: not (other.mirror_status() or pytest.fail("no mirror")).behind, "all are at the mirror")
    assert SECRET not in "".join(path.read_text() for path in (tmp_path / "b").rglob("*.json*"))


@pytest.mark.usefixtures("no_process_left")
def test_a_saver_starts_the_mirror_of_its_trainer(tmp_path: Path) -> None:
    with Store.init(tmp_path / "a") as store:
        store.remotes.add("m", tmp_path / "m")
        store.config.mirror = "m"
        store.save_async(state(1), step=1)
        store.background.wait()
        wait_for(lambda: not store.mirror_status().behind, "nothing was pushed")  # type: ignore[union-attr]


@pytest.mark.whole
@pytest.mark.usefixtures("no_process_left")
def test_keep_local_evicts_after_background_saves(tmp_path: Path) -> None:
    with Store.open_or_init(tmp_path / "a", chunk_bytes=MIB, mirror=tmp_path / "m") as store:
        store.config.keep_local = RetentionPolicy(keep_last=1)
        for step in (1, 2, 3):
            store.save_async(state(step), step=step)
        store.background.wait()
        wait_for(
            lambda: [info.elsewhere for info in store.checkpoints()] == [True, True, False],
            "the process that mirrors has let go of all but the newest",
        )
        assert same(store.load(1), state(1))
        assert {event.step for event in store.events() if event.event == "evicted"} == {1, 2}
        assert store.verify().ok


@pytest.fixture
def counted(tmp_path: Path, memory: Target, quiet: list[str]) -> tuple[Store, Double]:
    """Return a store whose mirror counts requests."""
    store = Store.init(tmp_path / "a", chunk_bytes=MIB)
    store.remotes.add("away", memory.address)
    store.config.mirror = "away"
    objects, _ = new_remote(store.settings, checks_bodies=True)
    del quiet
    return store, objects


def test_the_requests_of_a_mirror_depend_on_new_checkpoints_only(counted: tuple[Store, Double]) -> None:
    store, objects = counted
    store.config.keep_local = RetentionPolicy(keep_last=1)
    mirror = Mirror(context_of(store))
    made: list[int] = []
    for step in range(12):
        store.save({**state(0), "step": step, "own": bytes([step]) * 200_000}, step=step, tags=["newest"])
        objects.forget_requests()
        while mirror.step():
            pass
        # The first push to a run looks which checkpoints it has there.
        assert objects.requests["list"] == (1 if step == 0 else 0), step
        made.append(objects.request_count())
    assert max(made[6:]) <= max(made[1:6]) + 2 <= 40
    assert sum(info.elsewhere for info in store.checkpoints()) >= 10
    # A new process asks for no more.
    store.save({**state(0), "step": 99, "own": b"x" * 200_000}, step=99)
    objects.forget_requests()
    assert Mirror(context_of(store)).step()
    assert (objects.requests["list"], objects.request_count() <= max(made)) == (0, True)


def test_checkpoints_that_the_mirror_lost_are_pushed_again(counted: tuple[Store, Double]) -> None:
    store, objects = counted
    store.save(state(0), step=0)
    all_steps(store)
    lost = [key for key in objects.held if key.startswith("blobs/")]
    objects.delete(lost)
    store.save({**state(0), "step": 1}, step=1)
    all_steps(store)
    # What was noted of it decides nothing: each blob that the next one needs was looked for.
    needed = {path.name for path in blobs_dir(store.path, "main", 1).iterdir()}
    assert needed <= {key.rpartition("/")[2] for key in objects.held}


def test_a_large_backlog_is_found_by_one_listing(counted: tuple[Store, Double]) -> None:
    store, objects = counted
    for step in range(20):
        store.save({"x": step}, step=step)
    store.push(remote="away", all=True)
    objects.forget_requests()
    all_steps(store)
    assert objects.requests["list"] == 1
    assert objects.requests["head"] == objects.requests["put"] == 0
    status = store.mirror_status()
    assert status is not None
    assert status.behind == ()


def test_the_mirror_age_is_reported_everywhere_and_warns_when_exceeded(
    tmp_path: Path, quiet: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    created = time_of_text(store.save(state(1), step=1).created)
    now = [created + timedelta(seconds=599)]
    monkeypatch.setattr(mirror_record, "now", lambda: now[0])

    def said() -> tuple[str, str, float, bool]:
        finding = next(one for one in store.doctor().findings if one.what == "mirror")
        found = re.search(r"ckstore_mirror_oldest_seconds\{.*?\} ([0-9.]+)", store.metrics())
        status = store.mirror_status()
        assert found is not None
        assert status is not None
        assert f"the oldest for {status.oldest_s:.0f} s of 600 s allowed" in finding.found
        return finding.level, finding.do, float(found[1]), status.missed

    assert said() == ("ok", "", 599.0, False)
    now[0] += timedelta(seconds=2)
    level, do, seconds, missed = said()
    assert (level, seconds, missed) == ("warning", 601.0, True)
    assert "ckstore savers" in do
    mirror_record.note_problem(context_of(store).layout, "mirror", "the service answers 503")
    shown = CliRunner().invoke(app, ["savers", "--store", str(store.path)])
    assert "1 checkpoint is not at the mirror yet, the oldest for 601 s of 600 s allowed" in shown.output
    assert "the last push failed: the service answers 503" in shown.output
    all_steps(store)
    assert store.mirror_status().missed is False  # type: ignore[union-attr]
    del quiet


def test_doctor_warns_while_pushes_are_refused_and_gives_the_start_time(
    tmp_path: Path, quiet: list[str], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{service.port}")
    store = Store.open_or_init(tmp_path / "a", mirror="s3://ck-test/run")
    began = time_of_text(store.save(state(1), step=1).created)
    now = [began]
    monkeypatch.setattr(mirror_record, "now", lambda: now[0])

    def tried() -> tuple[str, str, str]:
        """Run one attempt of the process, a minute later."""
        now[0] += timedelta(minutes=1)
        with StatusPage(str(tmp_path / "a")) as page, monkeypatch.context() as patched:
            patched.setattr(time, "sleep", lambda _: patched.setattr(process, "has_successor", lambda _: True))
            process.serve(context_of(store), Mirror(context_of(store)), page, linger_s=0)
        finding = next(one for one in store.doctor().findings if one.what == "mirror")
        return finding.level, finding.found, finding.do

    service.habits.denies = True
    first = f"none has worked since {began + timedelta(minutes=1):%Y-%m-%d %H:%M:%S} UTC"
    for _ in range(2):
        level, found, do = tried()
        assert level == "warning"
        assert first in found
        assert first.replace("none has worked", "the credentials are refused") in found
        assert "was refused" in found
        assert "ckstore remote probe mirror" in do
        assert "credentials" in do
    status = store.mirror_status()
    assert status is not None
    assert not status.missed
    service.habits.denies = False
    level, found, do = tried()
    assert (level, do) == ("ok", "")
    assert found.startswith("the mirror has every checkpoint (it listed them as of ")

    # What cannot be pushed any more, since it was dropped here, is nothing to be warned of.
    service.habits.denies = True
    store.save(state(2), step=2)
    assert tried()[0] == "warning"
    store.delete(2)
    assert tried()[0] == "ok"
    del quiet


@pytest.mark.parametrize("how", ["named again", "made again"])
def test_another_remote_under_the_name_of_the_mirror_starts_empty(tmp_path: Path, quiet: list[str], how: str) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    for step in (1, 2):
        store.save({"x": step}, step=step)
    all_steps(store)
    shutil.rmtree(tmp_path / "m")
    Store.init(tmp_path / "new").remotes.add("m", tmp_path / "m")
    if how == "made again":
        store.save({"x": 3}, step=3)
        problem = all_steps(store).problem
        assert isinstance(problem, RemoteError)
        assert "another remote is now at mirror" in str(problem)
        assert "ckstore remote rm mirror, then add it again" in str(problem)
        assert not (tmp_path / "m" / "runs").exists()
    store.config.mirror = None
    store.remotes.remove("mirror")
    store.remotes.add("mirror", tmp_path / "m")
    store.config.mirror = "mirror"

    status = store.mirror_status()
    assert status is not None
    assert {info.id for info in status.behind} == {info.id for info in store.checkpoints()}
    all_steps(store)
    assert {info.id for info in Store.open(f"file://{tmp_path}/m").checkpoints()} == {
        info.id for info in store.checkpoints()
    }


class Killed(BaseException):
    """The process is killed at this point."""


@pytest.fixture(params=["url", "directory"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, memory: Target, quiet: list[str]) -> Store:
    """Return a store with a mirror on object storage, or in a directory."""
    store = Store.init(tmp_path / "a", chunk_bytes=MIB)
    store.remotes.add("cold", memory.address if request.param == "url" else tmp_path / "m")
    store.config.mirror = "cold"
    del quiet
    return store


def names_there(store: Store, folder: Path) -> tuple[dict[str, int], list[tuple[int, str]], dict[int, list[str]]]:
    """Return the tags, pins and notes that a new store on another node takes from the mirror."""
    clone = Store.clone(store.remotes.get("cold").target.address, folder)
    return (
        {tag.name: tag.step for tag in clone.tags()},
        [(pin.step, pin.reason) for pin in clone.pins()],
        {info.step: [note.text for note in info.notes] for info in clone.checkpoints() if info.notes},
    )


def test_tags_pins_and_notes_follow_a_push_that_was_killed_after_its_manifest(
    kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.save(state(1), step=1, tags=["best"])
    kept.pin(1, "a paper names it")
    kept.annotate(1, note="good")

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("ckstore.remote.push.MetadataPusher.push", die)
        patched.setattr("ckstore.remote.push.Push.keep_record", lambda _: None)
        patched.setattr("ckstore.remote.pull.take_names", die)
        patched.setattr("ckstore.remote.pull.Pull.annotations_of", lambda *_: None)
        with pytest.raises(Killed):
            Mirror(context_of(kept)).step()
    assert names_there(kept, tmp_path / "before") == ({}, [], {})

    all_steps(kept)

    assert names_there(kept, tmp_path / "after") == ({"best": 1}, [(1, "a paper names it")], {1: ["good"]})


def test_later_metadata_is_pushed_and_a_moved_tag_also_moves_on_the_mirror(kept: Store, tmp_path: Path) -> None:
    kept.config.keep_local = RetentionPolicy(keep_last=1)
    for step in (1, 2):
        kept.save(state(step), step=step, tags=["newest"])
        all_steps(kept)
    kept.annotate(1, note="of one without bytes here")
    kept.tag("best", 1)
    kept.pin(2, "a paper names it")

    all_steps(kept)

    assert names_there(kept, tmp_path / "b") == (
        {"newest": 2, "best": 1},
        [(2, "a paper names it")],
        {1: ["of one without bytes here"]},
    )
    kept.tag("best", 2)
    all_steps(kept)
    assert names_there(kept, tmp_path / "c")[0] == {"newest": 2, "best": 2}


def test_a_step_saved_again_replaces_the_metadata_on_the_mirror(kept: Store, tmp_path: Path) -> None:
    kept.config.keep_local = RetentionPolicy(keep_last=1)
    for step in (1, 2, 3):
        kept.save(state(step), step=step, tags=[f"t{step}"])
    all_steps(kept)
    for step in (2, 1):
        for seed in (10, 20):
            saved = kept.save(state(seed + step), step=step, if_exists="replace")
            assert f"main@{step} has the tag t{step}" in saved.warnings[0]
    all_steps(kept)
    clone = Store.clone(kept.remotes.get("cold").target.address, tmp_path / "clone")
    assert [info.id for info in clone.checkpoints()] == [info.id for info in kept.checkpoints()]
    assert [same(clone.load(step), state(20 + step)) for step in (1, 2)] == [True, True]
    # A tag names an id, and so keeps a checkpoint that is superseded, on both sides.
    assert [same(clone.load(f"t{step}"), state(step)) for step in (1, 2)] == [True, True]


@pytest.mark.parametrize("was_killed", [False, True], ids=["ended", "killed"])
@pytest.mark.parametrize("how", ["clone", "pull"])
def test_metadata_from_the_mirror_does_not_overwrite_later_changes_of_other_stores(
    kept: Store, tmp_path: Path, how: str, was_killed: bool
) -> None:
    for step in (1, 2):
        kept.save(state(step), step=step)
    kept.tag("best", 1)
    kept.annotate(1, metrics={"bleu": 27.0})
    pin = kept.pin(1, "until the paper is out")
    all_steps(kept)
    address = kept.remotes.get("cold").target.address
    if how == "clone":
        other = Store.clone(address, tmp_path / "b", remote="cold")
    else:
        other = Store.init(tmp_path / "b", chunk_bytes=MIB)
        other.remotes.add("cold", address)
        other.pull(remote="cold", all=True)
    other.config.mirror = "cold"
    if was_killed:  # a process that mirrors, between owning a run and noting that
        info = other.save(state(3), run="other")
        Ownership(context_of(other)).own(named_remote(context_of(other), "cold"), "other", info.sequence)
    kept.tag("best", 2)
    kept.annotate(1, metrics={"bleu": 30.0})
    all_steps(kept)

    all_steps(other)

    def there(name: str) -> tuple[int, float, list[str]]:
        clone = Store.clone(address, tmp_path / name)
        return clone.info("best").step, clone.info(1).metrics["bleu"], [pin.name for pin in clone.pins()]

    assert there("c") == (2, 30.0, [pin.name])
    # What is said here since does go.
    other.tag("paper", 1)
    other.annotate(1, metrics={"bleu": 31.0})
    all_steps(other)
    assert there("d") == (2, 31.0, [pin.name])
    assert Store.open(tmp_path / "d").info("paper").step == 1


@pytest.mark.parametrize("is_lost", [False, True], ids=["moved", "lost"])
def test_a_push_by_hand_sends_a_tag_that_was_taken_only_where_it_is_lost(
    kept: Store, tmp_path: Path, is_lost: bool
) -> None:
    for step in (1, 2):
        kept.save(state(step), step=step)
    kept.tag("best", 1)
    all_steps(kept)
    address = kept.remotes.get("cold").target.address
    other = Store.init(tmp_path / "b", chunk_bytes=MIB)
    other.remotes.add("cold", address)
    other.pull(remote="cold", all=True)
    kept.tag("best", 2)
    all_steps(kept)
    if is_lost:
        objects = named_remote(context_of(kept), "cold").objects
        objects.delete(["refs/best.json"])

    other.push(1, "cold")

    assert Store.clone(address, tmp_path / "c").info("best").step == (1 if is_lost else 2)
    other.save(state(3), step=3, tags=["best"])
    other.push(3, "cold")
    assert Store.clone(address, tmp_path / "d").info("best").step == 3


def test_metadata_is_pushed_once_and_not_for_removed_checkpoints(counted: tuple[Store, Double]) -> None:
    store, objects = counted
    for step in range(3):
        store.save({"x": step}, step=step)
    all_steps(store)
    objects.forget_requests()
    store.tag("best", 1)
    store.annotate(2, metrics={"bleu": 1.0})
    all_steps(store)
    assert sorted(objects.keys_written) == [place_of(store.info(2)).annotations, "refs/best.json"]
    assert objects.request_count() <= 14
    objects.forget_requests()
    all_steps(store)
    # A new process, too.
    assert not Mirror(context_of(store)).step()
    assert objects.request_count() == 0

    place = place_of(store.info(0))
    objects.put(place.dropped, b"{}")
    objects.delete([place.manifest])
    objects.forget_requests()
    store.annotate(0, note="only here by now")
    store.tag("old", 0)
    all_steps(store)
    assert objects.keys_written == []


def test_a_document_that_cannot_be_merged_does_not_hold_up_others(counted: tuple[Store, Double]) -> None:
    store, objects = counted
    for step in range(30):
        store.save({"x": step}, step=step)
    all_steps(store)
    broken = place_of(store.info(5)).annotations
    objects.put(broken, b"{")
    for step in range(30):
        store.annotate(step, note="good")
    mirror = Mirror(context_of(store))

    def fault(call: str, key: str) -> None:
        """Fail at the second read of the broken document: a mirror that retries it at once never ends its step."""
        assert (call, key) != ("get", broken) or broken not in objects.keys_read, "the broken document is read again"

    objects.fault = fault
    for _ in range(8):
        with suppress(RemoteError):
            mirror.step()
    assert sum(key.endswith("annotations.json") and b"good" in data for key, data in objects.held.items()) == 29
    assert objects.held[broken] == b"{"
    store.save({"x": 99}, step=99)
    assert mirror.step()
    assert [info.step for info in mirror.todo()] == []
    # It is not given up: once the broken one is out of the way it is written.
    objects.delete([broken])
    all_steps(store)
    assert b"good" in objects.held[broken]
    check_store(store.path)


def test_a_tag_a_pin_and_a_note_start_the_mirror_once_in_a_while(tmp_path: Path, quiet: list[str]) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    store.save(state(1), step=1)
    starting._starts.clear()
    quiet.clear()
    for number in range(20):
        store.tag(f"t{number}", 1)
    assert len(quiet) == 1
    for act in (lambda: store.pin(1, "kept"), lambda: store.annotate(1, note="good")):
        starting._starts.clear()
        quiet.clear()
        act()
        assert len(quiet) == 1


@pytest.mark.parametrize("how", [OSError(11, "Resource temporarily unavailable"), MemoryError(), 1, -9])
def test_failing_mirror_processes_are_started_ever_more_rarely(
    tmp_path: Path, quiet: list[str], monkeypatch: pytest.MonkeyPatch, how: Exception | int
) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    tried: list[str] = []

    def start(entry: str, *_: object) -> Ended:
        if isinstance(how, Exception):
            tried.append(entry)
            raise how
        return _told(tried, entry, Ended(how))

    monkeypatch.setattr(helper_start, "start", start)
    pauses = []
    for step in range(10):
        store.save({"x": step}, step=step)
        store.save({"x": step}, step=step, if_exists="replace")
        assert len(tried) == step + 1
        ((path, last),) = starting._starts.items()
        pauses.append(last.pause_s)
        starting._starts[path] = last._replace(at_s=last.at_s - last.pause_s)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 300.0]
    finding = next(one for one in store.doctor().findings if one.what == "mirror")
    assert finding.level == "warning"
    assert "the mirror process" in finding.found

    # Once one has worked, all is as before.
    monkeypatch.setattr(helper_start, "start", lambda entry, *_: _told(tried, entry, Ended(0)))
    for step in range(20, 23):
        store.save({"x": step}, step=step)
    assert len(tried) == 13
    del quiet


def test_no_second_mirror_process_is_started_while_one_is_starting(tmp_path: Path, quiet: list[str]) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    store.save({"x": 0}, step=0)
    ((path, last),) = starting._starts.items()
    starting._starts[path] = last._replace(child=Ended(None))  # type: ignore[arg-type]
    quiet.clear()
    for step in range(1, 4):
        store.save({"x": step}, step=step)
    assert quiet == []
    starting._starts[path] = starting._starts[path]._replace(at_s=last.at_s - 6)
    store.save({"x": 4}, step=4)
    assert len(quiet) == 1


def test_a_new_store_at_the_path_of_a_lost_one_starts_its_own_mirror_process(tmp_path: Path, quiet: list[str]) -> None:
    lost = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    lost.save({"x": 0}, step=0)
    all_steps(lost)
    ((path, last),) = starting._starts.items()
    starting._starts[path] = last._replace(child=Ended(None))  # type: ignore[arg-type]
    shutil.rmtree(tmp_path / "a")
    quiet.clear()
    Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m").save({"x": 1}, step=1)
    assert quiet
