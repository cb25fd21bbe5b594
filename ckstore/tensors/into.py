"""Plan how a checkpoint is read into a target that exists: nested dicts and lists, tensors, `Stateful` objects.

Tensors are filled where they lie, straight from the disk if their memory looks as it was stored.
Planning touches nothing in the target. Which bytes go where is decided in `tensors.fill`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckstore.errors import BadInput
from ckstore.model.manifest.nodes import decode_key
from ckstore.model.names import join_index
from ckstore.tensors.fill import Filling
from ckstore.tensors.kinds import is_array, is_tensor
from ckstore.tensors.refusals import type_name
from ckstore.tensors.restore import build_with
from ckstore.tensors.stateful import Stateful, is_stateful, state_of
from ckstore.tensors.walks import holds_live, leaf_numbers, name_below, tensors_in

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import LeafRecord, Node
    from ckstore.tensors.memory import StorageMemory

Leaf = Callable[[int], object]
"""Gives the value of a leaf by its number."""
_Make = Callable[[Leaf], object]
_CONTAINERS = {"dict": "a dict", "odict": "a dict", "counter": "a dict", "list": "a list", "tuple": "a tuple"}


@dataclass
class IntoPlan:
    """How a checkpoint will be read into a target.

    Attributes:
        direct: Storage -> memory of the target, to be filled with all bytes of that storage.
        indirect: Storages to be read to fresh memory, which `finish` asks for.
        missing: Names in the target that the checkpoint lacks; `finish` leaves them alone.
        unexpected: Names in the checkpoint that the target lacks; `finish` leaves them out.
        mismatched: One message for each value that is in both and does not fit, ``name: shape
            [2, 3] float32 wanted, found shape [3] int64``; `finish` leaves them alone.
    """

    direct: dict[int, memoryview]
    indirect: set[int]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]
    _filling: Filling = field(repr=False)
    _steps: list[Callable[[Leaf], object]] = field(repr=False)

    def finish(self, memory: Callable[[int], StorageMemory]) -> None:
        """Bring the values into the target, when all memory in `direct` has been filled.

        Tensors are copied first, then values are set and `load_state_dict` is called, in the order
        of the target.

        Args:
            memory: Gives the filled memory of a storage; asked once for each of `indirect`.

        Raises:
            Exception: What `load_state_dict` raises; what came before it has been loaded.
        """
        leaf = self._filling.finish(memory)
        for step in self._steps:
            step(leaf)


def plan_into(
    target: object,
    state: Node,
    leaves: Sequence[LeafRecord],
    storage_bytes: Sequence[int] | None = None,
) -> IntoPlan:
    """Plan to read a state into `target`.

    In dicts and lists tensors and arrays are filled in place, and other values are replaced. An
    empty dict takes all there is; a list without tensors or objects takes the new items. A
    `Stateful` object (`state_dict` and `load_state_dict`) is given its whole state, in which the
    tensors that it showed are its own, already filled; whether its keys fit is for it to say.

    Args:
        target: A dict, a list, a tensor or a `Stateful` object. Nothing in it is touched, but
            `state_dict()` of its objects is called.
        state: The root node.
        leaves: All leaves of the manifest.
        storage_bytes: Sizes of the storages; None: each ends with its last element.

    Raises:
        BadInput: `target` is of another type, or contains itself.
    """
    planner = _Planner(leaves)
    make = planner.visit(target, state, "")
    if make is not None:
        found = type_name(type(target))
        msg = f"the target must be a dict, a list, a tensor or an object with load_state_dict, got {found}"
        raise BadInput(msg, hint="use load() for a new value")
    direct, indirect = planner.filling.decide(storage_bytes)
    return IntoPlan(
        direct,
        indirect,
        tuple(planner.missing),
        tuple(planner.unexpected),
        tuple(planner.mismatched),
        planner.filling,
        planner.steps,
    )


class _Planner:
    """Walks down the target and the nodes side by side.

    `visit` returns how to make the value that the parent has to set, or None when the target itself
    stays where it is.
    """

    def __init__(self, leaves: Sequence[LeafRecord]) -> None:
        self.leaves = leaves
        self.filling = Filling(leaves)
        self.steps: list[Callable[[Leaf], object]] = []
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.mismatched: list[str] = []

    def visit(self, target: object, node: Node, path: str) -> _Make | None:
        tag = node[0] if isinstance(node, list) else None
        if is_tensor(target) or is_array(target):
            return self._tensor(target, node, path)
        if is_stateful(target):
            return self._stateful(target, node, path)
        if isinstance(target, dict):
            if tag in ("dict", "odict", "counter"):
                return self._dict(target, node, path)
        elif type(target) is list or type(target) is tuple:
            if tag in ("list", "tuple") and holds_live(target, path):
                return self._items(target, node, path)
            if tag == "list" and type(target) is list:
                return self._new_items(target, node)
        if holds_live(target, path):
            wanted = "a dict" if isinstance(target, dict) else f"a {type(target).__name__}"
            return self._mismatch(path, wanted, self._described(node))
        return self._new(node)

    def _tensor(self, target: Any, node: Node, path: str) -> _Make | None:
        index = node[1] if isinstance(node, list) and node[0] == "leaf" else None
        if is_array(target):
            if index is not None and self.filling.bind(target, index):
                return None
            return self._new(node)
        from ckstore.tensors import torch_targets

        if not torch_targets.can_be_filled(target):
            return self._mismatch(path, "a plain tensor with memory", f"{type_name(type(target))} in the target")
        if index is None or not self.filling.bind(target, index):
            return self._mismatch(path, torch_targets.describe(target), self._described(node))
        return None

    def _dict(self, target: dict[Any, Any], node: Node, path: str) -> _Make | None:
        found = {decode_key(own): item for own, item in node[1]}
        takes_all = not target
        for key, item in list(target.items()):
            name = name_below(path, key)
            if type(key) not in (str, int) or key not in found:
                self.missing.append(name)
                continue
            self._set_later(target, key, self.visit(item, found[key], name))
        for key, item in found.items():
            if key in target:
                continue
            if takes_all:
                self._set_later(target, key, self._new(item))
            else:
                self.unexpected.append(name_below(path, key))
        return None

    def _items(self, target: list[Any] | tuple[Any, ...], node: Node, path: str) -> _Make | None:
        found = node[1]
        self.missing += [join_index(path, i) for i in range(len(found), len(target))]
        self.unexpected += [join_index(path, i) for i in range(len(target), len(found))]
        makes = [
            self.visit(item, own, join_index(path, i)) for i, (item, own) in enumerate(zip(target, found, strict=False))
        ]
        if isinstance(target, list):
            for i, make in enumerate(makes):
                self._set_later(target, i, make)
            return None
        if not any(makes):
            return None
        kept = tuple(target)
        rest = kept[len(makes) :]

        def make_tuple(leaf: Leaf) -> object:
            return (*(kept[i] if make is None else make(leaf) for i, make in enumerate(makes)), *rest)

        return make_tuple

    def _new_items(self, target: list[Any], node: Node) -> _Make | None:
        make = self._new(node)

        def replace(leaf: Leaf) -> None:
            target[:] = make(leaf)  # type: ignore[call-overload]

        self.steps.append(replace)
        return None

    def _stateful(self, target: Stateful, node: Node, path: str) -> _Make | None:
        own = dict(tensors_in(state_of(target, path), path))
        for index in leaf_numbers(node):
            leaf = self.leaves[index]
            live = own.get(leaf.name)
            if live is None or leaf.kind != "torch":
                self.filling.make_new(index)
            elif not self.filling.bind(live, index):
                self.filling.leave(live, index)
                self._mismatch(leaf.name, _shown(live), self._described(["leaf", index]))
        self.steps.append(lambda leaf: target.load_state_dict(build_with(node, leaf, self.leaves)))
        return None

    def _new(self, node: Node) -> _Make:
        for index in leaf_numbers(node):
            self.filling.make_new(index)
        return lambda leaf: build_with(node, leaf, self.leaves)

    def _set_later(self, target: Any, key: object, make: _Make | None) -> None:
        if make is None:
            return

        def put(leaf: Leaf) -> None:
            target[key] = make(leaf)

        self.steps.append(put)

    def _mismatch(self, path: str, wanted: str, found: str) -> _Make | None:
        self.mismatched.append(f"{path or 'the state itself'}: {wanted} wanted, found {found}")
        return None

    def _described(self, node: Node) -> str:
        if not isinstance(node, list):
            return type_name(type(node)) if node is not None else "None"
        if node[0] != "leaf":
            return _CONTAINERS.get(node[0], str(node[0]))
        leaf = self.leaves[node[1]]
        if leaf.kind in {"bytes", "str"}:
            return leaf.kind
        array = "a NumPy array of " if leaf.kind == "numpy" else ""
        return f"{array}shape {list(leaf.shape)} {leaf.dtype}"


def _shown(live: Any) -> str:
    from ckstore.tensors import torch_targets

    shown: str = torch_targets.describe(live)
    return shown
