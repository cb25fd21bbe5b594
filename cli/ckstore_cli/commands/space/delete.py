"""``ckstore delete``: delete checkpoints."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ckstore.errors import AmbiguousRef, BadInput, CkstoreError, DamagedBlob, InUse, NoSuchRef
from ckstore.model.digest import short_id
from ckstore.ops.refs.find import torn_at
from ckstore.ops.refs.listing import incomplete
from ckstore.ops.report.deletion import Preview
from ckstore.store import context_of
from ckstore_cli._frame import Frame, framed
from ckstore_cli._output import Output
from ckstore_cli._refs import complete_ref, complete_run, no_such_run

if TYPE_CHECKING:
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.names import CheckpointKey
    from ckstore.store import Store

_RANGE = re.compile(r"(?:(?P<run>[^@]+)@)?(?P<first>[0-9]{0,16})\.\.(?P<last>[0-9]{0,16})")


@click.command()
@click.argument("refs", metavar="REF...", nargs=-1, shell_complete=complete_ref)
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="Delete all checkpoints of this run.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option(
    "--now", is_flag=True, help="Free the space at once, so that ckstore undo cannot restore the checkpoints."
)
@framed
def delete(frame: Frame, refs: tuple[str, ...], run: str | None, dry_run: bool, now: bool) -> None:
    """Delete the checkpoints REF, which ckstore undo can restore for a day.

    The space of a deleted checkpoint is freed after that day, on a full disk, or at
    once with --now. If a process still has a blob open, the first ckstore gc after
    it is closed frees the blob.

    A REF may also be a range of steps. A..B means the steps from A to B, A.. the
    steps from A on, and ..B the steps up to B, each including A and B. In a store
    with several runs, write RUN@A..B. Nothing is deleted unless each REF names a
    checkpoint. Checkpoints that are open, have a tag or are pinned are kept, and the
    others are deleted.

    A range and --run also delete superseded checkpoints. After RUN@STEP is deleted,
    this REF names the newest superseded checkpoint of the step, if one exists. A
    range, --run and RUN@STEP also delete incomplete checkpoints, which cannot be
    restored.

    The command prints the space that the deletion frees. If some space is not freed,
    it prints the reason, such as data that other checkpoints also use.

    \b
    Example:
      ckstore delete main@1200
      ckstore delete 100 200 sweep-7@1000..5000 --dry-run
      ckstore delete --run sweep-7

    \b
    Exit status:
      0  done
      2  wrong usage
      4  no such store or checkpoint, or REF is ambiguous
      5  a checkpoint is open, has a tag, or is pinned, and the others are deleted
    """
    if bool(refs) == (run is not None):
        raise BadInput(
            "delete takes either REFs or --run RUN", hint="ckstore delete RUN@STEP, or ckstore delete --run RUN"
        )
    out = frame.output()
    refused: list[tuple[CheckpointInfo, InUse]] = []
    with frame.reading() if dry_run else frame.writing() as store:
        # All refs are resolved first, so that nothing is deleted if one of them is wrong.
        torn: list[str] = []
        named = [_named(store, ref, torn) for ref in refs]
        chosen = {info.key: info for found in named for info in found}
        if run is not None:
            chosen = {info.key: info for info in store.checkpoints(run, superseded=True)}
            torn += [one.key.name for one in incomplete(context_of(store), run)]
            if not chosen and not torn:
                raise no_such_run(store.path, run)
        preview = Preview(context_of(store), chosen.values())
        for info in chosen.values():
            try:
                store.delete(info, dry_run=dry_run, now=now)
            # Delete the other checkpoints, and fail at the end, so that a script does not assume that all are deleted.
            except InUse as error:
                refused.append((info, error))
                continue
            out.document({"dry_run": dry_run, "run": info.run, "step": info.step, "id": info.id})
            out.line(f"{'would delete' if dry_run else 'deleted'} {info.shown}")
        # Delete incomplete checkpoints last. As long as their step has a complete checkpoint, RUN@STEP names that one.
        for name in dict.fromkeys(torn):
            store.delete(name, dry_run=dry_run, now=now)
            out.document({"dry_run": dry_run, "torn": name})
            out.line(f"{'would delete' if dry_run else 'deleted'} {name}, which is incomplete")
        for info in [] if dry_run else [found[0] for found in named if len(found) == 1]:
            _note_successor(store, info, out)
        if deleted := chosen.keys() - {info.key for info, _ in refused}:
            effect = preview.effect(deleted)
            out.note(effect.words(dry_run=dry_run))
            if not (dry_run or now) and (waiting := [one for one in store.undoable() if not one.problem]):
                until = waiting[0].until[:16].replace("T", " ")
                then = "; ckstore gc --now frees the space at once" if effect.freed_bytes else ""
                out.note(f"ckstore undo can restore this until {until} UTC{then}")
    if len(refused) == 1:
        raise refused[0][1]
    if refused:
        listed = "; ".join(f"{info.shown}: {error.message}" for info, error in refused)
        were = "would not be" if dry_run else "were not"
        msg = f"{len(refused)} of {len(chosen)} checkpoints {were} deleted: {listed}"
        raise InUse(msg, hint=refused[0][1].hint)


def _note_successor(store: Store, deleted: CheckpointInfo, out: Output) -> None:
    """Print which superseded checkpoint RUN@STEP now names, if the step has one."""
    with suppress(CkstoreError):  # usually the step has no other checkpoint
        found = store.info(deleted.name)
        if found.id != deleted.id and not deleted.superseded:
            out.note(f"{found.name} is now {short_id(found.id)}, which was superseded")


def _named(store: Store, ref: str, torn: list[str]) -> list[CheckpointInfo]:
    """Return the checkpoints of a ref or a range, and append the names of incomplete ones to `torn`."""
    if "*" in ref:
        raise BadInput(f"{ref!r} is not a REF: it has a *", hint="ckstore delete RUN@A..B, or ckstore delete --run RUN")
    found = _RANGE.fullmatch(ref)
    if found is None:
        _refuse_several(store, ref)
        try:
            return [store.info(ref)]
        except (DamagedBlob, NoSuchRef):
            found_torn = torn_at(context_of(store), ref)
            if not found_torn:
                raise
            torn += [key.name for key in found_torn]
            return []
    first, last = (int(end) if end else None for end in (found["first"], found["last"]))
    if first is None and last is None:
        msg = f"{ref} has neither a first nor a last step"
        raise BadInput(msg, hint="write A..B, A.. or ..B")
    if first is not None and last is not None and first > last:
        raise BadInput(f"{ref}: its first step is after its last", hint="write the smaller step first")
    infos = store.checkpoints(superseded=True)
    incompletes = [one.key for one in incomplete(context_of(store), None)]
    run = _run_of(ref, {one.run for one in infos} | {key.run for key in incompletes}, found["run"])

    def is_within(one: CheckpointInfo | CheckpointKey) -> bool:
        return one.run == run and (first is None or first <= one.step) and (last is None or one.step <= last)

    within = [*filter(is_within, infos)]
    torn_within = [key.name for key in incompletes if is_within(key)]
    torn += torn_within
    if not within and not torn_within:
        msg = f"{ref}: no checkpoint of the run {run} has a step in this range"
        raise NoSuchRef(msg, hint=f"ckstore log --run {run} lists its checkpoints")
    return within


def _refuse_several(store: Store, ref: str) -> None:
    """Raise `AmbiguousRef` if a step is given without a run, and several runs have this step."""
    if not ref.isdecimal():
        return
    names = [info.name for info in store.checkpoints() if str(info.step) == ref]
    if len(names) > 1:
        msg = f"{ref} is ambiguous, since several runs have this step: {', '.join(sorted(names)[:5])}"
        raise AmbiguousRef(msg, hint=f"name the run: RUN@{ref}")


def _run_of(ref: str, names: set[str], run: str | None) -> str:
    """Return the run of a range. If the range names no run, the store must have only one run."""
    runs = sorted(names)
    some = ", ".join(runs[:5])
    if run is None and len(runs) > 1:
        msg = f"{ref} is ambiguous, since the store has several runs: {some}"
        raise AmbiguousRef(msg, hint=f"name the run: RUN@{ref}")
    if not runs or run not in (None, *runs):
        msg = f"{ref}: there is no run {run!r}" if runs else f"{ref}: the store has no checkpoints"
        raise NoSuchRef(msg, hint=f"the runs are {some}" if runs else "")
    return run or runs[0]
