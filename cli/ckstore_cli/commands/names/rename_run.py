"""``ckstore rename-run``: rename a run."""

from __future__ import annotations

import click

from ckstore.model.words import counted
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_run


@click.command("rename-run")
@click.argument("old", metavar="RUN", shell_complete=complete_run)
@click.argument("new", metavar="NEW")
@framed
def rename_run(frame: Frame, old: str, new: str) -> None:
    """Rename the run RUN to NEW.

    No tensor is copied. Each checkpoint gets a new id, since the id depends on the
    name of the run. Tags, pins, metrics, notes and the retention rules of the run
    are kept. The command fails while a save to the run is in progress, or while one
    of its checkpoints is open, or if a remote has the only copy of its data. After
    an interruption, the same command continues.

    The mirror also keeps the checkpoints under the old name, until keep-remote
    removes them. Without keep-remote, the command warns.

    \b
    Example:
      ckstore rename-run main gpt-7b

    \b
    Exit status:
      0  done
      1  NEW has checkpoints, or a checkpoint of RUN is damaged or only on a remote
      2  wrong usage
      4  no such store or run
      5  a save to the run is in progress, or one of its checkpoints is open
      6  not enough space
    """
    out = frame.output()
    with frame.writing() as store:
        infos = store.rename_run(old, new)
    out.documents({"run": info.run, "step": info.step, "id": info.id} for info in infos)
    out.line(f"renamed {counted(len(infos), 'checkpoint')} of {old} to {new}")
