"""Look at the catalog and at the small files of a store: settings, tags, pins, annotations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.catalog import CatalogUnavailable
from ckstore.errors import CkstoreError, InUse, NewerFormat
from ckstore.fs import files
from ckstore.model.names import is_tag
from ckstore.model.pins import file_name, parse_pin, pin_name
from ckstore.model.verify_report import Finding
from ckstore.objects.annotations import read_annotations
from ckstore.objects.checkpoints import look
from ckstore.ops.config import retention_of
from ckstore.ops.create import read_settings
from ckstore.ops.recover import catch_up

if TYPE_CHECKING:
    from ckstore.model.published import Published
    from ckstore.ops.checker import Checker
    from ckstore.ops.context import Context

_TIMEOUT_S = 10.0
_PIN_MAX_BYTES = 2**20
Key = tuple[str, int]


def catalog_findings(context: Context, checker: Checker, *, may_write: bool, thorough: bool) -> Iterator[Finding]:
    """Compare the catalog with the directories that `checker` has looked at, and make it equal to them.

    Args:
        context: The store.
        checker: Has looked at every checkpoint.
        may_write: Whether to mend it.
        thorough: Look for damage in the file, too.
    """
    try:
        problems = context.catalog.check() if thorough else []
        if problems and may_write:
            context.catalog.set_aside(timeout_s=_TIMEOUT_S, force=True)
            catch_up(context)
            yield Finding("catalog", f"the catalog was damaged and is made anew: {problems[0]}", mended=True)
        elif problems:
            yield Finding("catalog", f"the catalog is damaged: {problems[0]}")
        if may_write:
            catch_up(context)  # what others have published and not entered yet is no error
        stale = _differing(context, checker)
        if stale and may_write:
            _write_anew(context, stale)
        for run, step in stale:
            yield Finding("catalog", f"the catalog says something else about {run}@{step}", mended=may_write)
    except (CatalogUnavailable, InUse, NewerFormat) as error:
        yield Finding("catalog", f"the catalog cannot be compared: {error.message}")


def _differing(context: Context, checker: Checker) -> list[Key]:
    """Return the whole checkpoints of which the catalog says something else than the manifest."""
    listing = context.catalog.listing()
    rows = {(info.run, info.step): replace(info, tags=()) for info in context.catalog.infos()}
    found = []
    for (run, step), (info, used) in sorted(checker.infos.items()):
        seen = look(context.layout, run, step).published
        if seen is None or seen.manifest_id != info.id:  # not whole, or another one by now
            continue
        same = rows.get((run, step)) == info and listing.get((run, step)) == seen.dir_inode
        if not same or hash(frozenset(context.catalog.blobs_of(run, step))) != used:
            found.append((run, step))
    return found


def _write_anew(context: Context, keys: list[Key]) -> None:
    def nothing(_run: str, _step: int) -> None:
        return None

    def there(run: str, step: int) -> Published | None:
        return look(context.layout, run, step).published

    # Rows with the right id are taken for right, so they go first. Between the two the links protect the blobs.
    context.catalog.reconcile(keys, nothing, timeout_s=_TIMEOUT_S)
    context.catalog.reconcile(keys, there, timeout_s=_TIMEOUT_S, tags=context.layout.tags)


def file_findings(context: Context) -> Iterator[Finding]:
    """Say which of the small files cannot be read, or point to nothing."""
    yield from _settings(context)
    yield from _tags(context)
    yield from _pins(context)
    for run, step, _ in sorted(context.layout.published()):
        path = context.layout.checkpoint(run, step)
        try:
            read_annotations(path)
        except (CkstoreError, OSError) as error:
            yield Finding("notes", f"what was added to {run}@{step} cannot be read: {error}", str(path), harmful=True)


def _settings(context: Context) -> Iterator[Finding]:
    layout = context.layout
    try:
        found = read_settings(layout.root)
        if found != context.settings:
            what = f"{layout.settings} says something else than when the store was opened: {found}"
            yield Finding("settings", what, layout.settings.name, harmful=True)
    except (CkstoreError, OSError) as error:
        yield Finding("settings", str(error), layout.settings.name, harmful=True)
    try:
        retention_of(context)
    except (CkstoreError, OSError) as error:
        yield Finding("settings", str(error), layout.config.name, harmful=True)


def _tags(context: Context) -> Iterator[Finding]:
    """Everything in ``refs/`` is a tag that points to a checkpoint; writers begin their temporary names with a dot."""
    layout = context.layout
    targets = layout.tags()
    for name in sorted(os.listdir(layout.refs)) if layout.refs.is_dir() else ():
        if name.startswith("."):
            continue
        if name not in targets or not is_tag(name):
            yield Finding("tag", f"refs/{name} is no tag: no relative symlink to a checkpoint", name, harmful=True)
        elif not layout.checkpoint(*targets[name]).is_dir():
            run, step = targets[name]
            yield Finding("tag", f"the tag {name} points to {run}@{step}, which is not there", name, harmful=True)


def _pins(context: Context) -> Iterator[Finding]:
    layout = context.layout
    for entry in sorted(os.listdir(layout.pins)) if layout.pins.is_dir() else ():
        name = pin_name(entry)
        if name is None:
            if not entry.startswith("."):
                yield Finding("pin", f"pins/{entry} is no pin by its name", entry, harmful=True)
            continue
        path = layout.pins / file_name(name)
        try:
            pin = parse_pin(files.read_file(path, most_bytes=_PIN_MAX_BYTES), name, str(path))
        except FileNotFoundError:  # unpinned meanwhile
            continue
        except (CkstoreError, OSError) as error:
            yield Finding("pin", f"the pin {name} cannot be read: {error}", entry, harmful=True)
            continue
        if not layout.checkpoint(pin.run, pin.step).is_dir():
            yield Finding("pin", f"the pin {name} is for {pin.run}@{pin.step}, which is not there", entry)
