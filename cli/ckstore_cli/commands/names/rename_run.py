"""``ckstore rename-run``: give a run another name."""

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
    """Give all checkpoints of RUN the name NEW.

    No tensor is copied. Each checkpoint has a new id, since the name of its run
    is part of what the id is made of; tags, pins, metrics, notes and the rules of
    the run go along. It is refused while a save to the run is under way, or one of
    its checkpoints is open. If it is interrupted, the same command goes on.

    \b
    Example:
      ckstore rename-run main gpt-7b

    \b
    Exit status:
      0  done
      1  NEW has checkpoints of its own, or a checkpoint of RUN is damaged
      2  wrong usage
      4  there is no such store or run
      5  a save to the run is under way, or one of its checkpoints is open
      6  not enough space
    """
    out = frame.output()
    with frame.writing() as store:
        infos = store.rename_run(old, new)
    out.documents({"run": info.run, "step": info.step, "id": info.id} for info in infos)
    out.line(f"renamed {counted(len(infos), 'checkpoint')} of {old} to {new}")
