"""Check the two large sections of ``manifest.json``, the tree of nodes of the state and the files.

The tree is traversed with a list instead of recursion, because the caller may be deep in its own stack.
Source: docs/format/v1.md, "Nodes", "Names" and "Files".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from ckstore.errors import BadInput
from ckstore.model.canonical import SAFE_INT
from ckstore.model.document import MAX_DEPTH, is_big_decimal, refuse, shown
from ckstore.model.manifest.leaf_records import numpy_itemsize
from ckstore.model.manifest.manifest import MODE_MOST, FileKind, FileRecord, LeafRecord
from ckstore.model.manifest.nodes import bytes_in, decode_key, identity_of, is_float, join
from ckstore.model.manifest.python_values import CLASS_MOST, FACTORIES, is_class_name, is_python_value
from ckstore.model.names import check_path, join_key, parent_of

_INDEX_CHARS = 3
_ATTRIBUTES = object()  # represents the key of an ordered dict's attributes, which have no name and so no leaves

_STATE = object()  # represents the key of the state itself

_Children = Iterable[tuple[Any, Any]]


def check_state(state: Any, leaves: Sequence[LeafRecord], where: str, names_most: int) -> None:
    """Check that `state` is a node that names each of `leaves` once, by its path.

    `names_most` limits the characters in the paths of all values together, counted without escapes.
    """
    walk = _StateCheck(leaves, where, names_most)
    walk.down([(_STATE, state)])
    # A leaf that no node names could not be loaded, and the loss of its bytes would not be noticed.
    if not all(walk.named):
        name = leaves[walk.named.index(False)].name
        refuse(where, "state", f"one node that names the leaf {shown(name)}", "none", words=True)


class _Place:
    """The place of a container. Its name is only computed for a leaf below it.

    So a hostile manifest cannot cause long names for many empty containers.
    """

    __slots__ = ("_name", "depth", "key", "leafless", "name_chars", "parent")

    def __init__(self, parent: _Place | None, key: Any) -> None:
        self.parent = parent
        self.key = key
        self.depth: int = parent.depth + 1 if parent else 0
        self.leafless: bool = key is _ATTRIBUTES or (parent is not None and parent.leafless)
        self._name: str | None = None if parent else ""
        is_tuple = type(key) is list and key[0] == "tuple"
        own_chars = len(key) if type(key) is str else len(join("", decode_key(key))) if is_tuple else _INDEX_CHARS
        self.name_chars: int = parent.name_chars + own_chars if parent else 0

    @property
    def name(self) -> str:
        if self._name is None:
            self._name = self.parent.child(self.key) if self.parent else ""
        return self._name

    def child(self, key: Any) -> str:
        """Return the name of the value at `key`, a node; the state itself has no name."""
        if key is _ATTRIBUTES:
            return f"{self.name} (attributes)"
        if type(key) is str:
            return join_key(self.name, key)
        return "" if key is _STATE else join(self.name, decode_key(key))


class _StateCheck:
    """Check each node once."""

    def __init__(self, leaves: Sequence[LeafRecord], where: str, names_most: int) -> None:
        self.names_most = self.names_left = names_most
        self.leaves = leaves
        self.where = where
        self.named = [False] * len(leaves)

    def down(self, top: _Children) -> None:
        """Check the nodes of `top` (the state with the key `_STATE`) and all nodes below."""
        stack: list[tuple[_Place, Iterator[tuple[Any, Any]]]] = [(_Place(None, _STATE), iter(top))]
        while stack:
            place, items = stack[-1]
            for key, node in items:
                # Check common values first, because a state has hundreds of thousands of them.
                kind = type(node)
                if kind is str or kind is int or node is None or kind is bool:
                    continue
                if kind is not list or not node or type(node[0]) is not str:
                    self.refuse(place, key, "a node", node)
                children = self.array(node, place, key)
                if children is not None:
                    below = _Place(place, key)
                    if below.depth > MAX_DEPTH:
                        self.refuse(place, key, f"containers at most {MAX_DEPTH} deep", node)
                    # Names are counted, not created, because a few bytes of nesting can imply gigabytes of names.
                    self.names_left -= below.name_chars * len(node[1])
                    if self.names_left < 0:
                        self.refuse(place, key, f"names of at most {self.names_most} characters", "more", words=True)
                    stack.append((below, iter(children)))
                    break
            else:
                stack.pop()

    def array(self, node: list[Any], place: _Place, key: Any) -> _Children | None:  # noqa: RET503 - refuse
        """Check a node that is an array; return its children if it is a container."""
        tag, size = node[0], len(node)
        if tag == "leaf" and size == 2:
            self.leaf(node[1], place, key)
            return None
        if tag in ("list", "tuple") and size == 2 and type(node[1]) is list:
            return enumerate(node[1])
        if tag == "deque" and size == 3 and type(node[1]) is list and _is_maxlen(node[2], len(node[1])):
            return enumerate(node[1])
        if (tag in ("dict", "counter") and size == 2) or (tag in ("odict", "defaultdict") and size == 3):
            return self.pairs(node, place, key)
        if (tag == "parts" and size == 4) or (tag == "object" and size == 3):
            return self.parts(node, place, key)
        if (
            (tag == "float" and size == 2 and is_float(node[1]))
            or (tag == "int" and size == 2 and is_big_decimal(node[1]))
            or (tag == "complex" and size == 3 and is_float(node[1]) and is_float(node[2]))
            or (tag == "bytes" and size == 2 and bytes_in(node[1]) is not None)
            or (tag == "numpy" and size == 3 and _is_numpy_scalar(node[1], node[2]))
            or is_python_value(node)
        ):
            return None
        self.refuse(place, key, "a node", node)

    def leaf(self, index: Any, place: _Place, key: Any) -> None:
        if type(index) is not int or not 0 <= index < len(self.leaves):
            self.refuse(place, key, f"an index below {len(self.leaves)}", index)
        name = place.child(key)
        if place.leafless or key is _ATTRIBUTES:
            self.refuse(place, key, "no leaf among the attributes of a dict", self.leaves[index].name)
        if self.leaves[index].name != name:
            self.refuse(place, key, f"the leaf of that name, {shown(name)}", self.leaves[index].name)
        self.named[index] = True  # set once, because keys are unique and so are names

    def pairs(self, node: list[Any], place: _Place, key: Any) -> _Children:
        pairs = node[1]
        if type(pairs) is not list:
            self.refuse(place, key, "an array of [key, node]", pairs)
        seen: set[Any] = set()
        for pair in pairs:
            if type(pair) is not list or len(pair) != 2:
                self.refuse(place, key, "an array of [key, node]", pair)
            own = pair[0]
            if type(own) is str or type(own) is int:
                seen.add(own)
            elif (identity := identity_of(own)) is not None:
                seen.add(identity)
            else:
                self.refuse(place, key, "a string, an integer or another key", own)
        if len(seen) != len(pairs):
            self.refuse(place, key, "each key once", f"{len(seen)} of {len(pairs)}", words=True)
        if node[0] == "defaultdict" and (type(node[2]) is not str or node[2] not in FACTORIES) and node[2] is not None:
            self.refuse(place, key, f"null or one of {', '.join(FACTORIES)}", node[2])
        if node[0] != "odict":
            return pairs
        attributes = node[2]
        if attributes is not None and (type(attributes) is not list or attributes[:1] != ["dict"]):
            self.refuse(place, key, "attributes that are null or a dict", attributes)
        return [*pairs, (_ATTRIBUTES, attributes)]

    def parts(self, node: list[Any], place: _Place, key: Any) -> _Children:
        """Check the parts of a tensor, or the fields of an object; `extra` of a tensor holds no leaf."""
        if not is_class_name(node[2]):
            self.refuse(place, key, f"a class or kind of 1 to {CLASS_MOST} characters", node[2])
        pairs = list(self.pairs(["dict", node[1]], place, key))
        if any(type(own) is not str for own, _ in pairs):
            self.refuse(place, key, "names of parts that are strings", node[1])
        return [*pairs, (_ATTRIBUTES, node[3])] if node[0] == "parts" else pairs

    def refuse(self, place: _Place, key: Any, wanted: str, found: object, *, words: bool = False) -> NoReturn:
        refuse(self.where, f"state at {shown(place.child(key))}", wanted, found, words=words)


def _is_maxlen(most: Any, count: int) -> bool:
    return most is None or (type(most) is int and count <= most <= SAFE_INT)


def _is_numpy_scalar(dtype: Any, text: Any) -> bool:
    data = bytes_in(text)
    return data is not None and type(dtype) is str and len(data) == numpy_itemsize(dtype)


_KINDS: dict[str, FileKind] = {"file": "file", "directory": "directory", "symlink": "symlink"}
_TARGET_MOST = 4096
_NANOSECONDS = re.compile(r"(?:0|-?[1-9][0-9]{0,27})\Z")
_TIME_MOST_NS = 2**63 * 10**9  # Linux counts seconds in 64 bits


def read_files(items: object, storage_count: int, where: str) -> tuple[FileRecord, ...]:
    """Return the files of a manifest."""
    if not isinstance(items, list):
        refuse(where, "files", "an array", items)
    records = tuple(_record(item, i, storage_count, where) for i, item in enumerate(items))
    kinds: dict[str, str] = {}
    for record in records:
        if record.path in kinds:
            refuse(where, "files", "each path once", record.path)
        kinds[record.path] = record.kind
    for record in records:
        parent = parent_of(record.path)
        if parent and kinds.get(parent) != "directory":
            refuse(where, f"parent of {shown(record.path)}", "a directory that is listed", kinds.get(parent))
    every = [number for record in records for number in record.storages]
    if len(set(every)) != len(every):
        refuse(where, "files", "each storage in one place of one file", "one in several", words=True)
    return records


def _record(item: Any, i: int, storage_count: int, where: str) -> FileRecord:
    if type(item) is not dict:
        refuse(where, f"files[{i}]", "an object", item)
    try:
        path = check_path(item.get("path"), f"path of files[{i}]")
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}") from error
    kind = _KINDS.get(item["kind"]) if type(item.get("kind")) is str else None
    if kind is None:
        refuse(where, f"kind of {shown(path)}", ", ".join(_KINDS), item.get("kind"))
    mtime = item.get("mtime")
    if mtime is not None and (
        not isinstance(mtime, str)
        or _NANOSECONDS.match(mtime) is None
        or not -_TIME_MOST_NS <= int(mtime) < _TIME_MOST_NS
    ):
        refuse(where, f"mtime of {shown(path)}", "nanoseconds since 1970 as decimal digits", mtime)
    mtime_ns = None if mtime is None else int(mtime)
    if kind == "symlink":
        target = item.get("target")
        if type(target) is not str or not 1 <= len(target) <= _TARGET_MOST or "\0" in target:
            refuse(where, f"target of {shown(path)}", f"a text of 1 to {_TARGET_MOST} characters", target)
        return FileRecord(path, kind, target=target)
    mode = item.get("mode")
    if type(mode) is not int or not 0 <= mode <= MODE_MOST:
        refuse(where, f"mode of {shown(path)}", f"an integer from 0 to {MODE_MOST}", mode)
    if kind == "directory":
        return FileRecord(path, kind, mode, mtime_ns=mtime_ns)
    storages = item.get("storages")
    if type(storages) is not list or any(type(s) is not int or not 0 <= s < storage_count for s in storages):
        refuse(where, f"storages of {shown(path)}", f"an array of indexes below {storage_count}", storages)
    return FileRecord(path, kind, mode, tuple(storages), mtime_ns=mtime_ns)
