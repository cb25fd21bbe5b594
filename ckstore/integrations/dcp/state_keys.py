"""Keys that are not strings, and empty dicts, of a state. ckstore restores both.

`torch.distributed.checkpoint` makes such keys text, and drops empty dicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.manifest.nodes import encode_key
from ckstore.model.names import join_index
from ckstore.tensors.walks import name_below

Path = tuple[str | int, ...]
"""The path of a value in `torch.distributed.checkpoint`, with keys as text and indexes in lists as numbers."""


def own_keys(state: Mapping[Any, Any]) -> list[list[Any]]:
    """Return the path of each empty dict and each dict with keys that are not strings, and these keys by their text."""
    return [[list(path), keys] for path, keys in _own_keys(state, ())]


def _own_keys(value: object, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    if isinstance(value, Mapping):
        found = {str(key): encode_key(key) for key in value if _is_kept(key)}
        if found or not value:
            yield path, found
        for key, item in value.items():
            yield from _own_keys(item, (*path, str(key)))
    elif isinstance(value, list):  # a tuple is a single value, which is saved with its keys
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


def refuse_equal_texts(value: object, name: str = "") -> None:
    """Raise `BadInput` if a dict has two keys with the same text, because torch would not distinguish their values."""
    if isinstance(value, Mapping):
        first: dict[str, object] = {}
        for key, item in value.items():
            if (other := first.setdefault(str(key), key)) is not key:
                msg = f"{name or 'the state itself'} has the keys {other!r} and {key!r}, and"
                msg = f"{msg} torch.distributed.checkpoint gives the same names to the values under both"
                raise BadInput(msg, hint="rename one of the keys")
            refuse_equal_texts(item, name_below(name, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            refuse_equal_texts(item, join_index(name, i))


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
