"""``ckstore doctor``: find what is wrong around a store; for now deleted files that still take space."""

from __future__ import annotations

import click

from ckstore_cli._format import columns, cut, printable, size_text
from ckstore_cli._frame import Frame, json_option, pass_frame, store_option


@click.command()
@click.option("--leaks", is_flag=True, help="List deleted files that still take space, and who has them open.")
@store_option
@json_option
@pass_frame
def doctor(frame: Frame, leaks: bool) -> None:  # noqa: FBT001 - click's
    """Find deleted files that still take space on the store's filesystem.

    They are those of any program: df does not go down until it closes them. As
    root all processes are seen, otherwise your own.

    \b
    Example:
      ckstore doctor --leaks

    \b
    Exit status:
      0  done, whether there are any or not
      2  wrong usage
      4  there is no such store
    """
    if not leaks:
        raise click.UsageError("say what to look for: --leaks")
    out = frame.output()
    with frame.reading() as store:
        found = store.leaks()
    for one in found:
        holders = [
            {"pid": who.pid, "command": who.command, "how": who.how, "target": who.target} for who in one.holders
        ]
        out.document({"inode": one.inode, "nbytes": one.nbytes, "holders": holders})
    found = [one for one in found if one.nbytes]
    if not found:
        out.line("no deleted file takes space")
        return
    rows = [
        (size_text(one.nbytes), str(who.pid), who.how, printable(who.command), printable(who.target))
        for one in found
        for who in {who.pid: who for who in reversed(one.holders)}.values()  # a line for each process will do
    ]
    head, *lines = columns([("SIZE", "PID", "HOW", "COMMAND", "FILE"), *rows], ">><<<")
    out.line(out.style(head, "dim"))
    for line in lines:
        out.line(cut(line, out.width))
    out.line(f"{size_text(sum(one.nbytes for one in found))} come back when these processes close them or end")
