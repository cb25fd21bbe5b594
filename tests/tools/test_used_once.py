"""Which functions are counted as small and called once."""

from __future__ import annotations

from tests.tools.used_once import used_once

MODULE = '''def act():
    _once()
    _twice(_twice(1))
    _long()
    return map(_passed, [])


def _once():
    """Do it."""
    return 1


def _twice(one):
    return one


def _passed(one):
    return one


def _long():
    a = 1
    b = 2
    c = 3
    d = 4
    e = 5
    return a + b + c + d + e


@decorated
def _decorated():
    return 1


_decorated()
'''


def test_only_small_plain_functions_that_are_called_once_are_found() -> None:
    assert list(used_once(MODULE)) == [(8, "_once", 2)]
