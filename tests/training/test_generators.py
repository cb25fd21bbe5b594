"""Random generators that belong to a part go on where they were, wherever it has them, or the report names them."""

from __future__ import annotations

import functools
import json
import random
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from ckstore import CkstoreWarning, Store
from ckstore.training import capture, generators, restore
from tests.support.stores import check_store

KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], object]]] = {
    "torch": (lambda seed: torch.Generator().manual_seed(seed), lambda one: torch.rand(3, generator=one).tolist()),
    "Python": (random.Random, lambda one: [one.random(), one.gauss()]),
    "NumPy PCG64": (np.random.default_rng, lambda one: one.random(3).tolist()),
    "NumPy MT19937": (lambda seed: np.random.Generator(np.random.MT19937(seed)), lambda one: one.random(3).tolist()),
    "NumPy Philox": (lambda seed: np.random.Generator(np.random.Philox(seed)), lambda one: one.random(3).tolist()),
    "NumPy RandomState": (np.random.RandomState, lambda one: [one.rand(), one.randn()]),
    "bits of NumPy": (np.random.SFC64, lambda one: one.random_raw(3).tolist()),
}
SETS_SEEDS = np.lib.NumpyVersion(np.__version__) >= "2.0.0"
"""Whether a generator can get the seeds of another one. NumPy 1.26 has no way, so a report says it."""

REFUSES_NESTED_SEEDS = np.lib.NumpyVersion(np.__version__) >= "2.5.0"


def without_seeds(inexact: tuple[str, ...]) -> list[str]:
    """Return the sentences of a report that do not come from an old NumPy."""
    return [line for line in inexact if SETS_SEEDS or "will spawn other generators" not in line]


class Slotted:
    """An object without a dict."""

    __slots__ = ("rng", "unset")

    def __init__(self, rng: Any) -> None:
        self.rng = rng


class Holder:
    """An object with a method."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def draw(self) -> object:
        """Return what it has."""
        return self.rng


def _default(rng: Any) -> Callable[..., Any]:
    def noise(rows: int, own: Any = rng, /, other: int = 2) -> Any:
        return own, rows, other

    return noise


def _keyword(rng: Any) -> Callable[..., Any]:
    def noise(*, own: Any = rng) -> Any:
        return own

    return noise


def _closure(rng: Any) -> Callable[[], Any]:
    def noise() -> Any:
        return rng

    return noise


PLACES: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda rng: rng,
    "an object": Holder,
    "slots": Slotted,
    "a list": lambda rng: [1, rng],
    "a dict": lambda rng: {"a": {7: rng}},
    "a method": lambda rng: Holder(rng).draw,
    "a function": _closure,
    "a default": _default,
    "a default of a keyword": _keyword,
    "a class": lambda rng: type("Noisy", (Holder,), {"shared": rng})(None),
    "a deque": lambda rng: deque([rng]),
    "a dict by tuples": lambda rng: {("train", 0): rng},
    "a partial": lambda rng: functools.partial(print, rng, end=""),
    "a module": lambda rng: torch.nn.Sequential(_module(rng)),
}


def _module(rng: Any) -> torch.nn.Module:
    module: Any = torch.nn.Linear(1, 1)
    module.noise = rng
    return module  # type: ignore[no-any-return]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def part(held: object) -> torch.nn.Module:
    """Return a part that has a value as an attribute."""
    module: Any = torch.nn.Linear(2, 2)
    module.held = held
    return module  # type: ignore[no-any-return]


@pytest.mark.crossed
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_generator_of_a_part_goes_on_where_it_was(kind: str, place: str, store: Store) -> None:
    make, draw = KINDS[kind]
    mine, again = make(1), make(2)
    draw(mine)
    store.save(capture(ema=part(PLACES[place](mine))))
    expected = draw(mine)

    report = restore(store, ema=part(PLACES[place](again)))

    assert draw(again) == expected
    assert without_seeds(report.inexact) == []
    check_store(store.path)


def test_a_generator_of_a_builtin_method_goes_on_where_it_was(store: Store) -> None:
    mine, again = random.Random(1).random, random.Random(2).random
    store.save(capture(ema=part(mine)))
    expected = mine()

    restore(store, ema=part(again))

    assert again() == expected


class Lazy:
    """A loader with its generator in its own state, which draws its order only when it is asked for a batch."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.before = self.rng.get_state()
        self.order: list[int] = []
        self.at = 0

    def __next__(self) -> int:
        if not self.order:
            self.before = self.rng.get_state()
            self.order = torch.randperm(5, generator=self.rng).tolist()
        self.at += 1
        return self.order[self.at % 5]

    def state_dict(self) -> dict[str, Any]:
        """Return the place, and the state of the generator before it drew the order."""
        return {"before": self.before, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place; the order is drawn again."""
        self.rng.set_state(state["before"])
        self.order, self.at = [], state["at"]


def test_a_part_with_its_generator_in_its_own_state_sets_it_as_it_needs_it(store: Store) -> None:
    loader = Lazy(1)
    next(loader)
    store.save(capture(data=loader))
    expected = [next(loader) for _ in range(4)]

    again = Lazy(2)
    report = restore(store, data=again)

    assert [next(again) for _ in range(4)] == expected
    assert report.inexact == ()


def test_generators_that_differ_or_have_no_state_are_named(store: Store) -> None:
    made = {
        "same": random.Random(1),
        "other": random.Random(1),
        "gone": random.Random(1),
        "system": random.SystemRandom(),
    }
    store.save(capture(ema=part(made), teacher=part(random.Random(1))))
    new, system = np.random.default_rng(1), random.SystemRandom()
    state = new.bit_generator.state

    report = restore(
        store, ema=part({"same": random.Random(3), "other": new, "system": system, "new": new.spawn(1)[0]})
    )

    assert new.bit_generator.state == state
    assert report.inexact == (
        "the checkpoint has a part teacher, which was not passed to restore",
        "the random generator ema.held.other is NumPy PCG64, but was Python in the checkpoint, and was not changed",
        "the random generator ema.held.system draws from the system and has no state; use random.Random(seed)",
        "the checkpoint has no state of the random generator ema.held.new, which was not changed",
        "the checkpoint has a state of the random generator ema.held.gone, which does not exist now",
    )


def nested(seed: int | None) -> object:
    """Return a seed in nested sequences."""
    return (seed or 0, (7, 2**200)), np.uint32(3)


SPAWNING: dict[str, Callable[[Any], Any]] = {
    "a generator": np.random.default_rng,
    "its bits": np.random.PCG64,
    "a child": lambda seed: np.random.default_rng(seed).spawn(4)[3],
    "many numbers": lambda seed: np.random.default_rng([seed or 0, 2**40, 7]),
    "a scalar of NumPy": lambda seed: np.random.default_rng(np.int64(seed or 0)),
    "an array": lambda seed: np.random.default_rng(np.array([seed or 0, 3])),
    **({} if REFUSES_NESTED_SEEDS else {"nested": lambda seed: np.random.default_rng(cast("Any", nested(seed)))}),
}


@pytest.mark.parametrize("seed", [1, 2, None], ids=["same seed", "other seed", "no seed"])
@pytest.mark.parametrize("kind", SPAWNING)
def test_a_restored_generator_spawns_the_next_generators(kind: str, seed: int | None, store: Store) -> None:
    if seed != 1 and not SETS_SEEDS:
        pytest.skip("a generator of NumPy 1.26 cannot get other seeds")
    mine, again = SPAWNING[kind](1), SPAWNING[kind](seed)
    mine.spawn(2)
    store.save(capture(torch.nn.Linear(1, 1), noise=mine))
    right = [one.random_raw(2).tolist() if kind == "its bits" else one.random(2).tolist() for one in mine.spawn(2)]
    again.spawn(1)

    report = restore(store, model=torch.nn.Linear(1, 1), noise=again)

    found = [one.random_raw(2).tolist() if kind == "its bits" else one.random(2).tolist() for one in again.spawn(2)]
    assert found == right
    assert report.inexact == ()


def test_nested_seeds_of_an_early_checkpoint_are_set_with_any_numpy() -> None:
    seed = [1, 7, 2**200, 3]
    saved, again = np.random.default_rng(seed), np.random.default_rng(1 if SETS_SEEDS else seed)
    states = generators.states_of({"noise": saved})
    states["noise"]["seeds"] |= {"entropy": [[1, [7, 2**200]], 3], "spawn_key": [[]]}

    assert generators.set_generators({"noise": again}, states) == ()

    assert again.spawn(1)[0].random() == saved.spawn(1)[0].random()


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_with_an_old_numpy_other_spawned_generators_are_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, same, other, ahead = (np.random.default_rng(seed) for seed in (1, 1, 2, 1))
    mine.spawn(2)
    ahead.spawn(3)
    store.save(capture(torch.nn.Linear(1, 1), noise=mine))
    (right,) = (one.random() for one in mine.spawn(1))
    monkeypatch.setattr(generators, "_replace_seed_sequence", lambda *_: None)  # NumPy 1.26 cannot

    reports = [restore(store, model=torch.nn.Linear(1, 1), noise=one) for one in (same, other, ahead)]

    assert [one.random() for one in same.spawn(1)] == [right]
    assert [report.inexact for report in reports] == [
        (),
        *2 * [("the random generator noise will spawn other generators: create it from the same seed",)],
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_can_be_a_part_itself(kind: str, store: Store) -> None:
    make, draw = KINDS[kind]
    mine, again = make(1), make(2)
    store.save(capture(torch.nn.Linear(1, 1), noise=mine))
    expected = draw(mine)

    report = restore(store, model=torch.nn.Linear(1, 1), noise=again)

    assert draw(again) == expected
    assert report.present == ("model", "noise")
    assert without_seeds(report.inexact) == []
    unused = restore(store, model=torch.nn.Linear(1, 1))
    assert unused.inexact == ("the checkpoint has a part noise, which was not passed to restore",)


@pytest.mark.parametrize("hold", [list, tuple, lambda pair: dict(enumerate(pair))], ids=["list", "tuple", "dict"])
def test_generators_in_a_container_are_a_part(hold: Callable[[list[Any]], Any], store: Store) -> None:
    def make(seed: int) -> list[Any]:
        return [np.random.default_rng(seed), random.Random(seed)]

    mine, again = make(1), make(2)
    store.save(capture(torch.nn.Linear(1, 1), noise=hold(mine)))
    expected = [one.random() for one in mine]

    report = restore(store, model=torch.nn.Linear(1, 1), noise=hold(again))

    assert [one.random() for one in again] == expected
    assert report.present == ("model", "noise")
    assert without_seeds(report.inexact) == []


class Proxy:
    """An object that answers no question."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_a_search_runs_no_code_of_what_it_inspects() -> None:
    class Raises(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError

    gone = weakref.proxy(Holder(1))
    rng = random.Random(1)

    found, is_whole = generators.find_generators({"ema": part([Proxy(), gone, Raises({"rng": rng})])})

    assert (found, is_whole) == ({"ema.held.2.rng": rng}, True)


def test_generators_of_the_process_are_no_generators_of_a_part(store: Store) -> None:
    shared = [random._inst, np.random.mtrand._rand, torch.default_generator]

    found, is_whole = generators.find_generators({"ema": part(shared), "data": {"rng": np.random}})

    assert (found, is_whole) == ({}, True)


def test_parts_of_too_many_objects_are_named_at_the_capture_and_in_the_report(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generators, "OBJECTS_MOST", 10)
    sentence = "the parts refer to too many objects, and not all were searched for random generators"

    with pytest.warns(CkstoreWarning, match=sentence):
        store.save(capture(ema=part([[number] for number in range(20)])))

    assert sentence in restore(store, ema=part(None)).inexact


def as_first_version(state: dict[str, Any], resumes: bool, loader: object) -> dict[str, Any]:
    """Return what capture gave as its first version had it."""
    record = json.loads(state["training"])
    del record["ranks"], record["loader"], record["conditions"]["lost"], state["rng"]["rank-0"]["parts"]
    record["version"], record["conditions"]["dataloader_resumes"] = 1, resumes
    return state | {"training": json.dumps(record), "dataloader": loader}


def test_a_checkpoint_of_the_first_version_gives_a_loader_its_state(store: Store) -> None:
    loader = Lazy(1)
    next(loader)
    store.save(as_first_version(capture(torch.nn.Linear(1, 1), dataloader=loader), True, loader))
    expected = [next(loader) for _ in range(4)]

    again = Lazy(2)
    report = restore(store, model=torch.nn.Linear(1, 1), dataloader=again)

    assert [next(again) for _ in range(4)] == expected
    assert report.inexact == (
        "the checkpoint has no state of the random generator dataloader.rng, which was not changed",
    )


def test_a_checkpoint_of_the_first_version_gives_a_plain_loader_its_generator(store: Store) -> None:
    def loader(seed: int) -> Any:
        own = torch.Generator().manual_seed(seed)
        numbers: Any = range(8)
        return torch.utils.data.DataLoader(numbers, 2, shuffle=True, generator=own)

    mine = loader(1)
    first = {"generator": mine.generator.get_state(), "epoch": None}
    store.save(as_first_version(capture(torch.nn.Linear(1, 1), dataloader=mine), False, first))
    expected = [batch.tolist() for batch in mine]

    again = loader(2)
    report = restore(store, model=torch.nn.Linear(1, 1), dataloader=again)

    assert [batch.tolist() for batch in again] == expected
    assert report.inexact == ("the data loader does not save its position in the data, so it begins an epoch",)
