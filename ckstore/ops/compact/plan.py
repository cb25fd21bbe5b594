"""Plan which checkpoints to compact, and against which newer checkpoints to encode them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ckstore.errors import BadInput, DamagedBlob
from ckstore.model.digest import short_id
from ckstore.model.manifest.encoding import encoding_of
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey, check_run
from ckstore.model.reports.compaction import CompactionEntry, CompactionPlan
from ckstore.model.times import text_of_time, time_of_text
from ckstore.objects.checkpoints import CheckpointDirectory, key_with_id, may_lack_blobs
from ckstore.ops.check.validity import Glance, glance
from ckstore.ops.compact.shares import Orphans, own_blobs
from ckstore.ops.context import Context
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.refs.listing import infos, no_such_run
from ckstore.ops.refs.protection import pins_by_id

KEEP_NEWEST = 3
"""The default number of newest checkpoints that remain plain, since resumes and evaluations read them most often."""
GROUP = 64
"""A checkpoint whose place is a multiple of this number is encoded against the next such checkpoint.

With this value, chains of bases remain short for any number of checkpoints (docs/format/encoded-1.md, "Chains").
"""


class _Rest(NamedTuple):
    """The checkpoints that remain plain because they are new."""

    keep_newest: int  # this number of newest checkpoints of each run remain plain
    created_before: datetime | None  # checkpoints that were saved at this time or later remain plain


def plan(
    context: Context,
    refs: Iterable[AnyRef],
    run: str | None,
    *,
    keep_newest: int = KEEP_NEWEST,
    created_before: datetime | None = None,
) -> CompactionPlan:
    """Return which checkpoints to encode, against which newer checkpoints, and why to leave the others as they are.

    Without `refs`, all checkpoints of `run`, or of every run, are considered. The newest `keep_newest` checkpoints of a
    run remain plain, and so do checkpoints that were saved at `created_before` or later. Nothing is changed.
    """
    if type(keep_newest) is not int or keep_newest < 1:
        raise BadInput(f"keep_newest must be an integer from 1, got {keep_newest!r}")
    if run not in (None, context.run) and not context.layout.is_filled(check_run(run)):
        raise no_such_run(context.layout, run)
    named = [find(context, ref) for ref in refs]
    for info in named:
        if info.superseded:
            msg = f"{short_id(info.id)} is superseded. Only the newest checkpoint of {info.name} can be compacted"
            raise BadInput(msg, hint=f"name {info.name}")
    chosen = {info.key for info in named}
    runs: set[str | None] = {key.run for key in chosen} or {run}
    by_run: dict[str, list[CheckpointInfo]] = {}
    for name in sorted(runs, key=str):
        for info in infos(context, name):
            by_run.setdefault(info.run, []).append(info)
    pinned = pins_by_id(context, datetime.now(UTC))
    entries: list[CompactionEntry] = []
    for of_run in by_run.values():
        entries += _plan_run(context, of_run, chosen, pinned, _Rest(keep_newest, created_before))
    return CompactionPlan(tuple(entries))


def _plan_run(
    context: Context,
    of_run: Sequence[CheckpointInfo],
    chosen: Collection[CheckpointKey],
    pinned: Collection[str],
    rest: _Rest,
) -> list[CompactionEntry]:
    """Return the entries of a run, beginning with the newest checkpoint; `of_run` begins with the oldest."""
    problems, places, compacted, manifests = [], [], [], []
    orphans = Orphans()
    at = -1
    for info in of_run:
        try:
            found = glance(context.layout.checkpoint(info.key), info.key, context.known.manifests)
        except (FileNotFoundError, NotADirectoryError):
            found = Glance(problem="another process deleted it after it was listed")
        encoding = None if found.manifest is None else encoding_of(found.manifest)
        manifests.append(found.manifest)
        if found.manifest is not None:
            orphans.note(found.manifest)
        # Keep a recorded place. The place determines the base, so it must not change if a neighboring checkpoint is
        # dropped.
        at = max(at + 1, encoding.place if encoding is not None else 0)
        places.append(at)
        away = may_lack_blobs(context.layout.checkpoint(info.key))
        problems.append(found.problem or ("its data is on a remote" if away else ""))
        # Encoded old packs do not make a checkpoint compacted, since checkpoints that remain plain also have them.
        compacted.append(
            found.manifest is not None
            and not all(found.manifest.form.has_file(blob.digest) for blob in own_blobs(found.manifest))
        )
    whole = [i for i, problem in enumerate(problems) if not problem]
    entries = []
    for i, info in enumerate(of_run):
        newer = [j for j in whole if j > i]
        base = next((j for j in newer if places[j] >= wanted_base(places[i])), newer[-1] if newer else None)
        reason = _why_not(info, problems[i], chosen, len(newer), rest)
        if not reason and not compacted[i]:
            reason = _why_plain(info, pinned)
        if not reason and base is None:
            reason = "no newer checkpoint exists"
        name = "" if reason or base is None else of_run[base].name
        shares = not problems[i] and len(newer) < rest.keep_newest and not _why_plain(info, pinned)
        manifest = manifests[i]
        gone_bytes = 0 if manifest is None else orphans.gone_bytes(manifest)
        entries.append(CompactionEntry(info, places[i], name, reason, shares, gone_bytes, compacted[i]))
    return entries[::-1]


def wanted_base(place: int) -> int:
    """Return the place of the base for the checkpoint at `place` (docs/format/encoded-1.md, "Chains")."""
    return place + (place % GROUP & -(place % GROUP) or GROUP)


def _why_not(
    info: CheckpointInfo, problem: str, chosen: Collection[CheckpointKey], newer_count: int, rest: _Rest
) -> str:
    if problem:
        return problem
    if newer_count < rest.keep_newest:
        return f"it is one of the newest {rest.keep_newest}"
    if rest.created_before is not None and time_of_text(info.created) >= rest.created_before:
        return f"it was saved after {text_of_time(rest.created_before)}"
    return "it was not requested" if chosen and info.key not in chosen else ""


def _why_plain(info: CheckpointInfo, pinned: Collection[str]) -> str:
    if info.tags:
        return f"it has the tag {info.tags[0]}"
    return "it is pinned" if info.id in pinned else ""


def opened(context: Context, info: CheckpointInfo) -> CheckpointDirectory:
    """Open a checkpoint of a plan.

    Raises:
        DamagedBlob: The checkpoint is damaged, or another checkpoint has replaced it.
    """
    # Open the latest generation: the checkpoint may have been compacted since it was listed.
    key = key_with_id(context.layout, info.run, info.step, info.id) or info.key
    directory = CheckpointDirectory.at(context.layout.checkpoint(key), context.layout.hash_prefix)
    if directory.manifest_id != info.id:
        directory.close()
        raise DamagedBlob(f"{info.name} was replaced since the plan was made")
    return directory
