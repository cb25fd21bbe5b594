"""The state of planning a load into a target: selection, matches, differences and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import LeafRecord, Node, StorageRecord
from ckstore.model.manifest.nodes import decode_key
from ckstore.model.names import plain
from ckstore.tensors.memory_layout import StorageMemory
from ckstore.tensors.refusals import type_name
from ckstore.tensors.state_restore import build_with
from ckstore.tensors.targets.fill import Filling, functions_for
from ckstore.tensors.targets.renames import Rename, suggest
from ckstore.tensors.walks import DICTS, leaf_numbers, name_below, shape_of_parts, value_names


@dataclass(frozen=True, slots=True)
class LoadRules:
    """The options of the caller of a load into a target."""

    keep: Callable[[str], bool] | None = None  # selects values by their names in the checkpoint; None selects all
    # The renaming (`renames.Rename`). It applies to keys of tensors in dicts and to all keys in states of modules.
    rename: Rename = field(default_factory=Rename)
    cast: bool = False  # convert to the dtype of the target
    assign: bool = False  # give memory to tensors on the meta device, and replace tensors with another structure
    strict: bool = True  # whether everything must fit


@dataclass(slots=True)
class Differences:
    """The differences that a plan found, in the order of the target."""

    # Names are those in the target, except in `unexpected`, which has names in the checkpoint.
    missing: list[str] = field(default_factory=list)  # in the target only
    unexpected: list[str] = field(default_factory=list)  # in the checkpoint only
    # Name -> ``shape [2] float32 wanted, found a dict``, for values with another shape or kind.
    mismatched: dict[str, str] = field(default_factory=dict)
    # Name -> ``float32 wanted, found int64``, for tensors that differ only in the dtype and are not converted.
    dtypes: dict[str, str] = field(default_factory=dict)
    # Name -> ``float32 to bfloat16``, for tensors that will be converted.
    cast: dict[str, str] = field(default_factory=dict)
    meta: list[str] = field(default_factory=list)  # tensors of the target that have no memory and will not get any
    # Tensors of `mismatched` that ``assign=True`` would replace by those of the checkpoint.
    replaceable: list[str] = field(default_factory=list)
    # Tensor of a module -> its class, if the checkpoint has parts of the tensor that the module does not accept.
    partial: dict[str, str] = field(default_factory=dict)
    # Modules for which the checkpoint has names, but no name that fits.
    strangers: list[str] = field(default_factory=list)
    rename: dict[str, str] = field(default_factory=dict)  # a renaming with which more names would fit
    renaming: set[str] = field(default_factory=set)  # the keys of the caller's renaming that occur in names


Leaf = Callable[[int], object]  # returns the value of a leaf by its number
Make = Callable[[Leaf], object]
RenamedDict = dict[Any, tuple[str, Any]]
"""The items of a dict of the checkpoint: renamed key -> name in the checkpoint, node."""
_CONTAINERS = {
    **dict.fromkeys(DICTS, "a dict"),
    "list": "a list",
    "tuple": "a tuple",
    "deque": "a deque",
    "object": "an object",
}


class Trial(Protocol):
    """Loads the parts that decide themselves whether values fit, before everything else; see `module_attempt`."""

    handed: dict[str, dict[str, Node]]

    @property
    def kept_bytes(self) -> int:
        """Memory that `run` needs to keep the values for `undo`."""

    def storages(self) -> list[list[int]]:
        """Return the storages of each request of `run`, in the order of the requests."""

    def run(self, read: Callable[[Iterable[int]], Mapping[int, StorageMemory]]) -> None:
        """Load, and report values that do not fit."""

    def undo(self) -> None:
        """Restore the values from before `run`, even if `run` did not complete."""


class Comparison:
    """Collects matches, differences, and the steps to run after all tensors are filled."""

    def __init__(
        self,
        leaves: Sequence[LeafRecord],
        terms: LoadRules,
        storages: Sequence[StorageRecord] | None = None,
        read: Leaf | None = None,
    ) -> None:
        self.leaves = leaves
        self.terms = terms
        self.storages = storages
        self._read = read
        self.filling = Filling(leaves)
        self.steps: list[Callable[[Leaf], object]] = []  # called after all tensors are filled
        # Loads that run before anything else in the target is changed, and then report the values that do not fit.
        self.attempts: list[Trial] = []
        # Key of the elements of a tensor -> its first name, the node of its values, and the tensor, which is kept so
        # that the key remains valid. Other names of the same tensor must have the same values.
        self._taken: dict[object, tuple[str, Node, object]] = {}
        # Keys that only the target or only the checkpoint has. An attempt decides whether they are differences.
        self.guessed: list[str] = []
        self.differences = Differences()

    def early(self, index: int) -> object:
        """Return the value of a leaf immediately if it is a long list of numbers, otherwise None."""
        numbers = self.leaves[index].kind == "numbers"
        # The groups of an optimizer may contain such lists, and cannot be compared without their values.
        return self._read(index) if numbers and self._read is not None else None

    def is_numbers(self, node: Node) -> bool:
        """Whether a node is a long list of numbers."""
        return isinstance(node, list) and node[0] == "leaf" and self.leaves[node[1]].kind == "numbers"

    def wants(self, node: Node, path: str) -> bool:
        """Whether all values at and below a node are selected. Raise `BadInput` if only some are selected."""
        keep = self.terms.keep
        if keep is None:
            return True
        kept = {keep(name): name for name in value_names(node, path, self.leaves)}
        # `load_state_dict` of an object cannot load only a part of the state.
        if len(kept) > 1:
            msg = f"{plain(path)} is loaded as a whole; select takes {plain(kept[True])} and not {plain(kept[False])}"
            raise BadInput(msg, hint=f"select {plain(path)!r}, or nothing of it")
        return True in kept

    def wants_some(self, node: Node, path: str) -> bool:
        """Whether anything at or below a node is selected."""
        keep = self.terms.keep
        return keep is None or any(keep(name) for name in value_names(node, path, self.leaves))

    def found_in(self, node: Node, path: str, *, rename_all: bool) -> RenamedDict:
        """Return the items of a dict of the checkpoint, with renamed keys.

        All keys are renamed if `rename_all` is true, otherwise only those of tensors and arrays.
        """
        found: RenamedDict = {}
        for own, item in node[1]:
            key = decode_key(own)
            name = name_below(path, key)
            if isinstance(key, str) and self.terms.rename and (rename_all or self.is_tensor_leaf(item)):
                key = self.terms.rename.apply(key, self.differences.renaming)
            if key in found and not self.wants_some(item, name):
                continue
            # Two names of the checkpoint would fill one tensor, and the result would depend on the order of the names.
            if key in found and self.wants_some(found[key][1], found[key][0]):
                msg = f"{plain(found[key][0])} and {plain(name)} would both be {plain(name_below(path, key))}"
                raise BadInput(msg, hint="give a rename that keeps all names apart, or select one of them")
            found[key] = name, item
        return found

    def suggest_rename(self, node: Node, own: Iterable[object], *, rename_all: bool) -> None:
        """Search for a renaming with which more keys of a dict of the checkpoint are in `own`.

        Like in `found_in`, only keys of tensors and arrays are renamed, unless `rename_all` is true.
        """
        keys = [decode_key(key) for key, item in node[1] if rename_all or self.is_tensor_leaf(item)]
        wanted = [key for key in own if isinstance(key, str)]
        self.differences.rename |= suggest([key for key in keys if isinstance(key, str)], wanted) or {}

    def bind(self, live: Any, item: Node, name: str) -> bool:
        """Plan to fill a tensor from a leaf of the checkpoint, or report why this is not possible."""
        leaf = self.leaves[item[1]] if isinstance(item, list) and item[0] == "leaf" else None
        targets = functions_for(type(live))
        if leaf is None or leaf.kind != "torch" or leaf.shape != tuple(live.shape):
            self.mismatch(name, targets.describe(live), self.described(item))
            return False
        on_meta = live.is_meta
        if targets.takes(live, leaf) if on_meta else self.filling.bind(live, item[1]):
            return True
        return self.converts(live, leaf, name) and (on_meta or self.filling.bind(live, item[1], cast_as=name))

    def converts(self, live: Any, leaf: LeafRecord, name: str) -> bool:
        """Whether a leaf may be converted to the dtype of a tensor with the same shape.

        Report the conversion, or why it is not possible.
        """
        from ckstore.tensors.targets import torch_targets

        wanted = torch_targets.dtype_name(live)
        if not self.terms.cast or not torch_targets.casts(live, leaf):
            cannot = ", which cannot be converted" if self.terms.cast else ""
            self.differences.dtypes[name] = f"{wanted} wanted, found {leaf.dtype}{cannot}"
            return False
        self.differences.cast[name] = f"{leaf.dtype} to {wanted}"
        return True

    def fill(self, live: Any, item: Node, name: str) -> bool:
        """Plan to fill a tensor from a leaf of the checkpoint, and record this. If it does not fit, report the reason.

        This is `contradicts`, `bind` and `take` in one call.
        """
        key = functions_for(type(live)).elements_key(live)
        known = self._taken.get(key)
        if (known is not None and self._differs_from(known, item, name)) or not self.bind(live, item, name):
            return False
        if known is None:
            self._taken[key] = name, item, live
        return True

    def take(self, live: Any, item: Node, name: str) -> None:
        """Record that a tensor or an array of the target gets the values of a node."""
        self._taken.setdefault(functions_for(type(live)).elements_key(live), (name, item, live))

    def is_taken(self, live: Any) -> bool:
        """Whether a tensor of the target gets values, possibly under another name."""
        return functions_for(type(live)).elements_key(live) in self._taken

    def contradicts(self, live: Any, item: Node, name: str) -> bool:
        """Whether a tensor gets other values under another of its names. If so, report the mismatch."""
        known = self._taken.get(functions_for(type(live)).elements_key(live))
        return known is not None and self._differs_from(known, item, name)

    def _differs_from(self, known: tuple[str, Node, object], item: Node, name: str) -> bool:
        first, node, _ = known
        if not isinstance(item, list) or item[0] not in ("leaf", "parts"):
            return False
        pairs = list(zip_longest(leaf_numbers(node), leaf_numbers(item)))
        if all(None not in pair and self.have_same_values(*pair) for pair in pairs):
            return False
        self.mismatch(name, f"the values of {plain(first)}, to which it is tied,", "other values")
        return True

    def have_same_values(self, one: int, other: int) -> bool:
        """Whether two leaves may have the same bytes, according to the digests of their storages."""
        first, second = self.leaves[one], self.leaves[other]
        # Leaves that cannot be compared by digests count as equal, so that no tied tensor is refused by mistake.
        if first.storage == second.storage or self.storages is None or first.offset != second.offset:
            return True
        both = [self.storages[leaf.storage] for leaf in (first, second)]
        pieces = [(storage.tiling, [piece.piece for piece in storage.extents]) for storage in both]
        return first.strides != second.strides or pieces[0] == pieces[1]

    def new(self, node: Node) -> Make:
        """Plan a new value for a node, and return a function that makes the value."""
        for index in leaf_numbers(node):
            self.filling.make_new(index)
        return lambda leaf: build_with(node, leaf, self.leaves)

    def mismatch(self, path: str, wanted: str, found: str) -> None:
        """Report that the values at `path` have different shapes or kinds."""
        self.differences.mismatched[path or "the state itself"] = f"{wanted} wanted, found {found}"

    def described(self, node: Node) -> str:
        """Return a description of a node for messages."""
        if not isinstance(node, list):
            return type_name(type(node)) if node is not None else "None"
        if node[0] == "parts":
            return f"{node[2]} of shape {list(shape_of_parts(node) or ())}"
        if node[0] != "leaf":
            return _CONTAINERS.get(node[0], str(node[0]))
        leaf = self.leaves[node[1]]
        if leaf.kind in {"bytes", "bytearray", "io.BytesIO", "str"}:
            return leaf.kind
        if leaf.kind == "numbers":
            return f"a list of {leaf.shape[0]} numbers"
        array = "a NumPy array of " if leaf.kind == "numpy" else ""
        return f"{array}shape {list(leaf.shape)} {leaf.dtype}"

    def miss(self, name: str) -> None:
        """Report a selected name of the target that the checkpoint lacks."""
        if self.terms.keep is None or self.terms.keep(name):
            self.differences.missing.append(name)

    def not_expect(self, name: str, node: Node) -> None:
        """Report a selected name of the checkpoint that the target lacks."""
        if self.wants_some(node, name):
            self.differences.unexpected.append(name)

    def is_tensor_leaf(self, node: Node) -> bool:
        """Whether a node is a tensor or an array."""
        return isinstance(node, list) and node[0] == "leaf" and self.leaves[node[1]].kind in ("torch", "numpy")
