"""A deletion says before it what it frees, and why not more: other checkpoints, packs, other links."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import Store
from ckstore.model.reports.deletion import DeletionEffect
from ckstore.ops.report.deletion import Preview
from tests.ops.report.test_usage import BIG, SMALL, fill, without_catalog
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.damage import MIB, two_part_state
from tests.support.examples import examples
from tests.support.stores import check_store, disk_bytes

SAVES = st.lists(st.tuples(st.sampled_from(["main", "b"]), BIG, SMALL), min_size=2, max_size=6)


def effect_of(store: Store, *refs: Any) -> DeletionEffect:
    chosen = [store.info(ref) for ref in refs]
    return Preview(store._context, chosen).effect({info.key for info in chosen})


@pytest.mark.property
@settings(max_examples=examples(8))
@given(saves=SAVES, first=st.sets(st.integers(0, 5)), then=st.sets(st.integers(0, 5), min_size=1), undo=st.booleans())
def test_the_bytes_that_a_deletion_frees_are_known_before_it(
    saves: Any, first: set[int], then: set[int], undo: bool
) -> None:
    """Also after others were deleted that wait to be brought back."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder, "store"), chunk_bytes=MIB)
        fill(store, saves)
        store.config.undo_by_hand_s = 3600 if undo else 0
        names = [info.name for info in store.checkpoints()]
        gone = {number % len(names) for number in first}
        chosen = {number % len(names) for number in then} - gone
        for number in gone:
            store.delete(names[number])
        before_bytes = disk_bytes(store.path)
        waiting_bytes = store.du().waiting_bytes
        own = [store.info(names[number]) for number in chosen]
        preview = Preview(store._context, own)
        effect = preview.effect({info.key for info in own})

        assert Preview(without_catalog(store)._context, own).effect({info.key for info in own}).freed_bytes == (
            effect.freed_bytes
        )
        for info in own:
            store.delete(info)
        store.gc(now=True)
        assert before_bytes - disk_bytes(store.path) == effect.freed_bytes + waiting_bytes
        assert effect.linked_bytes == 0
        check_store(store.path)


def test_shared_and_packed_and_linked_data_are_told_apart(store: Store, tmp_path: Path) -> None:
    small = {f"t{i}": np.full(1000, i) for i in range(8)}
    big = np.random.default_rng(0).integers(0, 256, 2 * MIB, dtype=np.uint8)
    store.save({**small, "big": big}, step=1)
    store.save({"t0": small["t0"], "big": big}, step=2)

    assert effect_of(store, 1) == DeletionEffect(0, 2 * MIB + 8000, 56_000, 0)
    assert effect_of(store, 1, 2) == DeletionEffect(2 * MIB + 64_000)
    store.delete(1)
    outside = [tmp_path / blob.name for blob in blobs_dir(store.path, "main", 2).iterdir()]
    for path in outside:
        os.link(blobs_dir(store.path, "main", 2) / path.name, path)
    effect = effect_of(store, 2)
    for path in outside:
        path.unlink()
    assert (effect.freed_bytes, effect.shared_bytes, effect.packed_bytes) == (0, 0, 0)
    assert effect.linked_bytes == 2 * MIB + 64_000


def test_a_checkpoint_that_was_not_deleted_keeps_its_data(store: Store) -> None:
    store.save(two_part_state(1), step=1)
    store.save({**two_part_state(1), "more": np.ones(MIB, np.uint8)}, step=2)
    both = [store.info(1), store.info(2)]

    preview = Preview(store._context, both)

    assert preview.effect({both[0].key}).shared_bytes > 0
    assert preview.effect({both[0].key}).freed_bytes == 0
    assert preview.effect({info.key for info in both}).shared_bytes == 0


@pytest.mark.parametrize(
    "effect,dry_run,words",
    [
        (DeletionEffect(3 * MIB), False, "this frees 3.0 MiB"),
        (
            DeletionEffect(1024, 2048, 4096, 8192),
            True,
            (
                "this would free 1.0 KiB: 2.0 KiB is also in other checkpoints, 4.0 KiB is in packs of small "
                "tensors that other checkpoints need, 8.0 KiB has other hardlinks, of a save in progress or outside "
                "the store"
            ),
        ),
        (DeletionEffect(0, 2048), False, "this frees nothing: 2.0 KiB is also in other checkpoints"),
        (DeletionEffect(), False, "this frees nothing: the store has no data of it"),
    ],
)
def test_the_words_say_what_is_freed_and_why_not_more(effect: DeletionEffect, dry_run: bool, words: str) -> None:
    assert effect.words(dry_run=dry_run) == words
