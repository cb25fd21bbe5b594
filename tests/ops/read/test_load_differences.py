"""Each row of docs/reference/loading.md, run with torch and with `load_into`."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import CkstoreError
from tests.ops.read.load_differences import (
    CONVERTED,
    HALF,
    LOADED,
    OUTCOMES,
    PAGE,
    REFUSED,
    ROWS,
    WRONG,
    Row,
    State,
    page,
)
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Container

WRAPPERS = ("_orig_mod", "module", "_checkpoint_wrapped_module", "model", "base_layer")


def bits(value: Any) -> Any:
    """Return something that is equal for values that are equal bit for bit."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "meta" or torch.nn.parameter.is_lazy(value):
            return type(value), "no memory"
        data = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return value.dtype, tuple(value.shape), data
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, list | tuple) else value


def shown(state: State) -> Any:
    return {name: bits(part.state_dict() if hasattr(part, "state_dict") else part) for name, part in state.items()}


def plain_state(state: State) -> State:
    """Return the parts of a checkpoint as torch.save would have them."""
    return {
        name: copy.deepcopy(part.state_dict() if hasattr(part, "state_dict") else part) for name, part in state.items()
    }


def core(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS).replace("classifier", "head")


def verdict(found: State, target: State, left: Container[str] = ()) -> str:
    """Say what a target holds of a checkpoint after a load, apart from what the report says was left."""
    converted = False
    if "model" in found:
        values = {core(name): value for name, value in found["model"].items()}
        own = target["model"].state_dict()
        if any(isinstance(value, torch.Tensor) and value.is_meta for value in own.values()):
            return WRONG
        for name, value in own.items():
            wanted = None if f"model.{name}" in left else values.get(core(name))
            if not isinstance(wanted, torch.Tensor) or wanted.shape != value.shape or bits(wanted) == bits(value):
                continue
            same = bits(wanted.to(value.dtype)) == bits(value)
            if wanted.dtype is value.dtype or not same:
                return WRONG
            converted = True
        if not any(bits(values[core(n)]) == bits(v) or converted for n, v in own.items() if core(n) in values):
            return WRONG
    return WRONG if "optimizer" in target and not trains(target["optimizer"]) else CONVERTED if converted else LOADED


def trains(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer can take a step, on a copy of everything."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(parameter.is_meta for parameter in parameters):
        return False
    again = copy.deepcopy(optimizer)
    for group in again.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    try:
        again.step()
    except (KeyError, RuntimeError):
        return False
    return True


def outcome(found: State, target: State, load: Callable[[], object], errors: Any) -> str:
    before = shown(target)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = load()
    except errors:
        return REFUSED if shown(target) == before else HALF
    return verdict(found, target, {*getattr(report, "not_loaded", ()), *getattr(report, "unexpected", ())})


def by_torch(row: Row, found: State, target: State) -> str:
    lax = {"strict": False} if "strict=False` in both" in row.what else {}

    def load() -> None:
        for name, part in target.items():
            part.load_state_dict(copy.deepcopy(found[name]), **(lax if name == "model" else {}))

    return outcome(found, target, load, Exception)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_what_torch_and_ckstore_do(row: Row, store: Store) -> None:
    torch.manual_seed(1)
    saved = row.saved()
    found = plain_state(saved)
    store.save(saved, step=1)
    always: dict[str, Any] = {"strict": False} if "strict=False` in both" in row.what else {}

    torchs = by_torch(row, found, row.target())
    target = row.target()
    ours = outcome(found, target, lambda: store.load_into(target, 1, **always), CkstoreError)
    other = row.target()
    with_it = outcome(found, other, lambda: store.load_into(other, 1, **{**always, **row.how}), CkstoreError)

    assert (torchs, ours) == (row.torch, row.ours)
    assert OUTCOMES.index(ours) >= OUTCOMES.index(torchs)
    assert ours in (LOADED, REFUSED)
    if row.how:
        assert with_it in ((LOADED, CONVERTED) if "cast" in row.how else (LOADED,)) or row.with_it == REFUSED
        assert (with_it == REFUSED) == (row.with_it == REFUSED)


def test_the_table_has_forty_rows_and_names_each_once() -> None:
    assert len(ROWS) >= 40
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_the_page_is_what_the_rows_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it: python -m tests.ops.read.load_differences"


# ---------------------------------------------------------------------------------- any two modules


SHAPES = st.sampled_from([(2,), (3,), (2, 2), ()])
DTYPES = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.int64])
NAMES = st.sampled_from(["a", "b", "inner.a", "inner.b", "inner.deep.a", "_orig_mod.a"])
Spec = dict[str, tuple[tuple[int, ...], torch.dtype, bool]]
SPECS = st.dictionaries(NAMES, st.tuples(SHAPES, DTYPES, st.booleans()), min_size=1, max_size=5)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Spec, Spec]:
    """Draw what is saved, and a target that differs in some names, or in all."""
    saved: Spec = draw(SPECS)
    if draw(st.integers(0, 3)) == 0:
        return saved, draw(SPECS)
    changes = draw(
        st.dictionaries(st.sampled_from(sorted(saved)), st.none() | st.tuples(SHAPES, DTYPES, st.booleans()))
    )
    target = {**saved, **{name: kind for name, kind in changes.items() if kind is not None}}
    return saved, {name: kind for name, kind in target.items() if changes.get(name, kind) is not None} or saved


def module_of(spec: Spec, value: int) -> torch.nn.Module:
    """Make a module of such parameters and buffers, no two of which have the same values."""
    top = torch.nn.Module()
    for number, (name, (shape, dtype, is_buffer)) in enumerate(sorted(spec.items())):
        *above, last = name.split(".")
        part = top
        for step in above:
            if not hasattr(part, step):
                part.add_module(step, torch.nn.Module())
            part = part.get_submodule(step)
        tensor = torch.full(shape, value + number, dtype=dtype)
        if is_buffer or not dtype.is_floating_point:
            part.register_buffer(last, tensor)
        else:
            part.register_parameter(last, torch.nn.Parameter(tensor))
    return top


@pytest.mark.property
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pair=pairs(), strict=st.booleans(), cast=st.booleans())
def test_any_two_modules_fit_or_the_target_is_untouched_and_never_worse_than_torch(
    pair: tuple[Spec, Spec], strict: bool, cast: bool, store: Store
) -> None:
    saved, target = module_of(pair[0], 100), module_of(pair[1], 200)
    values, before = saved.state_dict(), bits(target.state_dict())
    info = store.save(values)
    by_torch_too = copy.deepcopy(target)
    try:
        by_torch_too.load_state_dict(copy.deepcopy(values), strict=strict)
        torchs = bits(by_torch_too.state_dict())
    except RuntimeError:
        torchs = None

    try:
        report = store.load_into(target, info, strict=strict, cast=cast)
    except CkstoreError:
        assert bits(target.state_dict()) == before
        exact = {name: bits(value) for name, value in values.items() if name in before}
        assert torchs is None or any(torchs[name] != told for name, told in exact.items()) or not exact
        return

    after = bits(target.state_dict())
    left = {*report.missing, *report.not_loaded}
    assert strict is False or not left
    for name in after:
        wanted = before[name] if name in left else bits(values[name].to(target.state_dict()[name].dtype))
        assert after[name] == wanted
        assert name in left or name in report.cast or after[name] == bits(values[name])
    if torchs is not None and not cast and not report.not_loaded:
        assert after == torchs
