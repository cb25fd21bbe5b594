"""``ckstore tag``: tag a checkpoint, remove a tag, or list the tags."""

from __future__ import annotations

import click

from ckstore.errors import NoSuchRef
from ckstore.model.digest import short_id
from ckstore.model.words import arguments
from ckstore_cli._format import columns
from ckstore_cli._frame import Frame, framed
from ckstore_cli._output import Output
from ckstore_cli._refs import complete_ref, complete_tag


@click.command()
@click.argument("name", required=False, shell_complete=complete_tag)
@click.argument("ref", required=False, shell_complete=complete_ref)
@click.option("--delete", "-d", is_flag=True, help="Remove the tag NAME. Its checkpoint is kept.")
@framed
def tag(frame: Frame, name: str | None, ref: str | None, delete: bool) -> None:
    """Tag the checkpoint REF, show the checkpoint of the tag NAME, or list the tags.

    An existing tag moves to REF. A checkpoint with a tag is never dropped.
    With -d, remove the tag NAME.

    \b
    Example:
      ckstore tag
      ckstore tag best
      ckstore tag best main@1200
      ckstore tag -d best

    \b
    Exit status:
      0  done
      2  wrong usage, or NAME cannot be a tag
      4  no such store, tag or checkpoint, or REF is ambiguous
      5  another process is deleting the checkpoint
    """
    out = frame.output()
    if delete:
        if name is None or ref is not None:
            raise click.UsageError("-d needs the NAME of the tag to remove, and nothing else")
        with frame.writing() as store:
            store.untag(name)
        out.document({"name": name})
        out.line(f"removed the tag {name}")
        return
    if name is None:
        _list(frame, out)
        return
    if ref is None:
        _show(frame, out, name)
        return
    with frame.writing() as store:
        before = {found.name: found for found in store.tags()}.get(name)
        info = store.tag(name, ref)
    was = "" if before is None or before.id == info.id else f" (was {before.shown})"
    place = {"run": info.run, "step": info.step, "id": info.id, "superseded": info.superseded}
    out.document({"name": name, **place})
    out.line(f"{name} is {info.shown}{was}")


def _show(frame: Frame, out: Output, name: str) -> None:
    """Print the checkpoint of a tag."""
    with frame.reading() as store:
        tags = {found.name: found for found in store.tags()}
    found = tags.get(name)
    if found is None:
        known = f"the tags are {', '.join(sorted(tags)[:5])}; " if tags else ""
        msg = f"there is no tag {name!r}"
        raise NoSuchRef(msg, hint=f"{known}to tag a checkpoint: ckstore tag {arguments(name)} REF")
    out.document(found)
    out.line(str(found))


def _list(frame: Frame, out: Output) -> None:
    with frame.reading() as store:
        found = store.tags()
    out.documents(found)
    rows = [
        (
            one.name,
            f"{one.run}@{one.step}{' (superseded)' if one.superseded else ''}",
            "no longer exists" if one.id is None else short_id(one.id),
        )
        for one in found
    ]
    if not found:
        out.note("no tags yet")
        return
    out.table(columns([("TAG", "CHECKPOINT", "ID"), *rows], "<<<"))
