"""Small documents: what a writer accepts its reader reads back equal, and what it refuses leaves the file as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore import Best, RetentionPolicy, Store
from ckstore.errors import BadInput
from ckstore.model.checkpoint.mark import MARK_MAX_BYTES, Mark, MarkEntry, parse_mark
from ckstore.objects.documents import annotations as annotation_files
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES
from tests.model.checkpoint.test_checked import DIGESTS
from tests.support.look import directory_of

pytestmark = [pytest.mark.property]

LIMIT_BYTES = 1500
"""In place of the real limits, so that documents around them are drawn in no time."""
TEXTS = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=300)
NUMBERS = st.floats() | st.integers(-(2**64), 2**64).filter(lambda value: int(float(value)) == value)
METRICS = st.dictionaries(TEXTS, NUMBERS, max_size=8)
POLICIES = st.builds(
    RetentionPolicy,
    keep_last=st.integers(1, 2**53),
    keep_best=st.lists(st.builds(Best, TEXTS.filter(bool), st.sampled_from(["min", "max"])), max_size=3),
    keep_within=st.none() | st.floats(1, 1e9) | st.sampled_from(["7d", "0.5h"]),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents") / "store"
    with Store.init(path) as store:
        store.save({"w": 1}, step=1)
    return path


@pytest.fixture(scope="module", autouse=True)
def _low_limits() -> Iterator[None]:
    with (
        mock.patch("ckstore.objects.documents.annotations.ANNOTATIONS_MAX_BYTES", LIMIT_BYTES),
        mock.patch("ckstore.objects.documents.pins.PIN_MAX_BYTES", LIMIT_BYTES),
        mock.patch("ckstore.ops.config_file._MAX_BYTES", LIMIT_BYTES),
    ):
        yield


def accepted(folder: Path, write: Callable[[], object]) -> bool:
    """Write; after a refusal the files of the folder must be what they were."""
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}
    try:
        write()
    except BadInput:
        assert {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()} == before
        return False
    return True


def alike(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two are equal; a nan equals a nan."""
    return one.keys() == other.keys() and all(
        one[name] == other[name] or (math.isnan(one[name]) and math.isnan(other[name])) for name in one
    )


@given(metrics=METRICS, note=st.none() | TEXTS)
def test_annotations_come_back_or_are_refused_whole(path: Path, metrics: dict[str, float], note: str | None) -> None:
    with Store.open(path) as store:
        (directory_of(store, 1) / "annotations.json").unlink(missing_ok=True)
        store.annotate(1, {"kept": 1.0}, "kept")
        if not accepted(directory_of(store, 1), lambda: store.annotate(1, metrics, note)):
            metrics, note = {}, None
        now = store.info(1)

    floats = {name: value if -(2**53) <= value <= 2**53 else float(value) for name, value in metrics.items()}
    assert alike(now.metrics, {"kept": 1.0, **floats})
    assert [found.text for found in now.notes] == ["kept", *([note] if note else [])]


@given(reason=TEXTS.map(lambda text: text * 3))
def test_a_pin_comes_back_or_is_refused(path: Path, reason: str) -> None:
    with Store.open(path) as store:
        (store.path / "pins").mkdir(exist_ok=True)
        if accepted(store.path / "pins", lambda: store.pin(1, reason)):
            assert [pin.reason for pin in store.pins()] == [reason]
            store.unpin(1)


@given(policy=POLICIES)
def test_a_policy_comes_back_or_is_refused(path: Path, policy: RetentionPolicy) -> None:
    with Store.open(path) as store:
        before = store.config.retention
        done = accepted(path, lambda: setattr(store.config, "retention", policy))

        assert store.config.retention == (policy if done else before)


@given(
    found=st.text(max_size=30),
    entries=st.lists(
        st.builds(
            MarkEntry,
            st.just("") | DIGESTS,
            st.lists(TEXTS.map(lambda text: text * 20), max_size=200).map(tuple),
            TEXTS.map(lambda text: text * 100),
        ),
        max_size=20,
    ),
    times=st.integers(1, 200),
)
def test_a_mark_of_whatever_was_found_comes_back(found: str, entries: list[MarkEntry], times: int) -> None:
    mark = Mark(found, tuple(entries * times))

    data = mark.render()

    assert len(data) <= MARK_MAX_BYTES
    assert parse_mark(data, "damaged.json") == mark
    assert [entry.blob for entry in mark.entries] == [entry.blob for entry in entries * times][:1000]


@pytest.mark.slow
def test_a_note_larger_than_annotations_may_be_costs_none_of_those_before(tmp_path: Path) -> None:
    whole = mock.patch.object(annotation_files, "ANNOTATIONS_MAX_BYTES", ANNOTATIONS_MAX_BYTES)
    with whole, Store.init(tmp_path / "store") as store:
        store.save({"w": 1}, step=1)
        store.annotate(1, {"bleu": 27.0}, "x" * (ANNOTATIONS_MAX_BYTES - 2000))

        with pytest.raises(BadInput, match=f"more than the {ANNOTATIONS_MAX_BYTES} that ckstore reads"):
            store.annotate(1, note="y" * 2000)

        info = store.info(1)
    assert info.metrics == {"bleu": 27.0}
    assert [note.text[0] for note in info.notes] == ["x"]
