"""Convert the values of a framework that a store cannot hold, so that a save does not fail because of them.

This module imports no framework.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ckstore.errors import CannotStore, CkstoreWarning
from ckstore.model.manifest.nodes import join
from ckstore.model.names import plain
from ckstore.tensors.refusals import type_name
from ckstore.tensors.state_capture import capture

# This length is sufficient to recognize a value. The `repr` of a data set can take gigabytes.
_TEXT_MOST_CHARS = 4000
_DEPTH_MOST = 20
"""The maximum depth of a converted value, which no configuration reaches. It stops a value that contains itself."""


def kept_as_text(value: Any, name: str, changed: dict[str, str]) -> Any:
    """Return a value that a store can hold. Other containers become plain containers, and other values become text."""
    # `changed` receives the path of each converted value, with its type and its new form.
    return _kept(value, name, changed, 0)


def without_refused(state: Mapping[str, Any], name: str, changed: dict[str, str]) -> dict[str, Any]:
    """Return a state without the items that a store cannot hold.

    The object that loads the state keeps its own values for these items.
    """
    kept = {}
    for key, value in state.items():
        if _is_storable(value):
            kept[key] = value
        else:
            changed[join(name, key)] = f"{type_name(type(value))}, left out"
    return kept


def warn_once(changed: Mapping[str, str], warned: set[str], advice: str) -> None:
    """Warn of converted values that are not in `warned`, and add them to `warned`."""
    new = {name: how for name, how in changed.items() if name not in warned}
    warned.update(new)
    if new:
        listed = "; ".join(f"{plain(name)} ({how})" for name, how in new.items())
        msg = f"a store cannot hold these as they are: {listed}. {advice}"
        warnings.warn(msg, CkstoreWarning, stacklevel=3)


def _is_storable(value: object) -> bool:
    try:
        capture(value)
    except CannotStore:
        return False
    return True


def _kept(value: Any, name: str, changed: dict[str, str], depth: int) -> Any:
    if _is_storable(value):
        return value
    kind = type_name(type(value))
    if depth < _DEPTH_MOST:
        omegaconf = sys.modules.get("omegaconf")
        if omegaconf is not None and isinstance(value, omegaconf.Container):
            # Do not resolve interpolations, because they may need missing values, and reading "???" raises an error.
            value = omegaconf.OmegaConf.to_container(value)
            changed[name] = f"{kind}, kept as a {type(value).__name__}"
            return _kept(value, name, changed, depth + 1)
        if isinstance(value, Mapping):
            if type(value) is not dict:
                changed[name] = f"{kind}, kept as a dict"
            return dict(_items(value.items(), name, changed, depth))
        if isinstance(value, list | tuple):
            whole: type = list if isinstance(value, list) else tuple
            if type(value) is not whole:
                changed[name] = f"{kind}, kept as a {whole.__name__}"
            return whole(item for _, item in _items(enumerate(value), name, changed, depth))
    changed[name] = f"{kind}, kept as text"
    return _text(value)


def _items(
    items: Iterable[tuple[Any, Any]], name: str, changed: dict[str, str], depth: int
) -> Iterable[tuple[Any, Any]]:
    for key, item in items:
        own = key if _is_storable({key: None}) else _text(key)
        if own is not key:
            changed[f"{name} (a key)"] = f"{type_name(type(key))}, kept as text"
        yield own, _kept(item, join(name, own), changed, depth + 1)


def _text(value: object) -> str:
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return type_name(value)  # type: ignore[arg-type]
    try:
        return repr(value)[:_TEXT_MOST_CHARS]
    except Exception:  # noqa: BLE001 - a `__repr__` of a user must not end a training
        return f"<{type_name(type(value))}>"
