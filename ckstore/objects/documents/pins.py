"""Read and write the files in ``pins/``. Source: docs/format/v1.md, "Pins"."""

from __future__ import annotations

from functools import partial

from ckstore.errors import CkstoreError, DamagedBlob
from ckstore.fs import dirfd_stat, files, links
from ckstore.model.checkpoint.pins import PIN_MAX_BYTES, Pin, file_name, parse_pin, pin_name
from ckstore.model.seal import read, to_write
from ckstore.objects.documents import atomic_file
from ckstore.objects.layout import Layout


def read_pins(layout: Layout) -> list[Pin]:
    """Return all pins, including expired ones, sorted by name."""
    try:
        names = sorted(name for entry in dirfd_stat.names(layout.pins) if (name := pin_name(entry)) is not None)
    except FileNotFoundError:  # a copy of the store may lack empty directories
        layout.check_exists(layout.settings)
        return []
    return [pin for name in names if (pin := _read(layout, name)) is not None]


def _read(layout: Layout, name: str) -> Pin | None:
    path = layout.pins / file_name(name)
    try:
        data = files.read_file(path, most_bytes=PIN_MAX_BYTES)
        pin = read(data, partial(parse_pin, name), str(path))
    except FileNotFoundError:  # another process has removed the pin
        return None
    except CkstoreError as error:
        if not error.hint or isinstance(error, DamagedBlob):
            error.hint = (
                f"no checkpoint is deleted until it is known what this pin protects; unpin({name!r}) removes the pin"
            )
        raise
    return pin


def write_pin(layout: Layout, pin: Pin, *, instead_of: Pin | None = None) -> None:
    """Write the file of a pin durably. The caller has locked the pinned checkpoint for use.

    With `instead_of`, do nothing unless the store still has that pin.
    """
    name = file_name(pin.name)
    where = str(layout.pins / name)
    data = to_write(pin, partial(parse_pin, pin.name), most_bytes=PIN_MAX_BYTES, where=where)
    # A copied store may lack empty directories.
    links.make_directory(layout.pins)
    # All small files of the store are written under one lock, because the files in a directory share a temporary name.
    with atomic_file.changing(layout) as lock, files.opened_directory(layout.pins) as fd:
        if instead_of is not None and _read(layout, instead_of.name) != instead_of:
            return
        atomic_file.replace_file(layout, lock, fd, name, data)


def remove_pin(layout: Layout, name: str) -> bool:
    """Durably remove a pin, whatever its file contains. Return False if it does not exist."""
    if pin_name(file_name(name)) is None:
        return False
    try:
        # Take the lock. Otherwise, a process that is moving the pin to another checkpoint could write it again.
        with atomic_file.changing(layout):
            links.unlink(layout.pins / file_name(name))
    except FileNotFoundError:
        return False
    # Sync the directory. Otherwise, a power cut could restore the pin, which would then protect its checkpoint again.
    files.sync_directory(layout.pins)
    return True
