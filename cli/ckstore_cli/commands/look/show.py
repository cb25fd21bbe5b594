"""``ckstore show``: all information about a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckstore.errors import AmbiguousRef, NoSuchRef
from ckstore.model.checkpoint.external_run import external_runs
from ckstore.model.manifest.health import unchanged_text
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.sizes import size_text
from ckstore.model.words import arguments, counted, printable, share_text, time_text
from ckstore_cli._documents import to_json
from ckstore_cli._format import age_text
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_ref

if TYPE_CHECKING:
    from ckstore.store import Store

_LABEL_WIDTH = 11


@click.command()
@click.argument("ref", default="latest", shell_complete=complete_ref)
@framed
def show(frame: Frame, ref: str) -> None:
    """Show all information about the checkpoint REF (default: latest).

    \b
    Example:
      ckstore show
      ckstore show sweep-7@1200 --json

    \b
    Exit status:
      0  done
      2  wrong usage
      4  no such store or checkpoint, or REF is ambiguous
    """
    out = frame.output()
    with frame.reading() as store:
        info = store.info(ref)
        with store.open_checkpoint(info) as checkpoint:
            directory = checkpoint.directory
            file_count = sum(file.kind != "directory" for file in checkpoint.files())
            kept = {"kept_bytes": checkpoint.kept_bytes, "saved_bytes": checkpoint.saved_bytes}
        parent = "" if out.as_json else _parent(store, info)
    share = info.reused_bytes / info.logical_bytes if info.logical_bytes else None
    out.document(
        {
            **to_json(info),
            "notes": info.notes,
            "reused_share": share,
            "directory": str(directory),
            "file_count": file_count,
            "oldest_reading": info.oldest_reading or None,
            "remotes": info.remotes,
            **kept,
        }
    )
    compacted = ""
    if kept["saved_bytes"]:
        compacted = f"{size_text(kept['kept_bytes'])}, {size_text(kept['saved_bytes'])} saved by compaction"
    for label, text in _lines(info, parent, directory, file_count, compacted):
        out.line(f"{out.style(f'{label:{_LABEL_WIDTH}}', 'dim')}{text}".rstrip())


def _parent(store: Store, info: CheckpointInfo) -> str:
    """Return the id of the parent, with the name of the parent if it is still in the store."""
    if info.parent is None:
        return "none"
    try:
        found = store.info(info.parent)
    except (NoSuchRef, AmbiguousRef):
        return f"{info.parent} (no longer in the store)"
    return f"{info.parent} ({found.name}{', superseded' if found.superseded else ''})"


def _lines(
    info: CheckpointInfo, parent: str, directory: Path, file_count: int, compacted: str
) -> Iterator[tuple[str, str]]:
    """Yield labels and texts. A text with an empty label continues the previous text."""
    yield "checkpoint", info.name
    yield "id", info.id
    yield "parent", parent
    age = age_text(info.created, datetime.now(UTC))
    yield "created", f"{time_text(info.created)}, {age}"
    if info.tags:
        yield "tags", ", ".join(info.tags)
    if info.message:
        yield from _block("message", printable(info.message.strip(), keep_lines=True))
    if info.metrics:
        yield from _block("metrics", "\n".join(f"{printable(k)} = {v!r}" for k, v in info.metrics.items()))
    if info.notes:
        notes = (f"{note.created[:16].replace('T', ' ')} UTC  {note.text.strip()}" for note in info.notes)
        yield from _block("notes", printable("\n".join(notes), keep_lines=True))
    for run in external_runs(info.metadata):
        yield "tracked by", str(run)
    if info.metadata:
        text = json.dumps(to_json(info.metadata), indent=2, ensure_ascii=False)
        yield from _block("metadata", printable(text, keep_lines=True))
    files = f"{counted(file_count, 'file')} with " if file_count else ""
    yield "holds", f"{size_text(info.logical_bytes)} in {files}{counted(info.leaf_count, 'value')}"
    if compacted:
        yield "kept", compacted
    yield "new", f"{size_text(info.new_bytes)} written by its save"
    if info.logical_bytes:
        share = share_text(info.reused_bytes, info.logical_bytes)
        yield "reused", f"{size_text(info.reused_bytes)} already in the store, {share} of it"
        if not info.elsewhere:
            read = "unknown for some of its blobs; ckstore verify reads them"
            if info.oldest_reading:
                age = age_text(info.oldest_reading, datetime.now(UTC))
                read = f"every blob was written or read since {time_text(info.oldest_reading)}, {age}"
            yield "read", read
    yield "content", info.content
    yield "directory", printable(str(directory))
    yield from _state(info)


def _state(info: CheckpointInfo) -> Iterator[tuple[str, str]]:
    """Yield the conditions of a checkpoint that need attention."""
    if info.superseded:
        yield "superseded", f"YES: {info.name} is a newer checkpoint, so use the id or a tag for this one"
    if info.damaged:
        command = f"ckstore verify {arguments(info.ref)}"
        yield "damaged", f"YES: {command} reports the damage, and --repair heals blobs that have an intact copy"
    if info.unhealthy:
        yield "unhealthy", f"YES, {info.unhealthy}. latest-healthy is the newest healthy checkpoint"
    if info.unchanged:
        yield "unchanged", f"{unchanged_text(info.unchanged)} no longer changes while the step advances"
    if info.elsewhere:
        at = f"on {' and '.join(info.remotes)}" if info.remotes else "on a remote"
        yield "elsewhere", printable(f"{at}: reads download data, ckstore pull downloads all of it")
    if not info.durable:
        yield "durable", "NO: the filesystem of the store may lose it in a power cut"


def _block(label: str, text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n"):
        yield label, line
        label = ""
