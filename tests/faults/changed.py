"""Run this process with other sources of one module of ckstore, which may be in use already."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_USERS = ("ckstore", "tests.faults")


def change_module(file: str, sources: str) -> None:
    """Execute `sources` in the module that the file of the package makes, and let all others use what it defines.

    Objects that were made before stay what they were.
    """
    name = f"ckstore.{file.removesuffix('.py').replace('/', '.')}"
    module = importlib.import_module(name)
    before = dict(vars(module))
    exec(compile(sources, f"{file} without a guard", "exec"), vars(module))  # noqa: S102 - a mutant of these sources
    replaced = {id(old): vars(module)[key] for key, old in before.items() if _is_defined_by(name, old)}
    for user in [user for key, user in sys.modules.items() if key.startswith(_USERS) and user is not module]:
        _replace_in(user, replaced)


def _is_defined_by(name: str, value: object) -> bool:
    return getattr(value, "__module__", None) == name and callable(value)


def _replace_in(user: ModuleType, replaced: dict[int, Any]) -> None:
    for key, value in list(vars(user).items()):
        if id(value) in replaced:
            setattr(user, key, replaced[id(value)])
