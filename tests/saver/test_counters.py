"""What a save says it did, and the sums of that as a file of metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import BadInput, CkstoreError, SaveFailed, StepExists
from ckstore.model.reports.metrics import Metric, openmetrics
from ckstore.ops import config_file
from ckstore.provisional import SaveCounters
from tests.saver.conftest import DEADLINE_S, wait_for

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)+)\} ([0-9.e+-]+)\Z')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|\Z)')
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
PARTS = ("staging_s", "storing_s", "sealing_s", "publishing_s", "finishing_s")


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read what `openmetrics` wrote, by the grammar of the specification as far as it uses that."""
    *lines, end = text.split("\n")[:-1]
    assert (end, text[-1]) == ("# EOF", "\n")
    samples = {}
    family, kind = "", ""
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert kind in ("counter", "gauge")
        elif line.startswith("# HELP "):
            assert line.startswith(f"# HELP {family} ")
        else:
            match = SAMPLE.match(line)
            assert match, line
            assert match[1] == family + ("_total" if kind == "counter" else "")
            labels = {name: re.sub(r"\\.", lambda of: ESCAPED[of[0]], value) for name, value in LABEL.findall(match[2])}
            key = match[1], frozenset(labels.items())
            assert key not in samples
            samples[key] = float(match[3])
    return samples


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
METRICS = st.builds(
    Metric,
    NAMES,
    st.sampled_from(["counter", "gauge"]),
    st.just("About it."),
    st.sampled_from(["run", "kind"]),
    st.dictionaries(TEXTS, st.one_of(st.integers(0, 2**60), st.floats(0, 1e300))),
)


@given(st.lists(METRICS, max_size=4, unique_by=lambda metric: metric.name), TEXTS, TEXTS)
def test_metrics_are_read_back_whatever_their_labels_hold(metrics: list[Metric], store: str, job: str) -> None:
    found = read(openmetrics(metrics, store, {"job": job}))

    assert found == {
        (
            metric.name + ("_total" if metric.kind == "counter" else ""),
            frozenset({(metric.label, own), ("store", store), ("job", job)}),
        ): float(value)
        for metric in metrics
        for own, value in metric.samples.items()
    }


@pytest.mark.parametrize(
    "labels", [{"": "x"}, {"a-b": "x"}, {"__a": "x"}, {"store": "x"}, {"kind": "x"}, {"a": 1}, {1: "a"}]
)
def test_what_cannot_be_a_label_is_refused_and_nothing_is_written(tmp_path: Path, labels: dict[Any, Any]) -> None:
    with Store.init(tmp_path / "store") as store, pytest.raises(BadInput, match="cannot be a label"):
        store.write_metrics(tmp_path / "metrics", labels=labels)
    assert not (tmp_path / "metrics").exists()


def state_of(number: int) -> dict[str, Any]:
    return {"frozen": np.full(2**18, 7, np.float32), "w": np.full(2**18, number, np.float32)}


def counted(info: Any) -> SaveCounters:
    counters: SaveCounters = info.counters
    assert all(getattr(counters, part) > 0 for part in PARTS)
    return counters


def test_every_kind_of_save_says_what_it_did(store: Store) -> None:
    (store.path.parent / "file").write_bytes(b"x" * 5000)
    plain = counted(store.save(state_of(0), step=0))
    files = counted(store.commit(store.path.parent / "file", step=0, run="files"))
    again = counted(store.save(state_of(0), step=1))
    pending = store.save_async(state_of(2), step=2)
    copied = counted(pending.result(DEADLINE_S))
    kept = counted(store.save_async(state_of(3), step=3, unchanged="frozen").result(DEADLINE_S))

    assert (plain.hashed_bytes, plain.kept_bytes, plain.written_count, plain.reused_count) == (2 * 2**20, 0, 2, 0)
    assert (files.hashed_bytes, files.written_count, files.reused_count) == (5000, 1, 0)
    assert (again.hashed_bytes, again.written_count, again.reused_count) == (2 * 2**20, 0, 2)
    assert (copied.hashed_bytes, copied.kept_bytes, copied.written_count, copied.reused_count) == (2 * 2**20, 0, 1, 1)
    assert (kept.hashed_bytes, kept.kept_bytes, kept.written_count, kept.reused_count) == (2**20, 2**20, 1, 1)
    assert plain.copied_s == plain.queued_s == 0
    assert min(copied.copied_s, copied.queued_s) > 0
    assert store.info(3).counters is None
    assert store.info(3) == store.save(state_of(3), step=3), "counters are not compared"


def test_the_file_of_metrics_has_the_sums_of_all_saves(store: Store, strike: Callable[..., Path]) -> None:
    path = store.path.parent / "metrics.prom"
    folder = strike("staging", "wait", 1)
    infos = [store.save(state_of(0), step=0, run="a")]
    with pytest.raises(StepExists):
        store.save(state_of(1), step=0, run="a")
    under_way = store.save_async(state_of(1), step=1, run="b")
    wait_for((folder / "struck-0").exists, "it is staging")
    assert store.save_async(state_of(2), step=2, when_busy="skip").skipped
    (folder / "go-0").touch()
    infos.append(under_way.result(DEADLINE_S))
    assert store.save_async(state_of(2), step=1, run="b").exception(DEADLINE_S) is not None
    path.write_text("what was there before")

    store.write_metrics(path, labels={"job": "j"})

    samples = read(path.read_text(encoding="utf-8"))
    place = ("store", str(store.path)), ("job", "j")

    def sample(name: str, label: str, value: str) -> float:
        return samples[name, frozenset({(label, value), *place})]

    outcomes = [sample("ckstore_saves_total", "outcome", of) for of in ("saved", "failed", "skipped")]
    assert outcomes == [2, 2, 1]
    for kind in ("logical", "new", "reused"):
        assert sample("ckstore_save_bytes_total", "kind", kind) == sum(getattr(of, f"{kind}_bytes") for of in infos)
    counters = [counted(of) for of in infos]
    assert sample("ckstore_save_blobs_total", "kind", "written") == sum(of.written_count for of in counters)
    for part in ("copied_s", "queued_s", *PARTS):
        seconds = sample("ckstore_save_seconds_total", "part", part.removesuffix("_s"))
        assert seconds == pytest.approx(sum(getattr(of, part) for of in counters))
    assert [sample("ckstore_last_saved_step", "run", run) for run in "ab"] == [0, 1]
    assert path.stat().st_mode & 0o777 == 0o644
    assert [of.name for of in path.parent.iterdir() if "metrics" in of.name] == [path.name]


def test_metrics_that_cannot_be_written_leave_nothing(store: Store) -> None:
    folder = store.path.parent / "folder"
    folder.mkdir()
    with pytest.raises(CkstoreError, match="write metrics failed"):
        store.write_metrics(folder)
    with pytest.raises(CkstoreError, match="write metrics failed"):
        store.write_metrics(folder / "no" / "metrics")
    assert list(folder.iterdir()) == []
    assert not [of for of in store.path.parent.iterdir() if of.name.startswith(".folder")]


def test_a_save_that_has_no_memory_to_read_the_settings_is_counted_as_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(config_file, "read_config", full)
        with pytest.raises(SaveFailed, match="saving main@0 failed: not enough memory"):
            store.save({"w": 1}, step=0)

    outcomes = {metric.name: metric.samples for metric in store._context.totals.metrics()}["ckstore_saves"]
    assert outcomes == {"saved": 0, "failed": 1, "skipped": 0}
