"""Detect names that may be misspellings of other names."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RATIO = 0.85
_OTHER = re.compile(r"[^a-z0-9]")
_DIGITS = re.compile(r"[0-9]+")


def similar_names(name: str, others: Iterable[str]) -> list[str]:
    """Return the names in `others` that are similar to `name`, beginning with the most similar.

    Names that differ only in a number, such as ``run-1`` and ``run-2``, are assumed to be intended.
    """
    from difflib import SequenceMatcher  # slow to import

    plain = _plain(name)
    found = []
    for other in others:
        candidate = _plain(other)
        if other == name or (plain != candidate and _DIGITS.sub("", plain) == _DIGITS.sub("", candidate)):
            continue
        ratio = SequenceMatcher(None, plain, candidate, autojunk=False).ratio()
        if ratio >= _RATIO:
            found.append((ratio, other))
    return [other for _, other in sorted(found, reverse=True)]


def _plain(name: str) -> str:
    return _OTHER.sub("", name.casefold())
