"""Every class that a caller of ckstore can meet is a name of `ckstore` or `ckstore.provisional`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import ckstore
from ckstore import errors, provisional
from tests.docs.test_reference import INSIDE

FRAMEWORKS = ("deepspeed", "lightning", "torchtitan", "transformers")
NEEDING_FRAMEWORKS = {f"ckstore.integrations.{name}" for name in FRAMEWORKS}
NEEDING_FRAMEWORKS.add("ckstore.tensors.device.kernel")  # Triton
MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(ckstore.__path__, "ckstore.")
    if module.name not in NEEDING_FRAMEWORKS
]
"""The library but for what imports a framework: its annotations name what is imported under ``TYPE_CHECKING``."""
NAMES: dict[str, Any] = {name: value for module in MODULES for name, value in vars(module).items()}


def classes_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and annotation.__module__.startswith("ckstore"):
        yield annotation
    for part in typing.get_args(annotation):
        for inner in part if isinstance(part, list) else [part]:
            yield from classes_in(inner)


def hints(thing: Any) -> dict[str, Any]:
    public = {name: getattr(module, name) for module in (ckstore, provisional) for name in module.__all__}
    own = vars(importlib.import_module(thing.__module__))
    return typing.get_type_hints(thing, localns={**NAMES, **public, **own})  # where two have a name, its own is meant


def functions_of(cls: type) -> Iterator[Any]:
    for name, member in vars(cls).items():
        if name not in INSIDE and (not name.startswith("_") or name == "__getitem__"):
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield inspect.unwrap(function)


def met_through(*beginnings: Any) -> dict[type, str]:
    """Return every class of ckstore that is met by what these take, return or have, and through what it was met."""
    met: dict[type, str] = {}
    todo: list[tuple[Any, str]] = [(thing, "the module") for thing in beginnings]
    while todo:
        thing, through = todo.pop()
        if isinstance(thing, type):
            if thing in met:
                continue
            met[thing] = through
            todo += [(function, thing.__name__) for function in functions_of(thing)]
        annotations = {name: hint for name, hint in hints(thing).items() if not name.startswith("_")}
        todo += [(cls, f"{through}.{name}") for name, hint in annotations.items() for cls in classes_in(hint)]
    return met


def test_every_class_that_a_caller_can_meet_has_a_public_name() -> None:
    met = met_through(ckstore.Store, ckstore.OpenCheckpoint, ckstore.open_checkpoint)

    assert len(met) > 40
    public = {*ckstore.__all__, *provisional.__all__}
    assert {cls.__name__: through for cls, through in met.items() if cls.__name__ not in public} == {}


def test_every_error_is_a_name_of_ckstore_and_lives_in_one_tree() -> None:
    found = [errors.CkstoreError]
    for cls in found:
        found += [sub for sub in cls.__subclasses__() if sub.__module__.startswith("ckstore.")]

    assert len(found) > 15
    assert {cls.__module__ for cls in found} == {"ckstore.errors"}
    assert {cls.__name__ for cls in found} <= set(ckstore.__all__)


def test_ckstore_has_few_names_and_none_twice() -> None:
    assert len(ckstore.__all__) <= 70
    assert not {*ckstore.__all__} & {*provisional.__all__}


def test_a_name_that_is_provisional_is_pointed_to() -> None:
    with pytest.raises(AttributeError, match=r"'GcReport': it is ckstore\.provisional\.GcReport$"):
        ckstore.GcReport  # type: ignore[attr-defined]  # noqa: B018 - the access raises
    with pytest.raises(AttributeError, match=r"'GcReprot'$"):
        ckstore.GcReprot  # type: ignore[attr-defined]  # noqa: B018 - the access raises


@pytest.mark.parametrize("module", [ckstore, provisional])
def test_every_public_name_is_what_its_home_defines(module: Any) -> None:
    for name in module.__all__:
        value = getattr(module, name)
        if name != "__version__" and hasattr(value, "__module__") and value.__module__.startswith("ckstore"):
            assert value.__name__ == name
    assert set(module.__all__) <= set(dir(module))
