"""Starts the process that mirrors, where there is a mirror and no such process of this host is at work."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Literal

from ckstore.errors import CkstoreError
from ckstore.fs import links, locks
from ckstore.fs.locks import DirectoryLock
from ckstore.ops.config_file import MIRROR, setting_or_none
from ckstore.ops.context import Context
from ckstore.ops.mirrored import FOLDER, behind
from ckstore.ops.refs.listing import infos
from ckstore.saver.client.process import children, reap, start
from ckstore.saver.client.savers import savers_seen, started_at, status_at

ENTRY = "ckstore.saver.server.mirror"
PROBLEM = "mirror"
Why = Literal["opened", "saved", "said"]
_START_S = 5.0
_started_s: dict[str, float] = {}
"""Path of a store -> when this process started one for it."""


def wake(context: Context, catalog_path: Path | None, why: Why = "saved") -> None:
    """Start the process that mirrors if there is need of one; raise nothing, since the save is durable."""
    # If the store was only ``opened`` it is needed only if the mirror lacks checkpoints.
    remote = setting_or_none(context.layout, MIRROR)
    try:
        if remote is None or (why == "opened" and not behind(context.layout, remote, infos(context))):
            return
        # Of a thousand tags in a row each would start one, until the first has begun and holds the lock.
        if why != "said" or time.monotonic() - _started_s.get(str(context.layout.path), -math.inf) > _START_S:
            _start_one(context, catalog_path)
    except (CkstoreError, OSError) as error:
        context.notices.problems[PROBLEM] = f"the mirror could not be started: {error}"


def _start_one(context: Context, catalog_path: Path | None) -> None:
    lock = lock_mirror(context)
    # One is at work: after it has let its lock go it looks once more, so what was saved just now is not forgotten.
    if lock is None:
        return
    lock.release()
    store = str(context.layout.path)
    # One of this process that failed waits without the lock; another would have the same credentials.
    if not any((said := status_at(pid)) and (said.store, said.state) == (store, "waiting") for pid in children()):
        _started_s[store] = time.monotonic()
        start_beside(ENTRY, context, catalog_path)


def has_successor(context: Context) -> bool:
    """Whether another process of this host mirrors the store, and was started later than this one."""
    # By their starts, not by their last failures: the newer environment has the credentials that count.
    own = started_at(os.getpid()), os.getpid()
    seen = [one.pid for one in savers_seen(str(context.layout.path)) if one.state in ("mirroring", "waiting")]
    return any((started_at(pid), pid) > own for pid in seen)


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
