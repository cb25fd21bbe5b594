"""``ckstore ls``: the files, tensors and other values of a checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ckstore.errors import NoSuchRef
from ckstore.model.names import plain
from ckstore.model.sizes import size_text
from ckstore.model.words import arguments, named
from ckstore_cli._format import columns_with_names
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_ref

if TYPE_CHECKING:
    from ckstore.model.manifest.committed_files import FileSummary
    from ckstore.ops.read.open_checkpoint import LeafSummary


@click.command()
@click.argument("ref", default="latest", shell_complete=complete_ref)
@click.argument("glob", required=False)
@framed
def ls(frame: Frame, ref: str, glob: str | None) -> None:
    """List the files, tensors and other values of REF (default: latest).

    With GLOB, list only names that match it completely. * matches any characters
    and ? matches one. Brackets are literal, since names such as layers[0].weight
    contain them. If no name matches, GLOB lists the names below it, such as all
    names below model. The list shows a backslash before a dot in a key only if the
    name would be ambiguous without it.

    \b
    Example:
      ckstore ls
      ckstore ls latest model
      ckstore ls main@1200 'model.*.weight'

    \b
    Exit status:
      0  done
      2  wrong usage
      3  the manifest is damaged
      4  no such store or checkpoint, REF is ambiguous, or no name matches GLOB
    """
    out = frame.output()
    with frame.reading() as store, store.open_checkpoint(ref) as checkpoint:
        info = checkpoint.info
        rows = [*map(_of_file, checkpoint.files()), *map(_of_leaf, checkpoint.leaves())]
    shown = rows
    if glob is not None:
        shown = _fitting(rows, glob) or _fitting(rows, plain(glob))
        if not shown:
            shown = [row for end in (".", "[", "/") for row in _fitting(rows, f"{glob}{end}*")]
        if not shown:
            hint = f"to list all names: ckstore ls {arguments(info.ref)}"
            raise NoSuchRef(f"no name in {info.shown} matches {glob!r}", hint=hint)
    if out.as_json:
        out.documents(shown)
        return
    table = [("DTYPE", "SHAPE", "SIZE", "NAME")]
    table.extend(
        (
            row.dtype or row.kind,
            f"[{', '.join(map(str, row.shape))}]" if row.dtype else "",
            size_text(row.nbytes) if row.kind not in ("directory", "symlink") else "",
            named(row.name),
        )
        for row in shown
    )
    if shown:
        out.table(columns_with_names(table, "<<><", out.width))
    if not rows:
        out.note(f"{info.shown} has no tensors, arrays, bytes or long strings")


def _fitting(rows: list[ListLine], glob: str) -> list[ListLine]:
    return [row for row in rows if fits(row.name, glob) or fits(row.plain_name, glob)]


@dataclass(frozen=True, slots=True)
class ListLine:
    """A line of the list."""

    name: str
    plain_name: str
    kind: str
    nbytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()


def _of_file(file: FileSummary) -> ListLine:
    return ListLine(file.path, file.path, file.kind, file.nbytes)


def _of_leaf(leaf: LeafSummary) -> ListLine:
    return ListLine(leaf.name, plain(leaf.name), leaf.kind, leaf.nbytes, leaf.dtype, leaf.shape)


def fits(name: str, glob: str) -> bool:
    """Whether the complete `name` matches `glob`, in which only ``*`` and ``?`` are special."""
    pattern = re.escape(glob).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(pattern, name, re.DOTALL) is not None
