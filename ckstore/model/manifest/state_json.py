"""Convert values of a state to readable JSON for the ``state.json`` of an export, without I/O.

Source: docs/how-to/export.md. None, booleans, strings, finite floats and integers within 2^53 are written directly. Any
other value is written as an object that names its type, so that only the types of containers are lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ckstore.model.canonical import fits_json
from ckstore.model.manifest.manifest import LeafRecord, Node
from ckstore.model.manifest.nodes import (
    DICTS,
    PAIRS,
    SEQUENCES,
    bytes_of_text,
    decode_key,
    join,
    numpy_number,
    text_of_bytes,
    text_of_leaf,
)
from ckstore.model.names import join_index

_NAN_BITS = "7ff8000000000000"
_NAMED = {"7ff0000000000000": "inf", "fff0000000000000": "-inf", _NAN_BITS: "nan"}


@dataclass(slots=True)
class PlainValues:
    """The values of a state that are neither leaves nor non-empty containers."""

    values: list[tuple[str, Node]] = field(default_factory=list)  # name and node of each, in the order of the state
    # Name and node of each attribute. These are the attributes of ordered dicts (named after the dict and the
    # attribute), ``.kind`` and ``.extra`` of tensors with several parts, and ``.class`` of objects.
    attributes: list[tuple[str, Node]] = field(default_factory=list)
    # Names of the ordered dicts whose ``_metadata`` contains only the versions of modules.
    torch_versions: list[str] = field(default_factory=list)


def plain_values(state: Node, leaves: tuple[LeafRecord, ...], keep: Callable[[str], bool] | None) -> PlainValues:
    """Return the values in `state` that are not leaves.

    Args:
        state: The node of the state.
        leaves: The leaves of the state.
        keep: Returns whether a name is selected. If None, all names are selected. Attributes are included if any value
            in their dict is selected.
    """
    found = PlainValues()
    _ValueCollector(found, leaves, keep).node(state, "")
    return found


class _ValueCollector:
    def __init__(self, found: PlainValues, leaves: tuple[LeafRecord, ...], keep: Callable[[str], bool] | None) -> None:
        self._found = found
        self._leaves = leaves
        self._keep = keep

    def node(self, node: Node, path: str) -> bool:
        """Collect the values at and below `node`; return whether any of them, including leaves, is selected."""
        tag = node[0] if isinstance(node, list) else None
        if tag == "leaf":
            return self._keep is None or self._keep(self._leaves[node[1]].name)
        wanted = False
        if tag in SEQUENCES and node[1]:
            for i, item in enumerate(node[1]):
                wanted |= self.node(item, join_index(path, i))
        elif tag in PAIRS and node[1]:
            for own, item in node[1]:
                wanted |= self.node(item, join(path, decode_key(own)))
        else:
            wanted = self._keep is None or self._keep(path)
            if wanted:
                self._found.values.append((path, node))
        if wanted and tag == "odict" and node[2] is not None:
            self._attributes(node[2], path)
        if wanted and tag == "object":
            self._found.attributes.append((join(path, "class"), node[2]))
        if wanted and tag == "parts":
            self._found.attributes.append((join(path, "kind"), node[2]))
            inner = PlainValues()
            _ValueCollector(inner, self._leaves, None).node(node[3], join(path, "extra"))
            self._add_attributes(inner)
        return wanted

    def _attributes(self, node: Node, path: str) -> None:
        inner = PlainValues()
        for own, item in node[1]:
            key = decode_key(own)
            if key == "_metadata" and _only_versions(item):
                self._found.torch_versions.append(path)
            else:
                _ValueCollector(inner, self._leaves, None).node(item, join(path, key))
        self._add_attributes(inner)

    def _add_attributes(self, inner: PlainValues) -> None:
        # Attributes of attributes are written like other attributes. They occur only in tests.
        self._found.attributes += inner.values + inner.attributes
        self._found.torch_versions += inner.torch_versions


def _only_versions(node: Node) -> bool:
    """Return whether a node only has the versions that torch attaches to a state dict: ``{module: {"version": 1}}``."""
    if not isinstance(node, list) or node[0] not in DICTS or (node[0] == "odict" and node[2] is not None):
        return False
    return all(
        isinstance(item, list) and item[0] == "dict" and [own for own, _ in item[1]] in (["version"], [])
        for _, item in node[1]
    )


def json_of_node(node: Node) -> Any:
    """Return the JSON value of a node that is neither a leaf nor a non-empty container."""
    if isinstance(node, str):
        return json_of_text(node)
    if not isinstance(node, list):
        return node
    tag = node[0]
    if tag == "float":
        return _float(node[1])
    if tag == "complex":
        return {"complex": [_float(node[1]), _float(node[2])]}
    if tag == "numpy":
        # Add the plain number to the bytes if JSON supports the number.
        value = numpy_number(node[1], bytes_of_text(node[2]))
        readable = {} if value is None or not math.isfinite(value) else {"value": value}
        return {"numpy": node[1], "data": node[2], **readable}
    if tag in SEQUENCES:
        return []
    if tag in PAIRS:
        return {}
    return {str(tag): node[1] if len(node) == 2 else node[1:]}


def json_of_text(text: str) -> Any:
    """Return a string unchanged, unless JSON would change it."""
    return text if fits_json(text) else {"utf-8": text_of_bytes(text.encode("utf-8", "surrogatepass"))}


def json_of_leaf(leaf: LeafRecord, data: bytes) -> Any:
    """Return the JSON value of a leaf with these bytes, which are row-major for a tensor."""
    if leaf.kind == "str":
        return json_of_text(text_of_leaf(leaf, data))
    if leaf.kind in ("bytes", "bytearray", "io.BytesIO"):
        return {leaf.kind: text_of_bytes(data)}
    return {leaf.kind: leaf.dtype, "shape": list(leaf.shape), "data": text_of_bytes(data)}


def _float(x: float | str) -> Any:
    if not isinstance(x, str):
        return float(x)
    return {"float": _NAMED[x]} if x in _NAMED else {"float": "nan", "bits": x}
