"""Modules and functions that tests name in texts exist: most of these tests are run only now and then."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

from tests.bench.child import _PRELOADED

_TESTS = Path(__file__).parents[1]
_NAME = re.compile(r"[\"'](ckstore(?:_cli)?(?:\.[a-z_0-9]+)+:[A-Za-z_.]+)[\"']")


def _named() -> set[str]:
    found: set[str] = set()
    for path in _TESTS.rglob("*.py"):
        found |= set(_NAME.findall(path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("name", sorted(_named()))
def test_each_function_that_a_test_names_exists(name: str) -> None:
    module, _, attributes = name.partition(":")

    assert functools.reduce(getattr, attributes.split("."), importlib.import_module(module)) is not None


@pytest.mark.parametrize("name", _PRELOADED)
def test_each_module_that_the_benchmark_loads_first_exists(name: str) -> None:
    assert importlib.import_module(name) is not None
