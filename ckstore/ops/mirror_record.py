"""The record of the checkpoints on the mirror: ``remotes/.mirror.json``.

Source: docs/format/v1.md. The file is written by the process that mirrors, and by processes that verify the mirror or
pull tags, pins and annotations from it. Retention reads the file. If the file is damaged or is about another mirror, no
checkpoint counts as mirrored, so that retention keeps more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from ckstore.errors import CkstoreError
from ckstore.fs import files, links
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.canonical import canonical_json
from ckstore.model.checkpoint.pins import Pin
from ckstore.model.digest import is_digest
from ckstore.model.document import check_created, parse_document, refuse
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.remote.transfer import MirrorStatus, mirror_named
from ckstore.model.seal import read, to_write
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.retention_plan import Candidate, plan
from ckstore.model.times import text_of_time, time_of_text
from ckstore.objects.documents import atomic_file
from ckstore.objects.documents.pins import read_pins
from ckstore.objects.layout import Layout
from ckstore.objects.remote.remote_only import holders_at
from ckstore.ops.config_file import policy_of, read_config, setting_of
from ckstore.ops.context import Context
from ckstore.ops.mirror_settings import KEEP_REMOTE, MIRROR, MIRROR_AGE_S, MIRROR_KEEP

FILE = ".mirror.json"  # the name of a remote cannot begin with a dot
_FORMAT = "ckstore-mirrored"
_VERSION = 1
_MAX_BYTES = 64 * 2**20
_WHY_CHARS = 500
# The maximum number of earlier versions of one object. A tag that moves more often will soon be pushed again anyway.
_FORMER_MOST = 100


@dataclass(frozen=True, slots=True)
class MirrorRecord:
    """The content of the file."""

    remote: str = ""  # name of the remote
    uuid: str = ""  # uuid of the remote, since another remote may later have the same name
    ids: frozenset[str] = field(default_factory=frozenset)  # the checkpoints of this store that the mirror has
    problem: str = ""  # why the last try failed; empty if it succeeded
    # Key of a tag, a pin or annotations -> digest of the version that was last pushed.
    documents: dict[str, str] = field(default_factory=dict)
    since: str = ""  # when the current series of failed tries began; empty if the last try succeeded
    refused: str = ""  # when the mirror began to refuse the credentials; empty if the last try was not refused
    looked: str = ""  # when the mirror was last listed completely; empty if never
    missing: dict[str, str] = field(default_factory=dict)  # id of a checkpoint -> a text about its data that is lost
    pruned: frozenset[str] = field(default_factory=frozenset)  # checkpoints that `keep_remote` of this store removed
    # Checkpoints that the mirror had, and that another store or a user removed there. They are not pushed again.
    removed: frozenset[str] = frozenset()
    # Key -> digests of earlier pushed versions, the latest last. If the mirror has one of these,
    # the mirror was restored from a backup.
    former: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Run -> the sequence number that this store, as the owner of the run, last published on the mirror.
    sequences: dict[str, int] = field(default_factory=dict)

    def render(self) -> bytes:
        """Return the file's bytes."""
        members = {
            "format": _FORMAT,
            "version": _VERSION,
            "remote": self.remote,
            "uuid": self.uuid,
            "checkpoints": sorted(self.ids),
            "problem": self.problem[:_WHY_CHARS],
            "since": self.since,
            "refused": self.refused,
            "documents": self.documents,
            "looked": self.looked,
            "missing": self.missing,
            "pruned": sorted(self.pruned),
            "removed": sorted(self.removed),
            "former": {key: list(digests) for key, digests in self.former.items()},
            "sequences": self.sequences,
        }
        return canonical_json(members) + b"\n"


def _parse(data: bytes, where: str) -> MirrorRecord:
    members = parse_document(data, _FORMAT, _VERSION, where)
    remote, problem, uuid = members.get("remote"), members.get("problem"), members.get("uuid", "")
    if not isinstance(remote, str) or not isinstance(uuid, str) or not isinstance(problem, str):
        refuse(where, "remote, uuid and problem", "texts", [remote, uuid, problem])
    ids = _ids("checkpoints", members.get("checkpoints"), where)
    pruned, removed = (_ids(name, members.get(name, []), where) for name in ("pruned", "removed"))
    documents = members.get("documents", {})
    if not isinstance(documents, dict) or not all(isinstance(digest, str) for digest in documents.values()):
        refuse(where, "documents", "keys with digests", documents)
    times = (members.get(name) for name in ("since", "looked", "refused"))
    since, looked, refused = (found and check_created(found, where) for found in times)
    missing = members.get("missing", {})
    if not isinstance(missing, dict) or not all(isinstance(why, str) for why in missing.values()):
        refuse(where, "missing", "ids with texts", missing)
    former = members.get("former", {})
    if not isinstance(former, dict) or not all(isinstance(digests, list) for digests in former.values()):
        refuse(where, "former", "keys with arrays of digests", former)
    former = {key: tuple(map(str, digests)) for key, digests in former.items()}
    sequences = members.get("sequences", {})
    if not isinstance(sequences, dict) or not all(type(number) is int for number in sequences.values()):
        refuse(where, "sequences", "runs with whole numbers", sequences)
    return MirrorRecord(
        remote,
        uuid,
        ids,
        problem,
        documents,
        since or "",
        refused or "",
        looked or "",
        missing,
        pruned,
        removed,
        former,
        sequences,
    )


def _ids(name: str, value: Any, where: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(id, str) and is_digest(id) for id in value):
        refuse(where, name, "an array of ids", value)
    return frozenset(value)


def _place(layout: Layout) -> StorePath:
    return layout.remotes / FILE


def uuid_now(layout: Layout, remote: str) -> str:
    """Return the uuid of the remote that now has this name in the settings, or an empty string if no remote has it."""
    entry = read_config(layout).get("remotes", {}).get(remote, {})
    return str(entry.get("uuid", "")) if isinstance(entry, dict) else ""


def read_mirrored(layout: Layout, remote: str) -> MirrorRecord:
    """Return the record of a mirror, or an empty record if the file is missing, damaged, or about another remote."""
    path, uuid = _place(layout), uuid_now(layout, remote)
    try:
        found = read(files.read_file(path, most_bytes=_MAX_BYTES), _parse, str(path))
    except (FileNotFoundError, NotADirectoryError, CkstoreError):
        return MirrorRecord(remote, uuid)
    return found if (found.remote, found.uuid) == (remote, uuid) else MirrorRecord(remote, uuid)


def _change(layout: Layout, remote: str, uuid: str, make: Callable[[MirrorRecord], MirrorRecord]) -> None:
    """Change the record of a mirror durably, unless another remote now has the name."""
    path = _place(layout)
    links.make_directory(layout.remotes)
    # Read the record under the lock, since processes that mirror and processes that pull both write it.
    with atomic_file.changing(layout) as lock, files.opened_directory(layout.remotes) as fd:
        known = read_mirrored(layout, remote)
        new = make(known)
        if known.uuid == uuid and new != known:
            data = to_write(new, _parse, most_bytes=_MAX_BYTES, where=str(path))
            atomic_file.replace_file(layout, lock, fd, path.name, data)


def add_mirrored(
    layout: Layout,
    remote: str,
    uuid: str,
    *,
    ids: Iterable[str],
    here: Sequence[CheckpointInfo],
    documents: Mapping[str, str],
    gone: Container[str] = (),
    removed: Collection[str] = (),
    sequences: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Record what was pushed to the mirror.

    Args:
        layout: The store.
        remote: The mirror.
        uuid: The uuid of the remote to which the objects were pushed.
        ids: The ids of checkpoints that exist on the mirror, or that were removed there.
        here: The checkpoints of the store. All others are removed from the record.
        documents: Small objects that were pushed, as in `MirrorRecord.documents`.
        gone: The keys of small objects that the store no longer has.
        removed: The ids of checkpoints that another store or a user removed from the mirror.
        sequences: As in `MirrorRecord.sequences`, for some runs.
    """

    def added(known: MirrorRecord) -> MirrorRecord:
        listed = {info.id for info in here}
        still = {key: digest for key, digest in known.documents.items() if key not in gone}
        missing = {id: why for id, why in known.missing.items() if id not in ids}
        pruned = (known.pruned - {*ids}) & listed
        said = still | dict(documents)
        former = {key: digests for key, digests in known.former.items() if key not in gone}
        for key in documents:
            old = [*known.former.get(key, ()), known.documents.get(key, "")]
            former[key] = tuple(digest for digest in old if digest not in ("", said[key]))[-_FORMER_MOST:]
        return replace(
            known,
            ids=(known.ids | {*ids}) & listed,
            problem="",
            since="",
            refused="",
            documents=said,
            missing=missing,
            pruned=pruned,
            removed=((known.removed - {*ids}) | {*removed}) & listed,
            former={key: digests for key, digests in former.items() if digests},
            sequences=known.sequences | dict(sequences),
        )

    _change(layout, remote, uuid, added)


def forget_if_older(layout: Layout, remote: str, run: str, sequence: int, pushed: Container[str]) -> None:
    """If the record is older than the mirror, forget when the mirror was listed and which small objects were pushed.

    Args:
        layout: The store.
        remote: A remote.
        run: A run that this store owns on the remote.
        sequence: The sequence number of the last publication by this store, as read from the remote. If it differs from
            the recorded number, the store was restored from a backup, or the process was killed before it recorded the
            number.
        pushed: The keys of small objects that this store pushed. Other objects were taken from the remote. They remain
            in the record and are not pushed, since another store may have changed them meanwhile.
    """

    def forgotten(known: MirrorRecord) -> MirrorRecord:
        if known.sequences.get(run) == sequence:
            return known
        taken = {key: digest for key, digest in known.documents.items() if key not in pushed}
        return replace(known, documents=taken, looked="", sequences={**known.sequences, run: sequence})

    if setting_of(layout, MIRROR) == remote:
        _change(layout, remote, uuid_now(layout, remote), forgotten)


def note_taken(layout: Layout, remote: str, documents: Mapping[str, str]) -> None:
    """Record small objects from a remote that is or may become the mirror, so that they are not pushed back.

    Another store may have changed these objects on the remote meanwhile.
    """
    uuid = uuid_now(layout, remote)
    if documents and uuid and setting_of(layout, MIRROR) in (None, remote):
        _change(layout, remote, uuid, lambda known: replace(known, documents=known.documents | dict(documents)))


def note_looked(
    layout: Layout,
    remote: str,
    missing: Mapping[str, str],
    documents: Container[str],
    *,
    pruned: Iterable[str],
    removed: Iterable[str],
) -> None:
    """Record checkpoints and small objects that a mirror has lost, so that they are pushed again if they are local.

    Args:
        layout: The store.
        remote: The mirror.
        missing: As in `MirrorRecord.missing`.
        documents: The keys of small objects that the mirror has lost.
        pruned: Checkpoints that `keep_remote` had removed before the store was restored from a backup.
        removed: Checkpoints that were removed from the mirror, and about which this store does not decide.
    """
    gone, others = frozenset(pruned), frozenset(removed)

    def noted(known: MirrorRecord) -> MirrorRecord:
        still = {key: digest for key, digest in known.documents.items() if key not in documents}
        return replace(
            known,
            looked=text_of_time(now()),
            missing=dict(missing),
            ids=known.ids - missing.keys() - gone,
            documents=still,
            pruned=known.pruned | gone,
            removed=others,
        )

    _change(layout, remote, uuid_now(layout, remote), noted)


def forget_copies(layout: Layout, remote: str) -> None:
    """Forget what a mirror has, because it does not exist any more or is not mounted."""

    def forgotten(known: MirrorRecord) -> MirrorRecord:
        return replace(known, ids=frozenset(), removed=frozenset(), documents={}, looked="")

    _change(layout, remote, uuid_now(layout, remote), forgotten)


def note_missing(layout: Layout, remote: str, missing: Mapping[str, str]) -> None:
    """Record checkpoints that a verification did not find on a remote, if the remote is the mirror."""

    def noted(known: MirrorRecord) -> MirrorRecord:
        return replace(known, missing=known.missing | dict(missing), ids=known.ids - missing.keys())

    if missing and setting_of(layout, MIRROR) == remote:
        _change(layout, remote, uuid_now(layout, remote), noted)


def note_pruned(layout: Layout, remote: str, ids: Iterable[str]) -> None:
    """Record which checkpoints `keep_remote` of this store removes from its mirror."""
    gone = frozenset(ids)

    def noted(known: MirrorRecord) -> MirrorRecord:
        return replace(known, ids=known.ids - gone, pruned=known.pruned | gone)

    _change(layout, remote, uuid_now(layout, remote), noted)


def note_problem(layout: Layout, remote: str, problem: str, *, is_refused: bool = False) -> None:
    """Record why a try failed, unless the same reason is recorded already.

    Args:
        layout: The store.
        remote: The mirror.
        problem: The reason. Empty if no work is left.
        is_refused: Whether the mirror has refused the credentials.
    """
    why = problem[:_WHY_CHARS]

    def noted(known: MirrorRecord) -> MirrorRecord:
        at = text_of_time(now())
        refused = (known.refused or at) if is_refused else ""
        return replace(known, problem=why, since=(known.since or at) if why else "", refused=refused)

    known = read_mirrored(layout, remote)
    if (known.problem, bool(known.refused)) != (why, is_refused):
        _change(layout, remote, uuid_now(layout, remote), noted)


def behind(layout: Layout, remote: str, infos: Iterable[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return which of the checkpoints a mirror lacks according to the record, the newest first."""
    known, listed = read_mirrored(layout, remote), [*infos]
    # Checkpoints without local data are already on a remote, since they were pulled from it or evicted.
    lacking = [info for info in listed if info.id not in known.ids and not info.elsewhere]
    if any(info.id in known.pruned for info in lacking):
        # If `keep_remote` removed a checkpoint from the mirror but keeps it now, for example because of a tag, the
        # checkpoint must be pushed again.
        policy = policy_of(layout, KEEP_REMOTE)
        pins: list[Pin] = []
        with suppress(CkstoreError):  # an unreadable pin must not prevent other checkpoints from being mirrored
            pins = read_pins(layout)
        wanted = {info.id for info in listed} if policy is None else wanted_there(policy, pins, listed).keys()
        lacking = [info for info in lacking if info.id not in known.pruned or info.id in wanted]
    return sorted(lacking, key=lambda info: info.order, reverse=True)


def wanted_there(policy: RetentionPolicy, pins: Iterable[Pin], infos: Iterable[CheckpointInfo]) -> dict[str, str]:
    """Return the ids of local checkpoints that `keep_remote` keeps on the mirror for local reasons, and the reasons."""
    listed, at = sorted(infos, key=lambda info: info.order), now()
    pinned = {pin.id: str(pin) for pin in pins if not pin.expired(at)}
    # Apply the policy to the local order, since an earlier use of the run's name may have left greater sequence numbers
    # on the mirror.
    current = [Candidate(info) for info in listed if not info.superseded]
    by_policy = {entry.info.id for entry in plan(policy, current, at).kept}
    newest = {info.run: info for info in listed}
    wanted: dict[str, str] = {}
    for info in listed:
        if info.tags:
            wanted[info.id] = f"it has the tag {info.tags[0]} in this store"
        elif info.id in pinned:
            wanted[info.id] = f"it is pinned in this store: {pinned[info.id]}"
        elif newest[info.run] is info:
            wanted[info.id] = f"it is the newest checkpoint of the run {info.run} that this store pushed"
        elif info.id in by_policy:
            wanted[info.id] = "keep_remote keeps it among the checkpoints of this store"
    return wanted


def now() -> datetime:
    """Return the time; tests replace this function."""
    return datetime.now(UTC)


def status_of(context: Context, infos: Iterable[CheckpointInfo]) -> MirrorStatus | None:
    """Return the status of the mirror of a store, or None if it has no mirror."""
    layout = context.layout
    config, where = read_config(layout), str(layout.config)
    remote = MIRROR.of(config, where)
    if remote is None:
        return None
    listed = [*infos]
    lacking = behind(layout, remote, listed)
    at = now()
    ages = [(at - time_of_text(info.created)).total_seconds() for info in lacking]
    known = read_mirrored(layout, remote)
    oldest_s = max(0.0, *ages) if ages else 0.0
    age_s = float(MIRROR_AGE_S.of(config, where))
    lost = tuple(info.name for info in listed if info.elsewhere and info.id in known.missing)
    # The mirror had the checkpoints in the record before they were evicted. The others may be on a former mirror.
    others = [
        info.name
        for info in listed
        if info.elsewhere
        and info.id not in known.ids | known.missing.keys()
        and known.uuid not in {holder.uuid for holder in holders_at(layout.checkpoint(info.key))}
    ]
    removed = tuple(info.name for info in listed if info.id in known.removed)
    times = known.since, known.looked
    return MirrorStatus(
        remote, tuple(lacking), oldest_s, age_s, known.problem, *times, lost, known.refused, tuple(others), removed
    )


def kept_for_mirror(context: Context, infos: Iterable[CheckpointInfo]) -> dict[str, str]:
    """Return the names of the checkpoints that retention keeps for the mirror, with reasons."""
    layout = context.layout
    config, where = read_config(layout), str(layout.config)
    remote, most = MIRROR.of(config, where), MIRROR_KEEP.of(config, where)
    if remote is None:
        return {}
    listed = [*infos]
    lacking = behind(layout, remote, listed)
    kept = Counter[str]()
    found: dict[str, str] = {}
    for info in lacking:
        kept[info.run] += 1
        if kept[info.run] <= most:
            found[info.name] = not_yet(remote)
    policy = policy_of(layout, KEEP_REMOTE)
    if policy is not None and lacking:
        # A checkpoint that `keep_remote` keeps must be pushed before it is dropped locally, since it would be lost.
        wanted = {entry.info.name for entry in plan(policy, [*map(Candidate, listed)], now()).kept}
        found |= {info.name: not_yet(remote) for info in lacking if info.name in wanted}
    return found


def not_yet(remote: str) -> str:
    """Return the reason to keep a checkpoint that a mirror lacks."""
    return f"it is not at {mirror_named(remote)} yet"
