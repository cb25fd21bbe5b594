"""Globs that select values by their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from ckstore.model.names import plain

_WILDCARD = re.compile("[*?]")


class NameGlobs:
    """Globs for names of values. A name also selects everything below it."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._globs = dict.fromkeys(globs)
        # The globs by their text before the first wildcard. Comparing each name with each of 20,000 globs takes
        # minutes.
        self._by_front: dict[str, list[str]] = defaultdict(list)
        for glob in self._globs:
            if found := _WILDCARD.search(glob):
                self._by_front[glob[: found.start()]].append(glob)
        self._lengths = sorted({*map(len, self._globs), *map(len, self._by_front)})

    def select(self, name: str) -> bool:
        """Whether one of the globs selects a name."""
        return any(True for _ in self._matching(name))

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return the globs that select none of the names."""
        used = {glob for name in names for glob in self._matching(name)}
        return [glob for glob in self._globs if glob not in used]

    def _matching(self, name: str) -> Iterator[str]:
        """Yield the globs that select a name."""
        # Compare both spellings, since users write model.0.weight for the name model.0\\.weight (docs/adr/0003).
        for form in {name, plain(name)}:
            for end in self._lengths:
                if end > len(form):
                    break
                front = form[:end]
                if front in self._globs and form[end : end + 1] in ("", ".", "["):
                    yield front
                for glob in self._by_front.get(front, ()):
                    # Brackets are literal, since names such as layers[0].weight contain them.
                    if fnmatchcase(form, glob.replace("[", "[[]")):
                        yield glob
