"""``ckstore undo``: list what was dropped and can be brought back, and bring it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ckstore.errors import BadInput, NoSuchRef
from ckstore.model.digest import short_id
from ckstore.model.sizes import size_text
from ckstore_cli._format import columns
from ckstore_cli._frame import Frame, framed

if TYPE_CHECKING:
    from ckstore.store import Store

_HEAD = ("CHECKPOINT", "ID", "DROPPED", "UNTIL", "SIZE")


@click.command()
@click.argument("refs", metavar="[REF...]", nargs=-1)
@click.option("--last", is_flag=True, help="Bring back the one that was dropped last.")
@click.option("--run", metavar="RUN", help="Bring back all that was dropped of this run.")
@framed
def undo(frame: Frame, refs: tuple[str, ...], last: bool, run: str | None) -> None:  # noqa: FBT001 - click's
    """Bring back the dropped checkpoints REF; without one, list those that can be.

    A REF is RUN@STEP or an id of the list. SIZE is what it alone keeps on the disk
    until the time UNTIL (UTC); a save that finds no room, and ckstore gc --now,
    free it earlier. How long what is dropped waits: ckstore config undo.

    \b
    Example:
      ckstore undo
      ckstore undo main@1200
      ckstore undo --last
      ckstore undo --run sweep-7

    \b
    Exit status:
      0  done
      2  wrong usage, or another checkpoint has its place by now
      4  there is no such store, or nothing of that name can be brought back
    """
    if (last, bool(refs), run is not None).count(True) > 1:
        raise BadInput("undo takes either REFs, --last or --run", hint="ckstore undo --last")
    out = frame.output()
    if refs or last or run is not None:
        with frame.writing() as store:
            for ref in _of_run(store, run) if run is not None else refs or ("latest",):
                info = store.undelete(ref)
                out.document({"run": info.run, "step": info.step, "id": info.id})
                out.line(f"brought back {info.name}")
        return
    with frame.reading() as store:
        found = store.dropped()
        is_off = not store.config.undo_by_hand_s
    for one in found:
        out.document(one)
    if not found:
        how = "; ckstore config undo --on keeps what is dropped for a day" if is_off else ""
        out.note(f"nothing can be brought back{how}")
        return
    rows = [(one.ref, short_id(one.id), _time(one.dropped), _time(one.until), size_text(one.nbytes)) for one in found]
    out.table(columns([_HEAD, *rows], "<<<<>"))


def _of_run(store: Store, run: str) -> list[str]:
    """Return what can be brought back of a run; of several that had one place the one that was dropped last."""
    found = list(dict.fromkeys(one.ref for one in store.dropped() if one.run == run))
    if not found:
        raise NoSuchRef(f"nothing of the run {run} can be brought back", hint="ckstore undo lists what can be")
    return found


def _time(text: str) -> str:
    return text[:16].replace("T", " ")
