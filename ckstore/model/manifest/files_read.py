"""Check the committed files that ``manifest.json`` lists. Source: docs/format/v1.md, "Files"."""

from __future__ import annotations

import re
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.document import refuse, shown
from ckstore.model.manifest.manifest import MODE_MOST, FileKind, FileRecord
from ckstore.model.manifest.paths import check_path, parent_of

_KINDS: dict[str, FileKind] = {"file": "file", "directory": "directory", "symlink": "symlink"}
_TARGET_MOST = 4096
_NANOSECONDS = re.compile(r"(?:0|-?[1-9][0-9]{0,27})\Z")
_TIME_MOST_NS = 2**63 * 10**9
"""Linux counts seconds in 64 bits."""


def read_files(items: object, storage_count: int, where: str) -> tuple[FileRecord, ...]:
    """Return the files of a manifest.

    Args:
        items: Its member ``files``.
        storage_count: How many storages it has.
        where: Its path, for messages.

    Raises:
        BadInput: It is not as the format says.
    """
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
    mtime_ns = _mtime_ns(item.get("mtime"), path, where)
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


def _mtime_ns(text: object, path: str, where: str) -> int | None:
    if text is None:
        return None
    if not isinstance(text, str) or _NANOSECONDS.match(text) is None or not -_TIME_MOST_NS <= int(text) < _TIME_MOST_NS:
        refuse(where, f"mtime of {shown(path)}", "nanoseconds since 1970 as decimal digits", text)
    return int(text)
