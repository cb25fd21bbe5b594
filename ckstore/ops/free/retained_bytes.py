"""Determine how much data of a dropped checkpoint is kept because other checkpoints are decoded with it.

A retention plan that is shown to a user includes this amount.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace

from ckstore.model.manifest.manifest import Manifest
from ckstore.model.settings.retention_plan import PlanEntry, RetentionPlan
from ckstore.model.sizes import size_text
from ckstore.model.words import counted
from ckstore.ops.check.validity import glance
from ckstore.ops.context import Context


def with_needed_bytes(context: Context, made: RetentionPlan) -> RetentionPlan:
    """Return the plan, with a reason added for each dropped checkpoint of which some data is kept.

    The reason states the number of bytes and the checkpoints that need them.
    """
    if not made.dropped or not any(entry.info.compacted for entry in made.kept):
        return made
    kept: set[str] = set()
    needing: dict[str, list[str]] = defaultdict(list)
    for entry in made.kept:
        if (manifest := _manifest(context, entry)) is not None:
            own = _own_files(manifest)
            kept |= own
            for file in manifest.stored:
                if file.digest not in own:
                    needing[file.digest].append(entry.info.name)
    entries = [
        entry if entry.keep else _with_reason(entry, _manifest(context, entry), needing, kept) for entry in made.entries
    ]
    return replace(made, entries=tuple(entries))


def _with_reason(
    entry: PlanEntry, manifest: Manifest | None, needing: dict[str, list[str]], kept: set[str]
) -> PlanEntry:
    staying = set() if manifest is None else (_own_files(manifest) & needing.keys()) - kept
    if manifest is None or not staying:
        return entry
    nbytes = sum(file.nbytes for file in manifest.stored if file.digest in staying)
    first, *others = dict.fromkeys(name for digest in sorted(staying) for name in needing[digest])
    who = f"{first} and {counted(len(others), 'other')} are" if others else f"{first} is"
    return replace(
        entry, reasons=(*entry.reasons, f"{size_text(nbytes)} of its data is kept, since {who} decoded with it")
    )


def _own_files(manifest: Manifest) -> set[str]:
    return {manifest.files_of(index)[0] for index in range(len(manifest.blobs))}


def _manifest(context: Context, entry: PlanEntry) -> Manifest | None:
    with suppress(FileNotFoundError, NotADirectoryError):  # the checkpoint was deleted after the plan was made
        return glance(context.layout.checkpoint(entry.info.key), entry.info.key, context.known.manifests).manifest
    return None
