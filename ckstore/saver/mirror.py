"""Starts the process that mirrors, where there is a mirror and no such process of this host is at work."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ckstore.errors import CkstoreError
from ckstore.fs import links, locks
from ckstore.fs.locks import DirectoryLock
from ckstore.ops.config_file import MIRROR, setting_or_none
from ckstore.ops.context import Context
from ckstore.ops.mirrored import FOLDER, behind
from ckstore.ops.refs.listing import infos
from ckstore.saver.client.process import reap, start

ENTRY = "ckstore.saver.server.mirror"
PROBLEM = "mirror"


def wake(context: Context, catalog_path: Path | None, *, only_if_behind: bool = False) -> None:
    """Start the process that mirrors if there is need of one; raise nothing, since the save is durable."""
    remote = setting_or_none(context.layout, MIRROR)
    try:
        if remote is not None and (not only_if_behind or behind(context.layout, remote, infos(context))):
            _start_one(context, catalog_path)
    except (CkstoreError, OSError) as error:
        context.notices.problems[PROBLEM] = f"the mirror could not be started: {error}"


def _start_one(context: Context, catalog_path: Path | None) -> None:
    lock = lock_mirror(context)
    # One is at work: after it has let its lock go it looks once more, so what was saved just now is not forgotten.
    if lock is None:
        return
    lock.release()
    start_beside(ENTRY, context, catalog_path)


def start_beside(entry: str, context: Context, catalog_path: Path | None) -> None:
    """Start a process that works on a store by itself, and outlives this one."""
    reap()
    about = {"path": str(context.layout.path), "catalog_path": None if catalog_path is None else str(catalog_path)}
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        # What it has to say goes to the store; credentials come with the environment, never in its arguments.
        start(entry, json.dumps(about), nowhere)
    finally:
        os.close(nowhere)


def lock_mirror(context: Context) -> DirectoryLock | None:
    """Lock the right to mirror a store from this host; None: another process has it."""
    folder = context.layout.root / FOLDER
    links.make_directory(folder)
    return locks.try_exclusive(folder)
