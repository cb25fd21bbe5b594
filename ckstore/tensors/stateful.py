"""Objects that turn themselves into a state: modules, optimizers, schedulers, loaders, user classes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol, TypeGuard

from ckstore.errors import CannotStore
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
