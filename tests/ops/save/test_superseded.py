"""The newest checkpoint of a step is the step's. An older one has its id as a name, and stays while it is needed."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CheckpointInfo, Store
from ckstore.errors import CkstoreWarning, DamagedBlob, NoSuchRef, StepExists
from ckstore.model import names
from ckstore.objects import publish
from ckstore.objects.publish import IfExists
from ckstore.ops.free.superseded_checkpoints import drop_older
from tests.support.checkpoint_dirs import checkpoint_dirs
from tests.support.crashing import run_and_kill
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store

ROUNDS = 1000 if CRASH_FULL else 50
HOUR_S = 3600


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, 20_000, dtype=np.uint8)}


def is_state(loaded: Any, seed: int) -> bool:
    return bool(np.array_equal(loaded["w"], state(seed)["w"]))


@contextmanager
def tagged(store: Store) -> Iterator[None]:
    store.tag("best", 1)
    yield
    store.untag("best")


@contextmanager
def pinned(store: Store) -> Iterator[None]:
    pin = store.pin(1, "for the paper")
    yield
    store.unpin(pin)


@contextmanager
def opened(store: Store) -> Iterator[None]:
    with store.open_checkpoint(1) as checkpoint:
        yield
        assert np.array_equal(checkpoint["w"], state(0)["w"])


NEEDS: list[Callable[[Store], AbstractContextManager[None]]] = [tagged, pinned, opened]


@pytest.mark.parametrize("need", NEEDS, ids=["tagged", "pinned", "open"])
def test_an_older_checkpoint_that_is_needed_stays_and_is_named_by_its_id(
    store: Store, need: Callable[[Store], AbstractContextManager[None]]
) -> None:
    old = store.save(state(0), step=1)
    with need(store):
        new = store.save(state(1), step=1, if_exists="replace")
        (warning,) = new.warnings
        store.gc(now=True)

        assert warning.startswith("the older checkpoint of main@1 is kept: main@1 ")
        assert store.checkpoints() == [new]
        both = store.checkpoints(superseded=True)
        assert [(info.id, info.superseded) for info in both] == [(old.id, True), (new.id, False)]
        for ref in (1, "1", "main@1", "latest", "main@latest", "latest-valid", new.id, new):
            assert store.info(ref).id == new.id
            assert is_state(store.load(ref), 1)
        for ref in (old.id, old.id.partition("-")[2][:10], f"main@{old.id}", old):
            assert store.info(ref).superseded
            assert store.info(ref).id == old.id
            assert is_state(store.load(ref), 0)
        assert store.verify().ok
    store.gc(now=True)

    assert store.checkpoints(superseded=True) == [new]
    with pytest.raises(NoSuchRef):
        store.load(old)


def test_when_the_newest_is_deleted_the_one_before_is_the_step_again(store: Store) -> None:
    old = store.save(state(0), step=1, tags=["best"])
    store.save(state(1), step=1, if_exists="replace")

    store.delete(1)

    assert store.checkpoints() == [old]
    assert not store.info(1).superseded
    assert is_state(store.load(1), 0)
    assert [info.superseded for info in store.checkpoints(superseded=True)] == [False]


@pytest.mark.parametrize("if_exists", ["error", "keep"])
def test_a_superseded_checkpoint_does_not_count_for_a_save(store: Store, if_exists: IfExists) -> None:
    store.save(state(0), step=1, tags=["best"])
    new = store.save(state(1), step=1, if_exists="replace")

    assert store.save(state(1), step=1, if_exists=if_exists) == new
    if if_exists == "error":
        with pytest.raises(StepExists):
            store.save(state(0), step=1)
    else:
        assert store.save(state(0), step=1, if_exists="keep") == new
    again = store.save(state(0), step=1, if_exists="replace")
    assert store.info(1) == again
    assert is_state(store.load(1), 0)
    assert len(store.checkpoints(superseded=True)) == 2  # the tagged one, and this one with the same bytes


@pytest.mark.parametrize("need", NEEDS, ids=["tagged", "pinned", "open"])
def test_a_gc_does_not_count_what_is_superseded_and_needed(
    store: Store, need: Callable[[Store], AbstractContextManager[None]]
) -> None:
    store.save(state(0), step=1)
    with need(store):
        store.save(state(1), step=1, if_exists="replace")

        assert store.gc(now=True, dry_run=True).freed_bytes == 0
    assert store.gc(now=True, dry_run=True).freed_bytes > 0


@pytest.mark.parametrize("how", ["a blob is missing", "other bytes"])
def test_where_the_newest_is_damaged_the_older_one_stays_and_is_not_loaded_as_the_step(store: Store, how: str) -> None:
    old = store.save(state(0), step=1)
    with opened(store):
        new = store.save(state(1), step=1, if_exists="replace")
    harm(directory_of(store, new), how)
    assert not store.verify().ok

    assert store.gc(now=True, dry_run=True).freed_bytes == 0
    store.gc(now=True)
    for _ in range(2):
        with pytest.raises(DamagedBlob):
            store.load(1)
        store.reindex()  # afterwards the catalog does not know the one that is not complete
    assert is_state(store.load(old.id), 0)
    with pytest.warns(CkstoreWarning, match="newer checkpoints are damaged"):
        assert is_state(store.load("latest-valid"), 0)
    again = store.save(state(1), step=1, if_exists="replace")
    store.gc(now=True)
    assert store.checkpoints(superseded=True) == [again]


def test_a_save_that_another_one_overtakes_is_the_newest_of_its_step(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state(0), step=1)
    real = publish.publish
    others: list[CheckpointInfo] = []

    def overtake() -> None:
        with Store.open(store.path) as other:
            others.append(other.save(state(1), step=1, if_exists="replace"))

    def overtaking(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(publish, "publish", real)
        thread = threading.Thread(target=overtake)  # it takes the number that the first has already
        thread.start()
        thread.join()
        return real(*args, **options)

    monkeypatch.setattr(publish, "publish", overtaking)
    info = store.save(state(2), step=1, if_exists="replace")

    assert info.sequence == others[0].sequence + 1
    assert store.info(1).id == info.id
    assert store.checkpoints(superseded=True) == [info]


def test_what_comes_later_in_the_order_of_commits_is_not_dropped_as_older(store: Store) -> None:
    old = store.save(state(0), step=1)
    with opened(store):
        new = store.save(state(1), step=1, if_exists="replace")

    assert drop_older(store._context, old, [new.key]) == []

    assert [info.id for info in store.checkpoints(superseded=True)] == [old.id, new.id]
    assert is_state(store.load(1), 1)


# ------------------------------------------------------------------------------------ undo


def forked(work: Callable[[int], None]) -> Callable[[], None]:
    """Run `work` in a child with a pipe that ends when what is returned is called, which waits for it."""
    until, stop = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(stop)
            os.set_blocking(until, False)
            work(until)
            status = 0
        finally:
            os._exit(status)
    os.close(until)

    def end() -> None:
        os.close(stop)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    return end


def is_over(until: int) -> bool:
    try:
        return os.read(until, 1) == b""
    except BlockingIOError:
        return False


@pytest.mark.crash
@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_is_replaced_can_be_undone_while_others_open_and_collect(store: Store) -> None:
    store.config.undo_by_rule_s = HOUR_S
    store.config.undo_by_hand_s = HOUR_S

    def disturb(until: int) -> None:
        for number in range(10**9):
            if is_over(until):
                return
            with Store.open(store.path) as other:
                if number % 5 == 0:
                    other.gc()

    ids = [store.save(state(0), step=1).id]
    end = forked(disturb)
    try:
        ids += [store.save(state(seed), step=1, if_exists="replace").id for seed in range(1, ROUNDS + 1)]
    finally:
        end()

    offered = {one.id: one for one in store.undoable()}
    left = {info.id for info in store.checkpoints(superseded=True)}
    assert [number for number, id in enumerate(ids) if id not in offered and id not in left] == []
    assert [one for one in offered.values() if one.problem] == []
    for seed in range(0, ROUNDS, ROUNDS // 10):
        found = store.undo(ids[seed]) if ids[seed] in offered else store.info(ids[seed])
        assert found.superseded
        with Store.open(store.path) as other:
            other.gc()  # which leaves it for its window
        assert is_state(store.load(ids[seed]), seed)
    assert store.info(1).id == ids[-1]
    store.gc(now=True)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_a_reader_had_open_when_it_was_replaced_can_be_undone(store: Store) -> None:
    store.config.undo_by_rule_s = HOUR_S
    store.config.undo_by_hand_s = HOUR_S
    old = store.save(state(0), step=1)
    with Store.open(store.path) as other, other.open_checkpoint(1):
        store.save(state(1), step=1, if_exists="replace")
    with Store.open(store.path) as other:
        other.gc()

    assert is_state(store.load(old), 0)
    store.gc(now=True)
    assert [info.id for info in store.checkpoints(superseded=True)] == [store.info(1).id]


def test_nothing_is_dropped_by_a_save_that_cannot_read_for_how_long_it_can_be_undone(store: Store) -> None:
    store.config.undo_by_rule_s = store.config.undo_by_hand_s = HOUR_S
    old = store.save(state(0), step=1)
    config = store.path / "config.json"
    settings = config.read_bytes()
    config.write_bytes(settings[:-9])

    new = store.save(state(1), step=1, if_exists="replace")

    assert any("the older checkpoint of main@1 was not dropped" in warning for warning in new.warnings)
    assert [info.id for info in store.checkpoints(superseded=True)] == [old.id, new.id]
    config.write_bytes(settings)
    store.save(state(2), step=1, if_exists="replace")
    with Store.open(store.path) as other:
        other.gc()
        left = {info.id for info in other.checkpoints(superseded=True)} | {one.id for one in other.undoable()}
        assert {old.id, new.id} < left
    store.gc(now=True)


@pytest.mark.crash
@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@pytest.mark.parametrize("before", [True, False])
def test_a_saver_that_is_killed_anywhere_leaves_what_it_replaces_or_a_way_back(store: Store, before: bool) -> None:
    store.config.undo_by_rule_s = HOUR_S
    for at in range(1, 100, 1 if CRASH_FULL else 4):
        old = store.save(state(at), step=at)
        died = run_and_kill(
            functools.partial(store.save, state(1000 + at), step=at, if_exists="replace"),
            at=at,
            before=before,
            may_fail=False,
        )
        with Store.open(store.path) as other:
            is_new = is_state(other.load(at), 1000 + at)
            assert is_new or is_state(other.load(at), at)
            other.gc()
            if not is_new:
                assert other.info(at).id == old.id
            elif waiting := [one.id for one in other.undoable() if one.step == at]:  # else it stays superseded
                assert waiting == [old.id]
                other.undo(old.id)
            assert is_state(other.load(old.id), at)
        if not died and at > 10:  # of the first calls some raise, and so are not followed by a death
            break
    else:
        pytest.fail("a replacement has less than 100 changes")
    store.gc(now=True)
    check_store(store.path)


# ------------------------------------------------------------------------------------ several at once


def save_at_once(store: Store, step: int, if_exists: IfExists, seeds: tuple[int, ...]) -> dict[int, str]:
    """Save with each seed in a process of its own, all begun by one byte; return the ids of the acknowledged ones."""
    (go, tell), (told, tell_back) = os.pipe(), os.pipe()
    children = []
    for seed in seeds:
        pid = os.fork()
        children.append(pid)
        if pid == 0:
            status = 1
            try:
                # Each of them goes on with what the store has: else none could replace it.
                with Store.open(store.path, continue_from=store.latest()) as own:
                    os.write(tell_back, b"r")
                    os.read(go, 1)
                    try:
                        os.write(
                            tell_back, f"\n{seed} {own.save(state(seed), step=step, if_exists=if_exists).id}".encode()
                        )
                    except StepExists:
                        os.write(tell_back, b"\n")
                status = 0
            finally:
                os._exit(status)
    os.close(tell_back)
    for _ in seeds:
        assert os.read(told, 1) == b"r"
    os.write(tell, b"!" * len(seeds))
    for pid in children:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    said = b"".join(iter(functools.partial(os.read, told, 4096), b"")).decode()
    for fd in (go, tell, told):
        os.close(fd)
    return {int(line.split()[0]): line.split()[1] for line in said.splitlines() if line}


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_of_those_that_save_a_step_at_once_one_is_acknowledged(store: Store) -> None:
    for step in range(ROUNDS // 5):
        acknowledged = save_at_once(store, step, "error", (1, 2, 3))

        ((seed, id),) = acknowledged.items()
        assert store.info(step).id == id
        assert is_state(store.load(step), seed)
        assert len(checkpoint_dirs(store.path, "main", step)) == 1
    assert store.verify().ok


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_of_those_that_replace_a_step_at_once_all_are_acknowledged_and_none_is_lost(store: Store) -> None:
    store.config.undo_by_rule_s = HOUR_S
    for step in range(ROUNDS // 5):
        first = store.save(state(0), step=step)
        acknowledged = save_at_once(store, step, "replace", (1, 2))

        assert acknowledged.keys() == {1, 2}
        listed = {info.id: info for info in store.checkpoints(superseded=True) if info.step == step}
        newest = max(listed.values(), key=lambda info: info.order)
        assert store.info(step) == newest
        assert newest.id in acknowledged.values()
        for seed, id in {**acknowledged, 0: first.id}.items():
            if id not in listed:
                store.undo(id)
            assert is_state(store.load(id), seed)
    store.gc(now=True)


# ------------------------------------------------------------------------------------ names


@pytest.fixture
def one_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of directories have one digit of the id, so that those of different checkpoints meet."""
    monkeypatch.setattr(publish, "SHORT_DIGITS", 1)
    shorter = names._DIRECTORY_PATTERN.pattern.replace("{10,64}", "{1,64}")
    assert shorter != names._DIRECTORY_PATTERN.pattern
    monkeypatch.setattr(names, "_DIRECTORY_PATTERN", re.compile(shorter))


def save_many(store: Store, state: Callable[[int], dict[str, Any]]) -> list[CheckpointInfo]:
    """Save so many checkpoints of one step, each with a tag, that the ids of two begin with one digit."""
    return [store.save(state(seed), step=1, tags=[f"t{seed}"], if_exists="replace") for seed in range(17)]


@pytest.mark.usefixtures("one_digit")
@pytest.mark.filterwarnings("ignore:main@1 names a newer checkpoint:ckstore.CkstoreWarning")
def test_checkpoints_whose_ids_begin_alike_have_longer_names(store: Store) -> None:
    saved = save_many(store, state)
    store.config.undo_by_hand_s = HOUR_S
    with Store.open(store.path) as again:
        again.reindex()

        assert len({info.directory for info in saved}) == 17
        assert {len(info.directory.split(".")[1]) for info in saved} == {1, 32}
        for seed, info in enumerate(saved):
            assert again.info(info.id).id == again.info(f"t{seed}").id == again.info(info).id == info.id
            assert is_state(again.load(info.id), seed)
            assert is_state(again.load(f"t{seed}"), seed)
        assert again.info(1).id == saved[-1].id
        assert again.verify().ok
        for seed, info in enumerate(saved[:-1]):
            again.untag(f"t{seed}")
            again.delete(info)
            again.undo(info.id)
            assert is_state(again.load(info.id), seed)
        again.gc(now=True)
        assert [info.id for info in again.checkpoints(superseded=True)] == [saved[-1].id]


@pytest.mark.usefixtures("one_digit")
def test_a_compacted_checkpoint_with_a_longer_name_keeps_its_digits(store: Store) -> None:
    seed, info = 0, store.save({"w": np.arange(20_000)}, step=1, tags=["t0"])
    for seed in itertools.count(1):
        info = store.save({"w": np.arange(20_000) + seed}, step=1, tags=[f"t{seed}"], if_exists="replace")
        if len(info.directory) > 10:
            break
    store.untag(f"t{seed}")  # what has a tag is not compacted
    store.save({"w": np.arange(20_000) + seed + 1}, step=2)

    report = store.compact(keep_newest=1)

    assert [done.info.id for done in report.compacted] == [info.id]
    assert store.info(1).directory == f"{info.directory}.1"
    assert store.info(info).id == info.id
    assert np.array_equal(store.load(1)["w"], np.arange(20_000) + seed)
    assert store.verify().ok


# ------------------------------------------------------------------------------------ the same checkpoint again


@pytest.fixture
def pulled(store: Store, tmp_path: Path) -> Store:
    """A store with a checkpoint that it can pull again, whose blobs have no other name."""
    with Store.init(tmp_path / "source") as source:
        source.save(state(0), step=1)
    store.remotes.add("source", tmp_path / "source")
    store.pull(1, "source")
    for blob in store.path.glob("blobs/*/*"):
        blob.unlink()
    return store


def harm(directory: Path, how: str) -> None:
    blobs = [*(directory / "blobs").iterdir()]
    if how == "no manifest":
        (directory / "manifest.json").unlink()
    elif how == "torn manifest":
        (directory / "manifest.json").chmod(0o644)
        os.truncate(directory / "manifest.json", 100)
    elif how == "no blobs":
        shutil.rmtree(directory / "blobs")
    elif how == "a blob is missing":
        blobs[0].unlink()
    else:
        flip(blobs[0], keep_time=True)


@pytest.mark.parametrize("how", ["no manifest", "torn manifest", "no blobs", "a blob is missing", "other bytes"])
@pytest.mark.parametrize("named", [True, False], ids=["tagged and pinned", "not named"])
def test_a_name_that_a_damaged_form_has_is_followed_by_the_next_generation(
    pulled: Store, how: str, *, named: bool
) -> None:
    info = pulled.info(1)
    if named:
        pulled.tag("best", info)
        pulled.pin(info, "for the paper")
    harm(directory_of(pulled, info), how)
    if how == "other bytes":  # which only reading finds
        assert not pulled.verify().ok

    pulled.pull(1, "source")

    assert pulled.info(1).directory == f"{info.directory}.1"
    assert [path.name for path in checkpoint_dirs(pulled.path, "main", 1)] == [f"{info.directory}.1"]
    refs: list[int | str | CheckpointInfo] = [1, info.id, info, *(["best"] if named else [])]
    for ref in refs:
        assert pulled.info(ref).id == info.id
        assert is_state(pulled.load(ref), 0)
    assert [pin.dangling for pin in pulled.pins()] == [False] * named
    assert [(tag.id, tag.dangling) for tag in pulled.tags()] == [(info.id, False)] * named
    assert pulled.verify().ok


def test_a_name_that_the_same_checkpoint_has_is_its_name(pulled: Store) -> None:
    info = pulled.info(1)

    pulled.pull(1, "source")

    assert [path.name for path in checkpoint_dirs(pulled.path, "main", 1)] == [info.directory]


def test_a_damaged_form_that_is_open_stays_until_gc_finds_it_closed(pulled: Store) -> None:
    info = pulled.info(1)
    with pulled.open_checkpoint(1):
        harm(directory_of(pulled, info), "a blob is missing")
        with Store.open(pulled.path) as other:
            other.pull(1, "source")
        assert len(checkpoint_dirs(pulled.path, "main", 1)) == 2
        assert is_state(pulled.load(1), 0)
        assert is_state(pulled.load(info), 0)

    pulled.gc()

    assert [path.name for path in checkpoint_dirs(pulled.path, "main", 1)] == [f"{info.directory}.1"]
    assert is_state(pulled.load(info), 0)
