"""What a row of the table is, and how one is proved: always against what torch.save and torch.load make of it."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import ckstore
from ckstore import Store
from ckstore.errors import CannotStore, DoesNotFit
from tests.states.alike import differences

Parts = dict[str, Any]
STEPS = 3
"""How many a run does before it is saved, and how many after it was loaded."""


@dataclass(frozen=True)
class Advice:
    """What a refusal says that works, as the row does it.

    Attributes:
        hint: A part of the hint.
        store: What to store instead of the parts.
        take: Brings what was loaded into fresh parts.
    """

    hint: str
    store: Callable[[Parts], Any]
    take: Callable[[Parts, Any], object]


@dataclass(frozen=True)
class Run:
    """Objects that work together, such as a model and its optimizer.

    Attributes:
        name: Of the row.
        make: Makes the parts, by their names; which numbers they begin with depends on torch's seed.
        step: Goes on by one, and returns all that came out of it.
        advice: Of a run that is refused; None: it is stored.
        allow: Whether the refusal says by which line its classes are allowed; then it is stored.
        again: Whether parts that were used take the state up as fresh ones do, in torch's own way.
        exact: Whether it continues as the run that did not stop, where torch's own way changes its state.
        by_hand: Where fresh parts refuse the state in torch's own way: does what the hint says after strict=False.
    """

    name: str
    make: Callable[[], Parts]
    step: Callable[[Parts], object]
    advice: Advice | None = None
    allow: bool = False
    again: bool = True
    exact: bool = False
    by_hand: Callable[[Parts, Any], object] | None = None

    def made(self, seed: int) -> Parts:
        seed_all(seed)
        return self.make()

    def go_on(self, parts: Parts, steps: Iterable[int]) -> list[object]:
        """Return what came out of these steps, and the state after them."""
        out = []
        for step in steps:
            seed_all(1000 + step)
            out.append(self.step(parts))
        return [out, state_of(parts)]


@dataclass(frozen=True)
class Value:
    """One value of a state.

    Attributes:
        name: Of the row.
        make: Makes it.
        back: What comes back if that is something else than what torch.load gives, as docs/reference/state.md says.
        allow: Whether the refusal says by which line its classes are allowed; then it is stored.
    """

    name: str
    make: Callable[[], Any]
    back: Callable[[Any], Any] | None = None
    allow: bool = False


@dataclass(frozen=True)
class Refused:
    """A value that is refused, and the expression of its hint that works.

    Attributes:
        name: Of the row.
        make: Makes it.
        does: An expression of `value`; the hint holds it, and what it gives is stored.
        again: Makes the value again of what was loaded; None: that is what the expression gave.
        hint: What the hint says if that is no expression.
        called: What the hint calls the value.
        using: What else the expression names.
    """

    name: str
    make: Callable[[], Any]
    does: str
    again: Callable[[Any], Any] | None = None
    hint: str = ""
    called: str = "value"
    using: dict[str, Any] = field(default_factory=dict)


Row = Run | Value | Refused


def is_stateful(part: object) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def state_of(part: Any) -> Any:
    """Return the state of a part, or of each of several; it changes as they go on."""
    if is_stateful(part):
        return part.state_dict()
    if type(part) is dict:
        return {name: state_of(item) for name, item in part.items()}
    return [state_of(item) for item in part] if type(part) is list else part


def seed_all(seed: int) -> None:
    """Seed what runs draw from on the CPU; torch.manual_seed asks every kind of device, which takes a millisecond."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what some optimizers draw from


def torch_trip(value: Any) -> Any:
    """Return what torch.save and torch.load make of a value."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def prove(row: Row, store: Store, step: int) -> None:
    """Prove a row; `step` is one that the store does not have."""
    if isinstance(row, Value):
        _prove_value(row, store, step)
    elif isinstance(row, Refused):
        _prove_refused(row, store, step)
    elif row.advice is not None:
        _prove_advice(row, row.advice, store, step)
    else:
        _prove_run(row, store, step)


def _prove_run(row: Run, store: Store, step: int) -> None:
    saved = row.made(0)
    row.go_on(saved, range(STEPS))
    state = torch_trip(state_of(saved))
    if row.allow:
        allow(saved, store, step)
    store.save(saved, step=step)

    same(state, store.load(step), "load")
    if row.by_hand is not None:
        _refuses_untouched(row, row.by_hand, saved, store, step)
        return
    _goes_on(row, state, lambda parts: store.load_into(parts, step), "load_into")
    if row.again:
        _goes_on(row, state, lambda parts: store.load_into(parts, step), "load_into what has gone on", used=1)


def _prove_advice(row: Run, advice: Advice, store: Store, step: int) -> None:
    saved = row.made(0)
    row.go_on(saved, range(STEPS))
    with pytest.raises(CannotStore) as caught:
        store.save(saved, step=step)
    hints = [caught.value.hint, *caught.value.refused.values()]
    assert any(advice.hint in hint for hint in hints), hints
    state = torch_trip(state_of(saved))

    store.save(advice.store(saved), step=step)

    _goes_on(row, state, lambda parts: advice.take(parts, store.load(step)), "what the hint says")


def _goes_on(row: Run, state: Any, load: Callable[[Parts], object], how: str, *, used: int = 0) -> None:
    """Go on after a load as after torch's own way, from parts that did `used` steps before it."""
    ours, theirs = row.made(1), row.made(1)
    row.go_on(ours, range(used))
    row.go_on(theirs, range(used))
    assert any(differences(state, state_of(ours))), "the fresh parts are those that were saved: this proves nothing"

    load(ours)
    if row.exact:
        theirs = row.made(0)
        row.go_on(theirs, range(STEPS))
    else:
        take(theirs, torch_trip(state))

    same(state_of(theirs), state_of(ours), how)
    steps = range(STEPS, 2 * STEPS)
    same(row.go_on(theirs, steps), row.go_on(ours, steps), f"{how}, then {STEPS} steps")


def _refuses_untouched(
    row: Run, by_hand: Callable[[Parts, Any], object], saved: Parts, store: Store, step: int
) -> None:
    """Refuse what torch refuses, and touch nothing; what the hint says goes on as the saved parts do."""
    ours, theirs = row.made(1), row.made(1)
    state, before = torch_trip(state_of(saved)), torch_trip(state_of(ours))
    with pytest.raises(Exception, match=r"\S"):
        take(theirs, torch_trip(state))
    with pytest.raises(DoesNotFit, match="load the rest with strict=False"):
        store.load_into(ours, step)
    same(before, state_of(ours), "refused")

    store.load_into(ours, step, strict=False)
    by_hand(ours, store.load(step))

    same(state, state_of(ours), "what the hint says")
    steps = range(STEPS, 2 * STEPS)
    same(row.go_on(saved, steps), row.go_on(ours, steps), f"what the hint says, then {STEPS} steps")


_LINE = re.compile(r"(?:from [\w.]+ import \w+; )?ckstore\.add_safe_globals\(\[\w+\]\)")


def allow(value: Any, store: Store, step: int) -> None:
    """Run the lines that the refusal of a value gives, until nothing more is refused."""
    for _ in range(5):
        refused = _refusal(value, store, step)
        if refused is None:
            return
        lines = {line for hint in (refused.hint, *refused.refused.values()) for line in _LINE.findall(hint or "")}
        assert lines, str(refused)
        for line in lines:
            exec(line, {"ckstore": ckstore})  # noqa: S102 - the line that the message says
    pytest.fail("what the message said was done, and it is still refused")


def _refusal(value: Any, store: Store, step: int) -> CannotStore | None:
    try:
        store.save({"value": value}, step=step, run="allowed")
    except CannotStore as error:
        return error
    return None


def take(parts: Any, state: Any) -> None:
    """Give a state to parts in torch's way."""
    for name, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
        if is_stateful(part):
            part.load_state_dict(state[name])
        elif type(part) in (dict, list) and part:
            take(part, state[name])
        else:
            parts[name] = state[name]


def _prove_value(row: Value, store: Store, step: int) -> None:
    value = row.make()
    wanted = torch_trip(value) if row.back is None else row.back(value)
    if row.allow:
        with pytest.raises(CannotStore):
            store.save({"value": value}, step=step)
        allow(value, store, step)
    store.save({"value": value}, step=step)
    target = {"value": _other(value)}

    store.load_into(target, step)

    same(wanted, store.load(step)["value"], "load")
    same(wanted, target["value"], "load_into")


def _other(value: Any) -> Any:
    """Return what `value` is read into: of its kind where that is filled in place."""
    if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_conj() and not value.is_neg():
        return torch.zeros_like(value, memory_format=torch.preserve_format)
    return None


def _prove_refused(row: Refused, store: Store, step: int) -> None:
    value = row.make()
    with pytest.raises(CannotStore) as caught:
        store.save({"part": [value]}, step=step)
    assert caught.value.path.startswith("part[0]")
    assert (row.hint or row.does) in caught.value.hint

    stored = eval(row.does, {row.called: value, "torch": torch, **row.using})  # noqa: S307 - the expression of a row
    store.save({"value": stored}, step=step)

    back = store.load(step)["value"]
    same(torch_trip(stored), back, "what the hint says")
    if row.again is not None:
        same(value, row.again(back), "made again")


def same(wanted: Any, found: Any, how: str) -> None:
    """Fail if two values differ."""
    different = list(differences(wanted, found))
    assert not different, f"{how}: {'; '.join(different[:5])}"
