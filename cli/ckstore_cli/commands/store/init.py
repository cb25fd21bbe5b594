"""``ckstore init``: make an empty store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckstore.errors import CkstoreError
from ckstore.model.sizes import size_text
from ckstore.model.words import arguments, printable
from ckstore_cli._frame import Frame, framed
from ckstore_cli._options import parsed_size
from ckstore_cli._output import Output
from ckstore_cli._place import is_store, place_for_new
from ckstore_cli._types import OneOf

if TYPE_CHECKING:
    from ckstore.store import Store


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "--hash",
    "hash_name",
    type=OneOf(["xxh3_128", "blake3"]),
    default="xxh3_128",
    show_default=True,
    help="Hash algorithm of the digests. Use blake3 if you store files from people whom you do not trust.",
)
@click.option(
    "--chunk-bytes",
    metavar="SIZE",
    callback=parsed_size,
    help="Size of a chunk in whole MiB, such as 16MiB. It cannot be changed later.",
)
@framed
def init(frame: Frame, path: Path | None, hash_name: str, chunk_bytes: int | None) -> None:
    """Make an empty store at PATH.

    PATH defaults to --store, CKSTORE_PATH, or .ckstore in the current directory,
    where the other commands search for a store. The command tests the filesystem.
    It warns about each guarantee that the filesystem cannot give, and fails if the
    filesystem cannot hold a store.

    \b
    Example:
      ckstore init
      ckstore init /data/checkpoints --chunk-bytes 16MiB

    \b
    Exit status:
      0  done, possibly with warnings
      1  PATH already is a store, or its filesystem cannot hold one
      2  wrong usage
      6  not enough space
    """
    place = Path.cwd() / place_for_new(path, frame.store, os.environ)
    # Check this before the library is imported. `Store.init` also fails if another process has just made a store.
    if is_store(place):
        msg = f"there is already a store at {place}; nothing was changed"
        raise CkstoreError(msg, hint=f"list its checkpoints: ckstore log --store {arguments(place)}")
    from ckstore.store import Store

    with Store.init(place, hash=hash_name, chunk_bytes=chunk_bytes) as store:
        _report(frame.output(), store)


def _report(out: Output, store: Store) -> None:
    from ckstore.ops.settings_file import read_settings

    settings = read_settings(store.path)
    out.document(
        {
            "path": store.path,
            "uuid": settings.uuid,
            "hash": settings.hash,
            "chunk_bytes": settings.chunk_bytes,
            "warnings": store.warnings,
        }
    )
    out.line(f"made a store at {printable(str(store.path))}")
    out.line(f"hash {settings.hash}, chunks of {size_text(settings.chunk_bytes)}")
    out.note(
        "deletions can be undone for a day with ckstore undo; ckstore config undo-by-hand off frees their space at once"
    )
    for warning in store.warnings:
        out.warning(printable(warning))
