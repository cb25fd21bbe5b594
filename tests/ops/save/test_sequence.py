"""Each checkpoint comes after all that are there, from any process, and asking costs no look at those known."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ckstore import CheckpointInfo, RetentionPolicy, Store
from ckstore.catalog import Catalog, connection
from ckstore.fs import locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.names import CheckpointKey
from ckstore.objects import publish
from ckstore.objects.layout import Layout
from ckstore.ops import config_file, manifest_cache
from ckstore.ops.context import Context
from ckstore.ops.index import sequence
from ckstore.ops.index.facts import facts_in
from ckstore.ops.index.sequence import next_sequence
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.examples import examples
from tests.support.meanwhile import elsewhere

SAVERS = 2
ACTS = st.tuples(
    st.sampled_from(("save", "save", "save", "save again", "delete", "torn", "mend")),
    st.integers(0, SAVERS - 1),
    st.booleans(),
)


def no_save_waits_for_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to enter what was saved nor what it replaced."""
    monkeypatch.setattr("ckstore.ops.save.save.CATALOG_TIMEOUT_S", 0.01)
    monkeypatch.setattr("ckstore.ops.free.reclaim._CATALOG_TIMEOUT_S", 0.01)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(5))
@given(acts=st.lists(ACTS, min_size=2, max_size=10))
@example(
    acts=[
        *4 * [("save", 1, True)],
        *3 * [("torn", 0, False)],
        ("save", 0, True),
        *3 * [("mend", 0, False)],
        ("save", 0, True),
    ]
)
def test_a_save_comes_after_everything_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acts: list[tuple[str, int, bool]]
) -> None:
    no_save_waits_for_the_catalog(monkeypatch)
    path = tmp_path / "store"
    shutil.rmtree(path, ignore_errors=True)
    savers = [Store.init(path), *(Store.open(path) for _ in range(1, SAVERS))]
    sequences: dict[int, int] = {}
    torn: dict[int, tuple[Path, bytes]] = {}
    for number, (what, who, left_behind) in enumerate(acts):
        whole = [step for step in sequences if step not in torn]
        if what == "delete" and whole:
            savers[who].delete(f"main@{whole[-1]}")
            del sequences[whole[-1]]
        elif what == "torn" and whole:
            manifest = checkpoint_dir(path, "main", whole[-1]) / "manifest.json"
            torn[whole[-1]] = manifest, manifest.read_bytes()
            manifest.unlink()
        elif what == "mend" and torn:
            _, (manifest, data) = torn.popitem()
            manifest.write_bytes(data)
        elif what.startswith("save"):
            step = whole[-1] if what == "save again" and whole else number
            with locks.lock_exclusive(path, timeout_s=1) if left_behind else locks.lock_shared(path, timeout_s=1):
                info = savers[who].save({"a": number}, step=step, if_exists="replace")
            there = [found for other, found in sequences.items() if other not in torn]
            assert info.sequence > max(there, default=0)
            sequences[step] = info.sequence


def test_what_is_known_costs_neither_the_catalog_nor_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.init(tmp_path / "store") as store:
        for step in range(5):
            store.save({"a": step}, step=step)

        listing, replaced = Catalog.listing, store.info(3).key

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("it was looked at")

        def refuse_all(catalog: Catalog, *, places: Iterable[CheckpointKey] | None = None) -> object:
            if places is None or list(places) != [replaced]:  # what is replaced is looked at when it goes
                raise AssertionError("everything was looked at")
            return listing(catalog, places=[replaced])

        monkeypatch.setattr(Catalog, "listing", refuse_all)
        monkeypatch.setattr(Catalog, "orders", refuse)
        monkeypatch.setattr(sequence, "facts_at", refuse)
        assert store.save({"a": 5}, step=5).sequence == 6
        assert store.save({"a": 6}, step=3, if_exists="replace").sequence == 7
        assert store.save({"a": 7}, step=6).sequence == 8


@pytest.mark.parametrize("name", ["_publish", "sync_parents"])
def test_what_others_replace_while_this_process_publishes_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    no_save_waits_for_the_catalog(monkeypatch)
    original = getattr(publish, name)
    others: list[CheckpointInfo] = []
    with Store.init(tmp_path / "store") as mine, Store.open(tmp_path / "store") as other:

        def meanwhile(*arguments: object, **options: object) -> object:
            monkeypatch.setattr(publish, name, original)
            with locks.lock_exclusive(mine.path, timeout_s=1):  # so that the catalog stays behind
                saves = [partial(other.save, {"b": step}, step, if_exists="replace") for step in (1, 2)]
                others.extend(map(elsewhere, saves))
            return original(*arguments, **options)

        for step in (1, 2, 3):
            mine.save({"a": step}, step)
        time.sleep(2 * manifest_cache._TICK_NS / 1e9)
        monkeypatch.setattr(publish, name, meanwhile)
        mine.save({"a": 4}, 4)

        assert mine.save({"a": 5}, 5).sequence > max(info.sequence for info in others)
        assert not any(info.catalogued for info in others)


def test_a_number_is_never_given_again_to_who_comes_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    context = store._context
    store.save({"a": 0}, 0)
    given: list[int] = []

    def interrupting(*numbers: int) -> int:  # as a signal handler that saves between two steps of a save
        monkeypatch.undo()
        given.extend(next_sequence(context) for _ in range(3))
        return max(*numbers) - 3

    monkeypatch.setattr(sequence, "max", interrupting, raising=False)
    next_sequence(context)

    assert next_sequence(context) > max(given)


def test_what_was_counted_with_the_pieces_is_not_believed_for_long(store: Store) -> None:
    store.save({"a": 0}, 0)
    _, counted = store._context.catalog.find_pieces(())
    Store.open(store.path).save({"a": 1}, 1)
    newest = store.info(1).sequence

    assert next_sequence(store._context, counted._replace(at_s=counted.at_s - sequence._FRESH_S)) > newest


def test_a_save_opens_the_catalog_twice_and_reads_the_settings_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read: list[object] = []
    examine, settings = connection.examine, config_file.read_config

    def examining(path: Path, *, alone: bool) -> connection.Examined:
        opened.append(path.name)
        return examine(path, alone=alone)

    def reading(layout: Layout) -> dict[str, Any]:
        read.append(layout)
        return settings(layout)

    for step in range(3):
        store.save({f"w{i}": bytes([step, i]) * 500 for i in range(5)}, step)
    monkeypatch.setattr(connection, "examine", examining)
    for module in ("ckstore.ops.config_file", "ckstore.ops.context"):
        monkeypatch.setattr(f"{module}.read_config", reading)
    store.save({f"w{i}": bytes([9, i]) * 500 for i in range(5)}, 9)

    assert opened == ["catalog.db"] * 2
    assert len(read) == 2


def test_no_memory_for_what_was_seen_fails_no_save_and_no_delete(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        store.save({"a": step}, step)

    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(manifest_cache, "_after_change", refuse)
    assert store.save({"a": 3}, 3).sequence == 3
    store.delete(1)
    assert store.save({"a": 4}).sequence == 4
    assert [info.step for info in store.checkpoints()] == [2, 3, 4]


def test_a_save_comes_after_all_that_can_be_brought_back(store: Store) -> None:
    store.config.undo_by_hand_s = 3600.0
    for step in range(4):
        store.save({"a": step}, step)
    for step in (2, 3):
        store.delete(step)

    with Store.open(store.path) as other:
        saved = other.save({"a": 4}, 4)

    back = store.undo(3)
    assert saved.sequence > back.sequence
    assert store.info("latest").step == 4
    assert [info.step for info in store.prune(RetentionPolicy(keep_last=1)).dropped] == [0, 1, 3]


def test_of_many_that_can_be_brought_back_few_manifests_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.config.undo_by_hand_s = 3600.0
    for step in range(30):
        store.save({"a": step}, step)
        store.delete(step)
    reading: list[StorePath] = []

    def counted(context: Context, path: StorePath) -> CheckpointInfo:
        reading.append(path)
        return facts_in(context, path)

    monkeypatch.setattr(sequence, "facts_in", counted)

    with Store.open(store.path) as other:
        assert other.save({"a": 30}, 30).sequence == 31
        count = len(reading)
        other.save({"a": 31}, 31)

    assert len(reading) == count == sequence._MANY


def test_a_number_in_trash_that_no_store_reaches_does_not_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.config.undo_by_hand_s = 3600.0
    store.save({"a": 0}, 0)
    with monkeypatch.context() as patch:
        patch.setattr("ckstore.ops.save.save.next_sequence", lambda *_: 2**40)
        store.save({"a": 1}, 1)
    store.delete(1)

    assert Store.open(store.path).save({"a": 2}, 2).sequence == 2
