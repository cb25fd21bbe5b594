"""Create a store, or open one and recover it.

A store exists as soon as ``store.json`` exists under its final name. The next `create` completes a partly created
store. Several processes may create the same store at the same time. No process removes a name that another process has
created, and ``store.json`` is never replaced. Opening a store examines its filesystem and finds its catalog. Opening a
store for writing also moves dead saves to trash, and updates the catalog from the directories.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from ckstore.errors import BadInput, CatalogUnavailable, CkstoreError, InUse, NewerFormat
from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.fs.dirfd_stat import AnyPath, may_give
from ckstore.fs.host import probe
from ckstore.fs.host.mounts import examine
from ckstore.fs.tree import foreign
from ckstore.interpreter import log
from ckstore.model.doctor.owners import OwnerFacts, check_owner, check_permissions
from ckstore.model.doctor.place import PlaceFacts, check_place, durability
from ckstore.model.seal import to_write
from ckstore.model.settings.settings import CHECKPOINT_IDS, SETTINGS_MAX_BYTES, StoreSettings, parse_settings
from ckstore.model.similar_names import similar_names
from ckstore.model.times import text_of_time
from ckstore.objects.layout import HostView, Layout
from ckstore.ops.api_calls import describe_error, describe_os_error
from ckstore.ops.context import Context, Subscriber
from ckstore.ops.index.catalog_place import (
    catalog_of,
    is_private,
    make_folder,
    place_of,
    refuse_foreign,
    why_other_hosts,
)
from ckstore.ops.notices import warn
from ckstore.ops.settings_file import read_settings

# Creating a store takes a dozen fsyncs, which can take seconds on a busy disk.
_LOCK_TIMEOUT_S = 30.0
# Other users have no access. A user who wants to share a store must change its mode deliberately.
_DIRECTORY_MODE = 0o700
_CREATE_TRIES = 10
_NEW = "not made yet"
_SETTINGS = "store.json"
_FRESH = re.compile(r"store\.json\.[0-9a-f]{12}")


def create(root: Path, *, hash_name: str, chunk_bytes: int) -> bool:
    """Create a store in the directory `root`, with missing parents; return False if the store already exists."""
    dirfd_stat.open_closed_streams()
    now = text_of_time(datetime.now(UTC))
    settings = StoreSettings(
        uuid=str(uuid.uuid4()), hash=hash_name, chunk_bytes=chunk_bytes, created=now, requires=(CHECKPOINT_IDS,)
    )
    settings.algorithm.start()  # this raises now if the package for the algorithm is missing
    layout = Layout(root)
    if not dirfd_stat.exists(layout.settings):
        refuse_inside(root)
    for _ in range(_CREATE_TRIES - 1):
        with suppress(FileNotFoundError):  # another process failed and removed a directory that this process used
            return _create(layout, settings)
    return _create(layout, settings)


def _create(layout: Layout, settings: StoreSettings) -> bool:
    with _removed_without_store(layout) as made:
        _make_parents(layout.path.parent, made)
        if links.make_directory(layout.root, mode=_DIRECTORY_MODE):
            made.append(layout.path)
        with locks.lock_exclusive(layout.root, timeout_s=_LOCK_TIMEOUT_S):
            return _fill(layout, settings)


def _make_parents(folder: Path, made: list[AnyPath]) -> None:
    """Create a directory and its missing parents, like mkdir -p, and make each name durable before the next.

    Args:
        folder: The directory.
        made: A list to which the created directories are added.
    """
    missing = []
    while not dirfd_stat.exists(folder):
        missing.append(folder)
        folder = folder.parent
    try:
        with os.scandir(folder) as entries:
            is_empty = next(entries, None) is None
    except PermissionError:  # then ckstore did not create the directory
        is_empty = False
    # Perhaps a process created the empty directory, but died before syncing its name.
    if is_empty:
        files.sync_name(folder)
    for path in reversed(missing):
        try:
            os.mkdir(path)
            made.append(path)
        except FileExistsError:  # another process has created it, but may die before syncing the name
            pass
        files.sync_name(path)


@contextmanager
def _removed_without_store(layout: Layout) -> Iterator[list[AnyPath]]:
    """Yield a list for created directories, parents first; remove them if the block fails and no store exists."""
    made: list[AnyPath] = []
    try:
        yield made
    except BaseException:
        # Errors here are ignored, so that the error of the block is reported. A directory that another process uses is
        # kept, since it is not empty, and all directories are kept if another host has completed the store.
        with suppress(OSError):
            if not dirfd_stat.exists(layout.settings):
                for path in reversed(made):
                    with suppress(OSError):
                        links.remove_directory(path)
        raise


def tell_made(root: Path) -> None:
    """Log that a store was created, and warn if the user may have meant an existing store with a similar name."""
    text = f"created a new store at {root}"
    beside = foreign(root.parent)
    try:
        names = [name for name, _, is_directory in dirfd_stat.listed(beside) if is_directory]
        similar = similar_names(root.name, names)
        other = next((name for name in similar if dirfd_stat.exists(beside / name / _SETTINGS)), None)
    except OSError:  # a user who may not list the directory may still create a store in it
        other = None
    if other is None:
        log(logging.INFO, text)
    else:
        warn(f"{text}. {root.parent / other} is also a store; if you want that one, open it")


def _fill(layout: Layout, settings: StoreSettings) -> bool:
    """Create the missing parts, ``store.json`` last; return False if another process was faster."""
    # The caller has locked the root, but the lock may not reach other hosts.
    if dirfd_stat.exists(layout.settings):
        return False
    try:
        # If `_make` fails, the directories are removed under the lock, before another process of this host finds them.
        with _removed_without_store(layout) as made:
            _make(layout, settings, made)
    except OSError:  # another host may have created the store meanwhile, and filled the disk
        if dirfd_stat.exists(layout.settings):
            return False  # opening the store makes its names durable, in case its creator died
        raise
    files.sync_directory(layout.root)  # opening also syncs the root, but a failure there becomes a note and no error
    files.sync_name(layout.path)
    return True


def _make(layout: Layout, settings: StoreSettings, made: list[AnyPath]) -> None:
    _refuse_foreign(layout)
    # `extend` with a generator adds each directory immediately, so that the list is complete if a later mkdir fails.
    made.extend(directory for directory in layout.directories if links.make_directory(directory))
    # Test the place before creating store.json, so that no store exists in an unsuitable place.
    probe.try_links(layout.staging, layout.linked)
    fresh = layout.root / f"store.json.{uuid.uuid4().hex[:12]}"
    try:
        where = str(layout.settings)
        data = to_write(settings, parse_settings, most_bytes=SETTINGS_MAX_BYTES, where=where)
        # The file must be complete and durable before it gets its final name (law D1).
        files.create_file(fresh, data, mode=0o444)
        links.link(fresh, layout.settings)  # a link never replaces an existing file
    finally:
        with suppress(OSError):  # if this fails, the next opening removes the temporary name
            links.unlink(fresh)


def refuse_inside(root: Path) -> None:
    """Refuse a place in another store, which sweeps away foreign data in its ``staging/`` and ``trash/``."""
    for parent in dirfd_stat.resolved(root).parents:
        around = Layout(parent)
        if dirfd_stat.find(parent / around.settings.name) and dirfd_stat.is_directory(parent / around.checkpoints.name):
            raise BadInput(f"{root} is in the store {parent}", hint="choose a directory outside it")


def _refuse_foreign(layout: Layout) -> None:
    ours = {path.name for path in layout.directories}
    present = dirfd_stat.names(layout.root)
    foreign = sorted(name for name in present if name not in ours and not _FRESH.fullmatch(name))
    # Files next to a store.json belong to a store that another host has just created and opened.
    if foreign and layout.settings.name not in present and not dirfd_stat.exists(layout.settings):
        msg = f"{layout.root} is neither empty nor a store: it contains {', '.join(foreign[:5])}"
        raise BadInput(msg, hint="choose a new or empty directory")


def remove_leftovers(layout: Layout) -> None:
    """Remove ``store.json.*``, the temporary files of processes that died or failed while creating this store."""
    for name in dirfd_stat.names(layout.root):
        if _FRESH.fullmatch(name):
            with suppress(FileNotFoundError):
                links.unlink(layout.root / name)


def recover(context: Context) -> list[str]:
    """Move dead stagings to trash, enter published checkpoints into the catalog, and empty the trash.

    This function may be called repeatedly, and by several processes at the same time.

    Returns:
        Notes for the user.

    Raises:
        OSError: The system refused an operation. The store is unchanged or partly recovered.
    """
    from ckstore.objects import reserve, trash  # readers do not need these modules
    from ckstore.ops.index.catalog_update import catch_up

    notes: list[str] = []
    layout = context.layout
    if not dirfd_stat.exists(layout.checkpoints) and trash.names_in(layout.blobs):  # the store has had checkpoints
        layout.check_exists(layout.checkpoints)
    try:
        links.make_missing(layout.directories)  # a copy of a store may lack empty directories
        with _unless_full():
            probe.check_able(layout.root, layout.directories, layout.staging, layout.linked)
    finally:
        # Do this even if the test failed, since another process may have created a directory and died before syncing
        # its name (law N2).
        _make_store_durable(context)
    if CHECKPOINT_IDS not in context.settings.requires:
        from ckstore.ops.open.draft_conversion import convert  # few stores have a draft format

        # Convert before sweeping: if a process of a draft version died while replacing a checkpoint, the sweep would
        # treat that checkpoint as a dead save.
        notes += [f"not converted: {text}" for text in convert(context).left]
    stayed: list[str] = []
    # Without `sees_locks`, the lock of a running save on another host is not visible, so nothing may be swept.
    if context.view.sees_locks:
        failed: dict[str, OSError | CkstoreError] = {}
        trash.sweep_staging(layout, failed)  # gc makes the renames durable before it deletes the directories (law T2)
        stayed = [f"{path} of a dead save is kept: {describe_error(error)}" for path, error in failed.items()]
    probe.remove_leftovers(layout.staging, layout.linked)
    said: list[str] = []
    try:
        said = catch_up(context, "names")
    except NewerFormat:
        raise
    except (CatalogUnavailable, InUse) as error:
        full = f"the filesystem of {layout.root} is full, so the catalog is not used; ckstore gc frees space"
        notes.append(full if reserve.is_full(layout) else f"the catalog is not used for now: {error.message}")
    # Empty the trash after updating the catalog, since the update records the blobs that lost their last use.
    if trash.names_in(layout.trash):
        from ckstore.ops.free.reclaim import free_unused  # this import takes a tenth of the time of an opening

        free_unused(context)
    # Fill the reserve last, so that it can use the space that was freed.
    reserve.fill(layout)
    remove_leftovers(layout)
    for note in (*stayed, *said):
        warn(note)
    context.tell_passed_over()
    return stayed + said + notes


def _make_store_durable(context: Context) -> None:
    """Make the name of the store and the names in its root durable, since all checkpoints depend on them (law N2).

    Raises:
        OSError: The fsync failed, so this process must not write to the store.
    """
    try:
        files.sync_directory(context.layout.root)
        files.sync_name(context.layout.path)
    except OSError as error:
        context.writes_disabled_because = f"{context.layout.root} could not be made durable: {error.strerror}"
        raise


@contextmanager
def _unless_full() -> Iterator[None]:
    """Suppress errors of a full disk in the block, because a store on a full disk must be opened for gc."""
    try:
        yield
    except OSError as error:
        if error.errno not in files.NO_SPACE:
            raise


def try_recover(context: Context) -> list[str]:
    """Call `recover`, and return notes for the user; a system error becomes a note."""
    try:
        return recover(context)
    except CkstoreError:
        raise
    except OSError as error:
        return [f"recovery while opening the store failed: {describe_os_error(error)}"]


def check_new(root: Path, catalog_path: Path | None) -> None:
    """Raise, before anything is created, if a new store at `root` could not use its catalog."""
    # If the root does not exist yet, its filesystem is that of the nearest existing parent.
    existing = next(folder for folder in (root, *root.parents) if folder.is_dir())
    catalog = catalog_of(examine(existing), root, _NEW, catalog_path)
    try:
        refuse_foreign(catalog)
    except BadInput:
        # If the store exists now, another process has just created it, and the catalog belongs to it.
        if not dirfd_stat.exists(Layout(root).settings):
            raise


def open_context(
    root: Path,
    *,
    run: str | None = None,
    readonly: bool,
    recover: bool,
    catalog_path: Path | None,
    subscribers: Sequence[Subscriber] = (),
) -> tuple[Context, tuple[str, ...]]:
    """Return the open store at `root`, and notes for the user; see `ckstore.Store.open`."""
    dirfd_stat.open_closed_streams()
    settings = read_settings(root)
    place, unread = place_of(root)
    notes = unread + _notes_at_opening(place, readonly=readonly)
    # `access` considers read-only mounts and ACLs, which the mode bits do not show.
    if not readonly and not os.access(root, os.W_OK):
        readonly = True
        notes += (f"{root} is not writable for this user: opened for reading only",)
    catalog = catalog_of(place, root, settings.uuid, catalog_path)
    # Decide by the filesystem and the settings, since a test on one host cannot show whether it sees the locks and
    # leases of other hosts (docs/adr/0005).
    view = HostView(why_other_hosts(place, catalog, root, catalog_path), is_assumed=bool(unread))
    if is_private(catalog, root):
        if not readonly:
            # A reader must not create anything.
            make_folder(catalog)
        refuse_foreign(catalog)
    context = Context(
        layout=Layout(root, view, hash_prefix=settings.algorithm.prefix),
        settings=settings,
        catalog=catalog,
        readonly=readonly,
        durable=place.durable,
        not_durable_because="" if place.durable else durability(place).found,
        catalog_is_private=is_private(catalog, root),
        run=run,
        catalog_path=catalog_path,
        subscribers=subscribers,
    )
    if recover and not readonly:
        notes += tuple(try_recover(context))
    return context, notes


def _notes_at_opening(place: PlaceFacts, *, readonly: bool) -> tuple[str, ...]:
    """Return one sentence for each warning or error about the place, the permissions and the owner of the store.

    `place` is the filesystem of the store. With `readonly`, the owner is not checked.
    """
    status = os.stat(place.path)
    # Use uids and not names: looking up a name may query a directory service, which may not answer.
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
