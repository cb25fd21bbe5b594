"""What ranks learn from one another, and how long they wait for it."""

from __future__ import annotations

import errno
import glob
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ckstore import CannotStore, DamagedBlob, MissingRanks, RankFailed, Ranks, Store
from ckstore.fs import files
from ckstore.ops.save.save import save_staged
from ckstore.ranks import work
from ckstore.ranks.file_rendezvous import FileRendezvous
from ckstore.ranks.rank_identity import RankIdentity

TIMEOUT_S = 120.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def save(store: Store, rank: int, world_size: int, *, state: Any = 1, timeout: float = TIMEOUT_S) -> Any:
    return store.save({"state": state}, 1, ranks=Ranks(rank, world_size, "a", timeout_s=timeout))


def test_however_many_ranks_fail_at_length_the_others_learn_all_of_it(store: Store) -> None:
    ranks = 20
    key = "\N{EURO SIGN}" * 10_000  # 60 kB in each document, so more than 1 MiB in all
    errors: dict[int, BaseException] = {}

    def fail(rank: int) -> None:
        try:
            save(Store.open(store.path), rank, ranks, state={key: object()})
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=fail, args=(rank,)) for rank in range(1, ranks)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while len(glob.glob(f"{store.path}/staging/*/failed-*.json")) < ranks - 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(RankFailed) as caught:
        save(store, 0, ranks)
    for thread in threads:
        thread.join()

    assert {type(error) for error in errors.values()} == {CannotStore}
    assert {rank: str(cause) for rank, cause in caught.value.causes.items()} == {
        rank: str(error) for rank, error in errors.items()
    }
    assert store.checkpoints() == []


def test_a_message_that_no_document_may_hold_is_cut(store: Store) -> None:
    who = RankIdentity.here("main", 1, 0, world_size=2, attempt="a")
    with FileRendezvous.enter(store._context.layout, who) as meeting:
        meeting.say_failed("\N{GRINNING FACE}" * 2**20)

        assert set(meeting.hear("failed")[0]["why"]) == {"\N{GRINNING FACE}"}


def test_a_rank_that_cannot_say_why_it_failed_still_fails_with_the_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(FileRendezvous, "say_failed", full)

    with pytest.raises(CannotStore, match="state"):
        save(store, 0, 2, state=object())
    assert list((store.path / "staging").iterdir()) == []


def test_a_rank_that_publishes_for_ever_is_waited_for_as_long_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "GRACE_LEAST_S", 0.1)
    monkeypatch.setattr(FileRendezvous, "deciding", lambda _: None)

    with pytest.raises(RankFailed, match="still publishing"):
        save(store, 0, 2, timeout=0.1)
    assert store.checkpoints() == []


def test_a_document_that_a_power_cut_left_empty_is_damage(store: Store) -> None:
    who = RankIdentity.here("main", 1, 0, world_size=2, attempt="a")
    with FileRendezvous.enter(store._context.layout, who) as meeting:
        for number, text in enumerate(("", "[1]", "{")):
            name = f"part-{number}.json"
            (store.path / "staging" / meeting._path.name / name).write_text(text)
            with pytest.raises(DamagedBlob, match=name):
                meeting.read(name)


def test_what_is_left_of_another_step_does_not_hide_that_a_rank_is_missing(store: Store) -> None:
    other = RankIdentity.here("main", 7, 0, world_size=2, attempt="a")
    with FileRendezvous.enter(store._context.layout, other) as meeting:
        path = store.path / "staging" / meeting._path.name / "rank-0.json"
        path.unlink()
        path.write_text("")

        with pytest.raises(MissingRanks, match="rank 1 did not arrive"):
            save(store, 0, 2, timeout=0.1)


def all_at_once(store: Store, world_size: int) -> tuple[dict[int, BaseException], set[str]]:
    """Save as all ranks; return the errors by rank, and the ids of what the others got."""
    errors: dict[int, BaseException] = {}
    ids: set[str] = set()

    def work(rank: int) -> None:
        try:
            ids.add(save(Store.open(store.path), rank, world_size).id)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors, ids


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "broken"), RuntimeError("broken"), KeyboardInterrupt()], ids=lambda e: type(e).__name__
)
def test_whatever_stops_the_rank_that_publishes_the_others_are_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("ckstore.ranks.merged_checkpoint.save_staged", broken)
    errors, _ = all_at_once(store, 3)

    (at,) = [rank for rank, one in errors.items() if not isinstance(one, RankFailed)]
    others = [one for one in errors.values() if isinstance(one, RankFailed)]
    assert len(others) == 2
    for other in others:
        assert list(other.causes) == [at]
        assert type(error).__name__ in str(other)
    assert store.checkpoints() == []
    assert list((store.path / "staging").iterdir()) == []


def test_a_rank_that_is_stopped_after_the_rename_leaves_the_checkpoint_to_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*given: Any) -> None:
        save_staged(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr("ckstore.ranks.merged_checkpoint.save_staged", stopped)
    errors, ids = all_at_once(store, 3)

    assert [type(error) for error in errors.values()] == [KeyboardInterrupt]
    assert ids == {info.id for info in store.checkpoints()}
    assert len(ids) == 1


def test_a_rank_acknowledges_the_rename_of_another_only_when_it_has_synced_it_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = files.sync_directory

    def stopped(_: object) -> None:
        raise KeyboardInterrupt

    def noted(folder: Any) -> None:
        synced.append(str(folder).removeprefix(f"{store.path}/"))
        real(folder)

    monkeypatch.setattr("ckstore.objects.publish.sync_parents", stopped)
    monkeypatch.setattr(files, "sync_directory", noted)
    errors, ids = all_at_once(store, 3)

    assert [type(error) for error in errors.values()] == [KeyboardInterrupt]
    assert ids == {info.id for info in store.checkpoints()}
    assert {"checkpoints/main", "checkpoints", "staging"} <= set(synced)


@pytest.mark.parametrize("fails", [True, False])
def test_ranks_that_cannot_write_how_it_ended_still_agree(
    store: Store, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """As on a full disk, where the one that publishes can say nothing."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(FileRendezvous, "say_outcome", full)
    if fails:
        first = threading.Lock()

        def full_at_first(*given: Any) -> Any:
            return full() if first.acquire(blocking=False) else save_staged(*given)

        monkeypatch.setattr(FileRendezvous, "say_failed", full)
        monkeypatch.setattr("ckstore.ranks.merged_checkpoint.save_staged", full_at_first)
    errors, ids = all_at_once(store, 3)

    if fails:
        kinds = sorted(type(error).__name__ for error in errors.values())
        assert kinds == ["InsufficientSpace", "RankFailed", "RankFailed"]
        assert store.checkpoints() == []
        assert all("its staged data was deleted" in str(one) for one in errors.values() if isinstance(one, RankFailed))
    else:
        assert errors == {}
        assert ids == {info.id for info in store.checkpoints()}
