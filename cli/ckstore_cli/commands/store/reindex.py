"""``ckstore reindex``: rebuild the catalog from the directories, and say what is in them."""

from __future__ import annotations

import click

from ckstore.errors import DamagedBlob
from ckstore.model.reports.reindex_report import details, summary
from ckstore.model.words import printable
from ckstore_cli._frame import Frame, framed
from ckstore_cli._progress import Progress


@click.command()
@click.option("--relink", is_flag=True, help="After a copy: make the files that hold the same blob one file again.")
@framed
def reindex(frame: Frame, relink: bool) -> int:  # noqa: FBT001 - click's
    """Rebuild the catalog from the directories.

    The catalog is an index: checkpoints, tags, pins and metrics are in the
    directories. The old catalog is kept beside the new one. Other processes may
    use the store meanwhile. --relink is for a store that was copied without its
    hardlinks (cp -r, rsync without -H): each file is read before another file is
    replaced by a hardlink to it.

    \b
    Example:
      ckstore reindex
      ckstore reindex --relink

    \b
    Exit status:
      0  done
      2  wrong usage
      3  done, but a directory is not a complete checkpoint, or a blob is damaged
      4  there is no such store
      5  other processes kept writing to the store
      6  there is no space for a second catalog; nothing was changed
    """
    out = frame.output()
    # Nothing is swept or completed first: what is there is what is to be entered.
    with frame.writing(recover=False) as store, Progress("reading", quiet=out.as_json) as shown:
        report = store.reindex(relink=relink, progress=shown.at)
    out.document(report)
    for word, finding in details(report):
        out.headed(word, finding, "red")
    out.lines(summary(report))
    for problem in report.problems:
        out.warning(printable(problem))
    return 0 if report.ok else DamagedBlob.exit_status
