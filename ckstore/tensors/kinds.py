"""Type checks for values of torch and NumPy, without importing either.

A value of torch or NumPy can only exist if another module has already imported that package.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard

from ckstore.errors import BadInput, CannotStore, CkstoreError
from ckstore.model.names import plain
from ckstore.tensors.named.safe_classes import is_tensor_dict
from ckstore.tensors.refusals import type_name


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor of any class."""
    # This runs for every value of a state, so it imports nothing. An import statement would take longer than the
    # check. While another thread imports torch, `torch.Tensor` may not exist yet.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def is_tensor_class(kind: type) -> bool:
    """Whether `kind` is `torch.Tensor` or one of its subclasses."""
    base = getattr(sys.modules.get("torch"), "Tensor", None)
    return base is not None and issubclass(kind, base)


def is_plain_layout(tensor: Any) -> bool:
    """Whether a tensor has torch's strided layout, and not a sparse or other layout."""
    return tensor.layout is sys.modules["torch"].strided


def is_array(value: object) -> bool:
    """Whether `value` is a plain NumPy array or a memmap. Other subclasses do not count."""
    numpy: Any = sys.modules.get("numpy")
    return type(value) in (getattr(numpy, "ndarray", None), getattr(numpy, "memmap", None))


def is_numpy_scalar(value: object) -> bool:
    """Whether `value` is a NumPy scalar. numpy.float64 is also a float, and numpy.str_ is also a str."""
    kind: Any = getattr(sys.modules.get("numpy"), "generic", None)
    return kind is not None and isinstance(value, kind)


_NEVER = (dict, OrderedDict, list, tuple)
_REPORTS = ("missing", "unexpected")


class Stateful(Protocol):
    """An object that is stored as its `state_dict()`."""

    def state_dict(self) -> object:
        """Return the state."""

    def load_state_dict(self, state_dict: object, /) -> object:
        """Load a state that `state_dict` returned."""


def is_stateful(value: object) -> TypeGuard[Stateful]:
    """Whether `value` has both methods of `Stateful`. Plain containers and classes never count."""
    return (
        type(value) not in _NEVER
        and not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def is_module(value: object) -> bool:
    """Whether `value` is a torch module."""
    kind: Any = getattr(sys.modules.get("torch.nn"), "Module", None)
    return kind is not None and isinstance(value, kind)


def is_optimizer(value: object, *, own_load: bool = False) -> bool:
    """Whether `value` is a torch optimizer. Unless `own_load` is true, its `load_state_dict` must be torch's own."""
    kind: Any = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    if kind is None or not isinstance(value, kind):
        return False
    # An overridden method may accept a different state, which only that method can check.
    return own_load or (type(value).load_state_dict is kind.load_state_dict and "load_state_dict" not in vars(value))


def state_of(value: Stateful, path: str) -> object:
    """Return the result of `state_dict()`. Raise `CannotStore` if the result is itself `Stateful`."""
    state = value.state_dict()
    # Without this check, an object that returns itself as its state would cause an endless loop.
    if is_stateful(state):
        reason = f"state_dict() of {type_name(type(value))} returned a {type_name(type(state))}"
        raise CannotStore(path, reason, hint="let it return a dict of values")
    return state


def hand_over(target: Any, state: object, path: str) -> None:
    """Call `load_state_dict` of an object, and raise `BadInput` if the object does not load the whole state."""
    # A stored TensorDict is loaded as a TensorDict, but `load_state_dict` takes the dict that `state_dict` returns.
    if is_tensor_dict(state):
        state = state.state_dict()  # type: ignore[attr-defined]
    hint = "earlier parts of the target are loaded; load(ref, select=…) returns the state for inspection"
    with naming_refusals(target, path, hint):
        result = target.load_state_dict(state)
        left = [f"{kind} {', '.join(keys)}" for kind, keys in zip(_REPORTS, reported(result), strict=True) if keys]
        # With `strict=False`, torch only reports these keys. A part that was not loaded must be an error here.
        if left:
            raise ValueError("; ".join(left))


@contextmanager
def naming_refusals(target: object, path: str, hint: str) -> Iterator[None]:
    """If the block raises an error of `load_state_dict`, raise `BadInput` with the name of the object instead."""
    try:
        yield
    except (CkstoreError, MemoryError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        msg = f"{plain(path) or 'the target'}: load_state_dict of {type_name(type(target))} refused its state: {cause}"
        raise BadInput(msg, hint=hint) from error


def reported(result: object) -> tuple[list[str], list[str]]:
    """Return the missing and the unexpected keys in the result of a `load_state_dict`.

    Both lists are empty if the result does not have the form of torch's result.
    """
    missing, unexpected = (getattr(result, f"{kind}_keys", None) or [] for kind in _REPORTS)
    return list(map(str, missing)), list(map(str, unexpected))
