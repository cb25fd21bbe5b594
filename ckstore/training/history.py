"""Import the checkpoints of another trainer from a folder, with their steps, times and metrics.

The folder is not trusted. It is read through descriptors and without following symlinks, as in `ckstore.fs.tree`.
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
from ckstore.errors import BadInput, CannotStore, CkstoreError, DamagedBlob, InUse, NoSuchRef, RunInUse, StepExists
from ckstore.fs import dirfd_stat, files, links
from ckstore.fs.dirfd_stat import StorePath, at
from ckstore.fs.tree import Entry, foreign, kind_of, look_at, walk
from ckstore.model.brief import brief
from ckstore.model.document import parse_foreign
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import AUTO, DEFAULT_RUN, MAX_SEQUENCE, expanded
from ckstore.model.settings.retention_plan import OVER_BUDGET, Candidate
from ckstore.model.sizes import size_text
from ckstore.model.times import text_of_time
from ckstore.model.words import counted, in_lines, new_text, printable
from ckstore.ops.config_file import StoreRules, rules_of
from ckstore.ops.free.retain import plan_commits
from ckstore.ops.notices import warn
from ckstore.ops.save.continuation import free_run
from ckstore.ops.save.gather import check_names, signs_of_incompleteness, step_in_name
from ckstore.store import Store, context_of

_LATEST = ("latest", "latest_checkpointed_iteration.txt", "latest_checkpointed_iteration")
# Trainers and `find_checkpoints` skip names that begin with a dot.
_DELETING = ".ckstore-deleting-"
# These files hold one name, but in an untrusted folder they may have any content.
_LATEST_MOST_BYTES = 4096
_STATE = "trainer_state.json"
_STATE_MOST_BYTES = 256 * 2**20
IMPORTED = "imported"
"""The key, in the metadata of a checkpoint, of the record about the directory or file that was imported."""


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A checkpoint in a folder.

    Attributes:
        path: The directory or file of the checkpoint.
        step: The step of the checkpoint.
        time: The time of the last write, in UTC.
        nbytes: The total size of all files, in bytes.
        incomplete: The reason why the checkpoint is not complete. It is empty for a complete one.
    """

    path: Path
    step: int
    time: str
    nbytes: int
    incomplete: str = ""


@brief()
@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of `import_history`.

    Attributes:
        imported: The committed checkpoints, in the order of their commits.
        present: The checkpoints that an earlier import committed.
        skipped: The names in the folder that were not imported -> the reasons.
        deleted: The sources that were deleted after their copies were verified.
        source_bytes: The total size of the files of all imported and present checkpoints.
        new_bytes: The bytes that the import added to the store.
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
    """Yield a line for each skipped name, and a line about the import."""
    yield from (printable(f"skipped {name}: {reason}") for name, reason in report.skipped.items())
    present = f", {len(report.present)} already imported" if report.present else ""
    deleted = f", {counted(len(report.deleted), 'source')} deleted" if report.deleted else ""
    sizes = new_text(report.source_bytes, report.new_bytes)
    yield f"imported {counted(len(report.imported), 'checkpoint')}{present}{deleted}: {sizes}"


def find_checkpoints(folder: str | os.PathLike[str]) -> tuple[list[CheckpointFolder], dict[str, str]]:
    """Return the checkpoints in a folder, ordered by step, and the reason for each name that was skipped.

    Recognized names are ``checkpoint-500``, ``step-500``, ``global_step500``, ``iter_0000500`` and
    ``epoch=1-step=500.ckpt``. If a file ``latest`` or ``latest_checkpointed_iteration.txt`` names one of the
    checkpoints, that checkpoint is last in the list, so it becomes the latest of the run. Names that begin with a dot
    are skipped.
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
            # If one step has a file and a folder, prefer the complete one, then the newer one.
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
    """Return the names in a folder in sorted order, each with its mode."""
    try:
        with dirfd_stat.entries(base) as entries:
            return sorted((entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in entries)
    except OSError as error:
        raise BadInput(f"{base} cannot be listed: {error.strerror}") from error


def _gather(where: StorePath) -> list[Entry]:
    """Return the entries of a checkpoint that `commit` would store. No symlink is followed, even if `where` is one."""
    with _reading(where):
        top = look_at(where, where.name)
        # Use descriptors and do not follow symlinks, so that only the imported files are deleted later.
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
    """Return the names in the files in which trainers record their newest checkpoint. Invalid files are skipped."""
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
            except DamagedBlob:  # it is too large, or no longer a file
                skipped[name] = f"larger than {_LATEST_MOST_BYTES} bytes: it names no checkpoint"
                continue
        named |= {text, f"iter_{text.zfill(7)}"}
    return named


@contextmanager
def _reading(path: StorePath) -> Iterator[None]:
    """Convert each `OSError` of the block, which reads a file or directory, to `BadInput`."""
    try:
        yield
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
        raise BadInput(msg, hint="import again when it is readable; checkpoints imported so far are kept") from error


def import_history(
    store: Store,
    folder: str | os.PathLike[str],
    run: str | None = None,
    *,
    delete_sources: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Commit every checkpoint in a folder, in the order of `find_checkpoints`, each durably before the next one.

    Steps, times and the metrics in ``trainer_state.json`` are also imported. A repeated call continues an interrupted
    import. A checkpoint is not read again if the names, sizes and times of its files have not changed.

    The import is refused if the run has checkpoints that were not imported, because an older checkpoint would become
    the latest of the run. The import is also refused if a policy or a budget would drop checkpoints because of it. The
    check against a budget adds up the sizes of the files, because it is not known how much data the files share. An
    import without new checkpoints is not refused for these reasons.

    Args:
        store: The store.
        folder: The folder with the checkpoints.
        run: Name of the run. If None, the run that was given to `Store.open`, or ``main`` if none was given.
        delete_sources: Delete each source when its copy has been read back from the disk and verified.
        progress: Called with the number of bytes done and the total.

    Raises:
        BadInput: `folder` is not a directory, a file in it cannot be read, or a policy or a budget would drop
            checkpoints because of the import. With `delete_sources`, it is also raised if a checkpoint is incomplete,
            the run has a policy, or the store has a budget.
        RunInUse: The run has checkpoints that were not imported.
        StepExists: The run has another checkpoint at one of the steps.
        DamagedBlob: A copy is damaged. Its source was not deleted.
    """
    sources, skipped = find_checkpoints(folder)
    skipped |= {source.path.name: f"incomplete: {source.incomplete}" for source in sources if source.incomplete}
    if delete_sources:
        # Check this before the first commit, so that a long import does not end with a refusal to delete.
        _check_deletable(store, run_of(store, run), sources)
    wanted = [source for source in sources if not source.incomplete]
    before = _check_run(store, run_of(store, run), wanted) if wanted else None
    if delete_sources:
        base = foreign(expanded(folder))
        for name, mode in _listed(base):
            # An import that was killed has renamed this source but not deleted it.
            if name.startswith(_DELETING) and not _delete(base / name, mode):
                skipped[name] = f"{kind_of(mode)}, not left by an import"
    imported: list[CheckpointInfo] = []
    present: list[CheckpointInfo] = []
    deleted: list[Path] = []
    all_bytes, done_bytes = sum(source.nbytes for source in wanted), 0
    for source in wanted:
        entries = _gather(_where(source))
        listing = _listing(entries)
        # If names, sizes and times are the same as in an earlier import, do not read the source again.
        info = _present(store, run, source, listing)
        if info is None:
            info = before = _commit(store, run, source, entries, before)
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


def _check_run(store: Store, run: str, wanted: list[CheckpointFolder]) -> CheckpointInfo | None:
    """Raise an error if the run belongs to a training, or if rules would drop checkpoints after the import.

    Returns:
        The last imported checkpoint of the run, which the import continues, or None.
    """
    own = store.checkpoints(run)
    others = [info for info in own if IMPORTED not in info.metadata]
    rules = rules_of(context_of(store).layout)
    if others or rules.of(run) is not None or rules.budget is not None:
        new = [source for source in wanted if _present(store, run, source, _listing(_gather(_where(source)))) is None]
        if new and others:
            msg = f"the run {run} has checkpoints that were not imported, such as {others[-1].name}"
            msg = f"{msg}, and an imported one would become its latest; nothing was imported"
            raise _into_another_run(store, run, RunInUse(msg))
        _check_rules(store, rules, run, new)
    return own[-1] if own and not others else None


def _into_another_run(store: Store, run: str, error: CkstoreError) -> CkstoreError:
    """Return the error with a hint for an import, because the hint for a save names options that an import lacks."""
    name = free_run(context_of(store), run)
    error.hint = f"run={name!r} imports the checkpoints into another run"
    error.command_hint = f"--run {name} imports the checkpoints into another run"
    return error


def _check_rules(store: Store, rules: StoreRules, run: str, new: list[CheckpointFolder]) -> None:
    policy = rules.of(run)
    with_metrics = policy is not None and bool(policy.bests)
    coming = [_candidate(run, number, source, with_metrics=with_metrics) for number, source in enumerate(new)]
    made = plan_commits(context_of(store), rules, run, coming) if coming else None
    if made is None or not made.dropped:
        return
    by_budget = policy is None or any(
        reason.startswith(f"the store{OVER_BUDGET}") for reason in made.dropped[0].reasons
    )
    setting, off = _setting_of(rules, run, budget=by_budget)
    count = sum(entry.run == run for entry in made.entries)
    longer = "" if by_budget else f"ckstore config retention --run {run} --keep-last {count} keeps all of them; or "
    raise BadInput(
        f"the rules of the store would drop {counted(len(made.dropped), 'checkpoint')} after the import, such as "
        f"{made.dropped[0]}; nothing was imported",
        hint=f"extend {setting}, or set it to None, import, then set it again",
        command_hint=f"{longer}{off}, import, then set it again",
    )


def _candidate(run: str, number: int, source: CheckpointFolder, *, with_metrics: bool) -> Candidate:
    """Return a checkpoint as retention would see it if the import had committed it after all other checkpoints."""
    info = CheckpointInfo(
        id=f"import-{number}",
        run=run,
        step=source.step,
        sequence=MAX_SEQUENCE + 1 + number,
        created=text_of_time(datetime.now(UTC)),
        logical_bytes=source.nbytes,
        new_bytes=source.nbytes,
        reused_bytes=0,
        leaf_count=0,
        content="",
        metrics={**_metrics(_state(_gather(_where(source))), source)} if with_metrics else {},
    )
    return Candidate(info, blobs={info.id: source.nbytes})


def _setting_of(rules: StoreRules, run: str, *, budget: bool) -> tuple[str, str]:
    """Return the setting with the budget, or with the policy of a run, and the command that turns it off."""
    if budget:
        return "store.config.budget", "ckstore config budget off"
    glob = next((glob for glob, policy in rules.by_run.items() if policy is rules.of(run)), None)
    if glob is None:
        return "store.config.retention", "ckstore config retention off"
    return "store.config.retention_by_run", f"ckstore config retention off --run {shlex.quote(glob)}"


def _check_deletable(store: Store, run: str, sources: list[CheckpointFolder]) -> None:
    for source in sources:
        if source.incomplete:
            msg = f"{source.path} is incomplete ({source.incomplete}), nothing was imported or deleted"
            raise BadInput(msg, hint="remove it yourself, or import without deleting")
    rules = rules_of(context_of(store).layout)
    policy = rules.of(run)
    if policy is not None or rules.budget is not None:
        what = "a budget" if policy is None else "a retention policy"
        setting, off = _setting_of(rules, run, budget=policy is None)
        raise BadInput(
            f"the store has {what}, which would drop imported checkpoints whose sources are deleted",
            hint=f"set {setting} to None, import, then set it again",
            command_hint=f"{off}, import, then set it again",
        )


def _listing(entries: list[Entry]) -> str:
    """Return a digest of names, sizes and times. It changes if a file is written."""
    rows = [f"{entry.path}\0{entry.kind}\0{entry.nbytes}\0{entry.mtime_ns}" for entry in entries]
    return hashlib.sha256("\n".join(sorted(rows)).encode("utf-8", "surrogateescape")).hexdigest()


def run_of(store: Store, run: str | None) -> str:
    """Return `run`, by default the run given to `Store.open` or ``main``. For ``auto``, return a new run."""
    return store._new_run() if run == AUTO else run or store.run or DEFAULT_RUN  # noqa: SLF001 - as `save` finds it


def _present(store: Store, run: str | None, source: CheckpointFolder, listing: str) -> CheckpointInfo | None:
    try:
        info = store.info(f"{run_of(store, run)}@{source.step}")
    except (NoSuchRef, InUse):  # InUse: the step is being replaced, and a commit of that step completes the replacement
        return None
    recorded: Any = info.metadata.get(IMPORTED)
    return info if isinstance(recorded, dict) and recorded.get("listing") == listing else None


def _commit(
    store: Store, run: str | None, source: CheckpointFolder, entries: list[Entry], before: CheckpointInfo | None
) -> CheckpointInfo:
    about = {"name": source.path.name, "time": source.time, "listing": _listing(entries)}
    state = _state(entries)
    if why := _why_unread(state):
        warn(f"{source.path.name} is imported without metrics: its {_STATE} is {why}, and was stored but not read")
    metrics, metadata = _metrics(state, source), {IMPORTED: about}
    try:
        return store.commit(
            source.path,
            source.step,
            run,
            metrics=metrics,
            metadata=metadata,
            parent=before,
            if_run_in_use="error",  # a training may have begun since `_check_run`
            times=True,
        )
    except (StepExists, RunInUse) as error:
        _into_another_run(store, run_of(store, run), error)
        raise


def _state(entries: Iterable[Entry]) -> Entry | None:
    return next((entry for entry in entries if entry.path == _STATE and entry.kind != "directory"), None)


def _why_unread(state: Entry | None) -> str:
    if state is None or (state.kind == "file" and state.nbytes <= _STATE_MOST_BYTES):
        return ""
    return f"a {state.kind}" if state.kind != "file" else f"larger than {size_text(_STATE_MOST_BYTES)}"


def _metrics(state: Entry | None, source: CheckpointFolder) -> dict[str, float]:
    """Return the metrics that the Trainer of transformers logged at the step of a checkpoint. Ignore a symlink."""
    if state is None or _why_unread(state):
        return {}
    with _reading(state.where):
        content = state.content()
    try:
        return numbers_at(parse_foreign(content)["log_history"], source.step)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # the file has no such history
        return {}


def numbers_at(log: Iterable[Mapping[str, Any]], step: int) -> dict[str, float]:
    """Return the numbers in the log of a Trainer for a step, except the step itself."""
    return {
        name: value
        for entry in log
        if entry.get("step") == step
        for name, value in entry.items()
        if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _delete_verified(store: Store, info: CheckpointInfo, source: CheckpointFolder, listing: str) -> None:
    # Read the copy back from the disk. A copy that is intact only in the page cache does not justify a deletion.
    report = store.verify(info)
    if not report.ok:
        msg = f"the copy of {source.path} in the store is damaged: {report.damage[0].what}"
        raise DamagedBlob(msg, hint="the source was not deleted; ckstore verify has details")
    where = _where(source)
    # The trainer may still be writing to the source, which then differs from the imported copy.
    if _listing(_gather(where)) != listing:
        msg = f"{source.path} was written to since it was imported, and was not deleted"
        raise BadInput(msg, hint="import it again under another run")
    # Rename the source first, so that the remains of an interrupted deletion do not look like a checkpoint.
    doomed = where.parent / f"{_DELETING}{where.name}"
    links.rename(where, doomed)
    _delete(doomed, dirfd_stat.status(doomed).st_mode)


def _delete(where: StorePath, mode: int) -> bool:
    """Delete a directory or a file in a folder. Return False for anything else, without deleting it."""
    with at(where) as (parent, name):
        if stat.S_ISDIR(mode):
            shutil.rmtree(name, dir_fd=parent)  # through descriptors, without following symlinks
        elif stat.S_ISREG(mode):
            os.unlink(name, dir_fd=parent)
        else:
            return False
    return True
