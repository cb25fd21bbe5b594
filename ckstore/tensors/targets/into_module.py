"""Compare a module with its state in a checkpoint, and plan its load.

This module is imported only if a target has a torch module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from ckstore.model.manifest.manifest import Node
from ckstore.model.manifest.nodes import SPARSE_KINDS
from ckstore.model.names import join_key
from ckstore.tensors.refusals import type_name
from ckstore.tensors.state_restore import build_with
from ckstore.tensors.targets import torch_targets
from ckstore.tensors.targets.load_comparison import Comparison, Leaf, Make, RenamedDict
from ckstore.tensors.targets.module_attempt import Attempt
from ckstore.tensors.targets.module_parts import is_ordinary, parts_of
from ckstore.tensors.walks import DICTS


def plan_module(comparison: Comparison, module: Any, node: Node, path: str) -> None:
    """Plan to load a module: each parameter and buffer by name, and parts with custom loading.

    Plain tensors are filled in place. With ``assign=True``, tensors on the meta device are replaced. Parameters remain
    parameters with their `requires_grad`, and tied tensors remain tied. A part with custom loading decides itself
    whether its values fit. It receives them before anything else is loaded, as torch's `load_state_dict` would pass
    them.
    """
    if not isinstance(node, list) or node[0] not in DICTS:
        if comparison.wants_some(node, path):
            comparison.mismatch(path, "the state of a module", comparison.described(node))
        return
    work = _Module(comparison, module, node, path)
    work.compare()
    work.plan()


class _Module:
    def __init__(self, comparison: Comparison, module: Any, node: Any, path: str) -> None:
        self.comparison = comparison
        self.path = path
        self.node = node
        self.found: RenamedDict = comparison.found_in(node, path, rename_all=True)
        # The keys of tensors that the checkpoint has as parts, without sparse tensors.
        apart = {
            key
            for key, (_, item) in self.found.items()
            if isinstance(item, list) and item[0] == "parts" and item[2] not in SPARSE_KINDS
        }
        self.parts = parts_of(module, self.found, apart)
        self.handed: dict[str, dict[str, Node]] = {prefix: {} for prefix in self.parts.loaders}
        self.loaded: set[str] = set()
        self.assigned: dict[str, Make] = {}
        self._fresh: dict[int, torch.Tensor] = {}

    def compare(self) -> None:
        """Plan to load each value that fits, and report the others."""
        # Search for lost parts first. Otherwise, a quantized weight without its scales would be silently loaded as
        # plain values.
        lost = self._lost_parts()
        for key in [*self.parts.places, *(key for key in self.found if key not in self.parts.places)]:
            if key in self.found and key not in lost:
                self.take(key, *self.found[key])
        missing = [key for key in self.parts.places if key not in self.found]
        unexpected = [key for key in self.found if key not in self.parts.places]
        self._differ(
            [key for key in missing if self.parts.loader_of(key) is None],
            [key for key in unexpected if self.parts.loader_of(key) is None],
        )
        if self.parts.loaders:
            differing = [key for key in missing + unexpected if not key.endswith("_extra_state")]
            self.comparison.guessed += [key for key in differing if self.parts.loader_of(key) is not None]
        else:
            # If there are loaders, `report` does this after the attempt, because a loader may accept such keys.
            self._judge(unexpected)

    def take(self, key: str, name: str, item: Node) -> None:
        """Plan to load one value, or report why it does not fit."""
        place, loader = self.parts.places.get(key), self.parts.loader_of(key)
        if (place is None and loader is None) or not self.comparison.wants(item, name):
            return
        name = join_key(self.path, key)
        if place is not None and self._is_apart(place.value, item) and not (loader is not None and loader.whole):
            self._take_parts(key, place.value, name, item)
        elif loader is not None:
            if place is None or self._may_take(place.value, name, item):
                self.handed[loader.prefix][key] = item
        elif place is not None and place.value.is_meta:
            self._take_meta(key, place.value, name, item)
        elif place is not None and self.comparison.fill(place.value, item, name):
            self.loaded.add(key)

    def _lost_parts(self) -> set[str]:
        """Report tensors with parts that the module does not accept, and return the keys of these tensors.

        Without the parts, the values of such a tensor are wrong.
        """
        lost = set()
        for key, (name, item) in self.found.items():
            if key in self.parts.places or self.parts.loader_of(key) is not None:
                continue
            above = (key[:at] for at in reversed(range(len(key))) if key[at] == ".")  # its prefixes, the longest first
            owner = next((own for own in above if own in self.parts.places and own in self.found), None)
            if owner is not None and self.comparison.wants_some(item, name):
                kind = type_name(type(self.parts.places[owner].value))
                self.comparison.differences.partial.setdefault(join_key(self.path, owner), kind)
                lost.add(owner)
        for owner in lost:
            self.comparison.mismatch(join_key(self.path, owner), "a plain tensor", "a tensor with parts")
        return lost

    def plan(self) -> None:
        """Add the steps of the load."""
        if self.parts.loaders:
            given = self.comparison, self.path, self.parts, self.handed
            self.comparison.attempts.append(Attempt(*given, metadata=self._metadata, report=self.report))
        if self.assigned:
            self.comparison.steps.append(self._assign)

    def report(self, missing: Collection[str], unexpected: Collection[str]) -> None:
        """Report the values that parts with custom loading did not accept."""
        handed = self._handed()
        self._differ([key for key in missing if key in handed or key not in self.found], unexpected)
        self._judge(unexpected)

    def _handed(self) -> set[str]:
        return {key for given in self.handed.values() for key in given}

    def _differ(self, missing: Collection[str], unexpected: Collection[str]) -> None:
        """Report the keys that only the module has (missing) and those that only the state has (unexpected)."""
        # A tensor that is loaded under another of its names is not missing.
        places = self.parts.places
        missing = [key for key in missing if key not in places or not self.comparison.is_taken(places[key].value)]
        for key in missing:
            self.comparison.miss(join_key(self.path, key))
        for key in unexpected:
            if key in self.found:
                self.comparison.not_expect(*self.found[key])
            else:  # a hook has renamed the key
                self.comparison.differences.unexpected.append(join_key(self.path, key))
        if missing and unexpected:
            self.comparison.suggest_rename(self.node, self.parts.places, rename_all=True)

    def _judge(self, unexpected: Collection[str]) -> None:
        """If nothing in the state fits, report that the state belongs to another module."""
        fits = self.loaded or self.assigned or self._handed() - set(unexpected)
        known = any(key in self.parts.places for key in self.found)
        if self.found and not fits and not known and self.comparison.wants_some(self.node, self.path):
            self.comparison.differences.strangers.append(self.path or "the target")

    def _may_take(self, value: torch.Tensor, name: str, item: Node) -> bool:
        """Whether a part with custom loading may receive a value for one of its tensors. If not, report the reason."""
        # The part itself decides about the shape. Another dtype is refused here, because the part would convert it
        # silently.
        if torch.nn.parameter.is_lazy(value):
            return True
        # If the tensor has no memory, torch's `copy_` silently does nothing.
        if value.is_meta and not self.comparison.terms.assign:
            self.comparison.differences.meta.append(name)
            return False
        if not is_ordinary(value) and not torch_targets.can_copy(value):
            found = f"{torch_targets.describe_unfilled(value)} in the target"
            self.comparison.mismatch(name, "a plain tensor with memory", found)
            return False
        if self.comparison.contradicts(value, item, name):
            return False
        if not self.comparison.is_tensor_leaf(item):
            return True
        leaf = self.comparison.leaves[item[1]]
        self.comparison.take(value, item, name)
        same = leaf.shape != tuple(value.shape) or torch_targets.takes(value, leaf)
        return same or not is_ordinary(value) or self.comparison.converts(value, leaf, name)

    def _assign(self, leaf: Leaf) -> None:
        """Set the parameters and buffers that got new memory, under all their names."""
        places = self.parts.places
        made = {
            id(places[key].value): torch_targets.as_parameter_of(places[key].value, make(leaf))
            for key, make in self.assigned.items()
        }
        for place in places.values():
            if id(place.value) in made:
                setattr(place.part, place.name, made[id(place.value)])

    def _metadata(self) -> Any:
        """Return the module versions that torch keeps with a state, by the renamed names of the modules."""
        attributes = self.node[2] if self.node[0] == "odict" else None
        if attributes is None:
            return None
        found: Any = build_with(attributes, _no_leaf, self.comparison.leaves)
        metadata = found.get("_metadata")
        rename = self.comparison.terms.rename
        if not isinstance(metadata, dict) or not rename:
            return metadata
        return {rename.apply(f"{name}.").removesuffix(".") if name else "": own for name, own in metadata.items()}

    def _take_meta(self, key: str, value: torch.Tensor, name: str, item: Node) -> None:
        if not self.comparison.terms.assign:
            self.comparison.differences.meta.append(name)
        elif self.comparison.fill(value, item, name):
            self.assigned[key] = lambda leaf: leaf(item[1])
            self.comparison.filling.bind_later(self._maker(value), item[1], name)

    @staticmethod
    def _is_apart(value: torch.Tensor, item: Node) -> bool:
        return isinstance(item, list) and item[0] == "parts" and not torch.nn.parameter.is_lazy(value)

    def _take_parts(self, key: str, value: torch.Tensor, name: str, item: Node) -> None:
        from ckstore.tensors.targets.into_parts import PartsLayout, plan_parts

        if self.comparison.contradicts(value, item, name):
            return
        how = plan_parts(self.comparison, value, item, name)
        if how is not None:
            self.comparison.take(value, item, name)
        loader = self.parts.loader_of(key)
        if how is PartsLayout.FILLED:
            self.loaded.add(key)
        elif how is PartsLayout.COPIED and loader is not None:
            self.handed[loader.prefix][key] = item
        elif how is PartsLayout.ASSIGNED:
            self.assigned[key] = lambda leaf: build_with(item, leaf, self.comparison.leaves)

    def _maker(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        fresh = self._fresh  # with `self`, the function and the object that keeps it would refer to each other

        def make() -> torch.Tensor:
            if id(value) not in fresh:
                # The key is the `id` of the parameter, so that names of tied parameters get the same memory.
                fresh[id(value)] = torch_targets.empty_like_meta(value)
            return fresh[id(value)]

        return make


def _no_leaf(index: int) -> object:
    raise LookupError(f"leaf {index} is an attribute of a dict")
