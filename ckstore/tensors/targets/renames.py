"""Rename values of a checkpoint, and search for a renaming with which their names match those of a module."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from ckstore.errors import BadInput
from ckstore.model.names import WRAPPERS, unwrapped

_SUGGESTED_MOST = 20


class Rename(dict[str, str]):
    """Prefix of names, or ``.part.`` anywhere in a name -> its replacement. It is not changed after its creation."""

    @cached_property
    def _lengths(self) -> list[int]:
        """The lengths of the prefixes. The longest is first, so that it is preferred, as in ``module._orig_mod.``."""
        return sorted({len(old) for old in self if old and not old.startswith(".")}, reverse=True)

    @cached_property
    def _parts(self) -> list[str]:
        return [old for old in self if old.startswith(".")]

    def apply(self, key: str, used: set[str] | None = None) -> str:
        """Return a name of a state dict after renaming.

        The longest matching prefix is replaced. Matching continues on the rest of the name, using each prefix once. The
        value of an empty key is put in front of names that begin with no other prefix. Then each key that begins with a
        dot is replaced everywhere in the name, in the order of the keys.

        Args:
            key: The name.
            used: A set to which this function adds the keys that it replaced.
        """
        done, rest = "", key
        met: set[str] = set()
        while (old := self._prefix_of(rest, met)) is not None:
            done, rest = done + self[old], rest[len(old) :]
            met.add(old)
        if not met and "" in self:
            done = self[""]
            met.add("")
        name = done + rest
        for old in self._parts:
            if old in name:
                name = name.replace(old, self[old])
                met.add(old)
        if used is not None:
            used |= met
        return name

    def _prefix_of(self, rest: str, met: set[str]) -> str | None:
        # A search through all prefixes would take too long for a renaming with an entry for each of 20,000 tensors.
        for length in self._lengths:
            old = rest[:length]
            if len(old) == length and old in self and old not in met and not old.startswith("."):
                return old
        return None


def check_rename(rename: object) -> Rename:
    """Return `rename` as a `Rename`, which is empty for None. Raise `BadInput` if it is no renaming."""
    if rename is None:
        return Rename()
    pairs = rename.items() if isinstance(rename, Mapping) else None
    if pairs is None or any(not isinstance(old, str) or not isinstance(new, str) for old, new in pairs):
        msg = f"rename must map prefixes of names to their replacements, got {rename!r}"
        raise BadInput(msg, hint='for example rename={"_orig_mod.": "", "module.": ""}')
    return Rename(pairs)


def suggest(found: Collection[str], wanted: Collection[str]) -> dict[str, str] | None:
    """Return a `rename` that turns more names of a checkpoint into wanted names, or None.

    The result makes no two names equal. Each of its entries is necessary: without it, fewer names would fit.
    """
    wanted_names = set(wanted)
    best, best_count = None, len(wanted_names & set(found))
    for candidate in _candidates(list(found), list(wanted)):
        count = _fitting(found, wanted_names, candidate)
        if count > best_count:
            best, best_count = candidate, count
    for old in list(best or ()):
        without = {key: new for key, new in (best or {}).items() if key != old}
        if _fitting(found, wanted_names, without) == best_count:
            best = without
    return best


def _fitting(found: Collection[str], wanted: set[str], rename: Mapping[str, str]) -> int:
    """Return the number of wanted names after renaming, or 0 if two names become equal."""
    names = {*map(Rename(rename).apply, found)}
    # If two names became equal, one tensor would be lost, so such a renaming is never proposed.
    return len(names & wanted) if len(names) == len(found) else 0


def _candidates(found: list[str], wanted: list[str]) -> Iterator[dict[str, str]]:
    if not found or not wanted:
        return
    found_parts, ours = front(found), front(wanted)
    if found_parts != ours:
        yield {found_parts: ours}
    unwrapping: dict[str, str] = {}
    for wrapper in WRAPPERS:
        if any(_is_in_front(name, wrapper) for name in found):
            unwrapping[f"{wrapper}."] = ""
        if any(f".{wrapper}." in name.removeprefix(f"{wrapper}.") for name in found):
            unwrapping[f".{wrapper}."] = "."
    for keys in (unwrapping, *([key] for key in unwrapping)):
        yield {key: unwrapping[key] for key in keys}
    inside = {old: new for old, new in unwrapping.items() if old.startswith(".")}
    if found_parts != ours and inside:
        yield {found_parts: ours, **inside}
    yield from _constant_fronts(found, wanted)
    by_name = {unwrapped(name): name for name in wanted}
    pairs = [(name, by_name[unwrapped(name)]) for name in found if unwrapped(name) in by_name]
    fronts = dict(_fronts(*pair) for pair in pairs)
    if len(fronts) <= _SUGGESTED_MOST:
        yield fronts


def _constant_fronts(found: list[str], wanted: list[str]) -> Iterator[dict[str, str]]:
    """Yield renamings that remove or add one prefix, such as ``model.`` for a backbone that is loaded separately."""
    shortest = min(wanted, key=len)
    for name in found:
        if name.endswith(f".{shortest}"):
            yield {name[: -len(shortest)]: ""}
            return
    shortest = min(found, key=len)
    for name in wanted:
        if name.endswith(f".{shortest}"):
            yield {"": name[: -len(shortest)]}
            return


def _is_in_front(name: str, wrapper: str) -> bool:
    parts = name.split(".")
    for part in parts:
        if part == wrapper:
            return True
        if part not in WRAPPERS:
            return False
    return False


def front(names: list[str]) -> str:
    """Return the wrappers with which all names begin, such as ``module._orig_mod.``."""
    front = ""
    while True:
        longer = next((f"{front}{one}." for one in WRAPPERS if all(n.startswith(f"{front}{one}.") for n in names)), "")
        if not longer:
            return front
        front = longer


def _fronts(found: str, wanted: str) -> tuple[str, str]:
    """Return the parts of two names before their common ending."""
    found_parts, ours = found.split("."), wanted.split(".")
    while found_parts and ours and found_parts[-1] == ours[-1]:
        found_parts.pop()
        ours.pop()
    return "".join(f"{part}." for part in found_parts), "".join(f"{part}." for part in ours)
