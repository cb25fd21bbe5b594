"""Make a store. It exists as soon as ``store.json`` has its name; a half-made one is finished by the next `create`.

Several may make one at once: nobody removes a name of another one, and ``store.json`` never takes the place of another.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ckstore.errors import BadInput, StoreNotFound
from ckstore.fs import files, links, locks, place
from ckstore.model.seal import check_seal, seal
from ckstore.model.settings import StoreSettings, parse_settings
from ckstore.objects.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_CHUNK_BYTES = 32 * 2**20
_LOCK_TIMEOUT_S = 30.0
_SETTINGS_MOST_BYTES = 2**20
_DIRECTORY_MODE = 0o700
_FRESH_PREFIX = "store.json."


def create(root: Path, *, hash_name: str, chunk_bytes: int) -> bool:
    """Make a store in the directory `root`, which is made if its parent exists; False if there is a store already.

    Raises:
        BadInput: `root` holds something else, or an argument cannot be.
        UnsafePlace: The filesystem cannot hold a store.
        OSError: The system refused.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    settings = StoreSettings(uuid=str(uuid.uuid4()), hash=hash_name, chunk_bytes=chunk_bytes, created=now)
    settings.algorithm.start()  # raises here if the package for it is missing
    layout = Layout(root)
    links.make_directory(root, mode=_DIRECTORY_MODE)
    with locks.lock_exclusive(root, timeout_s=_LOCK_TIMEOUT_S):
        return _fill(layout, settings)


def _fill(layout: Layout, settings: StoreSettings) -> bool:
    """Make what is missing, ``store.json`` last; False if another process was faster.

    The root is locked, but on a shared filesystem not against other hosts.
    """
    made = not layout.settings.exists() and _make(layout, settings)
    files.sync_directory(layout.root)  # whoever made it may have died before he did this
    files.sync_directory(layout.root.parent)
    return made


def _make(layout: Layout, settings: StoreSettings) -> bool:
    _refuse_foreign(layout)
    for directory in layout.directories:
        links.make_directory(directory)
    place.try_links(layout.staging, layout.linked)
    fresh = layout.root / f"{_FRESH_PREFIX}{uuid.uuid4().hex[:12]}"
    files.create_file(fresh, seal(settings.render()), mode=0o444)
    try:
        links.rename_new(fresh, layout.settings)
    except (FileExistsError, FileNotFoundError):  # another host made the store; who opens it sweeps
        with suppress(FileNotFoundError):
            links.unlink(fresh)
        return False
    return True


def _refuse_foreign(layout: Layout) -> None:
    ours = {path.name for path in layout.directories}
    foreign = sorted(
        name for name in os.listdir(layout.root) if name not in ours and not name.startswith(_FRESH_PREFIX)
    )
    if foreign and not layout.settings.exists():  # else it is a store that another host made meanwhile
        msg = f"{layout.root} is not empty and not a store: it holds {', '.join(foreign[:5])}"
        raise BadInput(msg, hint="choose a new or empty directory")


def remove_leftovers(layout: Layout) -> None:
    """Remove the temporary ``store.json.*`` of those who died while they made this store, and of those who come late.

    Raises:
        OSError: One could not be removed.
    """
    for name in os.listdir(layout.root):
        if name.startswith(_FRESH_PREFIX):
            with suppress(FileNotFoundError):
                links.unlink(layout.root / name)


def read_settings(root: Path) -> StoreSettings:
    """Return what ``store.json`` says.

    Raises:
        StoreNotFound: There is no store at `root`.
        NewerFormat: It was made by a newer ckstore.
        BadInput: ``store.json`` is not valid.
        DamagedBlob: It is not as it was written.
    """
    path = Layout(root).settings
    try:
        data = files.read_file(path, most_bytes=_SETTINGS_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"there is no store at {root}"
        raise StoreNotFound(msg, hint="ckstore init makes one, Store.init(path) in Python") from error
    settings = parse_settings(data, where=str(path))
    check_seal(data, str(path))
    return settings
