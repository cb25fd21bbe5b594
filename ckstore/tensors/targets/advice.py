"""Advice for a checkpoint that does not fit a target: the hints of `DoesNotFit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import Manifest
from ckstore.model.manifest.nodes import decode_key
from ckstore.model.names import join_key, plain
from ckstore.tensors.kinds import is_module
from ckstore.tensors.targets.load_comparison import Differences, LoadRules
from ckstore.tensors.targets.renames import Rename, front
from ckstore.tensors.walks import DICTS

_Renaming = tuple[list[str], dict[str, str], Differences]


_SELECTED_MOST = 3  # maximum number of parts that a hint selects by name
_ENTRIES_MOST = 4  # maximum number of entries of a renaming in a hint


@dataclass(frozen=True, slots=True)
class Load:
    """A load whose target does not fit."""

    manifest: Manifest  # the manifest of the checkpoint
    target: object  # the target of the caller
    terms: LoadRules  # the options of the caller
    strict: bool  # whether everything must fit
    found: Differences  # the differences, by the names of the manifest
    fits_somewhere: bool  # whether any value of the checkpoint has a place in the target
    compare: Callable[[LoadRules], Differences]  # returns the differences with other options


def advice(load: Load) -> list[str]:
    """Return changes that make the load fit, the most certain first. If no change helps, return how to list names."""
    renaming, rename, left = _renaming(load)
    loads_some = (load.fits_somewhere or left is not load.found) and not left.strangers
    differ = (left.missing or left.unexpected or left.mismatched) and not left.partial
    last = ["strict=False loads what fits and reports the rest"] if load.strict and loads_some and differ else []
    parts = [] if load.fits_somewhere else [*_target_is_a_part(load), *_checkpoint_is_a_part(load)]
    selecting = [*_only_what_the_target_has(load, left, rename)]
    if selecting and rename:  # the advice in `selecting` contains the renaming
        renaming, last = [], []
    useless = [
        f"rename={ {old: new}!r} renames nothing: names are those inside a module or a dict of tensors"
        for old, new in load.terms.rename.items()
        if old not in load.found.renaming
    ]
    said = [
        *useless,
        *parts,
        *selecting,
        *renaming,
        *_of_values(left, load.terms),
        *_of_parts(load, left),
        *last,
    ]
    return said or ["ckstore ls REF lists the names of the checkpoint"]


def _renaming(load: Load) -> _Renaming:
    """Return the advice for a renaming with which more names fit, the renaming, and the remaining differences."""
    # The renaming was found for one module, but applies to all modules, so it is tried before it is proposed.
    found = load.found
    if not found.rename:
        return [], {}, found
    given = {old: new for old, new in load.terms.rename.items() if old in found.renaming}
    rename = {**given, **found.rename}
    for_some = f"{_written(rename)} fits the names of only some modules: load each module by itself"
    not_better: _Renaming = ([] if load.terms.rename else [for_some]), {}, found
    try:
        left = load.compare(replace(load.terms, rename=Rename(rename)))
    except BadInput:  # two names of another module would become equal
        return not_better
    count = len(left.missing) + len(left.unexpected)
    if count >= len(found.missing) + len(found.unexpected):
        return not_better
    return [f"{_written(rename)} makes {'more' if count else 'all'} names fit"], rename, left


def _written(rename: Mapping[str, str]) -> str:
    """Return a renaming as an argument. A long one is shortened to its first two entries and its last entry."""
    entries = [f"{old!r}: {new!r}" for old, new in rename.items()]
    if len(entries) <= _ENTRIES_MOST:
        return f"rename={{{', '.join(entries)}}}"
    return f"rename={{{', '.join(entries[:2])}, …, {entries[-1]}}} with {len(entries)} entries"


def _of_values(found: Differences, terms: LoadRules) -> Iterator[str]:
    if found.dtypes and not terms.cast:
        yield "cast=True converts to the dtype of the target"
    if found.meta and not terms.assign:
        yield "assign=True allocates memory for tensors that have none"
    elif found.replaceable and not terms.assign:
        yield "assign=True replaces tensors that have another structure by those of the checkpoint"
    elif found.meta:
        yield "load the module first, then create its optimizer and load it"


def _of_parts(load: Load, found: Differences) -> Iterator[str]:
    """Yield how to build tensors whose parts the target module does not accept."""
    for name, kind in list(found.partial.items())[:1]:
        how = "create the weight from the result of load()"
        if kind.endswith("Params4bit"):
            how += ": module.weight = Params4bit.from_prequantized(weight, parts, device=…, module=module)"
        rest = "load the rest with strict=False, then " if load.strict and load.fits_somewhere else ""
        yield f"the module of {plain(name)}, a {kind}, does not load its parts: {rest}{how}"


def _target_is_a_part(load: Load) -> Iterator[str]:
    """Yield how to load a part of the state, if only that part has the names of the target."""
    found = load.found
    if load.terms.keep is not None and not found.missing:
        for key in found.unexpected[:1]:
            yield f"pass the target under its key, {{{plain(key)!r}: target}}"
    wanted = [plain(name) for name in found.missing]
    names = {leaf.name for leaf in load.manifest.leaves}
    wrapper = front(wanted) if wanted else ""
    unwrapped = [join_key("", name.removeprefix(wrapper)) for name in wanted]  # of a module, since they have a wrapper
    ways = [(found.missing, ""), *([(unwrapped, f", rename={ {'': wrapper}!r}")] if wrapper else [])]
    for inner, rename in ways if wanted else ():
        for key in sorted({name.removesuffix(f".{inner[0]}") for name in names if name.endswith(f".{inner[0]}")}):
            if not set(".[\\") & set(key) and all(f"{key}.{name}" in names for name in inner):
                yield f"load_into({{{key!r}: target}}, …, select={key!r}{rename}) loads the part that has these names"


def _checkpoint_is_a_part(load: Load) -> Iterator[str]:
    """Yield how to load into a part of the target, if the checkpoint only has the state of that part."""
    node = load.manifest.state
    has = {decode_key(own) for own, _ in node[1]} if isinstance(node, list) and node[0] in DICTS else set()
    for key, value in load.target.items() if isinstance(load.target, dict) else ():
        names = _names_of(value)
        prefixed: set[object] = {f"{key}.{name}" for name in names}
        if not names or not isinstance(key, str):
            continue
        if names & has and (names <= has or has <= names):  # a file has only one name of tied tensors
            yield f"load_into(target[{key!r}], …) loads it: the checkpoint has only the state of that part"
        elif prefixed <= has:
            yield f"load_into(target[{key!r}], …, rename={ {f'{key}.': ''}!r}) loads it"


def _only_what_the_target_has(load: Load, found: Differences, rename: Mapping[str, str]) -> Iterator[str]:
    """Yield how to load only the parts that the target has, if all these parts fit after the renaming."""
    target = load.target
    others = found.missing or found.mismatched or found.dtypes or found.meta or found.strangers
    if others or not found.unexpected or load.terms.keep is not None or not isinstance(target, dict):
        return
    keys = [key for key in target if isinstance(key, str) and join_key("", key) == key and not set("*?") & set(key)]
    more = any(name.startswith((f"{key}.", f"{key}[")) for key in keys for name in found.unexpected)
    if len(keys) == len(target) <= _SELECTED_MOST and target and not more:
        names = keys[0] if len(keys) == 1 else keys
        with_it = f", {_written(rename)}" if rename else ""
        yield f"select={names!r}{with_it} loads only what the target has"


def _names_of(value: object) -> set[object]:
    """Return the names of a module, or the keys of a dict; empty for anything else."""
    if is_module(value):
        from ckstore.tensors.targets.module_parts import parts_of

        return set(parts_of(value).places)
    return set(value) if isinstance(value, dict) else set()
