"""Open a store: look at its place, find its catalog, and set right what opening sets right."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ckstore.errors import BadInput
from ckstore.fs import peek
from ckstore.fs.host.mounts import examine
from ckstore.fs.owner import may_give
from ckstore.model.doctor.owners import OwnerFacts, check_owner, check_permissions
from ckstore.model.doctor.place import PlaceFacts, check_place, durability
from ckstore.objects.layout import Layout
from ckstore.ops.context import Context
from ckstore.ops.index.catalog_place import catalog_of, is_private, make_folder, place_of, refuse_foreign, why_shared
from ckstore.ops.open.create import read_settings

_NEW = "not made yet"


def check_new(root: Path, catalog_path: Path | None) -> None:
    """Raise, before anything is made, if a new store at `root` could not have its catalog."""
    # The root may not exist yet: its filesystem is that of the nearest directory that does.
    existing = next(folder for folder in (root, *root.parents) if folder.is_dir())
    catalog = catalog_of(examine(existing), root, _NEW, catalog_path)
    try:
        refuse_foreign(catalog)
    except BadInput:
        if not peek.exists(Layout(root).settings):  # else it is of a store that another process made here meanwhile
            raise


def open_context(
    root: Path, *, run: str | None = None, readonly: bool, recover: bool, catalog_path: Path | None
) -> tuple[Context, tuple[str, ...]]:
    """Return the open store at `root`, and what the user should know; see `ckstore.Store.open`."""
    settings = read_settings(root)
    place, unread = place_of(root)
    notes = unread + _notes_at_opening(place, readonly=readonly)
    # access knows read-only mounts and ACLs; the mode bits do not.
    if not readonly and not os.access(root, os.W_OK):
        readonly = True
        notes += (f"{root} is not writable for this user: opened for reading only",)
    catalog = catalog_of(place, root, settings.uuid, catalog_path)
    # By the filesystem and the settings, not by a trial: locks and leases of other hosts cannot be tried from one
    # host (docs/adr/0005).
    shared = why_shared(place, catalog, root, catalog_path)
    if is_private(catalog, root):
        if not readonly:
            # Not for a reader, which must leave no trace.
            make_folder(catalog)
        refuse_foreign(catalog)
    context = Context(
        layout=Layout(root, shared=bool(shared), hash_prefix=settings.algorithm.prefix),
        settings=settings,
        catalog=catalog,
        readonly=readonly,
        durable=place.durable,
        not_durable_because="" if place.durable else durability(place).found,
        shared=shared,
        is_assumed_shared=bool(unread),
        catalog_is_private=is_private(catalog, root),
        run=run,
    )
    if recover and not readonly:
        from ckstore.ops.open.recover import try_recover

        notes += tuple(try_recover(context))
    return context, notes


def _notes_at_opening(place: PlaceFacts, *, readonly: bool) -> tuple[str, ...]:
    """Return what costs or weakens a promise, one sentence each."""
    # `place`: the filesystem of the store. `readonly`: then whose the store is does not matter.
    status = os.stat(place.path)
    # Numbers, not names: looking a name up may ask a directory service, which may not answer.
    facts = OwnerFacts(
        path=place.path,
        mode=stat.S_IMODE(status.st_mode),
        owner=f"uid {status.st_uid}",
        owner_id=status.st_uid,
        process_id=os.geteuid(),
        may_give=os.geteuid() != 0 or may_give(),
    )
    findings = [*check_place(place), check_permissions(facts)]
    if not readonly:
        findings.append(check_owner(facts))
    return tuple(finding.found for finding in findings if finding.level in ("warning", "error"))
