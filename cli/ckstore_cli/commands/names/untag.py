"""``ckstore untag``: take a name away."""

from __future__ import annotations

import click

from ckstore_cli._frame import Frame, json_option, pass_frame, store_option
from ckstore_cli._refs import complete_tag


@click.command()
@click.argument("name", shell_complete=complete_tag)
@store_option
@json_option
@pass_frame
def untag(frame: Frame, name: str) -> None:
    """Remove the tag NAME; its checkpoint stays.

    \b
    Example:
      ckstore untag best

    \b
    Exit status:
      0  done
      2  wrong usage
      4  there is no such store or tag
    """
    out = frame.output()
    with frame.writing() as store:
        store.untag(name)
    out.document({"name": name})
    out.line(f"removed the tag {name}")
