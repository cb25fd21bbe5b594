"""``ckstore undo``: list what was dropped and can be brought back, and bring it back."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ckstore.errors import BadInput, CkstoreError, DamagedBlob, NoSuchRef
from ckstore.model.digest import short_id
from ckstore.model.sizes import size_text
from ckstore.model.words import printable, some_of
from ckstore_cli._format import columns
from ckstore_cli._frame import Frame, framed

if TYPE_CHECKING:
    from ckstore.store import Store

_HEAD = ("CHECKPOINT", "ID", "DROPPED", "UNTIL (UTC)", "SIZE", "PROBLEM")


@click.command()
@click.argument("refs", metavar="[REF...]", nargs=-1)
@click.option("--last", is_flag=True, help="Bring back the one that was dropped last.")
@click.option("--run", metavar="RUN", help="Bring back all that was dropped of this run.")
@click.option("--all", "every", is_flag=True, help="Bring back all that was dropped.")
@framed
def undo(frame: Frame, refs: tuple[str, ...], last: bool, run: str | None, every: bool) -> None:
    """Bring back the dropped checkpoints REF; without one, list those that can be.

    A REF is RUN@STEP or an id of the list. SIZE is what it alone keeps on the disk
    until the time UNTIL (UTC); a save that finds no room, and ckstore gc --now,
    free it earlier. What has a PROBLEM, such as a missing blob, cannot be brought
    back. How long what is dropped waits: ckstore config undo.

    \b
    Example:
      ckstore undo
      ckstore undo main@1200
      ckstore undo --last
      ckstore undo --run sweep-7
      ckstore undo --all

    \b
    Exit status:
      0  done
      2  wrong usage
      3  a blob of it is missing; it can only be freed
      4  there is no such store, or nothing of that name can be brought back
    """
    if (last, bool(refs), run is not None, every).count(True) > 1:
        raise BadInput("undo takes either REFs, --last, --run or --all", hint="ckstore undo --last")
    out = frame.output()
    if refs or last or every or run is not None:
        with frame.writing() as store:
            broken, back = None, []
            for ref in _waiting(store, run) if every or run is not None else refs or ("latest",):
                try:
                    info = store.undelete(ref)
                except DamagedBlob as error:  # the others need not wait for this one
                    broken = broken or error
                    continue
                out.document({"run": info.run, "step": info.step, "id": info.id})
                out.line(f"brought back {info.shown}")
                back.append(info.name)
            if doomed := _doomed(store, back):
                them = "it" if len(doomed) == 1 else "them"
                said = (
                    f"the rules of ckstore config drop {some_of(doomed)} after the next save; ckstore pin keeps {them}"
                )
                out.warning(printable(said))
            if broken is not None:
                raise broken
        return
    with frame.reading() as store:
        found = store.dropped()
        is_off = not store.config.undo_by_hand_s
    out.documents(found)
    if not found:
        how = "; ckstore config undo --on keeps what is dropped for a day" if is_off else ""
        out.note(f"nothing can be brought back{how}")
        return
    rows = [
        (one.ref, short_id(one.id), _time(one.dropped), _time(one.until), size_text(one.nbytes), printable(one.problem))
        for one in found
    ]
    shown = len(_HEAD) - (not any(one.problem for one in found))
    out.table(columns([row[:shown] for row in (_HEAD, *rows)], "<<<<><"[:shown]))


def _doomed(store: Store, back: list[str]) -> list[str]:
    """Return those of the checkpoints that are back which the store's own rules would drop again."""
    own = store.config
    if back and (own.retention or own.retention_by_run or own.budget):
        with suppress(CkstoreError):  # they are back, whatever the rules cannot say
            plan = store.plan_retention(shown_only=True)
            return [entry.info.name for entry in plan.dropped if entry.info.name in back]
    return []


def _waiting(store: Store, run: str | None) -> list[str]:
    """Return what can be brought back, of a run or of all, each by its id; without one, by its step."""
    found = list(dict.fromkeys(one.id or one.ref for one in store.dropped() if run in (None, one.run)))
    if not found:
        of_run = "" if run is None else f" of the run {run}"
        raise NoSuchRef(f"nothing{of_run} can be brought back", hint="ckstore undo lists what can be")
    return found


def _time(text: str) -> str:
    return text[:16].replace("T", " ")
