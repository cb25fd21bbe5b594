"""Keys of a state that are not strings. `torch.distributed.checkpoint` makes them text, and ckstore restores them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckstore.model.manifest.nodes import encode_key

Path = tuple[str | int, ...]
"""The path of a value in `torch.distributed.checkpoint`, with keys as text and indexes in lists as numbers."""


def own_keys(state: Mapping[Any, Any]) -> list[list[Any]]:
    """Return, for each dict with keys that are not strings, its path and the nodes of these keys by their texts."""
    return [[list(path), keys] for path, keys in _own_keys(state, ())]


def _own_keys(value: object, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    if isinstance(value, Mapping):
        if found := {str(key): encode_key(key) for key in value if _is_kept(key)}:
            yield path, found
        for key, item in value.items():
            yield from _own_keys(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _own_keys(item, (*path, i))


def _is_kept(key: object) -> bool:
    """Whether a key is not a string and has a type that the format can store. Other keys are stored as text."""
    if isinstance(key, str):
        return False
    try:
        encode_key(key)
    except ValueError:
        return False
    return True


def set_at(state: Any, path: Path, value: object) -> None:
    """Replace the value at a path. A text in the path refers to the key of the state that converts to this text."""
    *above, last = path
    for key in above:
        state = state[_own(state, key)]
    state[_own(state, last)] = value


def _own(place: Any, key: str | int) -> Any:
    """Return the key of a dict, or the index in a list, to which an item of a path refers."""
    if not isinstance(place, Mapping) or key in place:
        return key
    return next(own for own in place if str(own) == key)
