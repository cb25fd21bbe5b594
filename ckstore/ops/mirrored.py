"""What the mirror of a store was given: ``remotes/.mirror.json``. Source: docs/format/v1.md, "remotes/.mirror.json".

The process that mirrors writes the file, and one that takes tags, pins and annotations from there. Retention looks at
it: so a file that is damaged, or of another mirror, says that nothing is mirrored, and more is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ckstore.errors import CkstoreError
from ckstore.fs import files, links
from ckstore.fs.store_path import StorePath
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest
from ckstore.model.document import check_created, parse_document, refuse
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.transfer import MirrorStatus, mirror_named
from ckstore.model.seal import read, to_write
from ckstore.model.settings.retention_plan import Candidate, plan
from ckstore.model.times import text_of_time, time_of_text
from ckstore.objects.documents import atomic_file
from ckstore.objects.layout import Layout
from ckstore.ops.config_file import KEEP_REMOTE, MIRROR, MIRROR_AGE_S, MIRROR_KEEP, policy_of, read_config, setting_of
from ckstore.ops.context import Context

FOLDER, FILE = "remotes", ".mirror.json"  # no remote can have a name that begins with a point
_FORMAT = "ckstore-mirrored"
_VERSION = 1
_MAX_BYTES = 64 * 2**20
_WHY_CHARS = 500


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What the file says."""

    remote: str = ""  # name of the remote that it is about
    uuid: str = ""  # of that remote: another one may have the name by now
    ids: frozenset[str] = field(default_factory=frozenset)  # the checkpoints of this store that were seen there
    problem: str = ""  # why the last try failed; empty if it did not
    # Key of a tag, a pin or annotations -> digest of what it was given last.
    documents: dict[str, str] = field(default_factory=dict)
    since: str = ""  # when the first of the tries failed that have failed one after another; empty if `problem` is
    looked: str = ""  # when all of it was listed there last; empty: not yet
    missing: dict[str, str] = field(default_factory=dict)  # id -> what the mirror lacks of a checkpoint that it had
    pruned: frozenset[str] = field(default_factory=frozenset)  # those that `keep_remote` of this store removed there

    def render(self) -> bytes:
        """Return the content of the file."""
        members = {
            "format": _FORMAT,
            "version": _VERSION,
            "remote": self.remote,
            "uuid": self.uuid,
            "checkpoints": sorted(self.ids),
            "problem": self.problem[:_WHY_CHARS],
            "since": self.since,
            "documents": self.documents,
            "looked": self.looked,
            "missing": self.missing,
            "pruned": sorted(self.pruned),
        }
        return canonical_json(members) + b"\n"


def _parse(data: bytes, where: str) -> Mirrored:
    members = parse_document(data, _FORMAT, _VERSION, where)
    remote, problem, uuid = members.get("remote"), members.get("problem"), members.get("uuid", "")
    if not isinstance(remote, str) or not isinstance(uuid, str) or not isinstance(problem, str):
        refuse(where, "remote, uuid and problem", "texts", [remote, uuid, problem])
    ids, pruned = (
        _ids("checkpoints", members.get("checkpoints"), where),
        _ids("pruned", members.get("pruned", []), where),
    )
    documents = members.get("documents", {})
    if not isinstance(documents, dict) or not all(isinstance(digest, str) for digest in documents.values()):
        refuse(where, "documents", "keys with digests", documents)
    since, looked = (found and check_created(found, where) for found in (members.get("since"), members.get("looked")))
    missing = members.get("missing", {})
    if not isinstance(missing, dict) or not all(isinstance(why, str) for why in missing.values()):
        refuse(where, "missing", "ids with texts", missing)
    return Mirrored(remote, uuid, ids, problem, documents, since or "", looked or "", missing, pruned)


def _ids(name: str, value: Any, where: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(id, str) and is_digest(id) for id in value):
        refuse(where, name, "an array of ids", value)
    return frozenset(value)


def _place(layout: Layout) -> StorePath:
    return layout.root / FOLDER / FILE


def uuid_now(layout: Layout, remote: str) -> str:
    """Return the uuid of the remote that has a name in the settings now; "" where none has."""
    entry = read_config(layout).get("remotes", {}).get(remote, {})
    return str(entry.get("uuid", "")) if isinstance(entry, dict) else ""


def read_mirrored(layout: Layout, remote: str) -> Mirrored:
    """Return what is known of a mirror; nothing where the file is missing, damaged, or about another remote."""
    path, uuid = _place(layout), uuid_now(layout, remote)
    try:
        found = read(files.read_file(path, most_bytes=_MAX_BYTES), _parse, str(path))
    except (FileNotFoundError, NotADirectoryError, CkstoreError):
        return Mirrored(remote, uuid)
    return found if (found.remote, found.uuid) == (remote, uuid) else Mirrored(remote, uuid)


def _change(layout: Layout, remote: str, uuid: str, make: Callable[[Mirrored], Mirrored]) -> None:
    """Change what is known of a mirror, durably, unless another remote has got the name meanwhile."""
    path = _place(layout)
    links.make_directory(layout.root / FOLDER)
    # Read under the lock: the process that mirrors and one that pulls write there.
    with atomic_file.changing(layout) as lock, files.opened_directory(layout.root / FOLDER) as fd:
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
) -> None:
    """Note what the mirror was given.

    Args:
        layout: The store.
        remote: The mirror.
        uuid: Of the remote that it was given to.
        ids: Checkpoints that were seen there.
        here: Those of the store; others are forgotten once the mirror lacks none of these: until then one of these may
            have the step of one that it was given.
        documents: Small objects that it was given, as `Mirrored.documents` has them.
        gone: Keys of those that the store does not have any more.
    """

    def added(known: Mirrored) -> Mirrored:
        given = known.ids | {*ids}
        if all(info.id in given or info.elsewhere for info in here):
            given &= {info.id for info in here}
        still = {key: digest for key, digest in known.documents.items() if key not in gone}
        missing = {id: why for id, why in known.missing.items() if id not in ids}
        pruned = (known.pruned - {*ids}) & {info.id for info in here}
        said = still | dict(documents)
        return replace(
            known, ids=given, problem="", since="", documents=said, missing=missing, pruned=frozenset(pruned)
        )

    _change(layout, remote, uuid, added)


def note_taken(layout: Layout, remote: str, documents: Mapping[str, str]) -> None:
    """Note which small objects were taken from a remote that is the mirror, or may become it: it need not get them.

    It must not: another store may have changed them there since.
    """
    uuid = uuid_now(layout, remote)
    if documents and uuid and setting_of(layout, MIRROR) in (None, remote):
        _change(layout, remote, uuid, lambda known: replace(known, documents=known.documents | dict(documents)))


def note_looked(layout: Layout, remote: str, missing: Mapping[str, str], documents: Container[str]) -> None:
    """Note what a mirror was found to lack of checkpoints and documents that it had; what is here is pushed again."""

    def noted(known: Mirrored) -> Mirrored:
        still = {key: digest for key, digest in known.documents.items() if key not in documents}
        ids = known.ids - missing.keys()
        return replace(known, looked=text_of_time(now()), missing=dict(missing), ids=ids, documents=still)

    _change(layout, remote, uuid_now(layout, remote), noted)


def note_pruned(layout: Layout, remote: str, ids: Iterable[str]) -> None:
    """Note which checkpoints `keep_remote` of this store removes at its mirror."""
    gone = frozenset(ids)

    def noted(known: Mirrored) -> Mirrored:
        return replace(known, ids=known.ids - gone, pruned=known.pruned | gone)

    _change(layout, remote, uuid_now(layout, remote), noted)


def note_problem(layout: Layout, remote: str, problem: str) -> None:
    """Note why a try failed, once for each reason; empty: nothing is left to be done."""
    why = problem[:_WHY_CHARS]

    def noted(known: Mirrored) -> Mirrored:
        return replace(known, problem=why, since=(known.since or text_of_time(now())) if why else "")

    if read_mirrored(layout, remote).problem != why:
        _change(layout, remote, uuid_now(layout, remote), noted)


def behind(layout: Layout, remote: str, infos: Iterable[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return which of the checkpoints a mirror lacks as far as is known, the newest first."""
    known, listed = read_mirrored(layout, remote), [*infos]
    # Those without bytes here came from a remote, or were let go because one has them.
    lacking = [info for info in listed if info.id not in known.ids and not info.elsewhere]
    if any(info.id in known.pruned for info in lacking):
        # What the rule removed there and keeps by now, as since it has a tag, is to be there again.
        policy = policy_of(layout, KEEP_REMOTE)
        kept = listed if policy is None else [one.info for one in plan(policy, [*map(Candidate, listed)], now()).kept]
        wanted = {info.id for info in kept}
        lacking = [info for info in lacking if info.id not in known.pruned or info.id in wanted]
    return sorted(lacking, key=lambda info: info.order, reverse=True)


def now() -> datetime:
    """Return the time; tests have another clock."""
    return datetime.now(UTC)


def status_of(context: Context, infos: Iterable[CheckpointInfo]) -> MirrorStatus | None:
    """Return how far the mirror of a store is; None: it has none."""
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
    return MirrorStatus(remote, tuple(lacking), oldest_s, age_s, known.problem, known.since, known.looked, lost)


def kept_for_mirror(context: Context, infos: Iterable[CheckpointInfo]) -> dict[str, str]:
    """Return which checkpoints retention keeps for the mirror, by name, and why."""
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
        # What the mirror's own rule keeps is there for good once it was sent, and nowhere if it is dropped before.
        wanted = {entry.info.name for entry in plan(policy, [*map(Candidate, listed)], now()).kept}
        found |= {info.name: not_yet(remote) for info in lacking if info.name in wanted}
    return found


def not_yet(remote: str) -> str:
    """Return why a checkpoint stays that a mirror lacks."""
    return f"it is not at {mirror_named(remote)} yet"
