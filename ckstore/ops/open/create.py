"""Make a store. It exists as soon as ``store.json`` has its name; a half-made one is finished by the next `create`.

Several processes may make one at once: none removes another's name, and ``store.json`` never takes the place of
    another.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ckstore.errors import BadInput, StoreNotFound
from ckstore.fs import files, links, locks, peek
from ckstore.fs.host import probe
from ckstore.model.seal import read, to_write
from ckstore.model.settings.settings import StoreSettings, parse_settings
from ckstore.model.times import text_of_time
from ckstore.objects.layout import Layout

# Making a store takes a dozen fsyncs, which a busy disk can take seconds for.
_LOCK_TIMEOUT_S = 30.0
_SETTINGS_MOST_BYTES = 2**20
# Closed to others: a user who wants a shared store opens it knowingly.
_DIRECTORY_MODE = 0o700
_FRESH = re.compile(r"store\.json\.[0-9a-f]{12}")


def create(root: Path, *, hash_name: str, chunk_bytes: int) -> bool:
    """Make a store in the directory `root`, which is made if its parent exists; False if there is a store already."""
    now = text_of_time(datetime.now(UTC))
    settings = StoreSettings(uuid=str(uuid.uuid4()), hash=hash_name, chunk_bytes=chunk_bytes, created=now)
    settings.algorithm.start()  # raises here if the package for it is missing
    layout = Layout(root)
    links.make_directory(layout.root, mode=_DIRECTORY_MODE)
    with locks.lock_exclusive(layout.root, timeout_s=_LOCK_TIMEOUT_S):
        return _fill(layout, settings)


def _fill(layout: Layout, settings: StoreSettings) -> bool:
    """Make what is missing, ``store.json`` last; False if another process was faster."""
    # The root is locked, but on a shared filesystem not against other hosts.
    if peek.exists(layout.settings):
        return False
    try:
        _make(layout, settings)
    except OSError:  # another host made it meanwhile, and may have filled the disk
        if peek.exists(layout.settings):
            return False  # opening it makes its names durable, as its maker may have died
        raise
    files.sync_directory(layout.root)  # opening does so, too, but reports a failure by a note; here it is an error
    files.sync_name(layout.path)
    return True


def _make(layout: Layout, settings: StoreSettings) -> None:
    _refuse_foreign(layout)
    links.make_missing(layout.directories)
    # Before store.json: a place that cannot hold a store must not be left with one.
    probe.try_links(layout.staging, layout.linked)
    fresh = layout.root / f"store.json.{uuid.uuid4().hex[:12]}"
    try:
        where = str(layout.settings)
        data = to_write(settings, parse_settings, most_bytes=_SETTINGS_MOST_BYTES, where=where)
        # Whole and durable before it has its name (law D1): with store.json the store exists.
        files.create_file(fresh, data, mode=0o444)
        links.link(fresh, layout.settings)  # never over another
    finally:
        with suppress(OSError):  # a name that stays is removed at opening
            links.unlink(fresh)


def may_make(root: Path) -> bool:
    """Whether a store can be made at `root`, as far as can be seen without making anything.

    Raises:
        BadInput: Something else is there.
    """
    layout = Layout(root)
    try:
        if not peek.exists(layout.root):
            return peek.may_write(root.parent)
        _refuse_foreign(layout)
        return peek.may_write(root)
    except OSError:  # a file is in the way
        return False


def _refuse_foreign(layout: Layout) -> None:
    ours = {path.name for path in layout.directories}
    present = peek.names(layout.root)
    foreign = sorted(name for name in present if name not in ours and not _FRESH.fullmatch(name))
    # Files beside a store.json are of a store that another host made since we looked, and has opened.
    if foreign and layout.settings.name not in present and not peek.exists(layout.settings):
        msg = f"{layout.root} is not empty and not a store: it holds {', '.join(foreign[:5])}"
        raise BadInput(msg, hint="choose a new or empty directory")


def remove_leftovers(layout: Layout) -> None:
    """Remove the temporary ``store.json.*`` of processes that died while they made this store, or came late."""
    for name in peek.names(layout.root):
        if _FRESH.fullmatch(name):
            with suppress(FileNotFoundError):
                links.unlink(layout.root / name)


def read_settings(root: Path) -> StoreSettings:
    """Return what ``store.json`` says."""
    path = Layout(root).settings
    try:
        data = files.read_file(path, most_bytes=_SETTINGS_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        inner = root / ".ckstore"  # where the command line makes one, in the directory of a project
        hint = f"there is one in it: {inner}" if peek.find(Layout(inner).settings) else "make one: Store.init(path)"
        raise StoreNotFound(f"there is no store at {root}", hint=hint) from error
    return read(data, parse_settings, str(path))
