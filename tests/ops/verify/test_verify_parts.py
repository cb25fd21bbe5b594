"""Verifying a part: quick without data, a sample, a budget that comes round to everything, a rate."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CkstoreWarning, Store
from ckstore.errors import BadInput
from ckstore.fs import blob_time, direct
from ckstore.model.reports.verify_report import StoreFinding, VerifyReport
from ckstore.ops import pace
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.damage import MIB, blobs_by_size, cut, flip, same_state, two_part_state
from tests.support.look import directory_of
from tests.support.stores import disk_bytes


@pytest.fixture
def harmed(tmp_path: Path) -> Store:
    """A store that is not looked at after the test."""
    return Store.init(tmp_path / "harmed", chunk_bytes=MIB)


def chunks(seed: int, count: int = 6) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, count * MIB, dtype=np.uint8)}


def kinds(report: VerifyReport) -> list[tuple[str, bool, bool]]:
    return [(found.kind, found.harmful, found.mended) for found in report.findings]


def only(report: VerifyReport, kind: str) -> StoreFinding:
    (found,) = [found for found in report.findings if found.kind == kind]
    return found


# ------------------------------------------------------------------------------------------------- quick


def test_a_quick_look_at_a_whole_store_finds_nothing_and_reads_no_blob(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        store.save(two_part_state(1), step=step, tags=["best"])
    store.pin(1, "why")
    store.annotate(1, {"bleu": 1.5})
    monkeypatch.setattr(direct, "opened_uncached", lambda *_, **__: pytest.fail("it reads a blob"))

    report = store.verify(quick=True)

    assert (report.ok, report.mode, report.findings, report.checked_bytes) == (True, "quick", (), 0)
    assert report.whole == ("main@1", "main@2")
    assert not (store.path / "verified.json").exists()


def test_quick_finds_what_is_missing_short_or_written_into(harmed: Store) -> None:
    for step in range(4):
        harmed.save(two_part_state(step), step=step)
    blobs_by_size(harmed, 0)[-1].unlink()
    cut(blobs_by_size(harmed, 1)[-1], 5)
    flip(touched := blobs_by_size(harmed, 2)[-1])

    report = harmed.verify(quick=True)

    assert [(found.step, "big" in found.names) for found in report.damage] == [(0, True), (1, True)]
    assert touched.name in {found.subject for found in report.findings if found.kind == "touched" and found.harmful}
    assert not report.ok
    assert report.whole == ("main@2", "main@3")
    assert not harmed.verify(2).ok


def test_names_outside_the_store_are_noted_and_do_no_harm(store: Store, tmp_path: Path) -> None:
    store.save(two_part_state(1), step=1)
    os.link(blobs_by_size(store, 1)[-1], tmp_path / "outside")

    report = store.verify(quick=True)

    assert report.ok
    assert "1 link outside" in only(report, "outside").what
    (tmp_path / "outside").unlink()
    assert store.verify(quick=True).findings == ()


@pytest.mark.parametrize("quick", [True, False])
def test_a_lost_canonical_name_is_given_back(store: Store, quick: bool) -> None:
    store.save(two_part_state(1), step=1)
    blob = blobs_by_size(store, 1)[-1]
    canonical = store.path / "blobs" / blob.name.partition("-")[2][:2] / blob.name
    canonical.unlink()
    canonical.parent.rmdir()

    report = store.verify(quick=quick)

    assert (report.ok, kinds(report)) == (True, [("name", False, True)])
    assert os.path.samefile(canonical, blob)
    assert store.save(two_part_state(1), step=2).new_bytes == 0


def test_what_no_checkpoint_uses_is_told_and_gc_learns_of_it(store: Store) -> None:
    store.save(two_part_state(1), step=1)
    data = b"no checkpoint needs this"
    digest = store._context.algorithm.digest(data)
    path = store.path / "blobs" / digest.partition("-")[2][:2] / digest
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    blob_time.stamp(path)

    report = store.verify(quick=True)

    assert (report.ok, only(report, "unused").mended) == (True, True)
    assert store.gc().freed_bytes == len(data)


def test_what_can_be_brought_back_is_not_called_unused(store: Store) -> None:
    store.save(two_part_state(1), step=1)
    store.save(two_part_state(2), step=2)
    store.config.undo_by_hand_s = 3600
    store.delete(1)

    assert store.verify(quick=True).findings == ()
    store.undo("main@1")


def test_a_metric_that_is_no_number_is_no_difference_between_catalog_and_manifest(store: Store) -> None:
    odd = {"loss": float("nan"), "gradient": float("inf"), "acc": 0.5}
    store.save(two_part_state(1), step=1, metrics=odd, metadata={"first": [float("nan")]})

    assert [kinds(store.verify()), kinds(store.verify(quick=True))] == [[], []]


def test_a_catalog_that_says_something_else_is_made_right(store: Store) -> None:
    import sqlite3

    for step in (1, 2):
        store.save(two_part_state(step), step=step, metrics={"loss": step})
    before = store.checkpoints()
    for change, said in (
        ("UPDATE checkpoints SET metrics = '{\"loss\":9}' WHERE step = 1", []),  # found by its checksum, before
        (
            "DELETE FROM uses WHERE checkpoint_id = (SELECT id FROM checkpoints WHERE step = 2)",
            [("catalog", False, True)],
        ),
    ):
        catalog = sqlite3.connect(store.path / "catalog.db")
        catalog.execute(change)
        catalog.commit()
        catalog.close()

        with nullcontext() if said else pytest.warns(CkstoreWarning, match="1 row of the catalog is damaged"):
            report = store.verify(quick=True)

        assert (report.ok, kinds(report)) == (True, said), change
        assert store.checkpoints() == before
        assert store.verify(quick=True).findings == ()


def test_small_files_that_are_not_as_written_are_named(harmed: Store) -> None:
    harmed.save(two_part_state(1), step=1, tags=["best"])
    pin = harmed.pin(1, "why")
    harmed.annotate(1, {"bleu": 1.5})
    harmed.annotate(1, {"bleu": 2.5})
    for path in (harmed.path / "pins" / f"{pin.name}.json", directory_of(harmed, 1) / "annotations.json"):
        data = path.read_bytes()
        path.write_bytes(data.replace(b"why", b"who").replace(b"2.5", b"9.5"))
    (harmed.path / "refs" / "gone").symlink_to("../checkpoints/main/7")
    (harmed.path / "refs" / "odd").write_text("")

    found = {(found.kind, found.subject) for found in harmed.verify(quick=True).findings if found.harmful}

    assert found == {
        ("pin", f"pins/{pin.name}.json"),
        ("notes", f"{checkpoint_dir(harmed.path, 'main', 1).relative_to(harmed.path)}/annotations.json"),
        ("tag", "refs/gone"),
        ("tag", "refs/odd"),
    }


def test_a_file_without_a_digest_is_of_older_days_and_no_harm(store: Store) -> None:
    (store.path / "config.json").write_text('{"format": "ckstore-config", "version": 1}')

    report = store.verify(quick=True)

    assert (report.ok, kinds(report)) == (True, [("settings", False, False)])


def test_a_store_opened_for_reading_mends_nothing(harmed: Store) -> None:
    harmed.save(two_part_state(1), step=1)
    blob = blobs_by_size(harmed, 1)[-1]
    (harmed.path / "blobs" / blob.name.partition("-")[2][:2] / blob.name).unlink()

    report = Store.open(harmed.path, readonly=True).verify()

    assert (report.ok, kinds(report), report.remembered) == (True, [("name", False, False)], False)
    assert not (harmed.path / "verified.json").exists()


# --------------------------------------------------------------------------------- samples, budgets, rates


@pytest.mark.usefixtures("steady_clock")
def test_repeated_samples_come_round_to_everything(harmed: Store) -> None:
    for step in range(3):
        harmed.save(chunks(step), step=step)
    unread = []
    reports = [harmed.verify(sample=1 / 6) for _ in range(6)]
    for report in reports:
        assert report.ok
        assert report.checked_bytes == 3 * MIB
        assert report.remembered
        unread.append(report.unread_count)

    assert unread == [15, 12, 9, 6, 3, 0]
    assert [bool(report.oldest_check) for report in reports] == [False] * 5 + [True]


@pytest.mark.usefixtures("steady_clock")
def test_repeated_budgets_find_any_damage_in_the_end(harmed: Store) -> None:
    for step in range(2):
        harmed.save(chunks(step, 3), step=step)
    victim = blobs_by_size(harmed, 1)[1]
    flip(victim, keep_time=True)

    reports = [harmed.verify(budget_s=1e-9) for _ in range(6)]

    assert all(report.checked_bytes == MIB and not report.in_time for report in reports), "one blob each"
    assert [damage.blob for damage in reports[-1].damage] == [victim.name]
    assert reports[-1].unread_count == 0
    assert (directory_of(harmed, 1) / "damaged.json").exists()
    found = harmed.verify(quick=True).damage
    assert [(damage.blob, damage.names) for damage in found] == [(victim.name, ("w",))], "it is known by the mark"


def test_a_budget_names_every_checkpoint_that_shares_what_is_damaged(harmed: Store) -> None:
    for run in ("a", "b", "c"):
        harmed.save(chunks(1, 2), run=run, step=1)
    flip(blobs_by_size(harmed, "a@1")[0], keep_time=True)

    report = harmed.verify(budget_s=60)

    assert [found.run for found in report.damage] == ["a", "b", "c"]
    assert report.checked_bytes == 2 * MIB
    assert report.in_time


@pytest.mark.usefixtures("steady_clock")
def test_the_one_read_longest_ago_comes_first_and_a_new_copy_is_unread(harmed: Store) -> None:
    harmed.save(chunks(1, 3), step=1)
    harmed.verify()
    memory = harmed.path / "verified.json"
    document = json.loads(memory.read_bytes())
    document["blobs"][1][2] -= 5000
    memory.write_text(json.dumps(document))
    oldest = document["blobs"][1][0]

    report = harmed.verify(sample=0.1)

    assert report.read_count == 1
    assert json.loads(memory.read_bytes())["blobs"][1][:2] == document["blobs"][1][:2]
    assert json.loads(memory.read_bytes())["blobs"][1][2] > document["blobs"][1][2]
    path = next(path for path in blobs_by_size(harmed, 1) if path.name == oldest)
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").rename(path)
    assert harmed.verify(quick=True).unread_count == 1


def test_what_is_gone_is_forgotten_and_damaged_times_are_ignored(harmed: Store) -> None:
    for step in (1, 2):
        harmed.save(chunks(step, 2), step=step)
    harmed.verify()
    harmed.delete(1)
    harmed.verify(2)
    memory = harmed.path / "verified.json"
    assert len(json.loads(memory.read_bytes())["blobs"]) == 4, "a verification of one checkpoint does not know"
    harmed.verify()
    assert len(json.loads(memory.read_bytes())["blobs"]) == 2
    memory.write_bytes(b"\0" * 100)

    report = harmed.verify(sample=0.5)

    assert (report.ok, report.unread_count) == (True, 1)


def test_a_rate_is_kept_by_all_threads_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float] = []
    monkeypatch.setattr(pace.RateLimiter.__init__, "__kwdefaults__", {"clock": lambda: 0.0, "sleep": slept_s.append})
    store.save(chunks(1, 4), step=1)

    assert store.verify(rate_bytes_s=MIB).checked_bytes == 4 * MIB

    assert sorted(slept_s) == [1, 2, 3], "on a clock that stands still, each waits for those before it"


def test_a_budget_that_is_up_still_names_every_checkpoint(harmed: Store) -> None:
    for run in ("a", "b"):
        harmed.save(chunks(1, 1), run=run, step=1)
    harmed.save(chunks(2, 3), run="c", step=1)
    flip(blobs_by_size(harmed, "a@1")[0], keep_time=True)

    reports = [harmed.verify(budget_s=1e-9) for _ in range(4)]

    assert not reports[0].in_time
    assert [found.run for found in reports[-1].damage] == ["a", "b"]


@pytest.mark.parametrize(
    "options",
    [
        {"budget_s": 0},
        {"budget_s": float("inf")},
        {"rate_bytes_s": 0},
        {"quick": True, "sample": 0.5},
        {"quick": True, "budget_s": 5},
        {"repair_from": "nowhere"},
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], store: Store) -> None:
    with pytest.raises(BadInput):
        store.verify(**options)


@pytest.mark.usefixtures("steady_clock")
def test_a_clock_that_was_wrong_does_not_keep_a_blob_from_being_read(harmed: Store) -> None:
    harmed.save(chunks(1, 2), step=1)
    harmed.verify()
    memory = harmed.path / "verified.json"
    document = json.loads(memory.read_bytes())
    document["blobs"][0][2] = int(time.time()) + 10**6
    memory.write_text(json.dumps(document))

    assert harmed.verify(quick=True).unread_count == 1


def test_the_bytes_of_all_runs_of_a_full_verification_are_the_same(store: Store) -> None:
    store.save(two_part_state(1), step=1)
    store.save({**two_part_state(1), "more": np.ones(4)}, step=2)

    assert {store.verify().checked_bytes for _ in range(2)} == {disk_bytes(store.path)}
    assert same_state({**store.load(1)}, two_part_state(1))
