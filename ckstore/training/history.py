"""Import the checkpoints that another trainer left in a folder, with their steps, times and metrics.

The folder may be hostile: it is looked into by descriptors, without following a symlink, as `ckstore.fs.tree` does.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ckstore.containers.parsed_values import STATE_SUFFIXES
from ckstore.errors import BadInput, CannotStore, DamagedBlob, InUse, NoSuchRef
from ckstore.fs import dirfd_stat, files, links
from ckstore.fs.dirfd_stat import at
from ckstore.fs.store_path import StorePath
from ckstore.fs.tree import Entry, foreign, kind_of, look_at, walk
from ckstore.model.brief import brief
from ckstore.model.document import parse_foreign
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import AUTO, DEFAULT_RUN, expanded
from ckstore.model.sizes import size_text
from ckstore.model.times import text_of_time
from ckstore.model.words import counted, in_lines, new_text, printable
from ckstore.ops.config_file import rules_of
from ckstore.ops.notices import warn
from ckstore.ops.save.gather import check_names, signs_of_incompleteness, step_in_name
from ckstore.store import Store, context_of
from ckstore.tracebacks import short_tracebacks

_LATEST = ("latest", "latest_checkpointed_iteration.txt", "latest_checkpointed_iteration")
# A dot in front: trainers and `find_checkpoints` pass over it.
_DELETING = ".ckstore-deleting-"
# These files hold one name; a folder from elsewhere may have anything under it.
_LATEST_MOST_BYTES = 4096
_STATE = "trainer_state.json"
_STATE_MOST_BYTES = 256 * 2**20
IMPORTED = "imported"
"""The name in the metadata of what says where a checkpoint came from."""


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A checkpoint in a folder.

    Attributes:
        path: Its directory or file.
        step: Its step.
        time: When it was last written, UTC.
        nbytes: Size of its files.
        incomplete: Why it is not complete; empty if it is.
    """

    path: Path
    step: int
    time: str
    nbytes: int
    incomplete: str = ""


@brief()
@dataclass(frozen=True, slots=True)
class ImportReport:
    """What `import_history` did.

    Attributes:
        imported: Checkpoints that were committed, in the order of their commits.
        present: Those that an earlier import had committed.
        skipped: Names in the folder that were left alone -> why.
        deleted: Sources that were deleted after their copy was verified.
        source_bytes: Size of the files that were imported or present.
        new_bytes: Bytes that the store took for what was imported.
    """

    imported: tuple[CheckpointInfo, ...] = ()
    present: tuple[CheckpointInfo, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    deleted: tuple[Path, ...] = ()
    source_bytes: int = 0
    new_bytes: int = 0

    def __str__(self) -> str:
        *left, imported = lines(self)
        return in_lines(left, [imported])


def lines(report: ImportReport) -> Iterator[str]:
    """Say what was left alone, and what was imported."""
    yield from (printable(f"left alone {name}: {reason}") for name, reason in report.skipped.items())
    present = f", {len(report.present)} already there" if report.present else ""
    deleted = f", {counted(len(report.deleted), 'source')} deleted" if report.deleted else ""
    sizes = new_text(report.source_bytes, report.new_bytes)
    yield f"imported {counted(len(report.imported), 'checkpoint')}{present}{deleted}: {sizes}"


def find_checkpoints(folder: str | os.PathLike[str]) -> tuple[list[CheckpointFolder], dict[str, str]]:
    """Return the checkpoints in a folder by step, and the other names with the reason.

    Known are ``checkpoint-500``, ``step-500``, ``global_step500``, ``iter_0000500``, ``epoch=1-step=500.ckpt``. If a
    file ``latest`` or ``latest_checkpointed_iteration.txt`` names one of them, that comes last, so that it is the
    latest. Names that begin with a dot are passed over.
    """
    base = foreign(expanded(folder))
    found: dict[int, CheckpointFolder] = {}
    skipped: dict[str, str] = {}
    for name, mode in _listed(base):
        if name in _LATEST or name.startswith("."):
            continue
        step = step_in_name([(base / name).path])
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            skipped[name] = kind_of(mode)
        elif step is None or not (stat.S_ISDIR(mode) or name.endswith(STATE_SUFFIXES)):
            skipped[name] = "no step in its name"
        else:
            source = _look(base / name, step)
            other = found.get(step)
            # Two forms of one step, as a file and a folder: the complete one, then the newer one.
            if other is not None and _preference(other) > _preference(source):
                source, other = other, source
            if other is not None:
                better = "newer" if bool(other.incomplete) == bool(source.incomplete) else "complete"
                skipped[other.path.name] = f"{source.path.name} has the same step and is {better}"
            found[step] = source
    latest = _named_latest(base, skipped)
    return sorted(found.values(), key=lambda source: (source.path.name in latest, source.step)), skipped


def _preference(source: CheckpointFolder) -> tuple[bool, str, str]:
    return not source.incomplete, source.time, source.path.name


def _listed(base: StorePath) -> list[tuple[str, int]]:
    """Return the names in a folder, in order, with what they are."""
    try:
        with dirfd_stat.entries(base) as entries:
            return sorted((entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in entries)
    except OSError as error:
        raise BadInput(f"{base} cannot be listed: {error.strerror}") from error


def _gather(where: StorePath) -> list[Entry]:
    """Return what `commit` would take of a checkpoint in a folder; no symlink is followed, not even to it."""
    with _reading(where):
        top = look_at(where, where.name)
        # By descriptors and without following: what is imported is later deleted, and must be the same files.
        entries = list(walk(where)) if top.kind == "directory" else [top]
    check_names(entries)
    return entries


def _look(where: StorePath, step: int) -> CheckpointFolder:
    try:
        entries = _gather(where)
    except CannotStore as error:
        return CheckpointFolder(where.path, step, "", 0, error.message)
    with _reading(where):
        own_ns = dirfd_stat.status(where).st_mtime_ns
    newest_ns = max([entry.mtime_ns for entry in entries if entry.kind == "file"], default=own_ns)
    signs = signs_of_incompleteness(entries, [where.name])
    if not any(entry.kind == "file" for entry in entries):
        signs = ["it is empty"]
    return CheckpointFolder(
        where.path,
        step,
        text_of_time(datetime.fromtimestamp(newest_ns / 1e9, UTC)),
        sum(entry.nbytes for entry in entries if entry.kind == "file"),
        "; ".join(signs),
    )


def _named_latest(base: StorePath, skipped: dict[str, str]) -> set[str]:
    """Return what the files name that trainers keep the name of their newest checkpoint in; others are skipped."""
    named = set()
    for name in _LATEST:
        about = dirfd_stat.find(base / name)
        if about is None:
            continue
        if not stat.S_ISREG(about.st_mode):
            skipped[name] = f"{kind_of(about.st_mode)} instead of a file"
            continue
        with _reading(base / name):
            try:
                text = files.read_file(base / name, most_bytes=_LATEST_MOST_BYTES).decode(errors="replace").strip()
            except DamagedBlob:  # its size, or no file any more
                skipped[name] = f"larger than {_LATEST_MOST_BYTES} bytes: it names no checkpoint"
                continue
        named |= {text, f"iter_{text.zfill(7)}"}
    return named


@contextmanager
def _reading(path: StorePath) -> Iterator[None]:
    """Read a file or a directory in the block."""
    try:
        yield
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
        raise BadInput(msg, hint="import again when it can be read; what was imported before stays") from error


@short_tracebacks
def import_history(
    store: Store,
    folder: str | os.PathLike[str],
    run: str | None = None,
    *,
    delete_sources: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Commit every checkpoint in a folder at its step, oldest first; each is durable before the next begins.

    Steps, times and the metrics in ``trainer_state.json`` come along. An import that was stopped goes on where it was:
    what is in the store already, with the same names, sizes and times of its files, is not read again.

    Args:
        store: The store.
        folder: Where the checkpoints are.
        run: The run; None: that of `Store.open`, else ``main``.
        delete_sources: Delete each source when its copy was read back from the disk and verified.
        progress: Called with the bytes that are done and those to be done.

    Raises:
        BadInput: It is not a directory, or a file in it cannot be read; or sources are to be deleted, and one is
            incomplete, or the store has a policy or a budget that would drop what was just imported.
        StepExists: The run has another checkpoint at one of the steps.
        DamagedBlob: A copy that was read back is damaged; its source is still there.
    """
    sources, skipped = find_checkpoints(folder)
    skipped |= {source.path.name: f"incomplete: {source.incomplete}" for source in sources if source.incomplete}
    if delete_sources:
        # Before the first commit: an import of hours must not end in a refusal to delete.
        _check_deletable(store, run_of(store, run), sources)
        base = foreign(expanded(folder))
        for name, mode in _listed(base):
            # A killed import had renamed it, and not deleted it yet.
            if name.startswith(_DELETING) and not _delete(base / name, mode):
                skipped[name] = f"{kind_of(mode)}: no import left it"
    wanted = [source for source in sources if not source.incomplete]
    imported: list[CheckpointInfo] = []
    present: list[CheckpointInfo] = []
    deleted: list[Path] = []
    all_bytes, done_bytes = sum(source.nbytes for source in wanted), 0
    for source in wanted:
        entries = _gather(_where(source))
        listing = _listing(entries)
        # Same names, sizes and times as at that import: then it is not read again.
        info = _present(store, run, source, listing)
        if info is None:
            info = _commit(store, run, source, entries)
            imported.append(info)
        else:
            present.append(info)
        if delete_sources:
            _delete_verified(store, info, source, listing)
            deleted.append(source.path)
        done_bytes += source.nbytes
        if progress is not None:
            progress(done_bytes, all_bytes)
    new_bytes = sum(info.new_bytes for info in imported)
    return ImportReport(tuple(imported), tuple(present), skipped, tuple(deleted), all_bytes, new_bytes)


def _where(source: CheckpointFolder) -> StorePath:
    return foreign(source.path.parent) / source.path.name


def _check_deletable(store: Store, run: str, sources: list[CheckpointFolder]) -> None:
    for source in sources:
        if source.incomplete:
            msg = f"{source.path} is incomplete ({source.incomplete}), nothing was imported or deleted"
            raise BadInput(msg, hint="remove it yourself, or import without deleting")
    rules = rules_of(context_of(store).layout)
    policy = rules.of(run)
    if policy is not None or rules.budget is not None:
        what, name = ("a budget", "budget") if policy is None else ("a retention policy", "retention")
        glob = next((glob for glob, of_run in rules.by_run.items() if of_run is policy), None)
        attribute, option = (name, "") if glob is None else ("retention_by_run", f" --run {shlex.quote(glob)}")
        raise BadInput(
            f"the store has {what}, which would drop what is imported while its source is deleted",
            hint=f"set store.config.{attribute} to None, import, then set it again",
            command_hint=f"ckstore config {name}{option} --off, import, then set it again",
        )


def _listing(entries: list[Entry]) -> str:
    """Return a digest of names, sizes and times: another one means that something was written since."""
    rows = [f"{entry.path}\0{entry.kind}\0{entry.nbytes}\0{entry.mtime_ns}" for entry in entries]
    return hashlib.sha256("\n".join(sorted(rows)).encode("utf-8", "surrogateescape")).hexdigest()


def run_of(store: Store, run: str | None) -> str:
    """Return the run that a save goes to: that given, that of the handle, else ``main``; for ``auto`` a new one."""
    return store._new_run() if run == AUTO else run or store.run or DEFAULT_RUN  # noqa: SLF001 - as `save` finds it


def _present(store: Store, run: str | None, source: CheckpointFolder, listing: str) -> CheckpointInfo | None:
    try:
        info = store.info(f"{run_of(store, run)}@{source.step}")
    except (NoSuchRef, InUse):  # the latter while it is being replaced, which a commit of that step completes
        return None
    recorded: Any = info.metadata.get(IMPORTED)
    return info if isinstance(recorded, dict) and recorded.get("listing") == listing else None


def _commit(store: Store, run: str | None, source: CheckpointFolder, entries: list[Entry]) -> CheckpointInfo:
    about = {"name": source.path.name, "time": source.time, "listing": _listing(entries)}
    metrics = _metrics(entries, source)
    return store.commit(source.path, source.step, run, metrics=metrics, metadata={IMPORTED: about}, times=True)


def _metrics(entries: Iterable[Entry], source: CheckpointFolder) -> dict[str, float]:
    """Return what the Trainer of transformers logged at the step of a checkpoint; its log is no symlink."""
    state = next((entry for entry in entries if entry.path == _STATE), None)
    if state is None or state.kind == "directory":
        return {}
    if state.kind != "file" or state.nbytes > _STATE_MOST_BYTES:
        why = f"a {state.kind}" if state.kind != "file" else f"larger than {size_text(_STATE_MOST_BYTES)}"
        warn(f"{source.path.name} comes in without metrics: its {_STATE} is {why}, kept as it is and not read")
        return {}
    with _reading(state.where):
        content = state.content()
    try:
        return numbers_at(parse_foreign(content)["log_history"], source.step)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # there is no such history
        return {}


def numbers_at(log: Iterable[Mapping[str, Any]], step: int) -> dict[str, float]:
    """Return the numbers that the log of a Trainer has for a step, but for the step itself."""
    return {
        name: value
        for entry in log
        if entry.get("step") == step
        for name, value in entry.items()
        if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _delete_verified(store: Store, info: CheckpointInfo, source: CheckpointFolder, listing: str) -> None:
    # Read back from the disk: a copy that only the page cache has whole must not cost the source.
    report = store.verify(info)
    if not report.ok:
        msg = f"the copy of {source.path} in the store is damaged: {report.damage[0].what}"
        raise DamagedBlob(msg, hint="the source is still there; ckstore verify says more")
    where = _where(source)
    # The trainer may still write there: what was imported is then not what would be deleted.
    if _listing(_gather(where)) != listing:
        msg = f"{source.path} was written to since it was imported, and was not deleted"
        raise BadInput(msg, hint="import it again under another run")
    # Renamed first: what is left of a deletion that was stopped does not look like a checkpoint.
    doomed = where.parent / f"{_DELETING}{where.name}"
    links.rename(where, doomed)
    _delete(doomed, dirfd_stat.status(doomed).st_mode)


def _delete(where: StorePath, mode: int) -> bool:
    """Delete a directory or a file in a folder; return whether it was one."""
    with at(where) as (parent, name):
        if stat.S_ISDIR(mode):
            shutil.rmtree(name, dir_fd=parent)  # by descriptors, following nothing
        elif stat.S_ISREG(mode):
            os.unlink(name, dir_fd=parent)
        else:
            return False
    return True
