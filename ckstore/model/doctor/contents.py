"""Findings about the contents of a store, such as dead saves, trash, pins and damage, and about leaked files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckstore.model.best import opposite_mode
from ckstore.model.doctor.finding import DoctorFinding, age_words, ok
from ckstore.model.host import often_purged
from ckstore.model.manifest.health import unchanged_text
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.gc_report import Leftover, Waiting, amount_of
from ckstore.model.reports.held_blobs import DeletedFile
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.sizes import size_text
from ckstore.model.words import arguments, counted, some_of

_OLD_S = 86400.0
_LONG_UNREAD_S = 30 * 86400.0
_NAMED = 3
_GC_LATER = "ckstore gc frees it an hour after its last change (config.grace_s), or at once with --exclusive"


def _listed(names: Sequence[str]) -> str:
    return some_of(names, _NAMED)


def _told(found: Leftover) -> str:
    return f"{found.name} (untouched for {age_words(found.age_s)}, owner {found.owner or 'unknown'})"


def check_staging(stagings: Sequence[Leftover], *, other_hosts: bool = False) -> DoctorFinding:
    """Check running and dead saves; `other_hosts` means that other hosts may use the store."""
    dead = [found for found in stagings if not found.alive]
    stuck = [found for found in stagings if found.alive and found.age_s > _OLD_S]
    if dead:
        kept_bytes = sum(found.nbytes for found in dead)
        died = "died, or are running on another host," if other_hosts else "died"
        which = _listed([_told(found) for found in dead])
        told = f"{counted(len(dead), 'save')} {died} and left {size_text(kept_bytes)}: {which}"
        frees = _GC_LATER if other_hosts else "ckstore gc frees it, and so does any save by that user"
        return DoctorFinding("note", "staging", told, f"{frees}; no checkpoint needs it")
    if stuck:
        told = f"{counted(len(stuck), 'save')} running for a long time: {_listed([_told(found) for found in stuck])}"
        do = "check whether its process is still working or hangs on the disk; the save keeps its space until it ends"
        return DoctorFinding("warning", "staging", told, do)
    return ok("staging", f"{counted(len(stagings), 'save')} running" if stagings else "no save is running")


def check_trash(trash: Sequence[Leftover], *, other_hosts: bool = False) -> DoctorFinding:
    """Check the trash; `other_hosts` means that other hosts may use the store."""
    if not trash:
        return ok("trash", "empty")
    kept_bytes = sum(found.nbytes for found in trash)
    oldest = max(trash, key=lambda found: found.age_s)
    count = f"{len(trash)} {'entry' if len(trash) == 1 else 'entries'}"
    told = f"{count} with {size_text(kept_bytes)}; the oldest: {_told(oldest)}"
    if other_hosts:
        return DoctorFinding("note", "trash", told, _GC_LATER)
    if oldest.age_s > _OLD_S:
        return DoctorFinding("warning", "trash", told, "ckstore gc frees it, or names the process that holds it")
    return DoctorFinding("note", "trash", told, "ckstore gc frees it")


def check_undo(window_s: float, waiting: Sequence[Waiting]) -> DoctorFinding:
    """Check the dropped checkpoints; a checkpoint that is deleted now can be restored for `window_s` seconds."""
    whole, broken = ([one for one in waiting if bool(one.problem) is is_broken] for is_broken in (False, True))
    told = [f"{amount_of(whole)} can be restored"] if whole else []
    told += [f"{amount_of(broken)} cannot be restored: {broken[0].problem}"] if broken else []
    if told:
        do = "ckstore undo lists them; ckstore gc --now frees them at once"
        return DoctorFinding("note", "undo", "; ".join(told), do)
    if not window_s:
        return ok("undo", "off, so deletions cannot be undone; ckstore config --unset undo-by-hand allows it for a day")
    return ok("undo", f"deletions can be undone for {age_words(window_s)}")


def check_tags(count: int, doubtful: Sequence[str], do: str) -> DoctorFinding:
    """Check the tags.

    Args:
        count: The number of tags.
        doubtful: The problem of each tag whose checkpoint is unknown.
        do: What to do about the first of these problems.
    """
    if doubtful:
        told = f"nothing is dropped, since the protected checkpoints are unknown: {_listed(doubtful)}"
        return DoctorFinding("warning", "tags", told, do)
    return ok("tags", counted(count, "tag"))


@dataclass(frozen=True, slots=True)
class PinFacts:
    """The pins of a store."""

    count: int = 0  # number of all pins
    expired: tuple[str, ...] = ()  # names of expired pins
    dangling: tuple[str, ...] = ()  # names of pins whose checkpoint was deleted or replaced
    problem: str = ""  # why a pin cannot be read; empty if all can be read


def check_pins(facts: PinFacts) -> DoctorFinding:
    """Check the pins."""
    if facts.problem:
        do = "remove that pin with ckstore pin -d, then pin again: until then no checkpoint is dropped"
        return DoctorFinding("warning", "pins", facts.problem, do)
    if facts.expired:
        told = f"expired, so it protects nothing now: {_listed(facts.expired)}"
        do = f"ckstore pin -d {arguments(facts.expired[0])}, or pin again for longer"
        return DoctorFinding("note", "pins", told, do)
    if facts.dangling:
        told = f"of a deleted or replaced checkpoint: {_listed(facts.dangling)}"
        return DoctorFinding("note", "pins", told, f"ckstore pin -d {arguments(facts.dangling[0])}")
    return ok("pins", counted(facts.count, "pin"))


def check_rules(policies: Mapping[str, RetentionPolicy]) -> DoctorFinding | None:
    """Check the policies of the store, given by the names of their settings.

    Returns:
        A finding if a rule is doubtful, otherwise None.
    """
    doubtful = [
        (name, best, said)
        for name, policy in policies.items()
        for best in policy.bests
        if (said := opposite_mode(best)) is not None
    ]
    if not doubtful:
        return None
    kept = [f"{name} keeps the {best}, but the name of the metric suggests {said}" for name, best, said in doubtful]
    _, best, said = doubtful[0]
    do = (
        f"unless that is intended, set the rules again with --keep-best {best.metric}:{said}; ckstore config shows them"
    )
    return DoctorFinding("warning", "rules", _listed(kept), do)


def check_damage(marked: Sequence[str], quarantined: Sequence[str]) -> DoctorFinding:
    """Check checkpoints marked as damaged, and blobs in quarantine."""
    if marked:
        told = f"{counted(len(marked), 'checkpoint')} marked as damaged: {_listed(marked)}"
        do = "ckstore verify lists the damage; saving the same content again heals it"
        return DoctorFinding("warning", "damage", told, do)
    if quarantined:
        told = f"{counted(len(quarantined), 'damaged blob')} in quarantine: {_listed(quarantined)}"
        do = "once every checkpoint verifies, you may remove them from quarantine/"
        return DoctorFinding("note", "damage", told, do)
    return ok("damage", "no checkpoint is marked as damaged")


def check_readings(count: int, unread: int, oldest_s: float) -> DoctorFinding:
    """Check when blobs were last read.

    Args:
        count: The number of blobs.
        unread: The number of blobs whose last reading is unknown.
        oldest_s: The longest time since the last reading of a blob, in seconds. The `unread` blobs do not count.
    """
    if not count:
        return ok("last readings", "no checkpoint has a blob")
    do = (
        "ckstore verify --budget 10m reads the blobs that were read longest ago; each save rereads a "
        "share of the blobs that it reuses"
    )
    if unread:
        told = f"it is unknown when {unread} of {counted(count, 'blob')} were last read"
        return DoctorFinding("note", "last readings", told, do)
    told = f"each of {counted(count, 'blob')} was read or written within the last {age_words(oldest_s)}"
    return ok("last readings", told) if oldest_s < _LONG_UNREAD_S else DoctorFinding("note", "last readings", told, do)


_PURGED_FROM_S = 7 * 86400.0


def check_ages(path: str, oldest_s: float, owner: str) -> DoctorFinding:
    """Check the times of the newest checkpoint's files, since some filesystems delete old files.

    Args:
        path: The path of the store.
        oldest_s: The age of the oldest file, in seconds.
        owner: The owner of the oldest file, because only the owner can renew its times. Empty if the owner is this user
            or root.
    """
    told = f"the times of the oldest file of the newest checkpoint are {age_words(oldest_s)} old"
    named = often_purged(path)
    if oldest_s < _PURGED_FROM_S and not named:
        return ok("purge by age", told)
    do = "a save renews the times of the blobs that it uses, and ckstore touch renews those of other checkpoints"
    if owner:
        do += f"; {owner} has to run it for that file"
    if named:
        told += f", and files in /{named} are often deleted by age"
    return DoctorFinding("note", "purge by age", told, f"{do}; or push to a remote with ckstore push")


def check_hashes(strangers: Sequence[str], hash_name: str) -> DoctorFinding:
    """Check for checkpoints whose digests use another hash algorithm than the store."""
    if strangers:
        count = counted(len(strangers), "checkpoint")
        told = f"{count} from a store whose hash is not {hash_name}: {_listed(strangers)}"
        do = "move them away, since this store ignores them; ckstore.open_checkpoint(DIRECTORY) reads them in any place"
        return DoctorFinding("warning", "hash", told, do)
    return ok("hash", f"every checkpoint uses {hash_name} digests")


def check_order(problems: Sequence[str]) -> DoctorFinding:
    """Check for checkpoints whose sequence numbers are ignored."""
    if problems:
        do = "save their content again under another step, or delete them: ckstore delete RUN@STEP"
        return DoctorFinding("warning", "order of commits", _listed(problems), do)
    return ok("order of commits", "no sequence number is ignored")


def check_health(newest: Mapping[str, tuple[CheckpointInfo, CheckpointInfo | None]]) -> DoctorFinding:
    """Check the newest checkpoint of each run.

    Args:
        newest: For each run, the newest checkpoint, and the newest healthy checkpoint or None.
    """
    unhealthy = [
        f"{last.name} is unhealthy: {last.unhealthy}"
        + ("; the run has no healthy checkpoint" if healthy is None else f"; the newest healthy one is {healthy.name}")
        for last, healthy in newest.values()
        if last.unhealthy
    ]
    if unhealthy:
        do = "check the training; RUN@latest-healthy names the newest healthy checkpoint, for a restart"
        return DoctorFinding("warning", "health", _listed(unhealthy), do)
    still = [f"{unchanged_text(last.unchanged)} of {last.name}" for last, _ in newest.values() if last.unchanged]
    if still:
        do = "check that the optimizer has the parameters that are saved, and that it steps"
        told = f"no longer changes while the step advances: {_listed(still)}"
        return DoctorFinding("note", "health", told, do)
    return ok("health", "the newest checkpoint of each run is healthy" if newest else "no checkpoint yet")


def check_catalog(problems: Sequence[str], where: str = "", damaged: Sequence[str] = ()) -> DoctorFinding:
    """Check the catalog.

    Args:
        problems: The problems of the catalog.
        where: The path of the catalog, if it is not in the store.
        damaged: Files of earlier catalogs that were set aside.
    """
    if problems:
        do = "rebuild it from the checkpoints with ckstore reindex; nothing is lost"
        return DoctorFinding("warning", "catalog", _listed(problems), do)
    whole = f"intact; it is {where}, since other hosts or users have their own" if where else "intact"
    if damaged:
        were = "earlier ones were damaged or changed by other programs, and were set aside"
        do = "check the disk if you did not expect that; you may remove these files"
        return DoctorFinding("note", "catalog", f"{whole}; {were}: {_listed(damaged)}", do)
    return ok("catalog", whole)


def check_leaks(leaks: Sequence[DeletedFile]) -> DoctorFinding:
    """Check for deleted files that still take space."""
    leaks = [leak for leak in leaks if leak.nbytes]
    if not leaks:
        return ok("leaked files", "no deleted file of the store takes space")
    by_process: dict[tuple[int, str], int] = {}
    for leak in leaks:
        for key in {(who.pid, who.command) for who in leak.holders}:
            by_process[key] = by_process.get(key, 0) + leak.nbytes
    most = sorted(by_process.items(), key=lambda item: (-item[1], item[0]))
    who = [f"{size_text(nbytes)} by PID {pid} ({command})" for (pid, command), nbytes in most]
    total_bytes = sum(leak.nbytes for leak in leaks)
    files = f"{counted(len(leaks), 'deleted file')} of the store"
    told = f"{files} with {size_text(total_bytes)} not yet freed: {_listed(who)}"
    do = "end these processes, or have them close the files: ckstore doctor --leaks lists all of them"
    return DoctorFinding("note" if total_bytes < 2**30 else "warning", "leaked files", told, do)
