"""Each public method says in its docstring what it raises, by names that a caller can import."""

from __future__ import annotations

import builtins
import inspect
import re
from typing import Any

import pytest

import ckstore
from ckstore import BackgroundSaves, OpenCheckpoint, Remotes, Store, StoreConfig
from ckstore.provisional import LeafSlice

QUIET = {
    *("Store.close", "Store.warnings", "Store.settings", "Store.config", "Store.remotes"),
    "Remotes.list",
    *(
        f"OpenCheckpoint.{name}"
        for name in ("keys", "leaves", "files", "directory", "close", "kept_bytes", "saved_bytes", "health")
    ),
}
"""What raises nothing of its own."""


def documented() -> dict[str, Any]:
    found: dict[str, Any] = {"open_checkpoint": ckstore.open_checkpoint}
    for cls in (Store, BackgroundSaves, OpenCheckpoint, LeafSlice, StoreConfig, Remotes):
        for name, member in vars(cls).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function) and (not name.startswith("_") or name == "__getitem__"):
                found[f"{cls.__name__}.{name}"] = function
    return found


METHODS = documented()


@pytest.mark.parametrize("name", sorted(METHODS.keys() - QUIET))
def test_each_method_says_what_it_raises(name: str) -> None:
    said = inspect.getdoc(METHODS[name]) or ""
    section = re.search(r"^Raises:\n((?:    .*\n?)+)", said, re.MULTILINE)

    assert section is not None, name
    raised = [one for line in re.findall(r"^    ([\w, ]+):", section[1], re.MULTILINE) for one in line.split(", ")]
    assert raised
    for error in raised:
        assert error in ckstore.__all__ or issubclass(getattr(builtins, error), Exception), f"{name}: {error}"


def test_those_that_raise_nothing_are_methods() -> None:
    assert METHODS.keys() > QUIET
