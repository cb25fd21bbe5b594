"""``ckstore import-history``: commit all checkpoints in the output folder of a trainer."""

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
@click.option("--delete-sources", is_flag=True, help="Delete each source once its copy is read back and verified.")
@framed
def import_history(frame: Frame, *, folder: Path, run: str | None, delete_sources: bool) -> None:
    """Commit all checkpoints in FOLDER, in the order of their steps.

    Checkpoints are recognized by the names that common trainers use, such as
    checkpoint-500, step-500, global_step500, iter_0000500 and
    epoch=1-step=500.ckpt. Modification times and the metrics in trainer_state.json
    are imported. The checkpoint that a file such as latest names is committed last.
    Each checkpoint is durable before the next one is read. After an interruption,
    the same command continues the import.

    Nothing is imported if the run has checkpoints that were not imported, or if a
    retention policy or a budget would drop checkpoints because of the import.

    \b
    Example:
      ckstore import-history out --run gpt
      ckstore import-history out --delete-sources

    \b
    Exit status:
      0  done
      1  an incomplete checkpoint was skipped, or the run has other checkpoints
      2  wrong usage, no such folder, rules forbid it, or a source cannot be deleted
      3  a copy was damaged when read back, and its source was kept
      4  no such store
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
        raise CkstoreError(msg, hint="ckstore commit --allow-incomplete commits one anyway")
