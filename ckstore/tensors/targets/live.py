"""Look through a target for what lives in it: tensors, arrays, objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import MAX_DEPTH
from ckstore.model.names import join_index
from ckstore.tensors.kinds import is_array, is_stateful, is_tensor, state_of
from ckstore.tensors.walks import name_below


def holds_live(target: object, path: str, depth: int = 1) -> bool:
    """Whether there is a tensor, an array or a `Stateful` object in `target`, at any depth."""
    if is_tensor(target) or is_array(target) or is_stateful(target):
        return True
    if isinstance(target, dict | list | tuple):
        if depth > MAX_DEPTH:
            raise BadInput(f"{path}: the target contains itself or is nested deeper than {MAX_DEPTH}")
        items = target.values() if isinstance(target, dict) else target
        return any(holds_live(item, path, depth + 1) for item in items)
    return False


def tensors_in(state: object, path: str, depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Give name and tensor of each plain tensor in the state of an object, named as `capture` does."""
    if is_tensor(state):
        from ckstore.tensors.targets import torch_targets

        if torch_targets.can_be_filled(state):  # type: ignore[arg-type]
            yield path, state
    elif depth > MAX_DEPTH:
        raise BadInput(f"{path}: the state of an object contains itself or is nested deeper than {MAX_DEPTH}")
    elif is_stateful(state):
        yield from tensors_in(state_of(state, path), path, depth + 1)
    elif isinstance(state, dict):
        for key, item in state.items():
            yield from tensors_in(item, name_below(path, key), depth + 1)
    elif isinstance(state, list | tuple):
        for i, item in enumerate(state):
            yield from tensors_in(item, join_index(path, i), depth + 1)
