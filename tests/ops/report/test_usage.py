"""`du` says what dropping a checkpoint frees; `why` names the users of a blob."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import CkstoreWarning, Store
from ckstore.errors import AmbiguousRef, BadInput, NoSuchRef
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.reports.usage import Usage, blob_uses
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.damage import MIB, blobs_by_size, two_part_state
from tests.support.examples import examples
from tests.support.look import directory_of
from tests.support.stores import disk_bytes

BIG = st.lists(st.integers(0, 3), max_size=3)
SMALL = st.lists(st.integers(0, 6), max_size=6)
SAVES = st.lists(st.tuples(st.sampled_from(["main", "b"]), BIG, SMALL), min_size=1, max_size=6)
_BIG = [np.random.default_rng(seed).integers(0, 256, MIB + 10, dtype=np.uint8) for seed in range(4)]


def state_of(big: list[int], small: list[int]) -> dict[str, Any]:
    return {"big": [_BIG[i] for i in big], "small": [np.full(200, i, np.int64) for i in small]}


def fill(store: Store, saves: Any) -> None:
    for step, (run, big, small) in enumerate(saves):
        store.save(state_of(big, small), step=step, run=run)


def without_catalog(store: Store) -> Store:
    told = store.checkpoints() != []  # of an empty store there is nothing to read
    for left in store.path.glob("catalog.db*"):
        left.unlink()
    reader = Store.open(store.path, readonly=True)
    with pytest.warns(CkstoreWarning, match="Reading the directories instead") if told else nullcontext():
        reader.checkpoints()
    return reader


def total(usage: Usage) -> int:
    return usage.alone_bytes + usage.shared_bytes + usage.unused_bytes


@pytest.mark.property
@settings(max_examples=examples(6))
@given(saves=SAVES, pick=st.integers(0, 10))
def test_unique_and_shared_are_the_disk_and_dropping_frees_what_was_said(saves: Any, pick: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder, "store"), chunk_bytes=MIB)
        fill(store, saves)
        before = store.du()

        assert before.disk_bytes == total(before) == disk_bytes(store.path)
        assert before.unused_bytes == 0
        assert sum(one.alone_bytes for one in before.checkpoints) == before.alone_bytes
        assert sum(one.shared_bytes for one in before.checkpoints) == before.shared_bytes
        assert all(one.alone_bytes + one.shared_bytes <= named_bytes(store, one.name) for one in before.checkpoints)
        assert sum(one.alone_bytes + one.shared_bytes for one in before.runs) == before.disk_bytes
        assert [one for run in before.runs for one in run.checkpoints] == sorted(
            before.checkpoints, key=lambda one: [run.run for run in before.runs].index(one.run)
        )
        assert [one.name for one in before.checkpoints] == [info.name for info in store.checkpoints()]
        dropped = before.checkpoints[pick % len(before.checkpoints)]
        store.delete(dropped.name)
        after = store.du()

        assert disk_bytes(store.path) == before.disk_bytes - dropped.alone_bytes
        assert after.disk_bytes == disk_bytes(store.path)
        assert after.logical_bytes == before.logical_bytes - dropped.logical_bytes
        assert after.dead_bytes <= before.dead_bytes + dropped.packed_bytes
        assert dropped.alone_bytes or after.dead_bytes == before.dead_bytes + dropped.packed_bytes
        assert without_catalog(store).du() == after


@pytest.mark.property
@settings(max_examples=examples(3))
@given(saves=SAVES)
def test_dropping_all_of_a_run_frees_what_it_holds_alone(saves: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder, "store"), chunk_bytes=MIB)
        fill(store, saves)
        before = store.du()
        run = before.runs[0]

        for one in run.checkpoints:
            store.delete(one.name)

        assert disk_bytes(store.path) == before.disk_bytes - run.alone_bytes


def named_bytes(store: Store, ref: str) -> int:
    return sum(path.stat().st_size for path in blobs_by_size(store, ref))


@pytest.mark.property
@settings(max_examples=examples(5))
@given(saves=SAVES)
def test_the_catalog_and_the_directories_say_the_same(saves: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder, "store"), chunk_bytes=MIB)
        fill(store, saves)
        with_catalog = store.du()
        dead_bytes = store._context.catalog.dead_pack_bytes()
        rows = {(place, digest): used for place, digest, _, used in store._context.catalog.pack_uses()}

        for info in store.checkpoints():
            data = (directory_of(store, info) / "manifest.json").read_bytes()
            for digest, use in blob_uses(parse_manifest(data, where="")[0]).items():
                assert rows.get((info.key, digest)) in (use.used_bytes, None)
        assert with_catalog.dead_bytes == dead_bytes
        assert without_catalog(store).du() == with_catalog


def test_dead_bytes_are_what_no_checkpoint_uses_of_a_pack(store: Store) -> None:
    first = {f"t{i}": np.full(1000, i) for i in range(8)}
    store.save(first, step=1)
    store.save({name: value for name, value in first.items() if name != "t0"}, step=2)
    assert store.du().dead_bytes == 0
    assert [one.packed_bytes for one in store.du().checkpoints] == [8000, 0]

    store.delete(1)

    (one,) = store.du().checkpoints
    assert one.dead_bytes == store.du().dead_bytes == 8000
    assert one.alone_bytes == 64_000
    assert one.logical_bytes == 56_000


def test_blobs_without_a_use_and_names_outside_the_store_are_told_apart(store: Store, tmp_path: Path) -> None:
    store.save(two_part_state(1), step=1)
    big = blobs_by_size(store, 1)[-1]
    os.link(big, tmp_path / "alias")

    usage = store.du()

    assert usage.checkpoints[0].shared_bytes == big.stat().st_size, "dropping it would not free these"
    assert usage.disk_bytes == disk_bytes(store.path)
    os.unlink(tmp_path / "alias")
    shutil.rmtree(directory_of(store, 1))
    assert Store(store.path).du().checkpoints == ()
    assert store.du().unused_bytes == disk_bytes(store.path) > 0
    store.save(two_part_state(1), step=1)


def test_a_blob_with_separate_files_counts_each(store: Store) -> None:
    store.save(two_part_state(1), step=1)
    store.save(two_part_state(1), step=1, run="b")
    assert store.du().alone_bytes == 0
    big = blobs_by_size(store, "b@1")[-1]
    shutil.copy2(big, store.path / "other")
    os.replace(store.path / "other", big)

    by_name = {one.name: one for one in store.du().checkpoints}

    assert by_name["b@1"].alone_bytes == by_name["main@1"].alone_bytes == big.stat().st_size
    assert store.du().disk_bytes == disk_bytes(store.path)


def test_why_names_every_checkpoint_and_tensor_that_uses_a_blob(store: Store) -> None:
    shared = np.random.default_rng(5).integers(0, 256, 2 * MIB, dtype=np.uint8)
    small = np.arange(100.0)
    store.save({"w": shared, "x": small}, step=1)
    store.save({"v": [shared[:MIB]], "other": np.ones(5)}, step=2)
    store.save({"y": small}, step=3, run="b")
    digest = store._context.algorithm.digest(shared[:MIB].tobytes())
    piece = store._context.algorithm.digest(small.tobytes())

    for opened in (store, without_catalog(store)):
        assert [(use.name, use.names) for use in opened.why(digest)] == [
            ("main@1", ("w",)),
            ("main@2", ("v[0]",)),
        ]
        assert [(use.name, use.names) for use in opened.why(piece)] == [("main@1", ("x",)), ("b@3", ("y",))]
        assert opened.why(digest.partition("-")[2][:10]) == opened.why(digest[:20]) == opened.why(digest)


def test_why_finds_a_piece_that_is_a_blob_here_and_in_a_pack_there(store: Store) -> None:
    tail = np.arange(100.0)
    store.save({"small": tail, "other": np.ones(500)}, step=1)
    store.save({"w": np.concatenate([np.zeros(MIB // 8), tail])}, step=2)
    piece = store._context.algorithm.digest(tail.tobytes())
    assert blobs_by_size(store, 2)[0].name == piece

    uses = store.why(piece)

    assert [(use.name, use.names) for use in uses] == [("main@1", ("small",)), ("main@2", ("w",))]


def test_why_names_all_tensors_of_a_pack(store: Store) -> None:
    store.save(two_part_state(1), step=1)
    pack = blobs_by_size(store, 1)[1]

    (use,) = store.why(pack.name)

    assert set(use.names) >= {f"small.layer{i}" for i in range(10)} - {"big"}


def test_why_refuses_what_is_unknown_and_tells_what_is_unused(store: Store) -> None:
    store.save(two_part_state(1), step=1)
    blob = blobs_by_size(store, 1)[-1].name
    for wrong in ("", "xyz", "12345", "sha256-0123456789", "../../etc"):
        with pytest.raises(BadInput, match="digest"):
            store.why(wrong)
    with pytest.raises(NoSuchRef, match="no checkpoint uses"):
        store.why("0" * 32)
    shutil.rmtree(directory_of(store, 1))

    assert store.why(blob) == []
    store.save(two_part_state(1), step=1)


def test_a_prefix_of_several_digests_is_ambiguous(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save({f"t{i}": np.full(10, i) for i in range(600)}, step=1)
    monkeypatch.setattr(
        "ckstore.ops.report.blob_users._PATTERN", __import__("re").compile(r"(?:([a-z0-9]+)-)?([0-9a-f]{1,64})\Z")
    )

    with pytest.raises(AmbiguousRef, match="digests begin with these digits"):
        store.why("a")


@pytest.mark.root
def test_du_says_whose_the_files_on_the_disk_are(store: Store) -> None:
    for step in (1, 2):
        store.save({"w": np.full(2**20, step, dtype=np.uint8)}, step=step)
    blob = next(blobs_dir(store.path, "main", 2).iterdir())
    assert "by user" not in str(store.du())
    os.chown(blob, 1001, -1)

    usage = store.du()

    assert usage.bytes_by_user == {os.geteuid(): 2**20, 1001: 2**20}
    assert sum(usage.bytes_by_user.values()) == usage.disk_bytes
    assert "of it, by user: 1.0 MiB of uid 0, 1.0 MiB of uid 1001" in str(usage)
    os.chown(blob, os.geteuid(), -1)
