"""What follows a commit: one that fails makes neither the save fail nor the others stop."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ckstore import BadInput, Ranks, RetentionPolicy, Store
from ckstore.model.saver.messages import Open
from ckstore.ops.context import NO_WATCH, Subscriber
from ckstore.saver import compactor
from ckstore.saver.server import main
from ckstore.saver.server.status_page import Reporter
from ckstore.store import context_of
from tests.support.stores import check_store


@pytest.fixture
def due(store: Store) -> Store:
    """A store with checkpoints that are old enough to be compacted, and that keeps its newest four."""
    for step in range(5):
        store.save(state(step), step=step)
    store.config.compact_after = 0.001
    store.config.retention = RetentionPolicy(keep_last=4)
    compactor._looked.clear()
    return store


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(20_000, float(step)), "b": np.arange(5000) + step}


def test_each_that_fails_after_the_commit_is_a_warning_and_the_next_ones_are_told(due: Store, tmp_path: Path) -> None:
    (due.path / "locks").write_bytes(b"")  # a file in the place of a directory that retention and compaction need

    info = due.save(state(5), step=5)

    retention, compaction = info.warnings
    assert retention.startswith("the checkpoint is saved, but retention of the run main failed afterwards: ")
    assert compaction.startswith("the checkpoint is saved, but compaction of the run main failed afterwards: ")
    assert {*info.warnings} <= {*due.warnings}
    assert [(one.event, one.step) for one in due.events(run="main")][-1] == ("saved", 5)
    assert counted(due, tmp_path, "ckstore_saves_total", "saved") == 6
    (due.path / "locks").unlink()
    assert due.save(state(6), step=6).warnings == ()
    assert not any("failed afterwards" in warning for warning in due.warnings)
    assert [one.step for one in due.checkpoints()] == [3, 4, 5, 6]
    check_store(due.path)


def test_facts_of_a_subscriber_are_in_the_metadata_of_each_save(store: Store, tmp_path: Path) -> None:
    """Members of the caller are kept. Of several ranks, the first one knows the facts, whichever publishes."""
    facts: dict[str, Any] = {"place": {"rack": 7, "load": float("inf")}, "big": 2**70}
    _add(store, Subscriber("describing", lambda _: (), facts=lambda: facts))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "weights.bin").write_bytes(b"weights")

    infos = [
        store.save(state(1), step=1, metadata={"mine": 1}),
        store.save_async(state(2), step=2).result(60),
        store.commit(tmp_path / "files", step=3),
        store.save(state(4), step=4, metadata={"place": "here"}),
    ]
    handles = [store, Store.open(store.path)]
    _add(handles[1], Subscriber("describing", lambda _: (), facts=lambda: {"place": "of another rank"}))
    for step in (5, 6):
        saves = [
            threading.Thread(
                target=handles[rank].save,
                args=(state(rank),),
                kwargs={"step": step, "ranks": Ranks(rank, 2, f"try-{step}", timeout_s=120)},
            )
            for rank in ((0, 1) if step % 2 else (1, 0))
        ]
        for save in saves:
            save.start()
        for save in saves:
            save.join()

    assert [info.metadata for info in infos] == [{"mine": 1, **facts}, facts, facts, {**facts, "place": "here"}]
    assert [store.info(step).metadata for step in (5, 6)] == [facts, facts]
    with pytest.raises(BadInput, match="metadata: wanted a dict"):
        store.save(state(7), step=7, metadata=cast("Any", 7))
    Store.open(store.path).gc()  # removes the parts
    check_store(store.path)


def _add(store: Store, subscriber: Subscriber) -> None:
    context = context_of(store)
    context.subscribers = (*context.subscribers, subscriber)


def test_settings_that_cannot_be_read_are_told_once(due: Store) -> None:
    (due.path / "config.json").write_bytes(b"{")

    info = due.save(state(5), step=5)

    assert sum("failed afterwards" in one for one in info.warnings) == 1
    assert len(due.checkpoints()) == 6
    assert due.events(run="main")[-1].event == "saved"
    (due.path / "config.json").unlink()
    check_store(due.path)


def test_what_a_save_returns_is_what_the_metrics_count(due: Store, tmp_path: Path) -> None:
    before = counted(due, tmp_path, "ckstore_save_seconds_total", "finishing")

    info = due.save(state(5), step=5)

    assert info.counters is not None
    after = counted(due, tmp_path, "ckstore_save_seconds_total", "finishing")
    assert after - before == pytest.approx(info.counters.finishing_s, rel=1e-3)
    check_store(due.path)


def test_a_saver_has_the_subscribers_of_its_trainer(store: Store) -> None:
    context = context_of(store)
    opening = Open(str(store.path), context.settings.uuid, None, attached=context.attached)

    opened = main._open(opening, cast("Reporter", NO_WATCH))

    assert [one.name for one in context.subscribers] == ["mirroring", "compaction"]
    assert [one.name for one in opened.subscribers] == ["mirroring", "compaction"]
    assert opened.evictor is not None


def counted(store: Store, folder: Path, name: str, label: str) -> float:
    """Return a number that the metrics of this handle have."""
    store.write_metrics(folder / "metrics")
    lines = (folder / "metrics").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(name) and f'"{label}"' in line]
    return float(line.split()[-1])
