"""Which run is meant where none is named. A bare `latest` never means the checkpoint of another training."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.errors import AmbiguousRef

if TYPE_CHECKING:
    from ckstore.model.checkpoint.refs import Ref
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.ops.context import Context

_SHOWN = 4


def run_meant(context: Context, run: str | None) -> str | None:
    """Return the run that a call means: the one that it names, else the one that the handle is bound to."""
    return context.run if run is None else run


def in_one_run(context: Context, ref: Ref) -> Ref:
    """Return `ref` with the run that it is looked for in, where its kind is counted in runs.

    Tags and ids name one checkpoint of the whole store, whatever the handle is bound to.

    Raises:
        AmbiguousRef: ``latest`` or ``latest-valid`` without a run, and the store has several.
    """
    if ref.run is not None or ref.kind in ("tag", "id"):
        return ref
    if context.run is not None:
        return replace(ref, run=context.run)
    if ref.kind != "step":
        _refuse_several(context, ref)
    return ref


def _refuse_several(context: Context, ref: Ref) -> None:
    """Raise if checkpoints of several runs are there."""
    from ckstore.ops.refs.latest import newest

    with context.layout.open_runs() as runs:
        names = sorted({run for run, _ in runs.stamps(None)})
    if len(names) < 2:
        return
    found = [latest for name in names if (latest := newest(context, name)) is not None]
    if len(found) < 2:
        return
    found.sort(key=lambda info: info.order, reverse=True)
    msg = f"{ref}: the store has {len(found)} runs; it may be {_listed(found)}"
    example = f"{found[0].run}@{ref.value}"
    raise AmbiguousRef(
        msg,
        hint=f"write {example}, or bind the store to a run: Store.open(path, run={found[0].run!r})",
        command_hint=f"write {example}",
    )


def _listed(found: list[CheckpointInfo]) -> str:
    more = len(found) - _SHOWN
    return " or ".join(info.name for info in found[:_SHOWN]) + (f" or {more} more" if more > 0 else "")
