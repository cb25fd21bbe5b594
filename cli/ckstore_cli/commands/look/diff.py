"""``ckstore diff``: the differences between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ckstore.model.manifest.committed_files import file_type
from ckstore.model.reports.diff import Diff, summary, type_text, types_text, with_kind
from ckstore.model.sizes import size_text
from ckstore.model.words import named, number_text, printable
from ckstore_cli._format import columns_with_names, cut
from ckstore_cli._frame import Frame, framed
from ckstore_cli._output import Output
from ckstore_cli._refs import complete_ref


@click.command()
@click.argument("before", metavar="A", shell_complete=complete_ref)
@click.argument("after", metavar="[B]", required=False, shell_complete=complete_ref)
@click.option("--values", is_flag=True, help="Read the changed tensors, and show the largest differences.")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    help="Compare the content of this committed file with a saved state or with the file of the same path. If given "
    "twice, compare a file of A with a file of B.",
)
@framed
def diff(frame: Frame, before: str, after: str | None, values: bool, files: tuple[str, ...]) -> None:  # noqa: FBT001 - click's
    """List the files, tensors and values that differ between the checkpoints A and B.

    B defaults to the latest checkpoint of the run of A. No data is read without
    --values. With --file, the pickle of a torch file is parsed, but never executed.

    \b
    Example:
      ckstore diff best
      ckstore diff main@1000 main@1200 --values
      ckstore diff 1000 1200 --file optimizer.pt

    \b
    Exit status:
      0  done, with or without differences
      1  a file has no state that can be loaded
      2  wrong usage
      3  a checkpoint is damaged
      4  no such store or checkpoint, or a REF is ambiguous
    """
    out = frame.output()
    with frame.reading() as store:
        # With several runs, a plain `latest` would be ambiguous.
        after = after or f"{store.info(before).run}@latest"
        if len(files) > 2:
            raise click.BadParameter("give one path, or one path of A and one path of B", param_hint="--file")
        file = (files[0], files[1]) if len(files) == 2 else files[0] if files else None
        found = store.diff(before, after, values=values, file=file)
    out.document(found)
    out.lines(_lines(found, out, values=values))


def _lines(found: Diff, out: Output, *, values: bool) -> Iterator[str]:
    rows = list(_rows(found, values=values))
    if rows:
        names = ("DIFFERENCE", "RELATIVE") if values else ()
        align = "<<>>" + ">" * len(names) + "<"
        head, *lines = columns_with_names([("", "TYPE", "SIZE", "CHANGED", *names, "NAME"), *rows], align, out.width)
        yield out.style(head, "dim")
        yield from lines
    for change in found.plain:
        yield cut(with_kind(change), out.width)
    if rows or found.plain:
        yield ""
    yield summary(found)


def _rows(found: Diff, *, values: bool) -> Iterator[tuple[str, ...]]:
    blank = ("", "") if values else ()
    for file in found.files:
        one = file.after or file.before
        size = size_text(one.nbytes) if one else ""
        changed = size_text(file.changed_bytes) if file.kind == "changed" else ""
        yield file.kind, file_type(file.before, file.after), size, changed, *blank, printable(file.path)
    for word, leaves in (("added", found.added), ("removed", found.removed)):
        for leaf in leaves:
            kind = type_text(leaf.kind, leaf.dtype, leaf.shape)
            yield word, kind, size_text(leaf.nbytes), "", *blank, named(leaf.name)
    for change in found.changed:
        changed = size_text(change.changed_bytes)
        apart: tuple[str, ...] = ()
        if values:
            far = change.difference
            apart = ("-", "-") if far is None else tuple(map(number_text, (far.largest_absolute, far.largest_relative)))
        yield "changed", types_text(change), size_text(change.after.nbytes), changed, *apart, named(change.name)
