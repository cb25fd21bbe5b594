"""Rot under a hit: saves read a share of what they rely on again, and heal what differs from the bytes in hand."""

from __future__ import annotations

import errno
import math
import os
import sqlite3
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckstore import CkstoreWarning, Store
from ckstore.errors import BadInput, DamagedBlob, NoWholeCheckpoint
from ckstore.fs import direct, files
from ckstore.model.doctor.finding import DoctorFinding
from ckstore.model.settings.recheck import LEAST_BYTES, recheck_bytes
from ckstore.model.times import text_of_time
from ckstore.objects.documents import marks
from tests.support.damage import blobs_by_size, flip, same_state, two_part_state
from tests.support.look import directory_of

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def rot(path: Path, at: int = 100) -> None:
    """Change a byte, and leave size and time as they are."""
    flip(path, at, keep_time=True)


def inodes_of(store: Store, digest: str) -> set[int]:
    return {path.stat().st_ino for path in store.path.rglob(digest)}


def small(seed: int = 0) -> dict[str, Any]:
    """Return a state of which every save reads every byte again."""
    rng = np.random.default_rng(seed)
    return {f"layer{i}": rng.random(300) for i in range(10)}


def equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in other)


def large(chunk_count: int, seed: int = 0) -> dict[str, Any]:
    return {"frozen": np.random.default_rng(seed).integers(0, 256, chunk_count * MIB, dtype=np.uint8)}


@pytest.mark.crossed
@pytest.mark.parametrize("fresh", [False, True], ids=["the same process", "another process"])
@pytest.mark.parametrize("algorithm", ["xxh3_128", "blake3"])
def test_rot_in_a_small_state_is_found_by_the_next_save_and_healed_everywhere(
    tmp_path: Path, fresh: bool, algorithm: Any
) -> None:
    store = Store.init(tmp_path / "s", hash=algorithm)
    for run in ("a", "b", "b"):
        store.save(small(), run=run)
    (victim,) = blobs_by_size(store, "b@latest")
    rot(victim)
    if fresh:
        store = Store.open(store.path)

    info = store.save(small(), run="b")

    (warning,) = (one for one in info.warnings if "although the step advances" not in one)
    assert f"blob {victim.name} is damaged" in warning
    assert "put the right bytes in place in every checkpoint" in warning
    assert len(inodes_of(store, victim.name)) == 1
    for ref in ("a@latest", "b@0", "b@1", "b@2"):
        assert equal(store.load(ref), small())
    assert store.verify().ok
    assert store.save(small(), run="b").warnings == ()


def test_rot_is_healed_by_the_save_of_a_changed_state_too(store: Store) -> None:
    store.save(small())
    victim = blobs_by_size(store, 0)[0]
    rot(victim)

    store.save({**small(), "new": np.ones(5)})

    assert equal(store.load(0), small())
    assert equal(store.load(1), small())


def test_rot_under_hits_that_nothing_foresaw_is_found_as_well(store: Store) -> None:
    store.save(small(1))
    store.save(small(2))
    victim = blobs_by_size(store, 0)[0]
    rot(victim)

    info = store.save(small(1))

    assert victim.name in info.warnings[0]
    assert equal(store.load(0), small(1))


@pytest.mark.parametrize("fresh", [False, True], ids=["the same process", "another process"])
def test_with_a_share_of_1_a_save_reads_what_an_earlier_one_had_begun_to_read(store: Store, fresh: bool) -> None:
    state = {**large(1), "small": np.arange(10)}
    for _ in range(2):
        store.save(state)
    store.config.recheck_share = 1
    for blob in blobs_by_size(store, 0):
        rot(blob, at=50)
    if fresh:
        store = Store.open(store.path)

    info = store.save(state)

    assert len(info.warnings) == 2
    assert store.verify().ok


@pytest.mark.parametrize("where", [0, 0.3, 0.5, 0.999])
def test_rot_anywhere_in_a_frozen_base_is_healed_within_the_stated_number_of_saves(store: Store, where: float) -> None:
    base = large(4)
    store.config.recheck_share = 0.25
    frozen_bytes = base["frozen"].nbytes
    most = math.ceil(frozen_bytes / recheck_bytes(frozen_bytes, 0.25)) + 2
    store.save(base)
    for _ in range(3):  # a pass is under way
        store.save(base)
    victims = sorted((directory_of(store, 0) / "blobs").iterdir())
    at = int(where * frozen_bytes)
    rot(victims[at // MIB], at % MIB)

    warnings = [store.save({**base, "step": np.full(7, step)}).warnings for step in range(most)]

    assert sum(map(len, warnings)) == 1
    for info in store.checkpoints():
        assert np.array_equal(store.load(info)["frozen"], base["frozen"])


def test_every_blob_of_a_frozen_base_is_read_again_though_each_save_is_of_another_process(store: Store) -> None:
    base = large(3)
    store.save(base)
    most = math.ceil(3 * MIB / LEAST_BYTES) + 2
    for victim in sorted((directory_of(store, 0) / "blobs").iterdir()):
        rot(victim, MIB - 1)

    healed = sum(len(Store.open(store.path).save(base).warnings) for _ in range(most))

    assert healed == 3
    assert np.array_equal(store.load(0)["frozen"], base["frozen"])


def test_a_save_that_cannot_read_the_share_reads_everything(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share may be 1, by one who knows the disk."""
    state = large(60)
    store.config.recheck_share = 1
    store.save(state)
    for victim in (directory_of(store, 0) / "blobs").iterdir():
        rot(victim)
    read = files.read_file

    def failing(path: Any, *args: Any, **given: Any) -> bytes:
        if str(path).endswith("config.json"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(path, *args, **given)

    monkeypatch.setattr(files, "read_file", failing)
    warnings = store.save(state).warnings
    monkeypatch.undo()

    assert any("is damaged" in warning for warning in warnings)
    assert any("cannot be read, so this save reads again every blob that it reuses" in warning for warning in warnings)
    assert store.verify().ok


def test_without_a_share_nothing_is_read_again(store: Store) -> None:
    store.save(small())
    store.config.recheck_share = 0
    victim = blobs_by_size(store, 0)[0]
    rot(victim)

    assert store.save(small()).warnings == ()
    with pytest.raises(DamagedBlob):
        store.load(1)
    flip(victim, keep_time=True)
    store.verify()


def test_a_pack_of_which_other_bytes_are_needed_is_marked_and_left_and_the_save_keeps_its_own_pieces_apart(
    store: Store,
) -> None:
    store.save(small(), run="old")
    victim = blobs_by_size(store, "old@latest")[0]
    rot(victim, at=5)
    less = {name: value for name, value in small().items() if name != "layer0"}

    info = store.save(less, run="new")

    assert equal(store.load("new@latest"), less)
    assert victim.name not in {path.name for path in blobs_by_size(store, "new@latest")}
    (warning,) = info.warnings
    assert "wrote the bytes that it needs to another blob; marked as damaged: old@0" in warning
    mark = next(marks.marked(store._context.layout))
    assert marks.blobs_of(mark) == [victim.name]
    with pytest.raises(NoWholeCheckpoint, match="is damaged"):
        store.latest("old", valid=True)
    with pytest.raises(DamagedBlob, match="layer0"):
        store.load("old@latest")
    store.delete("old@latest")


def test_a_blob_that_the_disk_cannot_read_is_a_miss_and_written_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = two_part_state()
    store.save(state)
    victims = {path.stat().st_ino for path in blobs_by_size(store, 0)}
    read = direct.UncachedFile.read

    def failing(file: direct.UncachedFile, start: int, stop: int, buffer: memoryview) -> memoryview:
        if os.fstat(file.fd).st_ino in victims:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, start, stop, buffer)

    monkeypatch.setattr(direct.UncachedFile, "read", failing)
    with ExitStack() as stack:
        for path in blobs_by_size(store, 0):
            stack.enter_context(path.open("rb"))  # so that no other file gets its inode number
        found = [warning for _ in range(12) for warning in store.save(state).warnings]
    warnings = [warning for warning in found if "although the step advances" not in warning]

    assert len(warnings) == len(victims)
    assert all("the disk cannot read byte 0" in warning for warning in warnings)
    assert victims.isdisjoint({path.stat().st_ino for path in store.path.rglob("xxh3-*")})
    assert same_state(store.load(0), state)


def test_a_blob_that_is_marked_as_damaged_is_written_again_at_a_hit(store: Store) -> None:
    store.save(small())
    victim = blobs_by_size(store, 0)[0]
    rot(victim)
    with pytest.raises(DamagedBlob):
        store.load(0)  # marks it, and takes its time away
    store.config.recheck_share = 0

    store.save(small())

    assert equal(store.load(0), small())
    assert not list(marks.marked(store._context.layout))


def test_rot_in_committed_files_is_no_collision_and_is_healed(store: Store, tmp_path: Path) -> None:
    data = np.random.default_rng(1).integers(0, 256, 3 * MIB, dtype=np.uint8).tobytes()
    (tmp_path / "file.bin").write_bytes(data)
    store.commit([tmp_path / "file.bin"])
    victims = blobs_by_size(store, 0)
    for victim in victims:
        rot(victim, at=MIB - 1)

    store.commit([tmp_path / "file.bin"])

    assert {path.name for path in blobs_by_size(store, 1)} == {victim.name for victim in victims}
    store.checkout(0, tmp_path / "out")
    assert (tmp_path / "out" / "file.bin").read_bytes() == data


def test_what_was_read_when_is_in_the_catalog_and_what_was_written_counts_as_read(store: Store) -> None:
    before_ns = time.time_ns()
    store.save(two_part_state())

    count, unread, oldest_ns = store._context.catalog.oldest_reading(store.info(0).key, now_ns=time.time_ns())
    assert (count, unread) == (len(blobs_by_size(store, 0)), 0)
    assert before_ns <= (oldest_ns or 0) <= time.time_ns()


@pytest.mark.parametrize(
    "rows",
    ["DELETE FROM readings", "UPDATE readings SET read_ns = 9e18, read_to = -5", "UPDATE readings SET read_to = 9e18"],
)
def test_readings_that_are_lost_or_forged_delay_a_reading_at_most(store: Store, rows: str) -> None:
    base = large(3)
    store.save(base)
    most = math.ceil(3 * MIB / LEAST_BYTES) + 2
    victim = blobs_by_size(store, 0)[1]
    rot(victim, at=MIB - 1)
    _change_catalog(store, rows)

    again = Store.open(store.path)
    warnings = [warning for _ in range(most) for warning in again.save(base).warnings]

    assert len(warnings) == 1


def test_a_process_comes_round_to_every_blob_while_the_catalog_is_away(store: Store) -> None:
    base = large(3)
    store.save(base)
    most = math.ceil(3 * MIB / LEAST_BYTES) + 2
    for victim in blobs_by_size(store, 0):
        rot(victim, at=MIB - 1)

    warnings: list[str] = []
    for _ in range(most):
        for name in store.path.glob("catalog.db*"):
            name.unlink()
        info = store.save(base)
        assert not info.catalogued
        warnings += [warning for warning in info.warnings if "is damaged" in warning]

    assert len(warnings) == 3
    with pytest.warns(CkstoreWarning, match="it was missing"):
        Store.open(store.path)


def test_the_share_is_kept_in_the_store_and_checked(store: Store) -> None:
    assert store.config.recheck_share == 0.005

    store.config.recheck_share = 0.5

    assert Store.open(store.path).config.recheck_share == 0.5
    for wrong in (-0.1, 1.1, float("nan"), True, "1", [1]):
        with pytest.raises(BadInput, match="recheck_share must be a number from 0 to 1"):
            store.config.recheck_share = wrong  # type: ignore[assignment]
    store.config.recheck_share = None
    assert store.config.recheck_share == 0.005
    assert "recheck_share" not in (store.path / "config.json").read_text()


def test_info_says_since_when_every_blob_was_read_or_written(store: Store) -> None:
    before = text_of_time(datetime.now(UTC))
    store.save(large(2))
    written = store.info(0).oldest_reading
    assert before <= written <= text_of_time(datetime.now(UTC))

    assert store.verify().ok
    assert store.info(0).oldest_reading[:19] >= written[:19]  # a verification counts whole seconds

    _change_catalog(store, "DELETE FROM readings WHERE blob_id = (SELECT min(blob_id) FROM readings)")
    assert store.info(0).oldest_reading == ""
    assert store.verify().ok
    assert store.info(0).oldest_reading


def test_a_verification_of_rot_does_not_count_as_a_reading(store: Store) -> None:
    store.save(small())
    rot(blobs_by_size(store, 0)[0])
    _change_catalog(store, "DELETE FROM readings")

    assert not store.verify().ok

    assert store.info(0).oldest_reading == ""
    store.save(small())


def test_doctor_says_how_old_the_oldest_reading_is(store: Store) -> None:
    def found() -> DoctorFinding:
        return next(finding for finding in store.doctor().findings if finding.what == "last readings")

    assert found().found == "no checkpoint has a blob"
    store.save(two_part_state())
    assert found().level == "ok"
    _change_catalog(store, f"UPDATE readings SET read_ns = {time.time_ns() - 40 * 86400 * 10**9} WHERE blob_id = 1")
    assert (found().level, "was read or written within the last 40 days" in found().found) == ("note", True)
    _change_catalog(store, "UPDATE readings SET read_ns = 0 WHERE blob_id = 1")
    assert found().found == "it is unknown when 1 of 4 blobs were last read"


def _change_catalog(store: Store, statement: str) -> None:
    with closing(sqlite3.connect(store.path / "catalog.db", isolation_level=None)) as database:
        database.execute(statement)
