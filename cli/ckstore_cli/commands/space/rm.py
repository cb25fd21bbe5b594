"""``ckstore rm``: delete one checkpoint."""

from __future__ import annotations

import click

from ckstore_cli._frame import Frame, json_option, pass_frame, store_option
from ckstore_cli._refs import complete_ref


@click.command()
@click.argument("ref", shell_complete=complete_ref)
@store_option
@json_option
@pass_frame
def rm(frame: Frame, ref: str) -> None:
    """Delete the checkpoint REF, and free what only it used.

    Refused while the checkpoint is open, has a tag, or is pinned. If a process
    still has one of its blobs open, a ckstore gc after it is closed frees it.

    \b
    Example:
      ckstore rm main@1200

    \b
    Exit status:
      0  done
      2  wrong usage
      4  there is no such store or checkpoint, or several fit
      5  it is open, has a tag, or is pinned
    """
    out = frame.output()
    with frame.writing() as store:
        info = store.info(ref)
        store.delete(info)
    out.document({"run": info.run, "step": info.step, "id": info.id})
    out.line(f"deleted {info.name}")
