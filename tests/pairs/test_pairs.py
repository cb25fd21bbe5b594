"""Any act before and after any other: nothing acknowledged is lost, and what was removed comes back as promised.

Three acts a case: the first, the second, and the first again, by two handles in turn. `World` judges. table.toml lists
the acts that are refused, and what goes wrong today.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from ckstore.errors import CkstoreError
from ckstore.ops.free import gc
from ckstore.saver import helper_start
from tests.pairs.acts import ACTS, KEPT, as_the_quota_says
from tests.pairs.table import read
from tests.pairs.world import World
from tests.support.coverage import drawn

TABLE = read()
CASES = drawn(combinations_with_replacement(ACTS, 2), 6)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process that mirrors, since the acts take the steps themselves; do not wait until free space grew."""
    monkeypatch.setattr(helper_start, "start", lambda *_: None)
    monkeypatch.setattr(gc, "_QUIET_S", 0.0)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@pytest.mark.parametrize("first, second", CASES)
def test_each_act_before_and_after_each_other_loses_nothing(
    first: str, second: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if why := TABLE.open.get(f"{first} and {second}"):
        request.applymarker(pytest.mark.xfail(strict=True, reason=why))
    world = World.of(tmp_path)
    refused = {}

    for hand, (name, other) in enumerate(((first, second), (second, first), (first, second))):
        try:
            with as_the_quota_says(world):
                ACTS[name](world, world.hands[hand % 2])
        except CkstoreError as error:
            refused[f"{name} after {other}"] = type(error).__name__
        world.settle(name)

    keys = {f"{first} after {second}", f"{second} after {first}"}
    assert refused == {key: TABLE.refused[key].partition(":")[0] for key in keys & TABLE.refused.keys()}
    world.check()


DONE: dict[str, Callable[[World], object]] = {
    "retention": lambda world: [one for one in world.saved.values() if one.gone],
    "budget": lambda world: [one for one in world.saved.values() if one.gone],
    "make_room": lambda world: [one for one in world.saved.values() if one.gone and not one.undo],
    "undo": lambda world: world.hands[0].undoable(),
    "replace": lambda world: world.hands[0].undoable(),
    "quota": lambda world: world.meets_quota,
    "compact": lambda world: [*world.root.glob("checkpoints/*/*/plain.json")],
    "evict": lambda world: [one for one in world.saved.values() if not one.is_local],
    "remote_prune": lambda world: len(world.at_remote) == KEPT,
    "rename_run": lambda world: world.run == "mainx",
    "kill": lambda world: [*(world.root / "staging").iterdir()],
}


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@pytest.mark.parametrize("name", DONE)
def test_an_act_does_what_it_is_for(name: str, tmp_path: Path) -> None:
    world = World.of(tmp_path)

    ACTS[name](world, world.hands[0])
    world.settle(name)

    assert DONE[name](world)
    world.check()


def test_each_refusal_and_each_open_fault_is_of_acts() -> None:
    after = {f"{one} after {other}" for one in ACTS for other in ACTS}
    cases = {f"{first} and {second}" for first, second in combinations_with_replacement(ACTS, 2)}

    assert TABLE.refused.keys() <= after
    assert TABLE.open.keys() <= cases
