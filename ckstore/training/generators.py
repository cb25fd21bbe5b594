"""Find, read and set the random generators in the attributes of the parts of a run.

`ckstore.training.rng` handles the global generators of the process.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ckstore.tensors.kinds import is_array
from ckstore.training import accelerator_generators
from ckstore.training.rng import python_state, set_python_state

OBJECTS_MOST = 100_000
"""The maximum number of objects inspected in all parts together. A part may refer to half of the program."""
_SYSTEM_RANDOM = "SystemRandom"
_ITEMS_MOST = 1_000
"""The maximum length of a searched container. A longer one holds data, such as the file names of a data set."""
_PLAIN = frozenset(
    {
        *(str, bytes, int, float, complex, bool, type(None), type, set, frozenset),
        types.ModuleType,
    }
)
# These attributes are not searched. A new process lacks the iterator of a loader. The submodules of a module are
# searched separately, so its containers are omitted. `_generators` is a cache of `StatefulDataset`.
_PASSED_OVER = frozenset({"_iterator", "__weakref__", "_parameters", "_buffers", "_modules", "_generators"})


def find_generators(parts: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the generators that parts refer to, by path, such as ``ema.rng``, and whether the search is complete.

    The name of a generator is its shortest path. Two processes that created their parts in the same way find the same
    names. Global generators of the process are omitted.
    """
    return find_objects(parts, lambda value: kind_of_generator(value) is not None)


def find_objects(parts: Mapping[str, Any], is_wanted: Callable[[Any], bool]) -> tuple[dict[str, Any], bool]:
    """Return the wanted objects that parts refer to, by path, and whether all objects were inspected.

    The attributes of a wanted object are not searched.
    """
    found: dict[str, Any] = {}
    seen = set(map(id, _global_generators()))
    classes: set[type] = set()
    waiting = deque(sorted(parts.items()))
    while waiting and len(seen) < OBJECTS_MOST:
        path, value = waiting.popleft()
        if id(value) in seen or _is_of("torch", "Tensor", value) or is_array(value):
            continue
        seen.add(id(value))
        if is_wanted(value):
            found[path] = value
        else:
            # Skip plain values, because each save runs this search, and a model may have thousands of modules.
            waiting.extend((f"{path}.{name}", child) for name, child in _children(value) if type(child) not in _PLAIN)
            for kind in type(value).__mro__:
                members = [] if kind in classes else [*vars(kind).items()]
                waiting.extend((f"{path}.{name}", child) for name, child in members if is_wanted(child))
                classes.add(kind)
    return found, not waiting


def _global_generators() -> Iterator[Any]:
    yield random._inst  # noqa: SLF001 - the functions of the module draw from it
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        yield numpy.random.mtrand._rand  # noqa: SLF001 - as above
    if torch is not None:
        yield torch.default_generator
        yield from accelerator_generators.generators()


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container, the attributes of an object, or the variables that a function keeps.

    This runs no code of the value's class, because the code of a proxy may answer for another object or raise an error.
    """
    kind = type(value)
    if issubclass(kind, dict):
        if dict.__len__(value) <= _ITEMS_MOST:
            yield from ((str(key), item) for key, item in [*dict.items(value)] if _is_name(key))
    elif issubclass(kind, list | tuple | deque):
        of: Any = next(base for base in (list, tuple, deque) if issubclass(kind, base))
        if of.__len__(value) <= _ITEMS_MOST:
            yield from ((str(at), item) for at, item in enumerate([*of.__iter__(value)]))
    elif kind is types.MethodType or kind is types.BuiltinMethodType:
        yield "self", value.__self__
    elif kind is types.FunctionType:
        code, defaults = value.__code__, value.__defaults__ or ()
        cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
        yield from ((name, cell.cell_contents) for name, cell in cells if _is_filled(cell))
        yield from zip(reversed(code.co_varnames[: code.co_argcount]), reversed(defaults), strict=False)
        yield from (value.__kwdefaults__ or {}).items()
    elif kind is functools.partial:
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    else:
        yield from _attributes(value)


def _is_name(key: object) -> bool:
    """Whether a key of a dict has the same text in every process."""
    return isinstance(key, str | int) or (type(key) is tuple and all(type(part) in (str, int) for part in key))


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        members = object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has only slots, or its class is written in C
        members = {}
    if _is_of("torch.nn", "Module", value):
        # Submodules and parameters have their own names, as in a state dict.
        yield from members.get("_modules", {}).items()
    for name, item in [*members.items()] if isinstance(members, dict) else ():
        if name not in _PASSED_OVER and "_hooks" not in name:
            yield name, item
    for kind in type(value).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if name not in _PASSED_OVER and isinstance(member, types.MemberDescriptorType):
                try:
                    yield name, member.__get__(value, kind)
                except AttributeError:  # not set
                    continue


def _is_of(module: str, name: str, value: object) -> bool:
    """Whether a value is of this class. False if the module is not imported, or another thread is importing it."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and issubclass(type(value), kind)


def kind_of_generator(value: object) -> str | None:
    """Return the kind of a generator, or None for other values. A state fits only generators of its kind."""
    generator: Any = value
    if issubclass(type(value), random.Random):
        return _SYSTEM_RANDOM if issubclass(type(value), random.SystemRandom) else "Python"
    if _is_of("numpy.random", "Generator", value):
        return f"NumPy {type(generator.bit_generator).__name__}"
    if _is_of("numpy.random", "RandomState", value):
        return "NumPy RandomState"
    if _is_of("numpy.random", "BitGenerator", value):
        return f"NumPy {type(value).__name__}"
    return f"torch {generator.device.type}" if _is_of("torch", "Generator", value) else None


def has_only_generators(part: Any) -> bool:
    """Whether a part is a generator, or a container of generators only."""
    if isinstance(part, dict | list | tuple):
        return bool(part) and all(map(has_only_generators, part.values() if isinstance(part, dict) else part))
    return kind_of_generator(part) is not None


def states_of(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind and state of each generator with a state, by path, as values that a checkpoint may hold."""
    kinds = {path: kind_of_generator(one) for path, one in generators.items()}
    return {path: _state(generators[path], kind) for path, kind in kinds.items() if kind != _SYSTEM_RANDOM}


def _state(generator: Any, kind: str | None) -> dict[str, Any]:
    if isinstance(generator, random.Random):
        state: Any = python_state(generator)
    elif hasattr(generator, "bit_generator"):
        state = generator.bit_generator.state
    elif kind == "NumPy RandomState":
        state = generator.get_state(legacy=False)
    elif hasattr(generator, "get_state"):
        state = generator.get_state()
    else:
        state = generator.state
    return {"kind": kind, "state": state, "seeds": _seeds(generator)}


def _seeds(generator: Any) -> dict[str, Any] | None:
    """Return the seeds from which a NumPy generator spawns others, as arguments of `SeedSequence`, or None."""
    # The state of a NumPy generator does not include these seeds
    # (findings/numpy-generator-state-repeats-spawned-streams.sh).
    found: Any = getattr(getattr(generator, "bit_generator", generator), "seed_seq", None)
    if not _is_of("numpy.random", "SeedSequence", found):
        return None
    return {
        "entropy": _flat(found.entropy),
        "spawn_key": _flat(found.spawn_key),
        "pool_size": found.pool_size,
        "n_children_spawned": found.n_children_spawned,
    }


def _flat(numbers: Any) -> Any:
    """Convert a seed for NumPy, such as a nested sequence or a NumPy scalar, to an int, a str or a flat list of these.

    NumPy before 2.5 accepts nested sequences, and derives the same seed from the flat list. NumPy 2.5 refuses nested
    sequences.
    """
    if hasattr(numbers, "tolist"):
        numbers = numbers.tolist()
    if isinstance(numbers, int | str):
        return numbers
    flat: list[int | str] = []
    for number in numbers:
        inner = _flat(number)
        flat.extend(inner if isinstance(inner, list) else [inner])
    return flat


def set_generators(generators: Mapping[str, Any], states: Mapping[str, Any]) -> tuple[str, ...]:
    """Set each generator to the state with the same path, and return one sentence for each difference."""
    differing = []
    for path, generator in generators.items():
        kind, saved = kind_of_generator(generator), states.get(path)
        name = f"the random generator {path}"
        if kind == _SYSTEM_RANDOM:
            differing.append(f"{name} draws from the system and has no state; use random.Random(seed)")
        elif saved is None:
            differing.append(f"the checkpoint has no state of {name}, which was not changed")
        elif saved["kind"] != kind:
            differing.append(f"{name} is {kind}, but was {saved['kind']} in the checkpoint, and was not changed")
        else:
            _set(generator, saved["state"])
            if not _set_seeds(generator, saved.get("seeds")):  # early versions saved no seeds
                differing.append(f"{name} will spawn other generators: create it from the same seed")
    gone = [path for path in states if path not in generators]
    absent = (f"the checkpoint has a state of the random generator {path}, which does not exist now" for path in gone)
    return (*differing, *absent)


def _set(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        set_python_state(generator, state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.state = state


def _set_seeds(generator: Any, seeds: Mapping[str, Any] | None) -> bool:
    """Set the seeds of a NumPy generator. Return whether it then spawns the same generators as the saved one."""
    own = _seeds(generator)
    if seeds is None or own is None:
        return True
    # Early versions of ckstore saved nested sequences unchanged.
    seeds = {**seeds, "entropy": _flat(seeds["entropy"]), "spawn_key": _flat(seeds["spawn_key"])}
    bits = getattr(generator, "bit_generator", generator)
    _replace_seed_sequence(bits, seeds)
    count = "n_children_spawned"
    if _seeds(generator) == {**seeds, count: own[count]} and own[count] < seeds[count]:
        bits.seed_seq.spawn(seeds[count] - own[count])
    return _seeds(generator) == seeds


def _replace_seed_sequence(bits: Any, seeds: Mapping[str, Any]) -> None:
    import numpy as np

    # NumPy 2 pickles the seeds together with the state. NumPy 1.26 pickles only the state, and refuses a pair with a
    # TypeError or a ValueError, depending on the kind of generator.
    if isinstance(bits.__reduce__()[2], tuple):
        bits.__setstate__((bits.state, np.random.SeedSequence(**seeds)))
