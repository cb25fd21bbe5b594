"""Find the tensor into which torch's `load_state_dict` loads each key of a module, and parts with custom loading."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from ckstore.tensors.targets import torch_targets

_PLAIN_LOAD = torch.nn.Module._load_from_state_dict  # noqa: SLF001 - the documented method to override for custom loading
_NORM_LOADS = {_NormBase._load_from_state_dict, _InstanceNorm._load_from_state_dict}  # noqa: SLF001
"""Methods that load like `_PLAIN_LOAD`, unless the names differ, as in states from old versions of torch."""


@dataclass(frozen=True, slots=True)
class StateSlot:
    """The destination of a key: the parameter or persistent buffer `name` of the module `part`."""

    part: Any
    name: str
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Loader:
    """A part of a module with custom loading, which decides which values fit."""

    part: Any  # the module
    prefix: str  # the prefix of its keys, such as ``layer.0.``
    whole: bool  # whether it also loads all modules below it, and not only its own tensors


@dataclass(slots=True)
class ModuleParts:
    """The destinations of the keys of a module, and its loaders."""

    # Key -> the destination of its value, also for keys below a loader.
    places: dict[str, StateSlot] = field(default_factory=dict)
    # Prefix -> loader, in the order of torch. No loader is below a loader that is `whole`.
    loaders: dict[str, Loader] = field(default_factory=dict)
    loaded_by_loaders: set[int] = field(default_factory=set)  # the `id` of tensors that loaders load
    apart: Collection[str] = ()  # keys of the tensors that the checkpoint has as parts

    def loader_of(self, key: str) -> Loader | None:
        """Return the loader that receives a key, or None."""
        at = 0
        while True:
            prefix, rest = key[:at], key[at:]
            loader = self.loaders.get(prefix)
            if loader is not None and (loader.whole or "." not in rest):
                return loader
            at = key.find(".", at) + 1
            if not at:
                return None


def parts_of(module: Any, found: Iterable[str] = (), apart: Collection[str] = ()) -> ModuleParts:
    """Return how torch would load a state into a module, without calling code of the module.

    Args:
        module: The module.
        found: The keys of the state.
        apart: The keys of the tensors that the checkpoint has as parts. These tensors need no loader.
    """
    if type(module).__module__.endswith("fabric.wrappers") and hasattr(module, "_original_module"):
        module = module._original_module  # noqa: SLF001 - Lightning Fabric's wrapper passes its state to this module
    parts = ModuleParts(apart=apart)
    by_prefix: dict[str, set[str]] = defaultdict(set)
    for key in found:
        by_prefix[key[: key.rfind(".") + 1]].add(key)
    overrides = overrides_load(module)
    if overrides:
        parts.loaders[""] = Loader(module, "", whole=True)
    _visit(parts, module, "", by_prefix, inside=overrides)
    # If a tensor of a loader has another name outside the loader, loaders must load both names, in the order of torch,
    # because the last value wins.
    parts.loaded_by_loaders = {
        id(place.value) for key, place in parts.places.items() if parts.loader_of(key) is not None
    }
    if any(
        id(place.value) in parts.loaded_by_loaders and parts.loader_of(key) is None
        for key, place in parts.places.items()
    ):
        parts = ModuleParts(apart=apart, loaded_by_loaders=parts.loaded_by_loaders)
        _visit(parts, module, "", by_prefix)
    return parts


def overrides_load(module: Any) -> bool:
    """Whether a module or its class overrides `load_state_dict`."""
    return type(module).load_state_dict is not torch.nn.Module.load_state_dict or "load_state_dict" in vars(module)


def _visit(parts: ModuleParts, part: Any, prefix: str, found: Mapping[str, set[str]], *, inside: bool = False) -> None:
    """Add a part and its children, in the order in which torch loads them.

    Args:
        parts: The parts to add to.
        part: The module to add.
        prefix: The prefix of its keys.
        found: Prefix -> keys of the state with this prefix and no further dot.
        inside: Whether the part is below a loader that also loads all modules below it.
    """
    passing = part._non_persistent_buffers_set  # noqa: SLF001 - torch has no public way to query them
    tensors = [*part._parameters.items(), *(one for one in part._buffers.items() if one[0] not in passing)]  # noqa: SLF001
    own = {f"{prefix}{name}": StateSlot(part, name, value) for name, value in tensors if value is not None}
    parts.places |= own
    # The hook of this wrapper only removes the wrapper's name from keys. As a loader, the wrapper would need a copy of
    # all its tensors, which may be those of the whole model.
    if not inside and _is_checkpoint_wrapper(part):
        wrapped = ModuleParts(loaded_by_loaders=parts.loaded_by_loaders)
        _visit(wrapped, part._checkpoint_wrapped_module, prefix, found)  # noqa: SLF001
        if not wrapped.loaders:  # loaders would not get the names and module versions that torch passes
            parts.places |= wrapped.places
            return
    if not inside and _loads_all_below(part):
        inside = True
        parts.loaders[prefix] = Loader(part, prefix, whole=True)
    elif not inside and (
        _loads_its_own(part, own, found.get(prefix, set()), parts.apart)
        or any(id(place.value) in parts.loaded_by_loaders for place in own.values())
    ):
        parts.loaders[prefix] = Loader(part, prefix, whole=False)
    # A module that is registered twice has two names in a state dict, and torch loads both names.
    for name, child in part._modules.items():  # noqa: SLF001 - the same as in torch
        if child is not None:
            _visit(parts, child, f"{prefix}{name}.", found, inside=inside)


def _is_checkpoint_wrapper(part: Any) -> bool:
    """Whether a part is torch's wrapper for activation checkpointing, whose hooks remove its name from keys."""
    module = sys.modules.get("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    kind: Any = getattr(module, "ActivationWrapper", None)
    hooks = len(part._load_state_dict_pre_hooks), len(part._load_state_dict_post_hooks)  # noqa: SLF001
    return kind is not None and isinstance(part, kind) and hooks == (1, 0)


def _loads_all_below(part: Any) -> bool:
    """Whether a part has hooks or a method that can change the values for the part and all modules below it."""
    load = type(part)._load_from_state_dict  # noqa: SLF001
    hooks = part._load_state_dict_pre_hooks or part._load_state_dict_post_hooks  # noqa: SLF001
    plain = load is _PLAIN_LOAD or load in _NORM_LOADS
    return bool(hooks) or not plain or "_load_from_state_dict" in vars(part)


def _loads_its_own(part: Any, own: dict[str, StateSlot], found: set[str], apart: Collection[str]) -> bool:
    """Whether torch does more for a part than copying values to plain tensors."""
    plain = (
        is_ordinary(place.value) or (key in apart and not torch.nn.parameter.is_lazy(place.value))
        for key, place in own.items()
    )
    if has_extra_state(part) or not all(plain):
        return True
    return type(part)._load_from_state_dict is not _PLAIN_LOAD and found != own.keys()  # noqa: SLF001


def has_extra_state(part: Any) -> bool:
    """Whether a part accepts extra state."""
    return getattr(type(part), "set_extra_state", None) is not torch.nn.Module.set_extra_state


def is_ordinary(value: torch.Tensor) -> bool:
    """Whether loading a tensor only copies plain values into it, or replaces it if it is on the meta device."""
    return type(value) in {torch.Tensor, torch.nn.Parameter} and (value.is_meta or torch_targets.can_be_filled(value))
