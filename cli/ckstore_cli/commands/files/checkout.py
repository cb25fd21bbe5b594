"""``ckstore checkout``: write the files of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from ckstore_cli._frame import Frame, framed
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_ref
from ckstore_cli._types import OneOf


@click.command()
@click.argument("ref", shell_complete=complete_ref)
@click.argument("dest", type=click.Path(path_type=Path))
@click.option(
    "--only",
    "only",
    metavar="GLOB",
    multiple=True,
    help="Write only files that match. * also matches slashes. Repeatable.",
)
@click.option(
    "--link",
    type=OneOf(["auto", "reflink", "hardlink", "copy"]),
    default="auto",
    show_default=True,
    help="How to write the files, see above.",
)
@framed
def checkout(frame: Frame, ref: str, dest: Path, only: tuple[str, ...], link: str) -> None:
    """Write the files of the checkpoint REF to the new directory DEST.

    DEST must not exist, or be an empty directory. It appears in one step, once all
    files are verified and durable. A saved state is exported as safetensors.

    \b
    --link auto      Share blocks with the store if the filesystem supports reflinks,
                     otherwise copy.
    --link reflink   Share blocks, or fail. Only small files and compacted data are
                     copied. A saved state has no blocks to share.
    --link copy      Copy.
    --link hardlink  Make a file that is exactly one blob a read-only hardlink to this
                     blob, and copy the other files. Never write to such a file (root
                     can, and torch.save does): it damages every checkpoint that uses
                     the blob.

    \b
    Example:
      ckstore checkout 500 restored
      ckstore checkout latest weights --only '*.safetensors'

    \b
    Exit status:
      0  done
      2  wrong usage, DEST is not empty, or DEST cannot be made
      3  some data is damaged, and nothing was written
      4  no such store, checkpoint or file, or REF is ambiguous
      6  the disk is full, and nothing was written
    """
    out = frame.output()
    with frame.reading() as store, Progress("checking out", quiet=out.as_json) as shown:
        report = store.checkout(ref, dest, link=link, only=only or None, progress=shown.at)  # type: ignore[arg-type]
    out.document(report)
    out.line(str(report))
