"""``ckstore import-history``: commit every checkpoint in a folder of another trainer."""

from __future__ import annotations

from pathlib import Path

import click

from ckstore.errors import CkstoreError
from ckstore.model.words import printable
from ckstore_cli._frame import Frame, framed
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_run


@click.command("import-history")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="The run.  [default: main]")
@click.option("--delete-sources", is_flag=True, help="Delete each source when its copy was read back and verified.")
@framed
def import_history(frame: Frame, *, folder: Path, run: str | None, delete_sources: bool) -> None:
    """Commit every checkpoint in FOLDER at its step, the oldest first.

    Known are the names of the usual trainers: checkpoint-500, step-500,
    global_step500, iter_0000500, epoch=1-step=500.ckpt. Times and the metrics in
    trainer_state.json come along. Each is durable before the next begins. An
    import that was stopped goes on where it was.

    \b
    Example:
      ckstore import-history out --run gpt
      ckstore import-history out --delete-sources

    \b
    Exit status:
      0  done
      1  a checkpoint is incomplete and was left alone, or the run has another one at its step
      2  wrong usage: no such folder, or a source cannot be deleted
      3  a copy that was read back is damaged; its source is still there
      4  there is no such store
      6  the disk is full
    """
    from ckstore.training.history import import_history as do
    from ckstore.training.history import lines

    out = frame.output()
    with frame.saving() as store, Progress("importing", quiet=out.as_json) as shown:
        report = do(store, folder, run, delete_sources=delete_sources, progress=shown.at)
    imported, present = ([info.name for info in infos] for infos in (report.imported, report.present))
    out.document(report, imported=imported, present=present)
    out.lines(lines(report))
    incomplete = [name for name, reason in report.skipped.items() if reason.startswith("incomplete")]
    if incomplete:
        msg = f"{', '.join(map(printable, incomplete))}: incomplete, not imported"
        raise CkstoreError(msg, hint="ckstore commit --allow-incomplete takes one as it is")
