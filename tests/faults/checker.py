"""Look at a store after a fault: is everything there that was promised, and nothing half-done?

`check_store` returns what is wrong, one sentence each; it opens the store as any user would, which
sweeps what the dead left behind.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import tempfile
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError, StoreNotFound
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.info import CheckpointInfo
from tests.faults.facts import broken_facts, facts_of
from tests.faults.journal import Fact, Place, Promised
from tests.faults.states import CHUNK_BYTES, NAMES, expected, fingerprint, read_files, state
from tests.support.checkpoint_dirs import step_of_name
from tests.support.descriptors import open_below
from tests.support.look import files_of

_DIGEST = r"xxh3-[0-9a-f]{32}"
_RUN = r"[A-Za-z0-9._-]+"
_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"  # what is being written has a dot in front
_STEP = r"\d+(\.[0-9a-f]{10,}(\.\d+)?)?"
_FILE_NAMES = re.compile(
    rf"""
      store\.json | config\.json | catalog\.db(\.old-\d+)?(-wal|-shm|-journal)?
    | blobs/[0-9a-f]{{2}}/{_DIGEST}
    | checkpoints/{_RUN}/{_STEP}/(manifest\.json | plain\.json | annotations\.json | damaged\.json | blobs/{_DIGEST})
    # What a process was writing when it died; ignored by all, and the next to write there removes it (a tag's stays).
    | (checkpoints/{_RUN}/{_STEP}/ | pins/ )?\.new | refs/\.{_NAME}\.[0-9a-f]{{12}}
    | refs/{_NAME} | pins/{_NAME}\.json | reserve/.* | verified\.json | events\.jsonl(\.1)? | quarantine/{_DIGEST}\.\d+
    | locks/(run-{_RUN} | tags | trash | store)  # if unreadable settings may say that there are other hosts
    """,
    re.VERBOSE,
)
_SET_ASIDE = re.compile(r"catalog\.db\.damaged-\d+(-wal|-shm|-journal)?")
_DIRECTORY_NAMES = re.compile(
    rf"""
      blobs(/[0-9a-f]{{2}})? | checkpoints(/{_RUN}(/{_STEP}(/blobs)?)?)?
    | refs | pins | staging | trash | quarantine | reserve | locks
    """,
    re.VERBOSE,
)


def _is_stamp(mtime_ns: int) -> bool:
    """Whether a blob has a time as docs/format/v1.md says, or that of the draft before."""
    seconds, rest_ns = divmod(mtime_ns, 10**9)
    return mtime_ns == 10**18 or rest_ns == 271_828_000 or (rest_ns == 0 and seconds % 300 == 38)


_PROBE = "probe"  # a run that no scenario has

Contents = dict[Place, str]
"""The fingerprint of every checkpoint that can be seen."""


def check_store(path: Path, promised: Promised, *, catalog_was_unreadable: bool = False) -> list[str]:
    """Return what is wrong with the store at `path`, after whatever happened to it.

    A catalog that could not be read may have been set aside and rebuilt; by nothing else may it.
    """
    wrong: list[str] = []
    try:
        store = _there_or_made_again(path, promised, wrong)
        if store is None:
            return wrong
        wrong += check_contents(store, promised)
        wrong += check_tree(path, set_aside=catalog_was_unreadable)
        before, listed = _tree(path), _listed(store)
        again = Store.open(path)
        if _listed(again) != listed:
            wrong.append(f"opened again it lists {_listed(again)} instead of {listed}")
        if _tree(path) != before:
            wrong.append(f"opening it again changes files: {sorted(before ^ _tree(path))}")
        wrong += _goes_on(again, listed, {fact: {text} for fact, text in facts_of(again).items()})
        wrong += check_tree(path, set_aside=catalog_was_unreadable)
    except CkstoreError as error:
        wrong.append(f"{type(error).__name__}: {error}")
    wrong += [f"left open: {name}" for name in open_below(path).values()]
    return wrong


def check_contents(store: Store, promised: Promised) -> list[str]:
    """Return which promises an open store does not keep: everything that it shows is loaded."""
    wrong: list[str] = []
    seen = _contents(store, wrong)
    return wrong + _broken_promises(promised, seen) + broken_facts(promised.facts, facts_of(store))


def _there_or_made_again(path: Path, promised: Promised, wrong: list[str]) -> Store | None:
    """Open the store; one that was not acknowledged may have to be made again."""
    try:
        return Store.open(path)
    except StoreNotFound as error:
        if not promised.store:
            return Store.init(path, chunk_bytes=CHUNK_BYTES)
        wrong.append(f"the store was acknowledged and is gone: {error}")
        return None


def _contents(store: Store, wrong: list[str]) -> Contents:
    """Load everything that can be seen, also what is superseded."""
    seen: Contents = {}
    for info in store.checkpoints(superseded=True):
        if (info.run, info.step) in seen and not info.superseded:
            wrong.append(f"{info.name} is listed twice")
        try:
            content = fingerprint(_content(store, info))
        except CkstoreError as error:
            wrong.append(f"{info.name} is listed, not loaded: {type(error).__name__}: {error}")
            continue
        if not info.superseded:
            seen[info.run, info.step] = content
        elif content not in map(expected, NAMES):
            wrong.append(f"{info.name} is superseded, and a state that was never saved")
    on_disk = _published(store.path)
    if seen.keys() != on_disk:
        wrong.append(f"directories {sorted(on_disk)}, but listed and loaded {sorted(seen)}")
    return seen


def _content(store: Store, info: CheckpointInfo) -> object:
    """Return the state, or the files that were committed."""
    if not files_of(store, info):
        return store.load(info)
    with tempfile.TemporaryDirectory() as folder:
        store.checkout(info, Path(folder) / "out")
        return read_files(Path(folder) / "out")


def _listed(store: Store) -> list[tuple[str, str]]:
    return [(info.name, info.id) for info in store.checkpoints()]


def _published(path: Path) -> set[Place]:
    """Every directory that is a checkpoint by its name."""
    found = ((place.parent.name, step_of_name(place.name)) for place in path.glob("checkpoints/*/*"))
    return {(run, step) for run, step in found if step is not None}


def _broken_promises(promised: Promised, seen: Contents) -> list[str]:
    named = {expected(name): name for name in NAMES}
    wrong = []
    for place in sorted(promised.options.keys() | seen.keys()):
        options = promised.options.get(place, {None})
        found = named.get(seen[place], "a state that was never saved") if place in seen else None
        if found not in options:
            wrong.append(f"{place[0]}@{place[1]} must be one of {sorted(map(str, options))}, found {found}")
    return wrong


def _goes_on(store: Store, listed: list[tuple[str, str]], facts: dict[Fact, set[str | None]]) -> list[str]:
    """Save two more, drop the older one by a policy and collect: both load, only that one goes, and all of it."""
    older = store.save({"small": 1}, run=_PROBE, step=1)
    newer = store.save(state("probe"), run=_PROBE, step=2)
    wrong = [] if fingerprint(store.load(newer)) == expected("probe") else ["a new save does not load as it was saved"]
    saved = [*listed, (older.name, older.id), (newer.name, newer.id)]
    if _listed(store) != saved:
        wrong.append(f"after two saves it lists {_listed(store)}, before that {listed}")
    dropped = store.prune(RetentionPolicy(keep_last=1), run=_PROBE).dropped
    if [info.name for info in dropped] != [older.name]:
        wrong.append(f"pruning dropped {[info.name for info in dropped]} instead of {older.name}")
    saved.remove((older.name, older.id))
    if _listed(store) != saved:
        wrong.append(f"after prune and gc it lists {_listed(store)} instead of {saved}")
    wrong += [f"after prune and gc: {line}" for line in broken_facts(facts, facts_of(store))]
    used, there = ({path.name for path in store.path.glob(names)} for names in ("checkpoints/*/*/blobs/*", "blobs/*/*"))
    if there - used:
        wrong.append(f"gc left blobs that no checkpoint uses: {sorted(there - used)}")
    return wrong


def check_tree(path: Path, *, set_aside: bool = False) -> list[str]:
    """Return what is wrong with a store that no process has open: names, links, blobs, counts.

    `set_aside`: a catalog that was set aside as damaged is not wrong.
    """
    wrong = []
    names: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for folder, directories, files in os.walk(path):
        for name in [*directories]:
            if (Path(folder) / name).is_symlink():  # a tag
                directories.remove(name)
                files.append(name)
        for name in directories:
            relative = (Path(folder) / name).relative_to(path).as_posix()
            if not _DIRECTORY_NAMES.fullmatch(relative):
                wrong.append(f"a directory that has no business here: {relative}")
        for name in files:
            file = Path(folder) / name
            relative = file.relative_to(path).as_posix()
            if not _FILE_NAMES.fullmatch(relative) and not (set_aside and _SET_ASIDE.fullmatch(relative)):
                wrong.append(f"a file that has no business here: {relative}")
            status = file.lstat()
            names[status.st_dev, status.st_ino].append(file)
    for files_of_one in names.values():
        wrong += _check_inode(path, files_of_one)
    return wrong + check_counts(path)


def _check_inode(root: Path, names: list[Path]) -> list[str]:
    blobs = [name for name in names if re.fullmatch(_DIGEST, name.name)]
    status = names[0].lstat()
    where = ", ".join(name.relative_to(root).as_posix() for name in names)
    wrong = []
    if status.st_nlink != len(names):
        wrong.append(f"link count {status.st_nlink}, but {len(names)} names: {where}")
    if blobs:  # also what is in quarantine: a damaged blob has that name alone
        file = blobs[0]
        if len({name.name for name in names}) != 1:
            wrong.append(f"one inode under several names: {where}")
        if algorithm_of(file.name).digest(file.read_bytes()) != file.name:
            wrong.append(f"the bytes are not what the name says: {where}")
        if not _is_stamp(status.st_mtime_ns) or stat.S_IMODE(status.st_mode) != 0o444:
            wrong.append(f"mtime {status.st_mtime_ns} or mode {status.st_mode:o} of a blob: {where}")
    return wrong


def check_counts(path: Path) -> list[str]:
    """Return where the catalog's uses and reference counts differ from the manifests."""
    uses: set[tuple[str, str, str, int]] = set()
    checkpoints: set[tuple[str, str, str]] = set()
    wrong = []
    for folder in (place for place in path.glob("checkpoints/*/*") if step_of_name(place.name) is not None):
        file, place, where = folder / "manifest.json", (folder.parent.name, folder.name), folder.relative_to(path)
        try:
            document = json.loads(file.read_text())
        except FileNotFoundError:
            wrong.append(f"{where} has no manifest")
            continue
        members = document["manifest"]
        # A compacted checkpoint uses the files that are there, not the plain blobs.
        checkpoints.add((*place, members.get("checkpoint", document["digest"])))
        files = members["files"] if "encoded" in members else members["blobs"]
        uses |= {(*place, digest, nbytes) for digest, nbytes in files}
        named = {digest for digest, _ in files} | ({"plain.json"} if "encoded" in members else set())
        there = {path.name for path in (*file.parent.glob("blobs/*"), *file.parent.glob("plain.json"))}
        wrong += [f"{where} does not need {name}" for name in sorted(there - named)]
    counts = Counter(digest for _, _, digest, _ in uses)
    with closing(sqlite3.connect(f"file:{path}/catalog.db?mode=ro", uri=True)) as catalog:
        listed = set(catalog.execute("SELECT run, directory, manifest_id FROM checkpoint_log"))
        used = set(catalog.execute("SELECT run, directory, digest, nbytes FROM checkpoint_blobs"))
        counted = dict(catalog.execute("SELECT digest, reference_count FROM blob_references"))
    if listed != checkpoints:
        wrong.append(f"the catalog lists other checkpoints: {sorted(listed ^ checkpoints)}")
    if used != uses:
        wrong.append(f"the catalog has other uses: {sorted(used ^ uses)}")
    if {digest: number for digest, number in counted.items() if number} != counts:
        wrong.append(f"reference counts {counted} differ from the manifests' {counts}")
    return wrong


def _tree(path: Path) -> set[tuple[str, int, int]]:
    """Every file but the catalog, which may be written at any opening: name, inode, size."""
    found = set()
    for folder, _, files in os.walk(path):
        for name in files:
            if not name.startswith("catalog.db"):
                file = Path(folder) / name
                status = file.lstat()
                found.add((file.relative_to(path).as_posix(), status.st_ino, status.st_size))
    return found
