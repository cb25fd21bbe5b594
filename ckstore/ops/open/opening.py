"""Create a store, or open one and recover it.

A store exists as soon as ``store.json`` has its name. A partly created store is completed by the next `create`. Several
processes may create one at once: none removes a name of another, and ``store.json`` never replaces another one. Opening
examines the filesystem of a store and finds its catalog. When opened for writing, dead saves are moved to trash, and
the catalog catches up with the directories.
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
# Closed to others: a user who wants a shared store opens it deliberately.
_DIRECTORY_MODE = 0o700
_CREATE_TRIES = 10
_NEW = "not made yet"
_SETTINGS = "store.json"
_FRESH = re.compile(r"store\.json\.[0-9a-f]{12}")


def create(root: Path, *, hash_name: str, chunk_bytes: int) -> bool:
    """Create a store in the directory `root`, with missing parents; return False if it already exists."""
    dirfd_stat.open_closed_streams()
    now = text_of_time(datetime.now(UTC))
    settings = StoreSettings(
        uuid=str(uuid.uuid4()), hash=hash_name, chunk_bytes=chunk_bytes, created=now, requires=(CHECKPOINT_IDS,)
    )
    settings.algorithm.start()  # raises here if the package for it is missing
    layout = Layout(root)
    if not dirfd_stat.exists(layout.settings):
        refuse_inside(root)
    for _ in range(_CREATE_TRIES - 1):
        with suppress(FileNotFoundError):  # a process that failed removed a directory that this one had found
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
    """Create a directory and its missing parents, as mkdir -p; each name is made durable before the next.

    Args:
        folder: The directory.
        made: Gets the directories that this process created.
    """
    missing = []
    while not dirfd_stat.exists(folder):
        missing.append(folder)
        folder = folder.parent
    try:
        with os.scandir(folder) as entries:
            is_empty = next(entries, None) is None
    except PermissionError:  # ckstore never creates a directory that its user may not list
        is_empty = False
    # A process that died before it synced the name of a directory left that directory empty.
    if is_empty:
        files.sync_name(folder)
    for path in reversed(missing):
        try:
            os.mkdir(path)
            made.append(path)
        except FileExistsError:  # another process was faster, and may die before it syncs
            pass
        files.sync_name(path)


@contextmanager
def _removed_without_store(layout: Layout) -> Iterator[list[AnyPath]]:
    """Yield a list for created directories, parents first; if the block fails, remove them again."""
    made: list[AnyPath] = []
    try:
        yield made
    except BaseException:
        # Best effort: the error of the block is reported. A directory that another process has used is kept, and so are
        # those of a store that another host created in the meantime.
        with suppress(OSError):
            if not dirfd_stat.exists(layout.settings):
                for path in reversed(made):
                    with suppress(OSError):
                        links.remove_directory(path)
        raise


def tell_made(root: Path) -> None:
    """Log that a store was created; warn if a store of a similar name is next to it, which may be the intended one."""
    text = f"created a new store at {root}"
    beside = foreign(root.parent)
    try:
        names = [name for name, _, is_directory in dirfd_stat.listed(beside) if is_directory]
        similar = similar_names(root.name, names)
        other = next((name for name in similar if dirfd_stat.exists(beside / name / _SETTINGS)), None)
    except OSError:  # a user who may not list the directory can still make a store in it
        other = None
    if other is None:
        log(logging.INFO, text)
    else:
        warn(f"{text}. {root.parent / other} is also a store; if you want that one, open it")


def _fill(layout: Layout, settings: StoreSettings) -> bool:
    """Create the missing parts, ``store.json`` last; return False if another process was faster."""
    # The root is locked, but on a shared filesystem not against other hosts.
    if dirfd_stat.exists(layout.settings):
        return False
    try:
        # Removed while the root is locked: no other process of this host has found them yet.
        with _removed_without_store(layout) as made:
            _make(layout, settings, made)
    except OSError:  # another host created it in the meantime, and may have filled the disk
        if dirfd_stat.exists(layout.settings):
            return False  # opening it makes its names durable, in case its creator died
        raise
    files.sync_directory(layout.root)  # opening also does so, but reports a failure by a note; here it is an error
    files.sync_name(layout.path)
    return True


def _make(layout: Layout, settings: StoreSettings, made: list[AnyPath]) -> None:
    _refuse_foreign(layout)
    # Extended lazily: if one cannot be created, the earlier ones are in the list.
    made.extend(directory for directory in layout.directories if links.make_directory(directory))
    # Before store.json: a place that cannot hold a store must not be left with one.
    probe.try_links(layout.staging, layout.linked)
    fresh = layout.root / f"store.json.{uuid.uuid4().hex[:12]}"
    try:
        where = str(layout.settings)
        data = to_write(settings, parse_settings, most_bytes=SETTINGS_MAX_BYTES, where=where)
        # Complete and durable before it has its name (law D1): with store.json the store exists.
        files.create_file(fresh, data, mode=0o444)
        links.link(fresh, layout.settings)  # never replaces another
    finally:
        with suppress(OSError):  # opening removes a leftover name
            links.unlink(fresh)


def refuse_inside(root: Path) -> None:
    """Refuse a place in another store: data in its ``staging/`` or ``trash/`` would be swept away."""
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
    """Remove the temporary ``store.json.*`` of processes that died while creating this store, or came late."""
    for name in dirfd_stat.names(layout.root):
        if _FRESH.fullmatch(name):
            with suppress(FileNotFoundError):
                links.unlink(layout.root / name)


def recover(context: Context) -> list[str]:
    """Sweep dead stagings, adopt published checkpoints, empty the trash; return notes for the user.

    It may be called repeatedly, or by several processes at once.

    Raises:
        OSError: The system refused. The store is unchanged or partly recovered.
    """
    from ckstore.objects import reserve, trash  # a reader needs none of these
    from ckstore.ops.index.catalog_update import catch_up

    notes: list[str] = []
    layout = context.layout
    if not dirfd_stat.exists(layout.checkpoints) and trash.names_in(layout.blobs):  # so it has had checkpoints
        layout.check_exists(layout.checkpoints)
    try:
        links.make_missing(layout.directories)  # a copy of the store may lack empty ones
        with _unless_full():
            probe.check_able(layout.root, layout.directories, layout.staging, layout.linked)
    finally:
        # Even if the test failed: other processes may have created the directories and died (rule F).
        _make_store_durable(context)
    if CHECKPOINT_IDS not in context.settings.requires:
        from ckstore.ops.open.draft_conversion import convert  # few stores are of a draft

        # Before the sweep, which would treat a checkpoint that a draft was replacing as a dead save.
        notes += [f"not converted: {text}" for text in convert(context).left]
    stayed: list[str] = []
    if context.view.sees_locks:  # otherwise a save of another host, whose lock is not visible, would be swept
        failed: dict[str, OSError | CkstoreError] = {}
        trash.sweep_staging(layout, failed)  # gc makes the move durable before it takes them apart (rule F)
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
    # After the catalog: emptying trash records there which blobs lost their last use.
    if trash.names_in(layout.trash):
        from ckstore.ops.free.reclaim import free_unused  # a tenth of the time of opening in a new process

        free_unused(context)
    # Last: the space that the sweep has freed counts as room.
    reserve.fill(layout)
    remove_leftovers(layout)
    for note in (*stayed, *said):
        warn(note)
    context.tell_passed_over()
    return stayed + said + notes


def _make_store_durable(context: Context) -> None:
    """Make the name of the store and those in it durable: no checkpoint is more durable (rule F).

    Raises:
        OSError: It failed, so this process must not write to the store.
    """
    try:
        files.sync_directory(context.layout.root)
        files.sync_name(context.layout.path)
    except OSError as error:
        context.writes_disabled_because = f"{context.layout.root} could not be made durable: {error.strerror}"
        raise


@contextmanager
def _unless_full() -> Iterator[None]:
    """Continue if there is no room to test anything: gc must work on a full disk, and makes the same calls later."""
    try:
        yield
    except OSError as error:
        if error.errno not in files.NO_SPACE:
            raise


def try_recover(context: Context) -> list[str]:
    """As `recover`; if this process cannot write there, return a note instead."""
    try:
        return recover(context)
    except CkstoreError:
        raise
    except OSError as error:
        return [f"recovery while opening the store failed: {describe_os_error(error)}"]


def check_new(root: Path, catalog_path: Path | None) -> None:
    """Raise, before anything is created, if a new store at `root` could not have its catalog."""
    # The root may not exist yet: its filesystem is that of the nearest directory that does.
    existing = next(folder for folder in (root, *root.parents) if folder.is_dir())
    catalog = catalog_of(examine(existing), root, _NEW, catalog_path)
    try:
        refuse_foreign(catalog)
    except BadInput:
        if not dirfd_stat.exists(
            Layout(root).settings
        ):  # otherwise it belongs to a store that another process has just created there
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
    # access considers read-only mounts and ACLs; the mode bits do not.
    if not readonly and not os.access(root, os.W_OK):
        readonly = True
        notes += (f"{root} is not writable for this user: opened for reading only",)
    catalog = catalog_of(place, root, settings.uuid, catalog_path)
    # By the filesystem and the settings, not by a test: locks and leases of other hosts cannot be tested from one host
    # (docs/adr/0005).
    view = HostView(why_other_hosts(place, catalog, root, catalog_path), is_assumed=bool(unread))
    if is_private(catalog, root):
        if not readonly:
            # Not for a reader, which must leave no trace.
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
    """Return one sentence for each fact that weakens a promise or has a cost.

    `place` is the filesystem of the store. With `readonly` its owner does not matter.
    """
    status = os.stat(place.path)
    # Numbers and not names: looking up a name may query a directory service, which may not answer.
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
