"""Plan how a checkpoint is read into an existing target: nested dicts and lists, tensors, `Stateful` objects.

Tensors are filled in place, directly from the disk if their memory has the stored layout. Planning changes nothing in
the target. `fill` decides where bytes are read to. `into_module` and `into_optimizer` compare a module and an optimizer
with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.document import MAX_DEPTH
from ckstore.model.manifest.manifest import LeafRecord, Node, StorageRecord
from ckstore.model.names import join_index
from ckstore.model.words import beyond_text
from ckstore.tensors.kinds import Stateful, hand_over, is_array, is_module, is_optimizer, is_stateful, is_tensor
from ckstore.tensors.memory_layout import StorageMemory
from ckstore.tensors.plain_values import is_named_tuple
from ckstore.tensors.refusals import type_name
from ckstore.tensors.state_restore import build_with
from ckstore.tensors.targets.fill import functions_for
from ckstore.tensors.targets.load_comparison import Comparison, Differences, Leaf, LoadRules, Make
from ckstore.tensors.walks import DICTS, name_below


class IntoPlan:
    """The plan to read a checkpoint into a target.

    Call `prepare` and `attempt`. Then fill all memory in `direct`, and pass each storage in `copied` to `filling.fill`,
    or in parts to `filling.fill_part`. Then call `finish`.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.differences = comparison.differences  # values that do not fit and are left unchanged
        self.taken = comparison.filling.wanted  # leaves that the target takes
        # Attempts and steps refer to the comparison. If the comparison also referred to them, the cycle would keep the
        # target in memory.
        self._attempts, comparison.attempts = comparison.attempts, []
        self._steps, comparison.steps = comparison.steps, []
        handed = [given for attempt in self._attempts for given in attempt.handed.values()]
        self.is_empty = not self.taken and not self._steps and not any(handed)  # whether there is nothing to be loaded
        # Memory that `attempt` takes for the values that `undo` restores.
        self.kept_bytes = sum(attempt.kept_bytes for attempt in self._attempts)
        # The storages of each call of `read` in `attempt`.
        self.attempted = [storages for attempt in self._attempts for storages in attempt.storages()]
        self.new_bytes = comparison.filling.later_bytes  # memory that `prepare` allocates for tensors that have none
        # Storage -> memory of the target, possibly on a device, to be filled with all bytes of that storage.
        self.direct: dict[int, Any] = {}
        self.copied: list[int] = []  # storages that are copied to the target
        self.indirect: set[int] = set()  # storages to read into new memory, which `finish` requests
        self.filling = comparison.filling
        self._guessed = comparison.guessed

    @property
    def likely(self) -> Differences:
        """The differences before `attempt`. Here, `missing` also has all names about which `attempt` decides."""
        return replace(self.differences, missing=[*self.differences.missing, *self._guessed])

    def prepare(self, storage_bytes: Sequence[int] | None = None) -> None:
        """Decide the destination of each storage, and allocate memory for tensors that have none.

        `storage_bytes` has the sizes of the storages. If None, each storage ends with its last element.
        """
        self.direct, self.copied, self.indirect = self.filling.decide(storage_bytes)

    def attempt(self, read: Callable[[Iterable[int]], Mapping[int, StorageMemory]]) -> None:
        """Run the loaders of module parts with custom loading. `differences` then has their reports.

        Args:
            read: Returns storages in new memory.

        Raises:
            BadInput: A loader refuses its values. All parts have their previous values again.
        """
        try:
            for attempt in self._attempts:
                attempt.run(read)
        except BaseException:
            self.undo()
            raise

    def name_beyond(self) -> None:
        """Add to the report of each conversion the number of values out of the range of the new dtype."""
        for name, count in self.filling.beyond.items():
            self.differences.cast[name] += f", {beyond_text(count)}"

    def undo(self) -> None:
        """Restore the values from before `attempt`."""
        # The order is reversed, so that a tensor that belongs to two parts gets its original value again.
        for attempt in reversed(self._attempts):
            attempt.undo()

    def finish(self, memory: Callable[[int], StorageMemory]) -> None:
        """Complete the load, in the order of the target: copy and set the remaining values, and call `load_state_dict`.

        Args:
            memory: Returns the filled memory of a storage. Called once for each of `indirect`.

        Raises:
            BadInput: An object refuses its state. Earlier parts of the target have been loaded.
        """
        leaf = self.filling.finish(memory)
        # Tensors are filled before these steps, because `load_state_dict` of an optimizer may read the parameters.
        for step in self._steps:
            step(leaf)


def plan_into(  # noqa: PLR0917 - the last ones are options
    target: object,
    state: Node,
    leaves: Sequence[LeafRecord],
    terms: LoadRules | None = None,
    storages: Sequence[StorageRecord] | None = None,
    read: Callable[[int], object] | None = None,
) -> IntoPlan:
    """Plan to read a state into `target`.

    In dicts and lists, tensors and arrays are filled in place, and other values are replaced. An empty dict takes all
    values, and a list without tensors or objects takes the new items. Modules and optimizers are compared with the
    checkpoint. Parts of a module with custom loading receive their values. Any other `Stateful` object receives its
    whole state, and decides itself whether the state fits.

    Args:
        target: A dict, a list, a tensor or a `Stateful` object. Planning does not change it.
        state: The root node.
        leaves: All leaves of the manifest.
        terms: The options of the caller.
        storages: All storages. Their digests show whether tied tensors have different values. If None, all tied tensors
            count as equal.
        read: Returns the value of a leaf immediately. It is called for the few leaves on which the plan depends.

    Raises:
        BadInput: `target` has another type or contains itself, names are equal after renaming, or only a part of a
            value that must be loaded as a whole is selected.
    """
    comparison = Comparison(leaves, terms or LoadRules(), storages, read)
    make = _TargetWalk(comparison).visit(target, state, "")
    if make is not None:
        found = type_name(type(target))
        msg = f"the target must be a dict, a list, a tensor or an object with load_state_dict, got {found}"
        raise BadInput(msg, hint="use load() for a new value")
    return IntoPlan(comparison)


class _TargetWalk:
    """A walk over the target and the nodes in parallel.

    `visit` returns a function that makes a new value, which the parent of the target must set. It returns None if the
    target itself stays in place.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def visit(self, target: object, node: Node, path: str) -> Make | None:
        tag = node[0] if isinstance(node, list) else None
        if is_tensor(target) or is_array(target):
            return self._tensor(target, node, path) if self.comparison.wants(node, path) else None
        if is_stateful(target):
            return self._stateful(target, node, path)
        if isinstance(target, dict):
            if tag in DICTS:
                return self._dict(target, node, path)
        elif type(target) is list or type(target) is tuple or is_named_tuple(target):
            # A named tuple keeps its class, because the checkpoint only has a plain tuple.
            if tag in ("list", "tuple") and (is_named_tuple(target) or _holds_live(target, path)):
                return self._items(target, node, path)
            if type(target) is list and (tag == "list" or self.comparison.is_numbers(node)):
                return self._new_items(target, node) if self.comparison.wants(node, path) else None
        if not self.comparison.wants(node, path):
            return None
        if _holds_live(target, path):
            wanted = "a dict" if isinstance(target, dict) else f"a {type(target).__name__}"
            self.comparison.mismatch(path, wanted, self.comparison.described(node))
            return None
        return self.comparison.new(node)

    def _tensor(self, target: Any, node: Node, path: str) -> Make | None:
        if is_array(target):
            if self.comparison.contradicts(target, node, path):
                return None
            if self.comparison.is_tensor_leaf(node) and self.comparison.filling.bind(target, node[1]):
                self.comparison.take(target, node, path)
                return None
            return self.comparison.new(node)
        if isinstance(node, list) and node[0] == "parts":
            return self._parts(target, node, path)
        targets = functions_for(type(target))
        if targets.can_be_filled(target):
            self.comparison.fill(target, node, path)
        elif not target.is_meta:
            found = f"{targets.describe_unfilled(target)} in the target"
            self.comparison.mismatch(path, "a plain tensor with memory", found)
        elif not path or not self.comparison.terms.assign:
            self.comparison.differences.meta.append(path or "the state itself")
        elif self.comparison.bind(target, node, path):
            self.comparison.filling.bind_later(lambda: targets.empty_like_meta(target), node[1], path)
            return lambda leaf: targets.as_parameter_of(target, leaf(node[1]))
        return None

    def _parts(self, target: Any, node: Node, path: str) -> Make | None:
        from ckstore.tensors.targets import into_parts, torch_targets

        how = into_parts.plan_parts(self.comparison, target, node, path)
        if how is None or how is into_parts.PartsLayout.FILLED:
            return None
        if how is into_parts.PartsLayout.COPIED:
            self.comparison.new(node)
        return lambda leaf: torch_targets.as_parameter_of(target, build_with(node, leaf, self.comparison.leaves))

    def _dict(self, target: dict[Any, Any], node: Node, path: str) -> Make | None:
        found = self.comparison.found_in(node, path, rename_all=False)
        takes_all = not target
        for key, item in list(target.items()):
            if key not in found:
                self.comparison.miss(name_below(path, key))
                continue
            its_name, node_there = found[key]
            # Without renaming, the name in the target is that in the checkpoint.
            name = name_below(path, key) if self.comparison.terms.rename else its_name
            self._set_later(target, key, self.visit(item, node_there, name))
        for key, (name, item) in found.items():
            if key in target:
                continue
            if not takes_all:
                self.comparison.not_expect(name, item)
            elif self.comparison.wants(item, name):
                self._set_later(target, key, self.comparison.new(item))
        # The usual reason for missing names is a wrapper (module., _orig_mod.), so search for a renaming.
        if any(key not in found for key in target):
            tensors = [key for key, item in target.items() if is_tensor(item) or is_array(item)]
            self.comparison.suggest_rename(node, tensors, rename_all=False)
        return None

    def _items(self, target: list[Any] | tuple[Any, ...], node: Node, path: str) -> Make | None:
        found = node[1]
        for i in range(len(found), len(target)):
            self.comparison.miss(join_index(path, i))
        for i in range(len(target), len(found)):
            self.comparison.not_expect(join_index(path, i), found[i])
        makes = [
            self.visit(item, own, join_index(path, i)) for i, (item, own) in enumerate(zip(target, found, strict=False))
        ]
        # A tuple cannot be changed, so its parent gets a new one.
        if isinstance(target, list):
            for i, make in enumerate(makes):
                self._set_later(target, i, make)
            return None
        if not any(makes):
            return None
        kept = tuple(target)
        rest = kept[len(makes) :]
        of_class: Any = getattr(target, "_make", tuple)

        def make_tuple(leaf: Leaf) -> object:
            return of_class([*(kept[i] if make is None else make(leaf) for i, make in enumerate(makes)), *rest])

        return make_tuple

    def _new_items(self, target: list[Any], node: Node) -> Make | None:
        make = self.comparison.new(node)

        def replace(leaf: Leaf) -> None:
            target[:] = make(leaf)  # type: ignore[call-overload]

        self.comparison.steps.append(replace)
        return None

    def _stateful(self, target: Stateful, node: Node, path: str) -> Make | None:
        if is_module(target) and self._has_names(target, node):
            from ckstore.tensors.targets.into_module import plan_module

            plan_module(self.comparison, target, node, path)
            return None
        if not self.comparison.wants(node, path):
            return None
        if is_optimizer(target):
            from ckstore.tensors.targets.into_optimizer import plan_optimizer

            plan_optimizer(self.comparison, target, node, path)
            return None
        make = self.comparison.new(node)
        self.comparison.steps.append(lambda leaf: hand_over(target, make(leaf), path))
        return None

    @staticmethod
    def _has_names(module: Any, node: Node) -> bool:
        """Whether the state of a module is compared by names.

        A module with its own `load_state_dict` may have any state.
        """
        from ckstore.tensors.targets.module_parts import overrides_load

        return (isinstance(node, list) and node[0] in DICTS) or not overrides_load(module)

    def _set_later(self, target: Any, key: object, make: Make | None) -> None:
        if make is None:
            return

        def put(leaf: Leaf) -> None:
            target[key] = make(leaf)

        self.comparison.steps.append(put)


def _holds_live(target: object, path: str, depth: int = 1) -> bool:
    """Whether `target` has a tensor, an array or a `Stateful` object at any depth."""
    if is_tensor(target) or is_array(target) or is_stateful(target):
        return True
    if isinstance(target, dict | list | tuple):
        if depth > MAX_DEPTH:
            raise BadInput(f"{path}: the target contains itself or is nested deeper than {MAX_DEPTH}")
        items = target.values() if isinstance(target, dict) else target
        return any(_holds_live(item, path, depth + 1) for item in items)
    return False
