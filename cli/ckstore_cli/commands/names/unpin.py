"""``ckstore unpin``: end the protection of a checkpoint."""

from __future__ import annotations

import click

from ckstore_cli._frame import Frame, json_option, pass_frame, store_option
from ckstore_cli._refs import complete_ref


@click.command()
@click.argument("name_or_ref", shell_complete=complete_ref)
@store_option
@json_option
@pass_frame
def unpin(frame: Frame, name_or_ref: str) -> None:
    """Remove the pin of that name, or all pins of the checkpoint that NAME_OR_REF names.

    \b
    Example:
      ckstore unpin main@1200
      ckstore unpin pin-0a1b2c3d4e

    \b
    Exit status:
      0  done
      2  wrong usage
      4  there is no such store, pin or checkpoint, or it has no pin
    """
    out = frame.output()
    with frame.writing() as store:
        removed = store.unpin(name_or_ref)
    out.document({"removed": removed})
    for name in removed:
        out.line(f"removed {name}")
