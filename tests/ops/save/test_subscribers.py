"""What follows a commit: one that fails makes neither the save fail nor the others stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ckstore import RetentionPolicy, Store
from ckstore.model.saver.messages import Open
from ckstore.ops.context import NO_WATCH
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
