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
@click.option("--only", "only", metavar="GLOB", multiple=True, help="Only these files; * also stands for slashes.")
@click.option(
    "--link",
    type=OneOf(["auto", "reflink", "hardlink", "copy"]),
    default="auto",
    show_default=True,
    help="How the bytes get there; see above.",
)
@framed
def checkout(frame: Frame, ref: str, dest: Path, only: tuple[str, ...], link: str) -> None:
    """Write the files of the checkpoint REF to the new directory DEST.

    Every byte is checked. DEST appears all at once, when all of it is durable;
    it must be new or empty. A saved state is exported as safetensors.

    \b
    --link auto      shares blocks with the store where the filesystem can, else copies
    --link hardlink  a file that is one whole blob becomes a hardlink to the store's own
                     blob. It is read-only and must stay so: writing to it (root can,
                     torch.save does) damages every checkpoint that uses the blob.

    \b
    Example:
      ckstore checkout 500 restored
      ckstore checkout latest weights --only '*.safetensors'

    \b
    Exit status:
      0  done
      2  wrong usage: DEST is not empty, or cannot be made
      3  some bytes are damaged; nothing was written
      4  there is no such store, checkpoint or file, or several fit
      6  the disk is full; nothing was left behind
    """
    out = frame.output()
    with frame.reading() as store, Progress("checking out", quiet=out.as_json) as shown:
        report = store.checkout(ref, dest, link=link, only=only or None, progress=shown.at)  # type: ignore[arg-type]
    out.document(report)
    out.line(str(report))
