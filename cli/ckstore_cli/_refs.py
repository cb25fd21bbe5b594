"""Completion of refs and runs in a shell: from names of directories, without opening the store.

Completion runs at every press of the key: no catalog is opened, and of a manifest only the first
bytes are read, when digits of an id are being typed. Files that cannot be read are left out: a prompt is
no place for errors.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckstore.errors import CkstoreError, NoSuchRef
from ckstore.fs import files, peek
from ckstore.fs.inside import Inside
from ckstore.model.digest import short_id
from ckstore.model.names import DEFAULT_RUN, RUN_PATTERN, STEP_PATTERN
from ckstore_cli._frame import Frame

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMPUTED = ("latest", "latest-valid")
_SOME_DIGITS = "[0-9a-f]{4,}"
# The id is the first member of a manifest, so that its first bytes are enough.
_LONGEST_HEAD_BYTES = 128
_HEAD = rb'\{"digest":"([a-z0-9]+-[0-9a-f]+)","manifest":'


def complete_ref(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the refs that begin with `incomplete`: computed ones, tags, runs, steps, ids."""
    store = _store_of(ctx)
    if store is None:
        return []
    return _items(_fitting(store, incomplete))


def complete_run(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the runs that begin with `incomplete`."""
    store = _store_of(ctx)
    if store is None:
        return []
    return _items((run, "") for run in runs(store) if run.startswith(incomplete))


def complete_tag(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the tags that begin with `incomplete`."""
    store = _store_of(ctx)
    if store is None:
        return []
    return _items((tag, "") for tag in tags(store) if tag.startswith(incomplete))


def tags(store: Path) -> list[str]:
    """Return the tags of a store, sorted."""
    return sorted(name for name in _names(store, "refs") if RUN_PATTERN.match(name))


def runs(store: Path) -> list[str]:
    """Return the names of the runs of a store, sorted."""
    return sorted(name for name in _names(store, "checkpoints") if RUN_PATTERN.match(name))


def no_such_run(store: Path, run: str) -> NoSuchRef:
    """Return the error for a run that the store does not have, with those that it has."""
    known = runs(store)
    hint = f"its runs: {', '.join(known)}" if known else "it has no checkpoint yet"
    return NoSuchRef(f"there is no run {run!r} in {store}", hint=hint)


def steps(store: Path, run: str) -> list[int]:
    """Return the steps of a run, newest step first."""
    names = _names(store, "checkpoints", run)
    return sorted((int(name) for name in names if STEP_PATTERN.match(name)), reverse=True)


def _store_of(ctx: click.Context) -> Path | None:
    frame = ctx.find_object(Frame) or Frame()
    # At a prompt an error would be written into the line that is being typed.
    with suppress(CkstoreError, OSError):
        return frame.find_store()
    return None


def _fitting(store: Path, incomplete: str) -> Iterator[tuple[str, str]]:
    """Give refs that begin with `incomplete`, each with a word about it."""
    known = runs(store)
    run, at, _ = incomplete.partition("@")
    if at:
        refs = _refs_of(store, run) if run in known else ()
        yield from ((ref, "") for ref in refs if ref.startswith(incomplete))
        return
    plain = known[0] if len(known) == 1 else DEFAULT_RUN
    candidates = [
        *((name, "") for name in COMPUTED),
        *((tag, "tag") for tag in tags(store)),
        *((str(step), plain) for step in steps(store, plain)),
        *((name, "run") for name in _of_several(store, known, incomplete)),
    ]
    yield from (candidate for candidate in candidates if candidate[0].startswith(incomplete))
    if re.fullmatch(_SOME_DIGITS, incomplete):
        yield from _ids(store, known, incomplete)


def _of_several(store: Path, known: list[str], incomplete: str) -> Iterator[str]:
    """Give what begins with a run, where there are several.

    Once a name has been begun that is every ref of the run: a shell would put a space behind a
    lone ``RUN@``.
    """
    for name in known if len(known) > 1 else ():
        if not incomplete:
            yield f"{name}@"
        elif name.startswith(incomplete):
            yield from _refs_of(store, name)


def _refs_of(store: Path, run: str) -> list[str]:
    return [f"{run}@{ref}" for ref in (*COMPUTED, *steps(store, run))]


def _ids(store: Path, known: list[str], incomplete: str) -> Iterator[tuple[str, str]]:
    for run in known:
        for step in steps(store, run):
            digest = _id_in(store, "checkpoints", run, str(step), "manifest.json")
            if digest.partition("-")[2].startswith(incomplete):
                yield short_id(digest, max(10, len(incomplete))), f"{run}@{step}"


def _id_in(store: Path, *manifest: str) -> str:
    """Return the id that a manifest begins with; empty if it cannot be read."""
    with suppress(OSError, CkstoreError), files.opened_regular(_place(store, manifest)) as fd:
        found = re.match(_HEAD, os.read(fd, _LONGEST_HEAD_BYTES))
        if found:
            return found[1].decode("ascii")
    return ""


def _names(store: Path, *directory: str) -> list[str]:
    with suppress(OSError, CkstoreError):
        return peek.names(_place(store, directory))
    return []


def _place(store: Path, names: tuple[str, ...]) -> Inside:
    return reduce(operator.truediv, names, Inside(str(store)))


def _items(found: Iterator[tuple[str, str]]) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(value, help=word or None) for value, word in found]
