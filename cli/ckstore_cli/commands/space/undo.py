"""``ckstore undo``: restore dropped checkpoints, or list them."""

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
@click.option("--last", is_flag=True, help="Restore the checkpoint that was dropped last.")
@click.option("--run", metavar="RUN", help="Restore all dropped checkpoints of this run.")
@click.option("--all", "every", is_flag=True, help="Restore all dropped checkpoints.")
@framed
def undo(frame: Frame, refs: tuple[str, ...], last: bool, run: str | None, every: bool) -> None:
    """Restore the dropped checkpoints REF, or list all dropped checkpoints.

    A REF is RUN@STEP or an id from the list. A dropped checkpoint is kept until the
    time UNTIL (UTC), unless ckstore gc --now or a save that needs the space frees it
    earlier. SIZE is the disk space that only this checkpoint uses. A checkpoint with
    a PROBLEM, such as a missing blob, cannot be restored. ckstore config undo-by-hand sets
    how long dropped checkpoints are kept.

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
      3  a checkpoint has a missing blob or a damaged manifest and cannot be restored
      4  no such store, or no such dropped checkpoint
    """
    if (last, bool(refs), run is not None, every).count(True) > 1:
        raise BadInput("undo takes either REFs, --last, --run or --all", hint="ckstore undo --last")
    out = frame.output()
    if refs or last or every or run is not None:
        with frame.writing() as store:
            broken, back = None, []
            for ref in _waiting(store, run) if every or run is not None else refs or ("latest",):
                try:
                    info = store.undo(ref)
                except DamagedBlob as error:  # the others are still restored
                    broken = broken or error
                    continue
                out.document({"run": info.run, "step": info.step, "id": info.id})
                out.line(f"restored {info.shown}")
                back.append(info.name)
            if doomed := _doomed(store, back):
                them = "it" if len(doomed) == 1 else "them"
                warning = (
                    f"the rules of ckstore config drop {some_of(doomed)} after the next save; ckstore pin keeps {them}"
                )
                out.warning(printable(warning))
            if broken is not None:
                raise broken
        return
    with frame.reading() as store:
        found = store.undoable()
        is_off = not store.config.undo_by_hand_s
    out.documents(found)
    if not found:
        how = "; ckstore config undo-by-hand 1d allows it for a day" if is_off else ""
        out.note(f"no dropped checkpoint can be restored{how}")
        return
    rows = [
        (one.ref, short_id(one.id), _time(one.dropped), _time(one.until), size_text(one.nbytes), printable(one.problem))
        for one in found
    ]
    shown = len(_HEAD) - (not any(one.problem for one in found))
    out.table(columns([row[:shown] for row in (_HEAD, *rows)], "<<<<><"[:shown]))


def _doomed(store: Store, back: list[str]) -> list[str]:
    """Return the restored checkpoints that the rules of the store would drop again."""
    own = store.config
    if back and (own.retention or own.retention_by_run or own.budget):
        with suppress(CkstoreError):  # the undo has succeeded, even if the rules cannot be evaluated
            return [info.name for info in store.prune(dry_run=True).dropped if info.name in back]
    return []


def _waiting(store: Store, run: str | None) -> list[str]:
    """Return refs of the dropped checkpoints of one run or of all runs: ids, or RUN@STEP if the id is unknown."""
    found = list(dict.fromkeys(one.id or one.ref for one in store.undoable() if run in (None, one.run)))
    if not found:
        of_run = "" if run is None else f" of the run {run}"
        raise NoSuchRef(f"no dropped checkpoint{of_run} can be restored", hint="ckstore undo lists dropped checkpoints")
    return found


def _time(text: str) -> str:
    return text[:16].replace("T", " ")
