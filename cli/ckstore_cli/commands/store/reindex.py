"""``ckstore reindex``: rebuild the catalog from the directories."""

from __future__ import annotations

import click

from ckstore.errors import DamagedBlob
from ckstore.model.reports.reindex_report import details, summary
from ckstore.model.words import printable
from ckstore_cli._frame import Frame, framed
from ckstore_cli._progress import Progress


@click.command()
@click.option("--relink", is_flag=True, help="In a copied store, replace copies of a blob by hardlinks to one file.")
@framed
def reindex(frame: Frame, relink: bool) -> int:  # noqa: FBT001 - click's
    """Rebuild the catalog from the directories.

    The catalog is an index of the checkpoints, tags, pins and metrics, which are
    stored in the directories. The old catalog is renamed and kept. Other processes
    may use the store meanwhile. --relink is for a store that was copied without its
    hardlinks, for example by cp -r or by rsync without -H. It verifies a file before
    it replaces other files by hardlinks to it.

    \b
    Example:
      ckstore reindex
      ckstore reindex --relink

    \b
    Exit status:
      0  done
      2  wrong usage
      3  done, but a directory is not a complete checkpoint, or a blob is damaged
      4  no such store
      5  other processes kept writing to the store
      6  not enough space for a second catalog, and nothing was changed
    """
    out = frame.output()
    # Open the store without recovery, since the catalog must show the directories as they are.
    with frame.writing(recover=False) as store, Progress("reading", quiet=out.as_json) as shown:
        report = store.reindex(relink=relink, progress=shown.at)
    out.document(report)
    for word, finding in details(report):
        out.headed(word, finding, "red")
    out.lines(summary(report))
    for problem in report.problems:
        out.warning(printable(problem))
    return 0 if report.ok else DamagedBlob.exit_status
