"""Compaction of a history: each checkpoint comes back, from fewer bytes, and the plain ones go last."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ckstore
from ckstore import CheckpointInfo, InsufficientSpace, SaveFailed, Store, UnknownOutcome
from ckstore.codecs import container
from ckstore.fs import direct, files, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.manifest.manifest import Extent, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.names import CheckpointKey
from ckstore.objects import checkpoints, trash
from ckstore.objects.layout import Layout
from ckstore.ops.compact import compact, encode, encoding_table, plan
from ckstore.ops.context import Context
from ckstore.ops.index import reconcile
from ckstore.ops.refs import find
from ckstore.ops.refs.listing import infos
from ckstore.ops.verify import survey_files
from tests.format import reader
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.descriptors import open_below
from tests.support.forging import forge_manifest
from tests.support.meanwhile import elsewhere
from tests.support.stores import check_store

STEPS = 12


def history(seed: int = 0, count: int = 300_000) -> Iterator[dict[str, Any]]:
    """Give the states of a run in which one in fifty of the bfloat16 weights moves a step, beside float32 masters."""
    generator = torch.Generator().manual_seed(seed)
    master = torch.randn(count, generator=generator) * 0.02
    small = torch.randn(100, generator=generator)
    while True:
        yield {
            "master": master.clone(),
            "copy": master.to(torch.bfloat16),
            "small": small.clone(),
            "frozen": torch.arange(1000),
            "step": 1,
        }
        moved = torch.rand(count, generator=generator) < 0.02
        master = torch.where(moved, master + 1e-4 * torch.randn(count, generator=generator), master)
        small = small + 1e-3


def saved(store: Store, steps: int = STEPS, **options: Any) -> list[dict[str, Any]]:
    states = []
    for step, state in zip(range(steps), history(), strict=False):
        store.save(state, step=step, **options)
        states.append(state)
    return states


def saved_later(store: Store, count: int) -> list[dict[str, Any]]:
    """Save the next states of the run after those of `saved`."""
    states = [*itertools.islice(history(), STEPS, STEPS + count)]
    for step, state in enumerate(states, STEPS):
        store.save(state, step=step)
    return states


def listing(root: Path) -> dict[str, int]:
    """Return every file below a directory but those of the catalog, with its inode number."""
    return {str(path): path.stat().st_ino for path in root.rglob("*") if not path.name.startswith("catalog.db")}


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.init(tmp_path / "store") as opened:
        yield opened


def test_every_checkpoint_comes_back_from_less_space(store: Store) -> None:
    states = saved(store)
    infos = store.checkpoints()
    before = store.du().disk_bytes

    report = store.compact()

    assert len(report.compacted) == STEPS - 3
    assert not report.skipped
    assert store.du().disk_bytes < before / 2.5
    assert store.checkpoints() == infos
    for step, state in enumerate(states):
        assert same(store.load(step), state), step
    assert store.verify().ok
    with Store.open(store.path) as again:
        assert same(again.load(0), states[0])
        again.reindex()
        assert again.verify().ok


def test_a_checkpoint_that_is_compacted_under_the_look_at_the_catalog_agrees_with_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(store, 3)
    compare = survey_files.catalog_findings

    def comparing(*given: Any, **options: Any) -> Iterator[Any]:
        assert len(elsewhere(lambda: Store.open(store.path).compact(keep_newest=1)).compacted) == 2
        return compare(*given, **options)

    monkeypatch.setattr("ckstore.ops.verify.store_checks.catalog_findings", comparing)

    assert [str(one) for one in store.verify(quick=True).findings] == []


def in_between(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: int, look: Callable[[CheckpointInfo], object]
) -> None:
    """Call `look` once, while a compaction of the step has published the next generation and locks the former one."""
    former = store.checkpoints()[step]
    enter = reconcile.update_row
    looked: list[Exception | None] = []

    def entering(context: Context, key: CheckpointKey) -> str:
        if key.step == step and not looked:
            assert locks.try_exclusive(Layout(store.path).checkpoint(former.key)) is None
            looked.append(None)
            try:
                elsewhere(lambda: look(former))
            except Exception as error:
                looked[0] = error
        return enter(context, key)

    monkeypatch.setattr(compact, "update_row", entering)
    assert len(store.compact(keep_newest=1).compacted) == 2
    assert looked == [None]


def test_listing_does_not_wait_for_a_compaction_that_has_a_former_generation_locked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(store, 3)
    infos = store.checkpoints()

    def no_wait(_pause_s: float) -> None:
        raise AssertionError("waits for a lock")

    def look(_former: CheckpointInfo) -> None:
        with Store.open(store.path) as other:
            assert other.checkpoints() == infos
            # The compaction waits for the lock of the catalog, which this call holds.
            other.reindex()
            assert other.checkpoints() == infos
        with Store.open(store.path, readonly=True) as other:
            assert other.checkpoints() == infos

    monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=no_wait))
    in_between(store, monkeypatch, 1, look)
    assert store.checkpoints() == infos
    check_store(store.path)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_look_at_a_locked_directory_counts_if_it_is_still_there_afterwards(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_dropped: bool
) -> None:
    saved(store, 3)
    judge = checkpoints.judge_blobs
    is_moved = False

    def judging(directory: StorePath, fd: int, manifest: Manifest) -> checkpoints.Judgement:
        nonlocal is_moved
        if manifest.step == 1 and is_dropped and not is_moved:
            is_moved = True
            here = checkpoint_dir(store.path, "main", 1)
            os.rename(here, store.path / "trash" / here.name)
            shutil.rmtree(store.path / "trash" / here.name / "blobs")
        return judge(directory, fd, manifest)

    former = store.checkpoints()[1]
    monkeypatch.setattr(checkpoints, "judge_blobs", judging)
    with locks.lock_exclusive(Layout(store.path).checkpoint(former.key), timeout_s=0), Store.open(store.path) as other:
        found = checkpoints.look(Layout(store.path), former.key)
        assert found == checkpoints.Verdict(None) if is_dropped else found.published is not None
        assert [info.step for info in other.checkpoints()] == ([0, 2] if is_dropped else [0, 1, 2])


def test_a_reader_that_found_a_checkpoint_before_its_compaction_reads_the_new_form(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = saved(store, 3)
    really = find.find

    def look(former: CheckpointInfo) -> None:
        found, late_s = [former], itertools.count(step=60.0)
        monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: next(late_s), sleep=lambda _: None))
        monkeypatch.setattr(find, "find", lambda *given: found.pop() if found else really(*given))
        with Store.open(store.path) as other:
            assert same(other.load(1), states[1])
            assert found == []

    in_between(store, monkeypatch, 1, look)
    check_store(store.path)


# ---------------------------------------------------------------------------------------- how it is read


@pytest.mark.parametrize("readonly", [False, True])
def test_a_process_that_reads_for_long_has_each_checkpoint_whatever_another_compacts(
    store: Store, readonly: bool
) -> None:
    states = saved(store, 3)
    problems: list[str] = []

    def reading(reader: Store) -> int:
        looks = 0
        while not done.is_set():
            for info in reader.checkpoints():
                state = states[info.step]
                target = {name: torch.zeros_like(state[name]) for name in ("master", "copy")}
                reader.load_into({**target, "step": 0}, info, strict=False)
                with reader.open_checkpoint(info.step) as opened:
                    tail = opened.slice("copy")[1_000:]
                right = same(reader.load(info.step), state) and torch.equal(tail, state["copy"][1_000:])
                if not right or not all(torch.equal(value, state[name]) for name, value in target.items()):
                    problems.append(f"{info.name} has other bytes")
            report = reader.verify(quick=True)
            problems.extend(str(report) for _ in range(not report.ok))
            looks += 1
        return looks

    done = threading.Event()
    with Store.open(store.path, readonly=readonly) as reader, ThreadPoolExecutor(1) as beside:
        looking = beside.submit(reading, reader)
        try:
            for step, state in zip(range(8), history(), strict=False):
                if step >= 3:
                    states.append(state)
                    store.save(state, step=step)
                store.compact(keep_newest=1 + step % 2)
                store.gc(now=True)
        finally:
            done.set()
        assert looking.result() > 0

    assert problems == []
    assert sum(info.compacted for info in store.checkpoints()) >= 6


def test_every_way_of_reading_gives_what_was_saved(store: Store, tmp_path: Path) -> None:
    states = saved(store, 6)
    store.compact()
    wanted = states[0]

    target = {name: torch.zeros_like(value) for name, value in wanted.items() if isinstance(value, torch.Tensor)}
    store.load_into({**target, "step": 0}, 0)
    assert all(torch.equal(value, wanted[name]) for name, value in target.items())
    with store.open_checkpoint(0) as opened:
        assert torch.equal(opened.slice("copy")[70_000:200_000], wanted["copy"][70_000:200_000])
        assert torch.equal(opened["small"], wanted["small"])
    store.export(0, tmp_path / "out", format="safetensors")
    from safetensors.torch import load_file

    (file,) = (tmp_path / "out").rglob("*.safetensors")
    assert torch.equal(load_file(file)["master"], wanted["master"])
    assert same(store.load(0, select="copy") | {"step": 1}, {"copy": wanted["copy"], "step": 1})


def test_one_large_blob_is_decoded_by_several_threads_and_checked(store: Store) -> None:
    values = [torch.arange(1_500_001, dtype=torch.float32) * (1 + step / 1000) for step in range(3)]
    for step, value in enumerate(values):
        store.save({"w": value}, step=step)
    store.compact(keep_newest=1)

    assert all(torch.equal(store.load(step)["w"], value) for step, value in enumerate(values))
    largest = max(blobs_dir(store.path, "main", 0).iterdir(), key=lambda path: path.stat().st_size)
    largest.chmod(0o644)
    data = bytearray(largest.read_bytes())
    data[-1000] ^= 1
    largest.write_bytes(data)
    with pytest.raises(ckstore.DamagedBlob, match="w of main@0"):
        store.load(0)


def test_a_mapping_of_encoded_bytes_is_read_and_said(store: Store) -> None:
    states = saved(store, 5)
    store.compact()

    with pytest.warns(ckstore.CkstoreWarning, match="of main@0 are encoded, so they were decoded into memory"):
        found = store.load(0, mmap=True)

    assert same(found, states[0])
    assert same(store.load(4, mmap=True), states[4])


def test_committed_files_come_back(store: Store, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    contents = []
    for step, state in zip(range(5), history(), strict=False):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file({"copy": state["copy"], "small": state["small"]}, folder / "model.safetensors")
        (folder / "config.json").write_text('{"a": 1}')
        contents.append((folder / "model.safetensors").read_bytes())
        store.commit(folder, step=step)

    report = store.compact()

    assert report.encoded_count
    for step, content in enumerate(contents):
        store.checkout(step, tmp_path / f"out-{step}")
        assert (tmp_path / f"out-{step}" / "model.safetensors").read_bytes() == content


def test_a_copied_directory_is_complete(store: Store, tmp_path: Path) -> None:
    states = saved(store)
    store.compact()
    for step in range(STEPS):
        shutil.copytree(checkpoint_dir(store.path, "main", step), tmp_path / str(step))
    shutil.rmtree(store.path)

    for step, state in enumerate(states):
        with ckstore.open_checkpoint(tmp_path / str(step)) as opened:
            assert same(opened.load(), state), step


def test_the_reader_of_the_format_page_decodes_it(store: Store) -> None:
    states = [state for _, state in zip(range(6), history(count=4000), strict=False)]
    for step, state in enumerate(states):
        store.save(state, step=step)
    store.compact()

    for step, state in enumerate(states):
        found = reader.Checkpoint(checkpoint_dir(store.path, "main", step))
        # The pack of the first save has a tensor that never changes; it is encoded for all that need it.
        assert found.encoding is not None
        found.check_blobs()
        read = dict(found.state())
        for name in ("master", "copy", "small"):
            assert read[name].data == state[name].view(torch.uint8).numpy().tobytes(), (step, name)


# ----------------------------------------------------------------------------- plain and encoded files


def test_what_is_tagged_or_pinned_stays_plain(store: Store) -> None:
    saved(store, 7)
    store.tag("best", 1)
    store.pin(2, reason="figure")

    report = store.compact()

    assert {entry.info.step: entry.reason for entry in report.plan.entries if entry.reason} == {
        6: "it is one of the newest 3",
        5: "it is one of the newest 3",
        4: "it is one of the newest 3",
        2: "it is pinned",
        1: "it has the tag best",
    }
    assert {done.info.step for done in report.compacted} == {0, 3}
    assert not (checkpoint_dir(store.path, "main", 1) / "plain.json").exists()


def test_a_dry_run_changes_nothing(store: Store) -> None:
    saved(store, 5)
    before = listing(store.path)

    report = store.compact(dry_run=True)

    assert report.dry_run
    assert str(report).splitlines()[-1] == "would compact 2 of 5 checkpoints"
    assert listing(store.path) == before


def test_a_dry_run_says_what_is_compacted_already(store: Store) -> None:
    states = saved(store, 5)
    store.compact()
    store.save({**states[-1], "step": 5}, step=5)

    report = store.compact(dry_run=True)

    assert [entry.info.step for entry in report.plan.compacted if not entry.again] == [2]
    assert str(report).splitlines()[-1] == "would compact 1 of 6 checkpoints, and check 2 compacted ones again"
    assert "main@0: is compacted and checked again against main@" in str(report)


def test_annotations_are_taken_along(store: Store) -> None:
    saved(store, 5)
    store.annotate(0, metrics={"bleu": 3})
    store.compact()

    assert store.info(0).metrics == {"bleu": 3}


def test_the_plain_bytes_are_freed_at_once_and_gc_finds_nothing_more(store: Store) -> None:
    saved(store)
    store.compact()

    usage = store.du()
    assert usage.unused_bytes == 0
    assert store.gc().freed_count == 0
    linked = {os.stat(path).st_ino: os.stat(path) for path in (store.path / "blobs").rglob("*-*")}
    names = [os.stat(path).st_ino for path in (store.path / "checkpoints").rglob("blobs/*")]
    assert all(status.st_nlink == 1 + names.count(inode) for inode, status in linked.items())


def test_a_second_compaction_does_nothing(store: Store) -> None:
    saved(store)
    store.compact()
    before = listing(store.path / "checkpoints")

    report = store.compact()

    assert (report.encoded_count, report.compacted, report.skipped) == (0, (), ())
    assert str(report) == "nothing to compact"
    assert listing(store.path / "checkpoints") == before


def test_the_log_of_events_has_each_checkpoint_and_what_it_takes_less(store: Store) -> None:
    saved(store, 6)

    report = store.compact()

    told = [one for one in store.events() if one.event == "compacted"]
    for done in report.compacted:  # one that is written twice has two events
        own = [one.nbytes or 0 for one in told if one.id == done.info.id]
        assert sum(own) == done.before_bytes - done.after_bytes
    assert {one.name for one in told} == {done.info.name for done in report.compacted}
    assert all(" became " in one.why for one in told)


def test_after_a_directory_that_could_not_be_made_durable_nothing_more_is_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = saved(store, 8)
    before = store.du().disk_bytes

    def failing(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    failing_files = SimpleNamespace(**{**vars(files), "sync_open_directory": failing})
    monkeypatch.setattr("ckstore.objects.publish.files", failing_files)
    with pytest.raises(UnknownOutcome, match="could not be made durable"):
        store.compact()
    monkeypatch.undo()

    told = store.events()[-1]
    assert (told.event, told.why.partition(": ")[0]) == ("unknown", "compaction")
    with pytest.raises(SaveFailed, match="accepts no more writes"):
        store.compact()
    assert store.du().disk_bytes >= before, "no plain bytes went for the sake of a rename that may be undone"
    with Store.open(store.path) as again:
        again.compact()
        assert all(same(again.load(step), state) for step, state in enumerate(states))
        assert again.verify().ok


def test_a_compaction_that_is_interrupted_behind_its_rename_keeps_no_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = saved(store, 8)

    def interrupted(_fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "ckstore.objects.publish.files", SimpleNamespace(**{**vars(files), "sync_open_directory": interrupted})
    )
    with pytest.raises(KeyboardInterrupt) as caught:
        store.compact()
    monkeypatch.undo()

    assert caught.value.__traceback__ is not None  # what its frames refer to is still there
    left = [path for path in (store.path / "checkpoints/main").iterdir() if path.name.count(".") == 2]
    assert left
    assert not any(locks.is_locked(path) for path in (store.path / "checkpoints/main").iterdir())
    store.compact()
    assert all(same(store.load(step), state) for step, state in enumerate(states))


def test_compacting_after_each_save_keeps_every_path_short(store: Store) -> None:
    states = []
    for step, state in zip(range(30), history(count=20_000), strict=False):
        store.save(state, step=step)
        states.append(state)
        report = store.compact()
        assert not report.skipped, report

    for step, state in enumerate(states):
        assert same(store.load(step), state)
    depths = {step: depth_of(store, step) for step in range(30)}
    assert max(depths.values()) <= 8
    assert min(depths[step] for step in range(27)) >= 1
    assert store.verify().ok


def small_tensors(steps: int) -> Iterator[dict[str, Any]]:
    """Give states that lie in one pack each; every few steps a tensor moves, and some have old values again."""
    generator = torch.Generator().manual_seed(3)
    moving = torch.randn(30_000, generator=generator)
    rare = [torch.randn(500, generator=generator) for _ in range(8)]
    for step in range(steps):
        yield {
            "moving": moving.to(torch.bfloat16),
            "frozen": torch.arange(900),
            "back": torch.full((700,), float(step % 2)),
            **{f"rare.{i}": value for i, value in enumerate(rare)},
        }
        moving = torch.where(torch.rand(len(moving), generator=generator) < 0.01, moving * 1.02, moving)
        rare[step % 8] = rare[step % 8] + 0.5


def test_small_tensors_that_seldom_change_do_not_keep_old_packs_plain(store: Store) -> None:
    states = list(small_tensors(40))
    for step, state in enumerate(states):
        store.save(state, step=step)
    before = store.du().disk_bytes

    report = store.compact()

    assert not report.skipped
    assert store.du().disk_bytes < before / 6
    for step, state in enumerate(states):
        assert same(store.load(step), state), step
    assert store.verify().ok
    assert store.gc().freed_count == 0
    listed = listing(store.path / "checkpoints")
    assert not store.compact().compacted
    assert listing(store.path / "checkpoints") == listed


def test_small_tensors_are_compacted_after_each_save(store: Store) -> None:
    states = []
    for step, state in enumerate(small_tensors(24)):
        store.save(state, step=step)
        states.append(state)
        report = store.compact()
        assert not report.skipped, report
    for step in (3, 11, 22):
        store.delete(step)
    store.gc()
    assert not store.compact().skipped

    for step in set(range(24)) - {3, 11, 22}:
        assert same(store.load(step), states[step]), step
        assert depth_of(store, step) <= 8
    assert store.verify().ok


def depth_of(store: Store, step: int) -> int:
    document = json.loads((checkpoint_dir(store.path, "main", step) / "manifest.json").read_bytes())["manifest"]
    bases = {item[0]: item[3] for item in document.get("encoded", ())}

    def depth(digest: str) -> int:
        return 1 + max(map(depth, bases[digest]), default=0) if digest in bases else 0

    return max(map(depth, bases), default=0)


def test_a_base_that_is_dropped_stays_as_long_as_it_is_needed(store: Store) -> None:
    states = saved(store, 8)
    store.compact()
    for step in (7, 5, 2, 1):
        store.delete(step)
    store.gc()

    for step in (0, 3, 4, 6):
        assert same(store.load(step), states[step]), step
    assert store.verify().ok
    store.compact()
    assert same(store.load(0), states[0])


def test_after_an_eviction_the_other_checkpoints_are_compacted_again(store: Store, tmp_path: Path) -> None:
    states = saved(store)
    store.remotes.add("cold", str(tmp_path / "cold"))
    store.push(remote="cold", all=True)
    store.compact()
    store.evict((3, 8), "cold")  # the others have blobs of these in encoded form only
    states.extend(saved_later(store, 3))

    report = store.compact()

    assert report.skipped == ()
    assert {9, 10, 11} <= {done.info.step for done in report.compacted}
    for step, state in enumerate(states):
        assert same(store.load(step), state), step
    check_store(store.path)


def test_a_blob_that_nothing_can_encode_after_its_base_was_deleted_is_written_plain(store: Store) -> None:
    # The bytes are random, so no form without a base is smaller than the plain blob.
    generator = torch.Generator().manual_seed(0)
    value = torch.randint(0, 256, (300_000,), generator=generator, dtype=torch.uint8)
    states = []
    for step in range(14):
        value = value.clone()
        place = (torch.arange(180_000) + step * 70_000) % 300_000
        value[place] = torch.randint(0, 256, (180_000,), generator=generator, dtype=torch.uint8)
        store.save({"value": value}, step=step)
        states.append(value)
    store.compact()
    for step in (1, 4, 7, 10):
        store.delete(step, now=True)

    encoded = {info.step for info in store.checkpoints() if info.compacted}

    assert store.compact().skipped == ()

    assert encoded - {info.step for info in store.checkpoints() if info.compacted}
    for info in store.checkpoints():
        assert torch.equal(store.load(info.step)["value"], states[info.step])
    check_store(store.path)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_retention_plan_is_carried_out_after_its_checkpoints_were_compacted(store: Store, dry_run: bool) -> None:
    states = saved(store, 6)
    policy = ckstore.RetentionPolicy(keep_last=4)
    retention = store.prune(policy, dry_run=True).retention
    assert retention is not None
    store.compact(keep_newest=1)

    done = store.prune(retention.plan, dry_run=dry_run).retention

    assert done is not None
    assert ([info.step for info in done.dropped], done.skipped) == ([0, 1], ())
    kept = range(6) if dry_run else range(2, 6)
    assert [info.step for info in store.checkpoints()] == [*kept]
    assert all(same(store.load(step), states[step]) for step in kept)


def test_a_checkpoint_that_is_deleted_after_it_was_listed_is_skipped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = saved(store, 6)

    def then_deleted(*args: Any) -> list[CheckpointInfo]:
        found = infos(*args)
        elsewhere(lambda: Store.open(store.path).delete(1))
        return found

    monkeypatch.setattr(plan, "infos", then_deleted)
    report = store.compact(keep_newest=1)

    reasons = {entry.info.step: entry.reason for entry in report.plan.entries}
    assert "another process deleted it" in reasons[1]
    assert [done.info.step for done in report.compacted] == [4, 3, 2, 0]
    assert same(store.load(0), states[0])
    check_store(store.path)


def test_an_open_checkpoint_is_left_alone(store: Store) -> None:
    states = saved(store, 6)
    with store.open_checkpoint(1) as opened:
        with Store.open(store.path) as other:
            report = other.compact()
        assert [(skipped.info.step, "is using" in skipped.reason) for skipped in report.skipped] == [(1, True)]
        told = [(one.event, one.step) for one in store.events() if "compacted" in one.event]
        assert told == [("compacted", done.info.step) for done in report.compacted], "what is in use is no failure"
        assert same(opened.load(), states[1])
    assert store.verify().ok
    assert same(store.load(0), states[0])


def test_saving_and_replacing_goes_on_beside_compacted_checkpoints(store: Store) -> None:
    states = saved(store, 6)
    store.compact()
    again = store.save(states[0], step=0, if_exists="keep")
    assert again.id == store.info(0).id
    store.save(states[5], step=1, if_exists="replace")
    store.save(states[1], step=6)

    assert same(store.load(1), states[5])
    assert same(store.load(6), states[1])
    assert same(store.load(0), states[0])
    assert store.verify().ok


def test_a_follower_is_not_given_a_compacted_checkpoint_again(store: Store) -> None:
    saved(store, 6)
    with store.follow("main", after=0, timeout_s=0) as follower:
        assert [info.step for info in follower] == [1, 2, 3, 4, 5]
    with store.follow("main", after=0, timeout_s=0.2) as follower:
        assert next(follower).step == 1
        store.compact()
        assert [info.step for info in follower] == [2, 3, 4, 5]


# ---------------------------------------------------------------------------------------------- damage


def test_damage_in_a_base_names_every_checkpoint_that_needs_it(store: Store) -> None:
    states = saved(store, 8)
    store.compact()
    newest = blobs_dir(store.path, "main", 7)
    # Of 5 and 6 the first pack is, of which they need what is decoded without a base.
    needing = {step for step in range(5) for path in newest.iterdir() if shares(store, step, path)} | {7}
    assert needing == {0, 1, 2, 3, 4, 7}
    for path in newest.iterdir():
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    report = store.verify()

    assert {found.step for found in report.damage if found.affects} >= needing
    for step in needing:
        with pytest.raises(ckstore.DamagedBlob):
            store.load(step)
    for step in set(range(8)) - needing:
        assert same(store.load(step), states[step])


def shares(store: Store, step: int, path: Path) -> bool:
    return (blobs_dir(store.path, "main", step) / path.name).exists()


def test_every_flipped_byte_of_a_small_encoded_blob_is_found(store: Store) -> None:
    states = [{"w": torch.arange(300, dtype=torch.float32) + step} for step in range(5)]
    for step, state in enumerate(states):
        store.save(state, step=step)
    store.compact()
    folder = checkpoint_dir(store.path, "main", 0)
    (name, _), *_ = [
        item for item in reader.Checkpoint(folder).stored() if (folder / "blobs" / item[0]).read_bytes()[:5] == b"ckenc"
    ]
    path = folder / "blobs" / name
    path.chmod(0o644)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            found = store.load(0)
        except ckstore.DamagedBlob:
            continue
        assert same(found, states[0]), at  # the name of a member that a reader ignores
    path.write_bytes(whole)
    assert same(store.load(0), states[0])


@pytest.mark.parametrize("missing", ["manifest.json", "plain.json", "base"])
def test_a_missing_part_is_damage_and_other_checkpoints_load(store: Store, missing: str) -> None:
    states = saved(store, 6)
    store.compact()
    folder = checkpoint_dir(store.path, "main", 0)
    found = reader.Checkpoint(folder)
    assert found.encoding is not None
    name = f"blobs/{next(iter(found.encoding.encoded.values()))[2][0]}" if missing == "base" else missing
    name = name if (folder / name).exists() else f"blobs/{found.encoding.members['files'][0][0]}"
    (folder / name).unlink()

    with pytest.raises((ckstore.DamagedBlob, ckstore.NoSuchRef)):
        store.load(0)
    assert not store.verify().ok
    assert same(store.load(5), states[5])


# ---------------------------------------------------------------- nothing is let go before it is elsewhere


def test_what_the_disk_does_not_give_back_is_not_relied_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    states = saved(store, 6)
    before = listing(store.path / "checkpoints")

    def other(path: Any, start: int, stop: int) -> bytearray:
        data = direct.read_range(path, start, stop)
        data[-1] ^= 1
        return data

    monkeypatch.setattr(encode, "direct", SimpleNamespace(read_range=other))
    report = store.compact()

    assert {skipped.info.step for skipped in report.skipped} == {0, 1, 2}
    assert report.compacted == ()
    assert listing(store.path / "checkpoints") == before
    assert all(same(store.load(step), state) for step, state in enumerate(states))
    assert store.gc().freed_count == 0


def test_what_decodes_to_other_bytes_is_not_relied_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    states = saved(store, 4)

    def wrong(source: Any, blob: Any, header: Any) -> bytes:
        plain = bytearray(source.read(blob.digest))
        plain[0] ^= 1
        return container.encode_blob(plain, header, source.part)

    monkeypatch.setattr(encoding_table, "encode", wrong)
    report = store.compact()

    assert [skipped.info.step for skipped in report.skipped] == [0]
    assert "does not decode to" in report.skipped[0].reason
    (told,) = [one for one in store.events() if one.event == "uncompacted"]
    assert (told.name, told.why) == ("main@0", f"compaction: {report.skipped[0].reason}")
    assert all(same(store.load(step), state) for step, state in enumerate(states))


def test_a_compaction_that_meets_a_full_disk_leaves_what_can_be_undone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.config.undo_by_hand_s = 86400
    states = saved(store, 6)
    store.delete(5)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "create_blob", full)
        with pytest.raises(InsufficientSpace):
            store.compact(keep_newest=1)

    assert store.undo(5).step == 5
    assert store.compact(keep_newest=1).compacted
    assert all(same(store.load(step), state) for step, state in enumerate(states))


def test_a_compaction_that_cannot_put_a_base_away_closes_all_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step, state in zip(range(18), history(count=20_000), strict=False):
        store.save(state, step=step)
    calls: list[object] = []
    move_to_trash = trash.move_to_trash

    def refused(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) > 4:  # three that were exchanged are open then
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return move_to_trash(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(trash, "move_to_trash", refused)
        with pytest.raises(ckstore.CkstoreError, match="compact failed"):
            store.compact(keep_newest=1)
        assert open_below(store.path) == {}


@pytest.mark.parametrize("limit, most", [("HEADER_MOST_BYTES", 1500), ("BASES_MOST", 2)])
def test_a_pack_of_more_tensors_than_a_header_takes_stays_plain_and_all_else_is_compacted(
    store: Store, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    small = {f"small{i}": torch.full((4,), float(i)) for i in range(100)}
    states = []
    for step, state in zip(range(6), history(), strict=False):
        small |= {f"small{i}": torch.full((4,), i + step / 8) for i in range(10 * step, 10 * step + 10)}
        states.append(state | small)
        store.save(states[-1], step=step)
    monkeypatch.setattr(container, limit, most)

    report = store.compact()

    assert not report.skipped
    assert len(report.compacted) == 3
    assert report.plain_bytes > 2 * report.encoded_bytes
    assert all(same(store.load(step), state) for step, state in enumerate(states))
    assert store.verify().ok


def test_nothing_is_encoded_against_a_damaged_base(store: Store) -> None:
    states = saved(store, 6)
    for path in blobs_dir(store.path, "main", 5).iterdir():
        if os.stat(path).st_nlink == 2:  # its own, and the canonical name
            path.chmod(0o644)
            with path.open("r+b") as file:
                file.seek(1000)
                file.write(b"rot")
            os.utime(path, (10**9, 10**9))

    report = store.compact()

    assert report.skipped
    for step in range(5):
        assert same(store.load(step), states[step])


def test_du_says_what_compaction_saves(store: Store) -> None:
    saved(store)
    before = store.du()
    store.compact()
    after = store.du()

    assert before.saved_bytes == 0
    assert after.disk_bytes + after.saved_bytes == pytest.approx(before.disk_bytes, rel=0.01)
    assert "saved by compaction" in str(after)


def test_a_compacted_checkpoint_is_pulled_as_it_was_saved(store: Store, tmp_path: Path) -> None:
    states = saved(store, 5)
    store.compact()
    with Store.init(tmp_path / "other") as other:
        other.pull(remote=str(store.path), all=True)
        assert [info.id for info in other.checkpoints()] == [info.id for info in store.checkpoints()]
        for step, state in enumerate(states):
            assert same(other.load(step), state)
        assert other.verify().ok


# ------------------------------------------------------------------------------- who cannot read it says so


def test_a_reader_that_does_not_know_encoded_pieces_says_what_to_install(store: Store) -> None:
    saved(store, 5)
    store.compact()
    data = (checkpoint_dir(store.path, "main", 0) / "manifest.json").read_bytes()

    # Such a reader knows no second document beside this one.
    with pytest.raises(ckstore.NewerFormat, match="requires 'encoded-1', and this ckstore knows only") as found:
        parse_manifest(data, where="manifest.json")

    assert "install a newer ckstore" in str(found.value)


def test_without_zstandard_it_is_said_what_to_install(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(store, 5)
    store.compact()
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(ckstore.CkstoreError, match="zstandard, which is not installed") as found:
        store.load(0)

    assert "pip install 'ckstore[compact]'" in str(found.value)


def test_a_copy_finds_its_master_by_itself_and_takes_nothing(store: Store) -> None:
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        masters = [torch.randn(600_000, generator=generator) for _ in range(2)]
        copies = {"a": masters[1].to(torch.float16), "b": masters[0].to(torch.bfloat16)}
        store.save({"optimizer": dict(enumerate(masters)), "model": copies}, step=step)
    store.compact(keep_newest=1)

    with store.open_checkpoint(0) as opened:
        manifest = opened._directory.manifest
        assert not manifest.form.is_plain
        sizes = dict(manifest.stored)
        halves = [blob.digest for blob in manifest.blobs if blob.nbytes == 1_200_000]
        assert [sizes[manifest.form.file_of(digest)] < 1000 for digest in halves] == [True, True]
    assert torch.equal(store.load(0)["model"]["a"], store.load(0)["optimizer"][1].to(torch.float16))


@pytest.mark.parametrize("name, cut", [("master", 255), ("master", 3), ("copy", 1)])
def test_elements_that_are_cut_by_the_end_of_a_forged_piece_are_no_sample(store: Store, name: str, cut: int) -> None:
    states = saved(store, 3)
    folder = checkpoint_dir(store.path, "main", 1)
    manifest, _ = parse_manifest((folder / "manifest.json").read_bytes(), where="")
    (index,) = (leaf.storage for leaf in manifest.leaves if leaf.name == name)
    first, *others = manifest.storages[index].extents
    digest = store._context.algorithm.digest
    data = memoryview((folder / "blobs" / manifest.blobs[first.blob].digest).read_bytes())[first.offset :]
    cuts = (0, cut, first.length)
    pieces = [Extent(digest(data[a:b]), first.blob, first.offset + a, b - a) for a, b in itertools.pairwise(cuts)]
    storages = list(manifest.storages)
    storages[index] = storages[index]._replace(extents=(*pieces, *others))
    forge_manifest(folder, storages=tuple(storages))
    with Store.open(store.path) as other:
        other.reindex()
        report = other.compact(keep_newest=1)

        assert not report.skipped
        for step, state in enumerate(states):
            assert same(other.load(step), state), step
