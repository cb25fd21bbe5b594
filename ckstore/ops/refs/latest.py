"""Which checkpoint is the newest: `latest`. A row of the catalog that is wrong makes no other one the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import DamagedBlob
from ckstore.ops.index.facts import sure
from ckstore.ops.refs.gaps import settle
from ckstore.ops.refs.listing import in_order, infos, infos_at
from ckstore.ops.warn import warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckstore.model.checkpoint.published import Stamp
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.names import CheckpointKey
    from ckstore.ops.context import Context


def newest(context: Context, run: str | None) -> CheckpointInfo | None:
    """Return the newest checkpoint of a run, or of all; None: there is none.

    Its manifest is read, and that of the checkpoint whose manifest was written last, which it mostly is: a row that
    says something else than the manifest makes no other checkpoint the newest.
    """
    sured: set[str] = set()
    settle(context)
    while True:
        with context.layout.open_runs() as runs:
            published = runs.stamps(run)
            found = infos_at(context, runs, published, run, newest=1)
        if not found or found[0].out_of_order:
            found = infos(context, run)[-1:]
        if not found:
            return None
        last = _written_last(context, published, found[0])
        suspects = {info.name: info for info in (*found, *last)}
        if suspects.keys() <= sured:
            return found[0]
        sured |= suspects.keys()
        try:
            read = [sure(context, info) for info in suspects.values()]
        except DamagedBlob:  # loading it says so
            return found[0]
        except (FileNotFoundError, NotADirectoryError):  # it went since it was listed
            continue
        best = in_order(context, read)[-1]
        if best.id == found[0].id and best.sequence == found[0].sequence:
            return best


def _written_last(
    context: Context, published: Mapping[CheckpointKey, Stamp | None], newest: CheckpointInfo
) -> list[CheckpointInfo]:
    """Return the checkpoint whose manifest was written last; say if it cannot be read, and so is not the newest."""
    written = {place: stamp for place, stamp in published.items() if stamp is not None}
    if not written:
        return []
    place = max(written, key=lambda place: written[place].mtime_ns)
    if place == (newest.run, newest.step):
        return []
    found = infos(context, at={place: written[place]})
    name = f"{place[0]}@{place[1]}"
    if not found and (problem := context.problems.get(name)) and (key := f"latest {name}") not in context.problems:
        context.problems[key] = f"latest is {newest.name}, since {name}, whose manifest was written last, is {problem}"
        warn(context.problems[key])
    return found
