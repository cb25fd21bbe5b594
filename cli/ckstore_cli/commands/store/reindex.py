"""``ckstore reindex``: rebuild the catalog from the directories, and say what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ckstore.errors import DamagedBlob
from ckstore.model.sizes import size_text
from ckstore_cli._format import printable
from ckstore_cli._frame import Frame, json_option, pass_frame, store_option
from ckstore_cli._output import Output
from ckstore_cli._progress import Progress
from ckstore_cli._retention import checkpoints

if TYPE_CHECKING:
    from ckstore.model.reports.reindex_report import ReindexReport, RelinkReport


@click.command()
@click.option("--relink", is_flag=True, help="After a copy: make the files that hold the same blob one file again.")
@store_option
@json_option
@pass_frame
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
    with frame.writing(recover=False) as store, Progress("reading", quiet=out.as_json) as shown:
        report = store.reindex(relink=relink, progress=shown.at)
    out.document(_document(report))
    for line in _lines(report, out):
        out.line(line)
    for problem in report.problems:
        out.warning(printable(problem))
    return 0 if report.ok else DamagedBlob.exit_status


def _lines(report: ReindexReport, out: Output) -> Iterator[str]:
    for one in report.incomplete:
        yield f"{out.style('incomplete', 'red')}  {one.checkpoint}  {printable(one.problem)}"
    if report.relinked is not None:
        yield from _relinked(report.relinked, out)
    tags = "1 tag" if report.tag_count == 1 else f"{report.tag_count} tags"
    pins = "1 pin" if report.pin_count == 1 else f"{report.pin_count} pins"
    held = f"{_blobs(report.blob_count)} of {size_text(report.blob_bytes)}"
    yield f"{checkpoints(report.checkpoint_count)}, {held}, {tags}, {pins}"
    if report.restored_count:
        its, it = ("its name", "it") if report.restored_count == 1 else ("their names", "them")
        yield f"gave {_blobs(report.restored_count)} {its} in blobs/ again, so that new saves can share {it}"
    if report.orphan_count:
        yield f"{_blobs(report.orphan_count)} of {size_text(report.orphan_bytes)} unused: ckstore gc frees them"
    if report.copy_count:
        taken = f"{report.copy_count} names of blobs are copies that take {size_text(report.copy_bytes)}"
        yield f"{taken}: ckstore reindex --relink makes them one file again"
    if report.old_catalog:
        yield f"the old catalog is {printable(report.old_catalog)}"


def _relinked(done: RelinkReport, out: Output) -> Iterator[str]:
    for digest in done.damaged:
        what = f"every file of blob {digest} is damaged; ckstore verify names the checkpoints that need it"
        yield f"{out.style('damaged', 'red')}  {what}"
    names = "1 name" if done.relinked_count == 1 else f"{done.relinked_count} names"
    yield f"relinked {names}, which frees {size_text(done.spare_bytes)}; {size_text(done.checked_bytes)} read"


def _blobs(count: int) -> str:
    return "1 blob" if count == 1 else f"{count} blobs"


def _document(report: ReindexReport) -> dict[str, Any]:
    done = report.relinked
    return {
        "ok": report.ok,
        "checkpoint_count": report.checkpoint_count,
        "blob_count": report.blob_count,
        "blob_bytes": report.blob_bytes,
        "orphan_count": report.orphan_count,
        "orphan_bytes": report.orphan_bytes,
        "restored_count": report.restored_count,
        "copy_count": report.copy_count,
        "copy_bytes": report.copy_bytes,
        "tag_count": report.tag_count,
        "pin_count": report.pin_count,
        "incomplete": [{"run": one.run, "step": one.step, "problem": one.problem} for one in report.incomplete],
        "problems": list(report.problems),
        "old_catalog": report.old_catalog or None,
        "relinked": None
        if done is None
        else {
            "checked_bytes": done.checked_bytes,
            "relinked_count": done.relinked_count,
            "spare_bytes": done.spare_bytes,
            "damaged": list(done.damaged),
        },
    }
