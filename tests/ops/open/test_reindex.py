"""Losing the catalog loses nothing , because everything in it is also in the directories."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import Best, CkstoreWarning, RetentionPolicy, Store
from ckstore.errors import BadInput, InsufficientSpace, NewerFormat, SaveFailed
from ckstore.model.names import CheckpointKey
from ckstore.ops.index import reconcile
from ckstore.ops.open import reindex as reindexing
from ckstore_migrations import VERSION
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.crashing import run_and_kill
from tests.support.damage import flip
from tests.support.in_full import in_full
from tests.support.look import directory_of, files_of, leaves_of
from tests.support.meanwhile import elsewhere
from tests.support.plans import plan_of
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store, references_of_catalog, references_of_manifests

MIB = 2**20
_BIG = [np.random.default_rng(seed).integers(0, 256, MIB + 10, dtype=np.uint8) for seed in range(3)]
_FORK = multiprocessing.get_context("fork")


def state(big: int, small: int = 0) -> dict[str, Any]:
    return {"big": _BIG[big], "small": [np.full(200, small + i, np.int64) for i in range(3)], "lr": small}


def without_catalog(store: Store) -> None:
    for path in store.path.glob("catalog.db*"):
        path.unlink()


def unrecovered(store: Store) -> Store:
    return Store.open(store.path, recover=False)


# ---------------------------------------------------------------------------------- the law

RUNS = st.sampled_from(["main", "b"])
STEPS = st.integers(0, 3)
METRICS = st.dictionaries(st.sampled_from(["loss", "bleu"]), st.floats() | st.integers(-5, 5), max_size=2)
TEXTS = st.text(max_size=4)
NAMES = st.sampled_from(["best", "good"])
ACTS = st.one_of(
    st.tuples(st.just("save"), RUNS, STEPS, st.integers(0, 2), st.integers(0, 3), METRICS, TEXTS),
    st.tuples(st.just("annotate"), RUNS, STEPS, METRICS, TEXTS),
    st.tuples(st.just("tag"), RUNS, STEPS, NAMES),
    st.tuples(st.just("untag"), NAMES),
    st.tuples(st.just("pin"), RUNS, STEPS, TEXTS),
    st.tuples(st.just("drop"), RUNS, STEPS),
)
POLICIES = st.builds(
    RetentionPolicy,
    keep_last=st.integers(1, 3),
    keep_best=st.sampled_from([(), Best("loss"), Best("bleu", mode="max")]),
)


def act(store: Store, what: str, *given: Any) -> None:
    """Do it if it can be done now."""
    if what == "save":
        run, step, big, small, metrics, text = given
        about = {"metrics": metrics, "message": text, "metadata": {"text": text}}
        store.save(state(big, small), step, run, **about, if_exists="replace")
        return
    if what == "untag":
        if given[0] in {tag.name for tag in store.tags()}:
            store.untag(given[0])
        return
    run, step, *more = given
    ref = f"{run}@{step}"
    info = next((info for info in store.checkpoints() if info.name == ref), None)
    if info is None:
        return
    if what == "annotate" and (more[0] or more[1]):
        store.annotate(ref, metrics=more[0], note=more[1] or None)
    elif what == "tag":
        store.tag(more[0], ref)
    elif what == "pin":
        store.pin(ref, more[0])
    elif what == "drop" and not info.tags and ref not in {f"{pin.run}@{pin.step}" for pin in store.pins()}:
        store.delete(ref)


def told(store: Store, policy: RetentionPolicy) -> dict[str, str]:
    """Return all that a store says about itself, as text, since NaN is not equal to itself."""
    try:
        plan = [(entry.info, entry.keep, entry.reasons) for entry in plan_of(store, policy).entries]
    except BadInput:  # no checkpoint has the metric
        plan = []
    everything = {
        "log": [(info, info.superseded) for info in store.checkpoints(superseded=True)],
        "show": [
            (replace(store.info(info), oldest_reading=""), leaves_of(store, info), files_of(store, info))
            for info in store.checkpoints(superseded=True)
        ],
        "latest": [store.latest(run) for run in ("main", "b")],
        "tags": store.tags(),
        "pins": store.pins(),
        "plan": plan,
        "du": store.du(),
        "why": [store.why(digest) for digest in sorted(references_of_manifests(store.path))],
        "counts": sorted(references_of_catalog(store.path).items()),
        "unused": sorted(store._context.catalog.unused()),
        "listed": store._context.catalog.outline().blobs_listed,
    }
    return {name: in_full(value) for name, value in everything.items()}


@pytest.mark.property
@settings(max_examples=100 if CRASH_FULL else 6)
@given(acts=st.lists(ACTS, max_size=14), policy=POLICIES, how=st.sampled_from(["removed", "kept", "damaged"]))
def test_after_a_reindex_a_store_says_what_it_said_before(
    acts: list[tuple[Any, ...]], policy: RetentionPolicy, how: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder, "store"), chunk_bytes=MIB)
        for what, *rest in acts:
            act(store, what, *rest)
        before = told(store, policy)
        unused = store._context.catalog.unused()
        if how == "removed":
            without_catalog(store)
        elif how == "damaged":
            (store.path / "catalog.db").write_bytes(b"no database" * 1000)

        report = unrecovered(store).reindex()

        after = told(store, policy)
        for name, said in before.items():
            assert after[name] == said, name
        assert bool(report.old_catalog) == (how != "removed")
        assert report.checkpoint_count == len(store.checkpoints(superseded=True))
        assert report.blob_count == len(references_of_manifests(store.path))
        assert (report.tag_count, report.pin_count) == (len(store.tags()), len(store.pins()))
        assert report.ok
        assert (report.orphan_count, report.orphan_bytes) == (len(unused), sum(nbytes for _, nbytes in unused))
        assert (report.restored_count, report.copy_count, report.problems) == (0, 0, ())
        assert store._context.catalog.check() == []


# ------------------------------------------------------------------------------ what it finds


def test_it_says_what_is_there_and_what_is_wrong(store: Store) -> None:
    for step in range(4):
        store.save(state(0, step), step, tags=[f"t{step}"])
    store.pin(1, "keep")
    store.annotate(1, note="x")
    annotations = directory_of(store, 1) / "annotations.json"
    whole = annotations.read_bytes()
    annotations.write_bytes(b"{")
    (directory_of(store, 2) / "manifest.json").unlink()
    (store.path / "blobs" / "00").mkdir(exist_ok=True)
    orphan = store.path / "blobs" / "00" / ("xxh3-00" + "0" * 30)
    orphan.write_bytes(b"x" * 77)
    without_catalog(store)

    report = unrecovered(store).reindex()

    assert (report.checkpoint_count, report.tag_count, report.pin_count) == (3, 4, 1)
    named = {path.name for step in (0, 1, 3) for path in (directory_of(store, step) / "blobs").iterdir()}
    unnamed = [path for path in store.path.glob("blobs/*/*") if path.name not in named]
    assert orphan in unnamed
    assert (report.orphan_count, report.orphan_bytes) == (len(unnamed), sum(path.stat().st_size for path in unnamed))
    assert [(one.name, "manifest.json is missing" in one.problem) for one in report.incomplete] == [("main@2", True)]
    assert not report.ok
    assert report.problems[0] == "the tag t2 names main@2, which does not exist"
    assert "main@1" in report.problems[1]
    assert len(report.problems) == 2
    assert store.gc().freed_count == 1, "what the incomplete one names has a name in its directory"

    annotations.write_bytes(whole)
    shutil.rmtree(checkpoint_dir(store.path, "main", 2))
    store.untag("t2")


def test_a_blob_that_lost_its_canonical_name_has_it_again_and_is_found_by_saves(store: Store) -> None:
    store.save(state(0), 1)
    for path in store.path.glob("blobs/*/*"):
        path.unlink()
        path.parent.rmdir()

    report = unrecovered(store).reindex()

    assert report.restored_count == report.blob_count == 3
    assert store.save(state(0), 2).new_bytes == 0


def test_a_blob_that_a_program_wrote_into_does_not_get_a_canonical_name(store: Store) -> None:
    store.save(state(0), 1)
    lost = max(store.path.glob("blobs/*/*"), key=lambda path: path.stat().st_size)
    flip(next((directory_of(store, 1) / "blobs").glob(lost.name)))
    lost.unlink()

    assert unrecovered(store).reindex().restored_count == 0
    assert not lost.exists()

    store.save(state(0), 1)  # heals


def test_blobs_that_a_power_cut_brought_back_are_freed_by_the_next_gc(store: Store) -> None:
    store.save(state(0), 1)
    kept = store.path.parent / "kept"
    kept.mkdir()
    store.save(state(1, 5), 2)
    for path in (directory_of(store, 2) / "blobs").iterdir():
        shutil.copy2(path, kept)
    store.delete(2)
    for path in kept.iterdir():
        (store.path / "blobs" / path.name[5:7]).mkdir(exist_ok=True)
        shutil.copy2(path, store.path / "blobs" / path.name[5:7] / path.name)

    assert store.gc(dry_run=True).plan.freed_count == 0
    report = store.reindex()

    assert report.orphan_count == len(os.listdir(kept)) > 0
    assert store.gc().freed_count == report.orphan_count


# ------------------------------------------------------------------------------ the old catalog


def test_the_old_catalog_is_kept_aside_whole_and_three_of_them_at_most(store: Store) -> None:
    store.save(state(0), 1)
    rows = []
    for step in range(2, 7):
        report = store.reindex()
        with closing(sqlite3.connect(report.old_catalog)) as old:
            rows.append(old.execute("SELECT count(*) FROM checkpoints").fetchone()[0])
        store.save(state(0, step), step)

    kept = sorted(path.name for path in store.path.glob("catalog.db.*") if re.search(r"old-\d+$", path.name))
    assert rows == [1, 2, 3, 4, 5]
    assert kept == ["catalog.db.old-3", "catalog.db.old-4", "catalog.db.old-5"]
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in store.path.glob("catalog.db.old*")} == {
        *kept
    }


def test_a_newer_catalog_is_refused_and_stays(store: Store) -> None:
    with closing(sqlite3.connect(store.path / "catalog.db")) as catalog:
        catalog.execute("PRAGMA user_version=99")
    before = (store.path / "catalog.db").stat().st_ino

    with pytest.raises(NewerFormat, match="has schema version 99"):
        unrecovered(store).reindex()

    assert (store.path / "catalog.db").stat().st_ino == before
    (store.path / "catalog.db").unlink()
    unrecovered(store).reindex()


def test_without_room_for_a_second_catalog_nothing_is_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(state(0), 1)
    before = sorted(os.listdir(store.path))
    monkeypatch.setattr(reindexing, "_MARGIN_BYTES", 2**62)

    with pytest.raises(InsufficientSpace, match=r"in addition to the old one, about 4\.0 EiB, [0-9.]+ .?i?B are free"):
        store.reindex()

    assert sorted(os.listdir(store.path)) == before


def test_a_store_that_was_opened_for_reading_is_not_reindexed(store: Store) -> None:
    with pytest.raises(SaveFailed, match="opened for reading only"):
        Store.open(store.path, readonly=True).reindex()


def test_an_empty_store_and_tags_alone_are_indexed(store: Store) -> None:
    os.symlink("../checkpoints/main/7", store.path / "refs" / "gone")

    report = store.reindex()

    assert (report.checkpoint_count, report.tag_count) == (0, 1)
    assert store._context.catalog.check() == []
    store.untag("gone")


# -------------------------------------------------------------------------------- others at work


def test_no_process_writes_to_a_catalog_that_was_set_aside(store: Store) -> None:
    """Savers go on while the catalog is rebuilt again and again; every old one stays as it was renamed."""
    stop = _FORK.Event()
    savers = [_FORK.Process(target=_saving, args=(store.path, run, stop)) for run in ("a", "b")]
    for saver in savers:
        saver.start()
    seen: dict[str, bytes] = {}
    try:
        for _ in range(6):
            old = Path(store.reindex().old_catalog)
            seen[old.name] = old.read_bytes()
            time.sleep(0.02)
    finally:
        stop.set()
        for saver in savers:
            saver.join(60)

    assert [saver.exitcode for saver in savers] == [0, 0]
    for name, before in seen.items():
        if (store.path / name).exists():
            assert (store.path / name).read_bytes() == before
    again = Store.open(store.path)
    assert len(again.checkpoints()) > 2
    assert references_of_catalog(store.path) == references_of_manifests(store.path)
    assert Counter(tag.run for tag in again.tags()) == {"a": 1, "b": 1}


def _saving(path: Path, run: str, stop: Any) -> None:
    store = Store.open(path)
    step = 0
    while step < 2 or not stop.is_set():
        store.save(state(step % 3, step), step, run, tags=[f"last-{run}"])
        step += 1


def test_a_pin_waits_for_one_batch_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(4):
        store.save(state(0, step), step)
    monkeypatch.setattr(reconcile, "_BATCH_MOST", 1)
    batches: list[int] = []
    reconcile_rows = store._context.catalog.__class__.reconcile

    def counted(catalog: Any, targets: Any, look: Any, **options: Any) -> None:
        listed: list[int] = []

        def noted(key: CheckpointKey) -> Any:
            listed.append(key.step)
            return look(key)

        reconcile_rows(catalog, targets, noted, **options)
        batches.append(len(listed))
        elsewhere(lambda: store.pin(0, "between two batches"))  # takes the lock of those who write the catalog

    monkeypatch.setattr(store._context.catalog.__class__, "reconcile", counted)
    store.reindex()

    assert batches == [1, 1, 1, 1]
    assert len(store.pins()) == 4


@pytest.mark.crash
def test_a_reindex_that_is_killed_anywhere_is_finished_by_the_next_opener(tmp_path: Path) -> None:
    made = Store.init(tmp_path / "made", chunk_bytes=MIB)
    for step in range(3):
        made.save(state(0, step), step, tags=[f"t{step}"])
    next(made.path.glob("blobs/*/*")).unlink()
    before = made.checkpoints()
    for at in range(1, 40, 1 if CRASH_FULL else 3):
        store = tmp_path / f"store-{at}"
        shutil.copytree(made.path, store, symlinks=True)
        died = run_and_kill(lambda: Store.open(store, recover=False).reindex(relink=True), at=at, before=at % 2 == 0)  # noqa: B023
        again = opened_quietly(store)

        assert again.checkpoints() == before
        assert references_of_catalog(store) == references_of_manifests(store)
        if not died:
            check_store(store)
            break
        shutil.rmtree(store)


def opened_quietly(path: Path) -> Store:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckstore.ops.open.opening.warn", lambda note: None)
        return Store.open(path)


# ------------------------------------------------------------------------------ saying so


@pytest.mark.parametrize("how", ["missing", "damaged", "behind"])
def test_opening_says_once_what_was_wrong_with_the_catalog_and_mends_it(store: Store, how: str) -> None:
    store.save(state(0), 1)
    if how == "missing":
        without_catalog(store)
    elif how == "damaged":
        (store.path / "catalog.db").write_bytes(b"no database" * 1000)
    else:
        with closing(sqlite3.connect(store.path / "catalog.db")) as draft:
            draft.execute(f"PRAGMA user_version={VERSION - 1}")

    with pytest.warns(CkstoreWarning, match="(Rebuilt|Brought) the catalog") as caught:
        again = Store.open(store.path)
    Store.open(store.path)  # any warning is an error here

    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert str(caught[0].message) in again.warnings
    assert references_of_catalog(store.path) == references_of_manifests(store.path)
    for left in store.path.glob("catalog.db.damaged-*"):
        left.unlink()


def test_a_new_store_says_nothing_about_its_catalog(tmp_path: Path) -> None:
    made = Store.init(tmp_path / "new")
    without_catalog(made)

    assert not any("catalog" in note for note in Store.open(made.path).warnings)
    assert Store.open(made.path, readonly=True).checkpoints() == []


def test_a_store_that_is_opened_without_recovery_is_left_as_it_is(store: Store) -> None:
    store.save(state(0), 1)
    without_catalog(store)
    (store.path / "staging" / "left").mkdir()

    unrecovered(store)

    assert not list(store.path.glob("catalog.db*"))
    assert (store.path / "staging" / "left").is_dir()
    unrecovered(store).reindex()
    assert os.listdir(store.path / "staging") == []


# ------------------------------------------------------------------------------ how fast


@pytest.mark.bench
def test_a_thousand_checkpoints_are_indexed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints how long it takes: 1,000 checkpoints of 200 tensors each, ten of which differ from step to step."""
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    made = {f"layers.{i}.weight": np.full(64, i, np.float32) for i in range(200)}
    with pytest.MonkeyPatch.context() as patch:  # what is measured comes afterwards
        patch.setattr(os, "fsync", lambda fd: None)
        for step in range(1000):
            for i in range(10):
                made[f"layers.{(step * 10 + i) % 200}.weight"] += 1
            store.save({**made, "step": step}, step, metrics={"loss": 1 / (step + 1)})
    before = store.checkpoints()
    without_catalog(store)

    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    report = unrecovered(store).reindex()
    took_s, took_cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s

    with capsys.disabled():
        print(f"\nreindex of {report.checkpoint_count} checkpoints: {took_s:.1f} s, {took_cpu_s:.1f} s of CPU")
    assert store.checkpoints() == before
