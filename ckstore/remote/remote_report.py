"""The findings of `Store.doctor` about remotes, and the metrics of a mirror."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ckstore.model.host import often_purged
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.remote.transfer import MirrorStatus
from ckstore.model.reports.check_result import CheckResult
from ckstore.model.reports.metrics import Metric
from ckstore.model.sizes import size_text
from ckstore.model.times import time_of_text
from ckstore.model.words import arguments, counted, some_of
from ckstore.objects.remote.remote_only import holders_at
from ckstore.ops import download_cache
from ckstore.ops.config_file import read_config
from ckstore.ops.context import Context
from ckstore.ops.mirror_record import status_of, uuid_now

_NAMED = 3


def check_checkpoints(context: Context, every: Sequence[CheckpointInfo]) -> Iterator[CheckResult]:
    """Examine the mirror, the evicted checkpoints and the download cache; `every` includes superseded checkpoints."""
    status = status_of(context, [info for info in every if not info.superseded])
    known = read_config(context.layout).get("remotes") or {}
    if status is not None:
        yield check_mirror(status, is_remote=status.remote in known)
    away = [info for info in every if info.elsewhere]
    holders = [(info.name, holder) for info in away for holder in holders_at(context.layout.checkpoint(info.key))]
    counts = Counter(holder.name for _, holder in holders)
    if counts:
        unknown = [name for name in counts if os.sep not in name and name not in known]
        replaced = [
            name
            for name, holder in holders
            if holder.name in known and uuid_now(context.layout, holder.name) != holder.uuid
        ]
        yield check_elsewhere(EvictedFacts(counts, unknown, replaced, () if status is None else status.missing))
    kept_bytes = download_cache.cached_bytes(context.layout)
    if counts or kept_bytes:
        yield check_cache(kept_bytes, download_cache.limit_bytes(context.layout, kept_bytes))


def check_remote_ages(context: Context) -> Iterator[CheckResult]:
    """Examine whether directories of remotes may be purged by age."""
    # An invalid entry is skipped, because opening that remote raises an error anyway.
    known = read_config(context.layout).get("remotes") or {}
    targets = {name: one.get("target") for name, one in known.items() if isinstance(one, dict)}
    directories = {
        name: str(one.get("address"))
        for name, one in targets.items()
        if isinstance(one, dict) and one.get("kind") == "directory"
    }
    if told := [f"{name} ({path})" for name, path in directories.items() if often_purged(path)]:
        do = "move the remote, or add a second one with ckstore remote add; ckstore touch renews only the store"
        what = "files in such directories are often deleted by age, and objects of a remote are not renewed"
        yield CheckResult("warning", "purge of remotes", f"{some_of(told, _NAMED)}: {what}", do)


def mirror_metrics(context: Context, listed: Sequence[CheckpointInfo]) -> list[Metric]:
    """Return the metrics of the mirror, if the store has one; `listed` are its checkpoints."""
    status = status_of(context, listed)
    if status is None:
        return []
    samples = (
        ("mirror_behind", "Checkpoints that the mirror lacks", len(status.behind)),
        ("mirror_oldest_seconds", "Age of the oldest checkpoint that the mirror lacks", status.oldest_s),
        ("mirror_age_seconds", "How long a checkpoint may exist only locally (setting)", status.age_s),
        ("mirror_missing", "Evicted checkpoints whose data is missing on the mirror", len(status.missing)),
        ("mirror_removed", "Checkpoints that another store or a user removed from the mirror", len(status.removed)),
        ("mirror_on_other_remotes", "Evicted checkpoints that only other remotes have", len(status.on_other_remotes)),
        (
            "mirror_listed_timestamp_seconds",
            "Time of the last complete listing of the mirror, 0 if never",
            time_of_text(status.looked).timestamp() if status.looked else 0.0,
        ),
        (
            "mirror_refused_timestamp_seconds",
            "Time since which the mirror has refused the credentials, 0 if it does not",
            time_of_text(status.refused_since).timestamp() if status.refused_since else 0.0,
        ),
    )
    return [
        Metric(f"ckstore_{name}", "gauge", about, "remote", {status.remote: value}) for name, about, value in samples
    ]


def check_cache(kept_bytes: int, most_bytes: int) -> CheckResult:
    """Return a finding about the cache of downloaded bytes. Its size is limited, so it is never a problem."""
    most = f"at most {size_text(most_bytes)}" if most_bytes else "and will not keep more"
    return CheckResult("ok", "cache", f"keeps {size_text(kept_bytes)} from remote checkpoints, {most}")


@dataclass(frozen=True, slots=True)
class EvictedFacts:
    """Facts about evicted checkpoints that are known without asking a remote.

    Attributes:
        counts: The number of evicted checkpoints by the name of the remote.
        unknown: Names in `counts` for which the store has no remote.
        replaced: Checkpoints that were evicted to a remote whose name now belongs to another remote.
        missing: Checkpoints whose bytes the mirror lacked at its last listing.
    """

    counts: Mapping[str, int]
    unknown: Sequence[str] = ()
    replaced: Sequence[str] = ()
    missing: Sequence[str] = ()


def check_elsewhere(facts: EvictedFacts) -> CheckResult:
    """Return a finding about evicted checkpoints."""
    found = ", ".join(f"{counted(count, 'checkpoint')} at {name}" for name, count in facts.counts.items())
    found = f"bytes of {found}"
    if facts.unknown:
        do = f"add it again: ckstore remote add {facts.unknown[0]} s3://BUCKET/PREFIX"
        lacks = ", ".join(facts.unknown)
        return CheckResult("warning", "elsewhere", f"{found}, but the store has no remote {lacks}", do)
    names = "ckstore verify names the checkpoints that cannot be fetched"
    if facts.replaced:
        such_as = f"{counted(len(facts.replaced), 'checkpoint')}, such as {facts.replaced[0]}"
        told = f"{found}, but another remote now has the name of the remote that received {such_as}"
        return CheckResult("warning", "elsewhere", told, f"{names}; ckstore delete REF unlists a lost one")
    if facts.missing:
        such_as = f"{counted(len(facts.missing), 'checkpoint')}, such as {facts.missing[0]}"
        return CheckResult("warning", "elsewhere", f"{found}, but the mirror lacks bytes of {such_as}", names)
    return CheckResult("ok", "elsewhere", f"{found}; each remote had the bytes at the eviction, and reads fetch them")


def check_mirror(status: MirrorStatus, *, is_remote: bool) -> CheckResult:
    """Check how long checkpoints have existed only locally, and whether pushes work.

    Args:
        status: The status of the mirror.
        is_remote: Whether the mirror is a remote of the store. Earlier versions of ckstore could remove that remote.
    """
    if not is_remote:
        add = f"ckstore remote add {status.remote} TARGET"
        do = f"turn the mirror off (ckstore config mirror off), or add the remote again ({add})"
        lacks = f"no checkpoint is copied to the mirror: the store has no remote {status.remote}"
        return CheckResult("warning", "mirror", lacks, do)
    if status.ok:
        return CheckResult("ok", "mirror", str(status))
    if status.missing:
        do = "push them from a store that has them, or delete them (ckstore delete REF); ckstore verify names the blobs"
        return CheckResult("warning", "mirror", str(status), do)
    if status.on_other_remotes and not status.problem and not status.missed:
        do = f"download them, and the mirror gets them: ckstore pull {arguments(status.on_other_remotes[0])}"
        return CheckResult("warning", "mirror", str(status), do)
    do = f"check ckstore savers, and try the remote with ckstore remote probe {status.remote}"
    if status.refused_since:
        do += (
            ". Each try reads files of credentials and tokens again, so renew them. A pushing process keeps its "
            "environment variables: if the credentials are in these, restart the training"
        )
    return CheckResult("warning", "mirror", str(status), do)
