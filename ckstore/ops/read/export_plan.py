"""Plan an export: the tensors and values to write, and their names. A plan needs only the manifest, and no data.

Tensors keep the order of the state. If several tensors are the same view of the same memory, only the first is written,
and the metadata names the others, as in safetensors' `save_model`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ckstore.containers.safetensors_write import TensorToWrite, can_be_name, dtype_and_shape
from ckstore.errors import BadInput, NoSuchRef
from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import LeafRecord, Manifest
from ckstore.model.manifest.state_json import PlainValues, plain_values
from ckstore.model.names import plain, spelled
from ckstore.model.words import arguments
from ckstore.ops.read.load import Select, as_filter
from ckstore.tensors.files.quantized_names import QuantizedNames
from ckstore.tensors.memory_layout import row_major

# The maximum sizes of values that safetensors cannot hold, and that are therefore written to a JSON file.
UNHELD_MOST_BYTES = 64 * 2**10  # for tensors and arrays
TEXT_MOST_BYTES = 16 * 2**20  # for bytes and strings
_SHOWN = 5
_NOT_AS_METADATA = ("format", "total_size")
"""Reserved keys in the metadata of a file or of the index. A tied tensor with such a name is written separately."""
_LAST_PART = re.compile(r"(?:\\.|[^\\.])*\Z")
_WILDCARD = re.compile(r"[*?]")


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The content of an export."""

    leaves: tuple[LeafRecord, ...]  # the tensors that are written, in the order of the state
    tensors: tuple[TensorToWrite, ...]  # the same tensors, as they are written to the files
    tied: dict[str, str]  # name of a tensor that is not written -> name of the tensor that it is tied to
    unheld: tuple[LeafRecord, ...]  # leaves that are written to ``state.json``
    values: PlainValues  # the other values in ``state.json``
    metadata: Mapping[str, str]  # the metadata of each file

    @property
    def has_state(self) -> bool:
        """Whether ``state.json`` has content."""
        return bool(self.unheld or self.values.values or self.values.attributes)


def plan_export(
    manifest: Manifest, *, select: Select = None, strip_prefix: bool = False, ties: bool = True
) -> ExportPlan:
    """Return the content of an export of a checkpoint. Without `ties`, each tied tensor is written separately.

    Raises:
        BadInput: Two tensors would have the same name, a value that safetensors cannot hold is too large for a JSON
            file, or there is no prefix to strip. The message names the values.
    """
    keep = as_filter(select)
    refuse_files(manifest)
    chosen = [(i, leaf) for i, leaf in enumerate(manifest.leaves) if keep is None or keep(leaf.name)]
    values = plain_values(manifest.state, manifest.leaves, keep)
    if not chosen and not values.values and keep is not None:
        msg = f"{manifest.name} has no name that select={select!r} matches"
        raise NoSuchRef(msg, hint="ckstore ls REF lists the names")
    naming = _PrefixStripper(_prefix_of(select)) if strip_prefix else plain
    quantized = QuantizedNames(manifest, keep, naming)
    held: list[tuple[LeafRecord, TensorToWrite]] = []
    unheld = []
    for i, leaf in chosen:
        name = quantized.names.get(i) or naming(leaf.name)
        as_held = dtype_and_shape(leaf.kind, leaf.dtype, leaf.shape)
        item_bytes = itemsize(leaf.kind, leaf.dtype)
        if as_held is None or item_bytes is None or not can_be_name(name):
            unheld.append(leaf)
        else:
            held.append((leaf, TensorToWrite(name, *as_held, item_bytes * math.prod(leaf.shape))))
    seen: dict[str, str] = {}
    for leaf, tensor in held:
        if tensor.name in seen:
            msg = f"two tensors would both be named {tensor.name!r}: {seen[tensor.name]} and {leaf.name}"
            raise BadInput(msg, hint="select one of them, with the backslashes in its name")
        seen[tensor.name] = leaf.name
    _check_sizes(manifest, unheld)
    # torchao looks up every part by its own name and ignores ties in the metadata, so tied tensors must be written.
    written, tied = _untie(held) if ties and not quantized.names else (held, {})
    return ExportPlan(
        leaves=tuple(leaf for leaf, _ in written),
        tensors=tuple(tensor for _, tensor in written),
        tied=tied,
        unheld=tuple(unheld),
        values=values,
        metadata=quantized.metadata,
    )


def refuse_files(manifest: Manifest) -> None:
    """Raise if a checkpoint is not a saved state."""
    if manifest.files:
        msg = f"{manifest.name} was committed from files, so there is nothing to export"
        raise BadInput(msg, hint=f"ckstore checkout {arguments(manifest.name)} DEST writes the files")


def leaf_bytes(manifest: Manifest, leaf: LeafRecord) -> int:
    """Return the size of the elements of a leaf in bytes."""
    item_bytes = itemsize(leaf.kind, leaf.dtype)
    return manifest.storages[leaf.storage].nbytes if item_bytes is None else item_bytes * math.prod(leaf.shape)


def is_one_key(leaf: LeafRecord, name: str) -> bool:
    """Whether the written name of a tensor is a single key, as in the state dict of a module, and not a path."""
    last = _LAST_PART.search(leaf.name)
    return last is not None and name != "" and plain(last[0]) == name


def strides_of(leaf: LeafRecord) -> tuple[int, ...] | None:
    """Return the strides of a tensor, or None if it is row-major without gaps.

    The stride of a dimension of size 1 has no effect, and is returned as 0.
    """
    if leaf.strides is None or 0 in leaf.shape:
        return None
    strides = _that_matter(leaf.shape, leaf.strides)
    return None if strides == _that_matter(leaf.shape, row_major(leaf.shape)) else strides


def _that_matter(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(stride if size > 1 else 0 for size, stride in zip(shape, strides, strict=True))


def _check_sizes(manifest: Manifest, unheld: Iterable[LeafRecord]) -> None:
    large = []
    unheld = tuple(unheld)
    for leaf, name in zip(unheld, spelled(leaf.name for leaf in unheld), strict=True):
        nbytes = leaf_bytes(manifest, leaf)
        if nbytes > (UNHELD_MOST_BYTES if leaf.dtype else TEXT_MOST_BYTES):
            large.append(f"{name or 'the state itself'}: {leaf.dtype or leaf.kind}, {nbytes} bytes")
    if large:
        more = f"; and {len(large) - _SHOWN} more" if len(large) > _SHOWN else ""
        listed = "; ".join(large[:_SHOWN])
        msg = f"safetensors cannot hold these, and they are too large for a JSON file: {listed}{more}"
        raise BadInput(msg, hint="leave them out with select=, such as select='model'")


def _untie(
    held: list[tuple[LeafRecord, TensorToWrite]],
) -> tuple[list[tuple[LeafRecord, TensorToWrite]], dict[str, str]]:
    first: dict[object, str] = {}
    written, tied = [], {}
    for leaf, tensor in held:
        if tensor.nbytes:
            view = (leaf.storage, leaf.offset, leaf.kind, leaf.dtype, leaf.shape, strides_of(leaf))
            kept = first.setdefault(view, tensor.name)
            if kept != tensor.name and tensor.name not in _NOT_AS_METADATA:
                tied[tensor.name] = kept
                continue
        written.append((leaf, tensor))
    return written, tied


def _prefix_of(select: Select) -> str:
    """Return the common path of all selected names, without backslashes."""
    hint = "give select= the name of one part, such as model"
    if select is None or callable(select):
        raise BadInput("strip_prefix removes the prefix in select, but select has none", hint=hint)
    common: list[str] | None = None
    for glob in [select] if isinstance(select, str) else select:
        path = plain(glob)
        wildcard = _WILDCARD.search(path)
        if wildcard is not None:
            path = path[: wildcard.start()].rpartition(".")[0]
        parts = path.split(".")
        if common is not None:
            same = [a == b for a, b in zip(common, parts, strict=False)]
            parts = parts[: same.index(False) if False in same else len(same)]
        common = parts
    prefix = ".".join(common or [])
    if not prefix:
        raise BadInput(f"the names in select={select!r} have no common prefix to strip", hint=hint)
    return prefix


class _PrefixStripper:
    """Removes a prefix from names. If the name of a tensor is the prefix itself, its last part is kept."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, name: str) -> str:
        written = plain(name)
        rest = written.removeprefix(self._prefix)
        if rest == written or rest[:1] not in ("", ".", "["):
            msg = f"{name} does not begin with the prefix {self._prefix!r} that strip_prefix would remove"
            raise BadInput(msg, hint="write select= without backslashes, or leave strip_prefix= out")
        if rest:
            return rest.removeprefix(".")
        last = _LAST_PART.search(name)
        return plain(last[0]) if last is not None else written
