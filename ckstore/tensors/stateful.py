"""Objects that turn themselves into a state: modules, optimizers, schedulers, loaders, user classes."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, Protocol, TypeGuard

from ckstore.errors import BadInput, CannotStore, CkstoreError
from ckstore.model.names import plain
from ckstore.tensors.named.tensordicts import is_tensor_dict
from ckstore.tensors.refusals import type_name

_NEVER = (dict, OrderedDict, list, tuple)


class Stateful(Protocol):
    """An object that is stored as its `state_dict()`."""

    def state_dict(self) -> object:
        """Return the state."""

    def load_state_dict(self, state_dict: object, /) -> object:
        """Take up a state that `state_dict` gave."""


def is_stateful(value: object) -> TypeGuard[Stateful]:
    """Whether `value` has both methods; plain containers and classes never have."""
    return (
        type(value) not in _NEVER
        and not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def is_module(value: object) -> bool:
    """Whether `value` is a torch module that loads its state in torch's own way."""
    kind: Any = getattr(sys.modules.get("torch.nn"), "Module", None)
    return kind is not None and isinstance(value, kind) and _loads_as(kind, value)


def is_optimizer(value: object) -> bool:
    """Whether `value` is a torch optimizer that loads its state in torch's own way."""
    kind: Any = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    return kind is not None and isinstance(value, kind) and _loads_as(kind, value)


def _loads_as(kind: Any, value: object) -> bool:
    return type(value).load_state_dict is kind.load_state_dict and "load_state_dict" not in vars(value)  # type: ignore[attr-defined]


def state_of(value: Stateful, path: str) -> object:
    """Return the state of an object.

    Raises:
        CannotStore: It is another such object, which could go on for ever.
    """
    state = value.state_dict()
    if is_stateful(state):
        why = f"state_dict() of {type_name(type(value))} gave a {type_name(type(state))}"
        raise CannotStore(path, why, hint="let it give a dict of values")
    return state


def hand_over(target: Any, state: object, path: str, **how: bool) -> None:
    """Call `load_state_dict` of an object.

    Raises:
        BadInput: It raised.
    """
    if is_tensor_dict(state):  # it comes back as one, and its methods exchange something else
        state = state.state_dict()  # type: ignore[attr-defined]
    try:
        target.load_state_dict(state, **how)
    except (CkstoreError, MemoryError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        msg = f"{plain(path) or 'the target'}: load_state_dict of {type_name(type(target))} refused its state: {what}"
        hint = "what came before it is loaded; load(ref, select=…) returns the state to be looked at"
        raise BadInput(msg, hint=hint) from error
