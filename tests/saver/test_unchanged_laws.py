"""Laws of what is named as unchanged: true words never give another step's bytes, and false ones only where said."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ckstore import CheckpointInfo, Store
from ckstore.errors import NoSuchRef, NotUnchanged
from ckstore.model.manifest.captured import Captured
from ckstore.model.manifest.manifest import Description, LeafRecord
from ckstore.model.saver.messages import Order
from ckstore.model.training_identity import Parent
from ckstore.saver.client.unchanged_storages import SnapshotPlan, UnchangedBases, UnchangedNames
from tests.saver.conftest import DEADLINE_S
from tests.support.examples import examples
from tests.support.stores import check_store

MIB = 2**20
NAMES = "abc"


@dataclass
class Sized:
    """A source of which only the size is asked for."""

    name: str
    nbytes: int = MIB
    space: None = None

    def view(self, start: int, stop: int) -> memoryview | None:
        raise AssertionError(self.name)

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        raise AssertionError(self.name)

    def changed(self) -> bool:
        return False


@dataclass
class Asked:
    """A save under way, and the version of each tensor that it has."""

    order: Order
    versions: dict[str, int]
    fingerprints: dict[int, bytes]


@dataclass
class Trainer:
    """Tensors with versions, calls that are skipped, raise, or save, and saves that end well or not, as they come."""

    bases: UnchangedBases = field(default_factory=UnchangedBases)
    versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    at_last_call: dict[str, int] = field(default_factory=dict)
    under_way: list[Asked] = field(default_factory=list)
    saved: dict[str, dict[str, int]] = field(default_factory=dict)
    last_parents: dict[str, Parent] = field(default_factory=dict)
    kept_count: int = 0
    number: int = 0
    on_device: frozenset[str] = frozenset()

    def fingerprints(self, order: str) -> dict[int, bytes]:
        """Those of the tensors on a device: a version is one, and so is another that was before."""
        return {i: b"%d" % (self.versions[name] % 3) for i, name in enumerate(order) if name in self.on_device}

    def call(self, order: str, named: set[str], outcome: str, if_exists: str, step: int) -> None:
        """Name what is in fact unchanged since the last call, of what is drawn, with the storages in this order."""
        true = {name for name in named & set(order) if self.at_last_call.get(name) == self.versions[name]}
        self.at_last_call = dict(self.versions)
        captured = Captured(
            None,
            tuple(LeafRecord(name, "numpy", "<f4", (MIB // 4,), i) for i, name in enumerate(order)),
            tuple(Sized(name) for name in order),
        )
        if outcome != "saved":
            self.bases.not_saved("main", true if outcome == "skipped" else set())
            return
        self.number += 1
        asked = Order(self.number, "main", step, Description(), (), if_exists)
        unchanged = UnchangedNames(lambda name: name in true, MIB)
        prints = self.fingerprints(order)
        before = frozenset(true)
        placed = self.bases.place(captured, asked, unchanged, true, self.last_parents, prints)
        assert true == before
        self.is_right(placed, order, step, true)
        asked = replace(asked, captured=replace(captured, sources=()), places=placed.places, kept=placed.kept)
        self.bases.ordered(asked)
        self.under_way.append(Asked(asked, dict(self.versions), prints))

    def is_right(self, placed: SnapshotPlan, order: str, step: int, named: set[str]) -> None:
        """What is kept is in the checkpoint that it is taken from as it is here, or in the snapshot."""
        kept = placed.kept
        assert [place.offset < 0 for place in placed.places] == [
            kept is not None and i in kept.storages for i in range(len(order))
        ]
        if kept is None:
            return
        assert kept.step != step
        if named & {order[index] for index in kept.storages} - self.on_device:
            assert kept.samples, "something is compared"
        for index, (there, _) in kept.storages.items():
            self.kept_count += 1
            name = order[index]
            held = self.saved[kept.id]
            assert (
                held[name] % 3 == self.versions[name] % 3
                if name in self.on_device
                else held[name] == self.versions[name]
            )
            assert list(held)[there] == name

    def end(self, well: bool) -> None:
        """The first save has ended."""
        if not self.under_way:
            return
        asked = self.under_way.pop(0)
        if not well:
            return
        order = asked.order
        manifest_id = f"id-{order.number}"
        names = [leaf.name for leaf in order.captured.leaves]
        if order.if_exists == "keep":
            self.saved[manifest_id] = dict.fromkeys(names, -1)
        else:
            self.saved[manifest_id] = {name: asked.versions[name] for name in names}
        assert order.step is not None
        info = CheckpointInfo(manifest_id, "main", order.step, 1, "", 0, 0, 0, 0, "")
        self.bases.ended(order, info, asked.fingerprints)
        self.last_parents["main"] = Parent(manifest_id)


CALLS = st.tuples(
    st.just("call"),
    st.sampled_from(["abc", "cab", "ab", "ca"]),
    st.sampled_from([set("abc"), set("a"), set("bc"), set[str]()]),
    st.sampled_from(["saved", "saved", "saved", "skipped", "raised"]),
    st.sampled_from(["error", "error", "keep"]),
    st.integers(0, 9),
)
CHANGES = st.tuples(st.just("change"), st.sampled_from(NAMES))
ENDS = st.tuples(st.just("end"), st.sampled_from([True, True, True, False]))
OTHERS = st.just(("other",))
FIRST: Any = ("call", "abc", set(), "saved", "error", 1)


def carried_out(acts: Iterable[tuple[Any, ...]], on_device: str = "") -> Trainer:
    trainer = Trainer(on_device=frozenset(on_device))
    for what, *drawn in acts:
        if what == "call":
            trainer.call(*drawn)
        elif what == "change":
            trainer.versions[drawn[0]] += 1
        elif what == "end":
            trainer.end(*drawn)
        else:
            trainer.last_parents["main"] = Parent("of another call")
    return trainer


@given(st.lists(st.one_of(CALLS, CALLS, CHANGES, ENDS, ENDS, OTHERS), min_size=5, max_size=20))
@example([FIRST, ("end", True), ("call", "abc", set("abc"), "saved", "error", 1)])  # a step that is replaced
@example([(*FIRST[:4], "keep", 1), ("end", True), ("call", "abc", set("abc"), "saved", "error", 2)])
@settings(max_examples=examples(120))
def test_what_is_kept_by_true_words_is_in_the_checkpoint_as_it_is_in_the_trainer(acts: list[Any]) -> None:
    carried_out(acts)


@given(st.lists(st.one_of(CALLS, CALLS, CHANGES, ENDS, ENDS, OTHERS), min_size=5, max_size=20))
@settings(max_examples=examples(120))
def test_what_is_kept_by_fingerprints_is_in_the_checkpoint_as_it_is_in_the_trainer(acts: list[Any]) -> None:
    carried_out(acts, on_device="ab")


def test_what_is_unchanged_on_a_device_is_kept_though_nothing_names_it() -> None:
    begin: list[Any] = [("call", "abc", set(), "saved", "error", 1), ("end", True)]
    then: list[Any] = [("call", "cab", set(), "saved", "error", 2)]

    assert carried_out([*begin, *then], on_device="ab").kept_count == 2
    assert carried_out([*begin, ("change", "a"), *then], on_device="ab").kept_count == 1
    assert carried_out([*begin[:1], *then], on_device="ab").kept_count == 0


def test_a_call_that_saved_nothing_counts_as_the_call_before() -> None:
    begin: list[Any] = [("call", "abc", set(), "saved", "error", 1)]
    ends: list[Any] = [("end", True)]
    then: list[Any] = [("call", "abc", set("abc"), "saved", "error", 2)]

    assert carried_out([*begin, *ends, *then]).kept_count == 3
    for outcome, named, kept_count in [("skipped", "ab", 2), ("skipped", "", 0), ("raised", "abc", 0)]:
        between: list[Any] = [("call", "abc", set(named), outcome, "error", 5), ("change", "c")]
        change: list[Any] = [("change", "c")]
        for acts in ([*begin, *change, *between[:1], *ends, *then], [*begin, *ends, *change, *between[:1], *then]):
            assert carried_out(acts).kept_count == kept_count


def test_while_the_save_before_is_under_way_or_has_failed_everything_is_copied() -> None:
    first: list[Any] = [("call", "abc", set(), "saved", "error", 1)]
    second: list[Any] = [("change", "a"), ("call", "abc", set("bc"), "saved", "error", 2)]
    third: list[Any] = [("call", "abc", set("abc"), "saved", "error", 3)]
    well: list[Any] = [("end", True)]
    badly: list[Any] = [("end", False)]

    assert carried_out([*first, *well, *second, *well, *third]).kept_count == 2 + 3
    assert carried_out([*first, *well, *second, *third]).kept_count == 2
    assert carried_out([*first, *second, *well, *third]).kept_count == 0
    assert carried_out([*first, *well, *second, *badly, *third]).kept_count == 2


SIZES = {"a": MIB // 4 + 3, "b": MIB // 2, "c": 9}
ROUNDS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1, exclude_max=True)), max_size=2),
        st.sets(st.sampled_from("abc")),
    ),
    min_size=1,
    max_size=5,
)


def is_same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], start: int) -> bool:
    """Whether the chunk that starts there is the same."""
    return a[start // 4 :][: MIB // 4].tobytes() == b[start // 4 :][: MIB // 4].tobytes()


def test_a_checkpoint_is_what_was_given_or_a_compared_difference_fails_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that was named and has changed is what the checkpoint before holds, whole, unless it was compared."""
    placings: list[SnapshotPlan] = []
    place = UnchangedBases.place

    def noted(bases: UnchangedBases, *how: Any) -> SnapshotPlan:
        placings.append(place(bases, *how))
        return placings[-1]

    monkeypatch.setattr(UnchangedBases, "place", noted)
    runs = itertools.count()

    @example([([("a", 0.0), ("a", 0.999999)], {"a"})])  # whichever chunk of it is compared differs
    @given(ROUNDS)
    @settings(max_examples=examples(5))
    def law(rounds: list[Any]) -> None:
        run = f"run-{next(runs)}"
        state = {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
        store.save_async(state, step=0, run=run).result(DEADLINE_S)
        held = copied(state)
        for step, (changes, named) in enumerate(rounds, 1):
            for name, share in changes:
                state[name][int(share * SIZES[name])] += 1
            given_now = copied(state)
            pending = store.save_async(state, step=step, run=run, unchanged=sorted(named) or None)
            for name in state:
                state[name] += 100  # what is compared was copied in the call
            error = pending.exception(DEADLINE_S)
            state = copied(given_now)
            kept = placings[-1].kept
            samples = () if kept is None else kept.samples
            compared = [(NAMES[of.storage], of.start) for of in samples]
            differing = [name for name, start in compared if not is_same(given_now[name], held[name], start)]
            if differing:
                assert isinstance(error, NotUnchanged)
                assert any(error.message.startswith(f"{name} was named") for name in differing)
                with pytest.raises(NoSuchRef):
                    store.info(f"{run}@{step}")
                store.save_async(state, step=step, run=run, unchanged=sorted(named) or None).result(DEADLINE_S)
                kept = placings[-1].kept
                assert kept is None
            else:
                assert error is None
            loaded = store.load(f"{run}@{step}")
            for index, name in enumerate(NAMES):
                is_kept = kept is not None and index in kept.storages
                assert is_kept <= (name in named)
                assert np.array_equal(loaded[name], held[name] if is_kept else given_now[name])
            held = loaded

    law()
    check_store(store.path)


def copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: array.copy() for name, array in state.items()}
