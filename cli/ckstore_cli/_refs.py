"""Completion of refs and runs in a shell, from the names of directories and without opening the store.

Completion runs each time the user presses Tab, so it must be fast. It opens no catalog. It reads only the first bytes
of a manifest, and only while the user types digits of an id. Files that cannot be read are skipped, since an error
would disturb the prompt.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckstore.errors import CkstoreError
from ckstore.fs import dirfd_stat, files
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import short_id
from ckstore.model.names import COMPUTED, DEFAULT_RUN, RUN_PATTERN, CheckpointKey, key_of
from ckstore_cli._frame import Frame

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ckstore.errors import NoSuchRef

_SOME_DIGITS = "[0-9a-f]{4,}"
# The id is at the beginning of a manifest, and of the file that replaces the manifest in a compacted checkpoint, so the
# first bytes are sufficient.
_LONGEST_HEAD_BYTES = 256
_HEAD = rb'\{"digest":"([a-z0-9]+-[0-9a-f]+)","manifest":(?:\{"checkpoint":"([a-z0-9]+-[0-9a-f]+)")?'


def tags(store: Path) -> list[str]:
    """Return the tags of a store, sorted."""
    return sorted(name for name in _names(store, "refs") if RUN_PATTERN.match(name))


def runs(store: Path) -> list[str]:
    """Return the names of the runs of a store, sorted."""
    return sorted(name for name in _names(store, "checkpoints") if RUN_PATTERN.match(name))


def no_such_run(store: Path, run: str) -> NoSuchRef:
    """Return the error for a run that the store does not have (see `ckstore.ops.refs.listing.no_such_run`)."""
    # Import these modules only for the error, since completion does not need them.
    from ckstore.objects.layout import Layout
    from ckstore.ops.refs import listing

    return listing.no_such_run(Layout(store), run)


def steps(store: Path, run: str) -> list[int]:
    """Return the steps of a run, the highest first."""
    return sorted({key.step for key in _keys(store, run)}, reverse=True)


def checkpoints(store: Path, run: str) -> set[CheckpointKey]:
    """Return the checkpoints of a run, including superseded ones, each as the key of its first generation."""
    return {key.any_generation for key in _keys(store, run)}


def _keys(store: Path, run: str) -> list[CheckpointKey]:
    found = (key_of(run, name) for name in _names(store, "checkpoints", run))
    return sorted((key for key in found if key is not None), key=lambda key: -key.step)


def _fitting(store: Path, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield candidates for a ref that begins with `incomplete`, each with a short description."""
    known = runs(store)
    run, at, _ = incomplete.partition("@")
    if at:
        refs = _refs_of(store, run) if run in known else ()
        yield from ((ref, "") for ref in refs)
        return
    plain = known[0] if len(known) == 1 else DEFAULT_RUN
    yield from ((name, "") for name in COMPUTED)
    yield from ((tag, "tag") for tag in tags(store))
    yield from ((str(step), plain) for step in steps(store, plain))
    yield from ((name, "run") for name in _of_several(store, known, incomplete))
    if re.fullmatch(_SOME_DIGITS, incomplete):
        yield from dict(_ids(store, known, incomplete)).items()  # each id once, even if it has several generations


def _of_several(store: Path, known: list[str], incomplete: str) -> Iterator[str]:
    """Yield the candidates that begin with the name of a run, if the store has several runs."""
    # When a part of the name is typed, yield all refs of the run, since a shell would add a space to a lone ``RUN@``.
    for name in known if len(known) > 1 else ():
        if not incomplete:
            yield f"{name}@"
        elif name.startswith(incomplete):
            yield from _refs_of(store, name)


def _refs_of(store: Path, run: str) -> list[str]:
    return [f"{run}@{ref}" for ref in (*COMPUTED, *steps(store, run))]


def _ids(store: Path, known: list[str], incomplete: str) -> Iterator[tuple[str, str]]:
    for run in known:
        for key in _keys(store, run):
            digits = key.any_generation.directory.partition(".")[2]  # empty in a store made by a draft version
            if len(digits) < len(incomplete) and incomplete.startswith(digits):
                digest = _id_in(store, "checkpoints", run, key.directory, "manifest.json")
                digits = short_id(digest, max(10, len(incomplete)))
            if digits.startswith(incomplete):
                yield digits[: max(10, len(incomplete))], key.name


def _id_in(store: Path, *manifest: str) -> str:
    """Return the id at the beginning of a manifest, or an empty string if it cannot be read."""
    with suppress(OSError, CkstoreError), files.opened_regular(_place(store, manifest)) as fd:
        found = re.match(_HEAD, os.read(fd, _LONGEST_HEAD_BYTES))
        if found:
            return (found[2] or found[1]).decode("ascii")
    return ""


def _names(store: Path, *directory: str) -> list[str]:
    with suppress(OSError, CkstoreError):
        return dirfd_stat.names(_place(store, directory))
    return []


def _place(store: Path, names: tuple[str, ...]) -> StorePath:
    return reduce(operator.truediv, names, StorePath(str(store)))


Found = Iterable[tuple[str, str]]


def _completing(find: Callable[[Path, str], Found]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        frame = ctx.find_object(Frame) or Frame()
        # Ignore errors, which would be printed into the line that the user is typing.
        try:
            store = frame.find_store()
        except (CkstoreError, OSError):
            return []
        found = find(store, incomplete)
        return [CompletionItem(value, help=word or None) for value, word in found if value.startswith(incomplete)]

    return complete


complete_ref = _completing(_fitting)
"""Completes a ref: computed names such as `latest`, tags, runs, steps and ids."""
complete_run = _completing(lambda store, _: ((run, "") for run in runs(store)))
complete_tag = _completing(lambda store, _: ((tag, "") for tag in tags(store)))
