"""Which tests stand for a matrix in `make test`; `make crash` runs all of it, and a test that is named is run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest


def representatives_of(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return all but those with the mark ``whole``, and of those with ``crossed`` a diagonal of their parameters.

    In a diagonal each value of each parameter occurs, and as few combinations as that takes.
    """
    there = [item for item in items if item.get_closest_marker("whole") is None]
    kept = {item for item in there if item.get_closest_marker("crossed") is None or not hasattr(item, "callspec")}
    matrices: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in there:
        if item not in kept:
            matrices[item.nodeid.partition("[")[0]].append(item)
    return kept.union(*map(_diagonal, matrices.values()))


def _diagonal(items: list[pytest.Item]) -> set[pytest.Item]:
    ids = [_ids(item) for item in items]
    axes = [list(dict.fromkeys(axis)) for axis in zip(*ids, strict=True)]
    longest = max(range(len(axes)), key=lambda at: len(axes[at]))

    def on_it(named: list[str]) -> bool:
        place = axes[longest].index(named[longest])
        return all(axis[place % len(axis)] == name for axis, name in zip(axes, named, strict=True))

    return {item for item, named in zip(items, ids, strict=True) if on_it(named)}


def _ids(item: Any) -> list[str]:
    """Return what each `parametrize` and each fixture adds to the name; pytest says it nowhere else."""
    found: list[str] = item.callspec._idlist
    return found
