"""Read legacy files, which torch.save wrote before torch 1.6, or with ``_use_new_zipfile_serialization=False``.

`_legacy_save` of torch/serialization.py writes such a file as five pickles: a magic number, a version, facts about the
machine, the value, and the keys of the storages of the value. The storages follow in the order of the keys. Each
storage has the number of its elements in 8 bytes, and then its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ckstore.containers.parsed_values import MAX_TENSORS, RandomAccess, Refused, refuse
from ckstore.containers.pickle_values import Storage
from ckstore.containers.torch_pickle import MAX_PICKLE_BYTES, read_first_pickle
from ckstore.model.document import shown

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
# The opcode LONG1 with ten bytes.
_MAGIC_BYTES = b"\x8a\x0a" + MAGIC.to_bytes(10, "little")
# The magic number follows the number of the protocol, or, from protocol 4 on, the head of a frame.
_HEAD_BYTES = 32
# Most pickles end in the first MiB, so a file of 10 GB need not be read completely.
_WINDOWS_BYTES = (2**20, 2**23)
_COUNT_BYTES = 8


@dataclass(frozen=True, slots=True)
class Legacy:
    """The content of a legacy file."""

    value: Any  # as `torch_pickle.read_pickle` returns it
    spans: dict[str, tuple[int, int]]  # key of a storage -> start and end of its bytes in the file
    pickle_bytes: int  # total size of its pickles


def looks_like_legacy(file: RandomAccess) -> bool:
    """Whether the file begins with a pickle of the magic number."""
    head = file.read(0, min(_HEAD_BYTES, file.nbytes))
    return head[:1] == b"\x80" and _MAGIC_BYTES in head


def read_legacy(file: RandomAccess) -> Legacy:
    """Return the value of a legacy file, and the locations of its storages. The bytes of the storages are not read."""
    value, keys, at, storages = _read_pickles(file)
    spans = {}
    pickle_bytes = at
    for key in keys:
        storage = storages.get(key)
        if storage is None or key in spans:
            refuse("the keys of the storages", "each storage once", shown(key))
        if at + _COUNT_BYTES > file.nbytes:
            refuse(f"the storage {shown(key)}", "its count of elements", "the end of the file")
        count = int.from_bytes(file.read(at, _COUNT_BYTES), "little")
        start = at + _COUNT_BYTES
        at = start + count * storage.item_bytes
        # The count is checked before it is used, because a forged count must not become a size.
        if count != storage.count or at > file.nbytes:
            refuse(f"the storage {shown(key)}", f"{storage.count} elements inside the file", count)
        spans[key] = (start, at)
    if at != file.nbytes:
        refuse("the last storage", f"an end at the end of the file, byte {file.nbytes}", at)
    return Legacy(value, spans, pickle_bytes)


def _read_pickles(file: RandomAccess) -> tuple[Any, list[Any], int, dict[str, Storage]]:
    """Return the value, the keys of the storages, the start of the first storage, and the storages in the value."""
    # The length of the pickles is unknown, so larger parts of the file are read until the pickles end within them.
    for some_bytes in _WINDOWS_BYTES:
        if some_bytes < file.nbytes:
            try:
                return _parse(file.read(0, some_bytes))
            # The pickles do not end within this part, or they are invalid. A larger part shows which.
            except Refused:
                continue
    return _parse(file.read(0, min(MAX_PICKLE_BYTES, file.nbytes)))


def _parse(data: bytes) -> tuple[Any, list[Any], int, dict[str, Storage]]:
    magic, at = _next(data, 0)
    version, at = _next(data, at)
    machine, at = _next(data, at)
    if (magic, version) != (MAGIC, VERSION):
        refuse("the head of the file", f"the magic number and version {VERSION}", shown(version))
    # Elements from a big-endian machine would be read with their bytes reversed.
    if type(machine) is not dict or machine.get("little_endian") is not True:
        refuse("the machine information", "little_endian", "something else")
    storages: dict[str, Storage] = {}
    value, at = _next(data, at, storages)
    keys, at = _next(data, at)
    if type(keys) is not list or len(keys) > MAX_TENSORS or any(type(key) is not str for key in keys):
        refuse("the keys of the storages", f"a list of at most {MAX_TENSORS} strings", "something else")
    return value, keys, at, storages


def _next(data: bytes, at: int, storages: dict[str, Storage] | None = None) -> tuple[Any, int]:
    value, nbytes = read_first_pickle(data[at:], storages)
    return value, at + nbytes
