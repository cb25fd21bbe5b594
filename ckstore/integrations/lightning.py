"""Lightning: a `CheckpointIO` that saves into a store, with a marker file where Lightning expects the checkpoint."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import secrets
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn

from ckstore.errors import BadInput, CkstoreWarning, DamagedBlob, InUse, NoSuchRef
from ckstore.fs import files
from ckstore.fs.memory_file import open_memory
from ckstore.integrations import own_run
from ckstore.integrations.directories import CONDITIONS, inexact, last_save_s, ref_of
from ckstore.integrations.extra_values import kept_as_text, warn_once, without_refused
from ckstore.integrations.lightning_exact import KEY, ExactResume
from ckstore.integrations.lightning_trainer import SettingsComparison, calling_trainer, conditions_of, is_last_save
from ckstore.model.checkpoint.pins import OF_A_FILE, Pin
from ckstore.model.document import parse_foreign
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.not_saved import NotSaved
from ckstore.model.settings.patience import OnFailure
from ckstore.objects.documents import atomic_file
from ckstore.ops.save.options import SaveOptions
from ckstore.ops.save.tolerance import tell_failures
from ckstore.saver.client.pending import PendingSave
from ckstore.store import Store, context_of
from ckstore.training.history import run_of

__all__ = ["CkstoreCheckpointIO", "ExactResume", "read_marker"]

_PREFIX = "ckstore:"
_NOT_SET = "the random states of the checkpoint are not set: add ExactResume() to the callbacks of the Trainer"
# A marker has some 200 bytes; a real .ckpt of Lightning at the same path has gigabytes, and is not read.
_MARKER_MOST_BYTES = 4096
_VERSION = b"pytorch-lightning_version"
_OWN_FILES = TorchCheckpointIO()
# The kernel keeps a table up to the highest descriptor of a process: 512 kB for this one.
_DESCRIPTORS_MOST = 65536
_NO_SYMLINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS))
_OF_HYPERPARAMETERS = "hparams_name", "hparams_type"
_ADVICE = "Weights and optimizers are kept as they are; a resume makes the model and its schedulers from your program"

_Kept: TypeAlias = list[tuple[Path, CheckpointInfo, Pin]]
"""Markers, the checkpoints that they name, and the pins of these."""


class CkstoreCheckpointIO(CheckpointIO):
    """``Trainer(plugins=[CkstoreCheckpointIO(store)])``: checkpoints are states in the store, at their global step.

    At the path that Lightning gives lies a marker, a small JSON file that names the checkpoint, so `ModelCheckpoint`
    goes on as always, ``ckpt_path="last"`` too. ``ckpt_path="ckstore:latest-valid"`` is the newest checkpoint of the
    store that is whole; ``ckstore:REF`` any other. All files of a training are in one run, ``last.ckpt`` as well.

    A resume warns of what will not continue exactly: the settings of the Trainer, its loader and its optimizers are
    compared with those of the checkpoint. `resumed_inexactly` has the sentences.

    A fit without a load begins a training: the first save raises `RunInUse` if the run has checkpoints of another one.

    A marker pins its checkpoint, so the checkpoint is kept when another callback saves the same step again.
    When `ModelCheckpoint` removes a marker, its pin is removed, and the checkpoint is deleted from the store, unless a
    tag, a pin or another marker names it. A copy of a marker protects it only in the same directory.

    Args:
        store: The store.
        run: Its run. If None, that of `Store.open`, otherwise ``main``. ``auto`` makes a new run for each training.
        delete: If False, `ModelCheckpoint` removes only markers, and the policy of the store decides which checkpoints
            are kept. Then only a checkpoint whose step another callback saves again is pinned, until its marker is
            removed.
        background: Save while training goes on, by a process of its own. A marker is written, and what was to be
            removed meanwhile is, when the save before it is durable: at the next save, or at the end of the run. What
            a save raises is raised there.
    """

    def __init__(self, store: Store, run: str | None = None, *, delete: bool = True, background: bool = False) -> None:
        self.store = store
        self._run = run
        self.delete = delete
        self.background = background
        self.resumed_inexactly: tuple[str, ...] = ()
        self._warned: set[str] = set()
        self._to_do: deque[tuple[Path, PendingSave | None, _Kept]] = deque()
        self._named: dict[Path, CheckpointInfo] = {}  # by the markers that this object wrote
        self._reserved: dict[Path, int] = {}  # paths of markers to come -> the descriptors that keep them taken
        self._failed: set[Path] = set()  # folders in which the last save failed, while the training went on
        self._spared: list[Path] = []  # what was to be removed since, and stays until a save in its folder has worked
        self._begun = False  # whether it is known which training this is
        self._last_step = -1  # of its saves
        self._left: dict[str, Mapping[str, Any]] | None = None  # what pins say that were there before, by their reasons

    @property
    def run(self) -> str:
        """The run; of ``auto`` the one that was taken, which is now if there was none."""
        return run_of(self.store, self._run)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Save a state durably, then write the marker. See `background`.

        Another checkpoint of that step is replaced, unless a marker, a tag or a pin names it. A dict that is not a
        checkpoint of a Trainer, such as the weights that `ddp_spawn` hands to the main process, becomes a file of
        Lightning at `path`.
        """
        if storage_options is not None:
            raise BadInput("storage_options: a store has none", hint="leave storage_options out")
        # Each checkpoint of a Trainer has its step as a number; a parameter of that name would be a tensor.
        if not isinstance(checkpoint.get("global_step"), int):
            _OWN_FILES.save_checkpoint(checkpoint, Path(path))
            return
        if "loops" in checkpoint and KEY not in checkpoint and KEY not in self._warned:
            self._warned.add(KEY)
            msg = "a training that is resumed from this checkpoint will differ: Lightning saves no random states"
            warnings.warn(f"{msg}; add ExactResume() of {__name__} to its callbacks", CkstoreWarning, stacklevel=2)
        state = self._storable(checkpoint)
        step = int(checkpoint["global_step"])
        if not self._begun and (self._last_step < 0 or step <= self._last_step):
            own_run.begin(self.store, self._run)
            self.resumed_inexactly = ()
        self._begun, self._last_step = True, step
        kept = self._keep_named(step)
        options: SaveOptions = {"metrics": _metrics(state), "if_exists": "replace", "if_run_in_use": "error"}
        trainer = calling_trainer()
        if trainer is not None:
            options["metadata"] = {CONDITIONS: conditions_of(trainer, checkpoint).to_json()}
        if is_last_save(trainer):
            options["try_for_s"] = last_save_s(self.store)
        if self.background:
            # Only what is done already: waiting here would make the save a blocking one.
            self._settle(wait=False)
            pending = self.store.save_async(state, step, self._run, on_failure=self._on_failure, **options)
            self._to_do.append((Path(path), pending, kept))
            if not self._reserve(Path(path)):
                self._settle(wait=True)
        else:
            on_failure = self._on_failure
            self._mark(
                Path(path), lambda: self.store.save(state, step, self._run, on_failure=on_failure, **options), kept
            )

    @property
    def _on_failure(self) -> OnFailure:
        return context_of(self.store).on_failed_save

    def _storable(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checkpoint whose hyperparameters and schedulers a store can hold; warn of what was changed."""
        state, changed = {**checkpoint}, dict[str, str]()
        for name, value in checkpoint.items():
            if isinstance(value, Mapping) and name.endswith("hyper_parameters"):
                state[name] = kept_as_text(dict(value) if isinstance(value, dict) else value, name, changed)
            elif name.endswith(_OF_HYPERPARAMETERS):
                state[name] = kept_as_text(value, name, changed)
            elif name == "lr_schedulers":
                # A scheduler takes a state up as its attributes: one that is left out stays as the program made it.
                state[name] = [
                    without_refused(one, f"{name}[{i}]", changed) if isinstance(one, dict) else one
                    for i, one in enumerate(value)
                ]
        warn_once(changed, self._warned, _ADVICE)
        return state

    def _mark(self, path: Path, save: Callable[[], CheckpointInfo | NotSaved], kept: _Kept) -> None:
        """Have a state saved, then pin it and write its marker; `kept` is what `_keep_named` returned."""
        info = save()
        if isinstance(info, NotSaved):
            # No marker: it must never name what is not saved. ModelCheckpoint removes the one before next.
            self._failed.add(path.parent)
            return
        self._failed.discard(path.parent)
        # A last.ckpt has often the same state as the file before it. Then one checkpoint serves both markers, and needs
        # no pin: the policy decides about it.
        for other, replaced, kept_by in kept:
            if replaced.content == info.content:
                self._name(other, info, None)
                self._remove_pins([kept_by])
        before = self._before(path)
        # After the save: a marker must never name a checkpoint that is not durable. After the pin: from here on neither
        # a save at its step nor the removal of another marker drops it. A kill in between leaves a pin, for `_before`.
        pin = self.store.pin(info, _reason(path)).name if self.delete else None
        self._name(path, info, pin)
        if before is not None:
            self._unpin(path, before, but=pin)
            if before["id"] != info.id:
                self._delete(before["id"], path.parent)

    def _name(self, path: Path, info: CheckpointInfo, pin: str | None) -> None:
        _write_marker(path, self.store, info, pin)
        self._named[path] = info

    def _before(self, path: Path) -> Mapping[str, Any] | None:
        """Return what the marker at a path says, or what it would have said if a kill left its pin alone."""
        with suppress(BadInput):  # no marker
            return read_marker(path)
        if self._left is None:  # once: a store may have thousands
            self._left = {pin.reason: {"id": pin.id, "pin": pin.name} for pin in self.store.pins()}
        return self._left.pop(_reason(path), None)

    def _keep_named(self, step: int) -> _Kept:
        """Pin the checkpoints that the next save of a step would replace although markers name them; return these."""
        # A save under way has no pin yet, and this one, behind it, would replace it.
        if any(pending is not None and pending.step == step for _, pending, _ in self._to_do):
            self._settle(wait=True)
        kept: _Kept = []
        if self.delete:
            return kept  # they are pinned
        # A pin keeps the policy of the store away, so only what leaves the policy's sight gets one.
        for path, info in self._named.items():
            if (info.run, info.step) == (self.run, step):
                with suppress(BadInput, NoSuchRef):  # no marker any more, or dropped by the policy
                    if read_marker(path)["id"] == info.id:
                        kept.append((path, info, self.store.pin(info, _reason(path))))
        return kept

    def _settle(self, *, wait: bool) -> None:
        """Write the markers of saves that are durable and remove what was to be removed after them, in order."""
        while self._to_do:
            path, pending, kept = self._to_do[0]
            if pending is not None and not wait and not pending.done():
                return
            # Before its result is read: a save that failed raises once, and must not raise at each later save.
            self._to_do.popleft()
            if pending is None:
                self._remove(path)
            else:
                try:
                    self._mark(path, pending.ended, kept)
                finally:
                    self._release(path)

    def _reserve(self, path: Path) -> bool:
        """Make a symlink where a marker is to come, if the path is free, so that no other callback takes it.

        Returns:
            False if the filesystem has no symlinks.
        """
        # ModelCheckpoint takes a name that no file has, and two of them choose equal names. The symlink leads to a
        # descriptor of this process, so after a kill it leads nowhere, and no resume takes it for a checkpoint. The
        # number is drawn: in a container the process that resumes often has the same PID as the one that was killed.
        if os.path.exists(path):
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = _open_for_a_name()
        try:
            path.unlink(missing_ok=True)  # of a process that was killed
            path.symlink_to(f"/proc/{os.getpid()}/fd/{fd}")
        except OSError as error:
            os.close(fd)
            # Another process may have taken the name meanwhile.
            if not isinstance(error, FileExistsError) and error.errno not in _NO_SYMLINKS:
                raise
            return isinstance(error, FileExistsError)
        self._reserved[path] = fd
        return True

    def _release(self, path: Path) -> None:
        """Remove the symlink that `_reserve` made, if no marker has replaced it."""
        fd = self._reserved.pop(path, None)
        if fd is None:
            return
        os.close(fd)
        if path.is_symlink() and os.readlink(path) == f"/proc/{os.getpid()}/fd/{fd}":
            path.unlink()

    def teardown(self) -> None:
        """Wait for the saves in the background; Lightning calls it at the end of a run."""
        self._settle(wait=True)
        tell_failures(context_of(self.store).totals)
        # A later fit continues this training if its steps do. If they start again, it begins another training.
        self._begun = False

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load the state that a marker or ``ckstore:REF`` names. No class is unpickled, whatever `weights_only` is.

        Raises:
            NoSuchRef: There is no such checkpoint, or the marker is of another store.
            BadInput: There is no marker at `path`.
        """
        # A load may want the checkpoint that is still being saved.
        self._settle(wait=True)
        found: dict[str, Any]
        device: Any = "cpu" if map_location is None else map_location
        name = os.fspath(path)
        if name.startswith(_PREFIX):
            self._continues()
            found = self.store.load(ref_of(self.store, self._run, name.removeprefix(_PREFIX)), device)
            self._compare(name, found)
            return found
        if _is_plain_state(Path(path)):
            found = _OWN_FILES.load_checkpoint(Path(path), device, weights_only=True)
            return found
        marker = read_marker(path)
        self._continues()
        try:
            found = self.store.load(marker["id"], device)
        except NoSuchRef as error:
            ref = f"{marker['run']}@{marker['step']}"
            if marker["store"] != str(self.store.path):
                msg = f"{name} names {ref} of {marker['store']}, not of {self.store.path}"
                raise NoSuchRef(msg, hint="give CkstoreCheckpointIO that store") from error
            # Never another checkpoint of the step: its weights may be those of another training.
            msg = f"{name} names {ref} with the id {marker['id']}, which {self.store.path} does not have any more"
            raise NoSuchRef(msg, hint=f"ckpt_path='{_PREFIX}{ref}' loads what the step names now") from error
        self._compare(name, found)
        return found

    def _compare(self, name: str, checkpoint: Mapping[str, Any]) -> None:
        """Have the settings of a training compared with those of the checkpoint that was loaded, when it starts."""
        trainer, parent = calling_trainer(), context_of(self.store).known.last_parents[""]
        if trainer is None or trainer.state.fn != TrainerFn.FITTING:
            return
        info = self.store.info(parent.id)
        is_lacking = KEY in checkpoint and not any(isinstance(one, ExactResume) for one in trainer.callbacks)  # type: ignore[attr-defined]

        def tell(sentences: tuple[str, ...]) -> None:
            if is_lacking:
                sentences = (_NOT_SET, *sentences)
            self.resumed_inexactly = sentences
            if sentences and trainer.is_global_zero:
                msg = f"resuming from {name}: {'; '.join(sentences)}"
                warnings.warn(msg, CkstoreWarning, stacklevel=2)

        SettingsComparison.add_to(trainer, lambda now: inexact(self.store, info, now), tell)

    def _continues(self) -> None:
        """Note that the training is that of what is loaded next; a fork begins if that is in another run."""
        own_run.begin(self.store, self._run)
        self._begun = True

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a marker, and what it names unless something else names it; when the saves before are durable."""
        # Behind the saves under way: ModelCheckpoint removes the old best before the new one is durable.
        self._to_do.append((Path(path), None, []))
        self._settle(wait=False)

    def _remove(self, place: Path) -> None:
        if place.parent in self._failed:
            # What was to take its place is not saved, so the better or newer one may be this.
            self._spared.append(place)
            return
        for spared in [one for one in self._spared if one.parent == place.parent]:
            self._spared.remove(spared)
            self._remove_now(spared)
        self._remove_now(place)

    def _remove_now(self, place: Path) -> None:
        if not place.exists():
            return
        try:
            marker = read_marker(place)
        except BadInput as error:  # written by Lightning itself
            if _is_plain_state(place):
                _OWN_FILES.remove_checkpoint(place)
                return
            # By a training that did not have this plugin yet: that must not end this one.
            warnings.warn(f"kept {place}: {error.message}", CkstoreWarning, stacklevel=2)
            return
        # The marker first: a marker without a checkpoint would make a resume fail, the other way round costs space
        # only.
        place.unlink()
        self._named.pop(place, None)
        (self._left or {}).pop(_reason(place), None)
        self._unpin(place, marker)
        self._delete(marker["id"], place.parent)

    def _unpin(self, path: Path, marker: Mapping[str, Any], but: str | None = None) -> None:
        """Remove the pins of a marker that is gone, and what a kill left at its path; not that of its original."""
        found = []
        for pin in self.store.pins():
            other = pin.reason.removesuffix(OF_A_FILE)
            # Its folder may have been moved since; of a copy, the marker that it is of is still there.
            is_moved = (
                (pin.name, pin.id) == (marker["pin"], marker["id"]) and pin.is_of_a_file and not _names(other, pin.id)
            )
            if pin.name != but and (pin.reason == _reason(path) or is_moved):
                found.append(pin)
        self._remove_pins(found)

    def _remove_pins(self, pins: Iterable[Pin]) -> None:
        for pin in pins:
            with suppress(NoSuchRef):  # another process did
                self.store.unpin(pin)

    def _delete(self, checkpoint: str, folder: Path) -> None:
        """Delete what a marker named, unless another marker, a tag, a pin or a reader holds it."""
        if not self.delete:
            return
        try:
            if checkpoint in _named_in(folder):
                return
        except OSError as error:
            msg = f"kept checkpoint {checkpoint}: cannot read every marker in {folder}, one may name it: {error}"
            warnings.warn(msg, CkstoreWarning, stacklevel=2)
            return
        try:
            # A rule of the trainer drops it, and with each save: no person made a mistake.
            self.store.delete(checkpoint, now=not self.store.config.undo_by_rule_s)
        except (NoSuchRef, InUse):
            return  # dropped or saved again already; or a tag, a pin or a reader holds it


def _metrics(state: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for callback in state.get("callbacks", {}).values():
        if isinstance(callback, Mapping) and callback.get("monitor") and callback.get("current_score") is not None:
            found[str(callback["monitor"])] = float(callback["current_score"])
    return found


def _is_plain_state(path: Path) -> bool:
    """Whether a file of torch lacks the version that every checkpoint of a Trainer has. Nothing is unpickled."""
    try:
        with files.opened_regular(os.path.realpath(path)) as fd, os.fdopen(fd, "rb", closefd=False) as file:
            if not zipfile.is_zipfile(file):
                return False
            with zipfile.ZipFile(file) as archive:
                names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
                return len(names) == 1 and _VERSION not in archive.read(names[0])
    except (OSError, DamagedBlob, zipfile.BadZipFile):
        return False


def _open_for_a_name() -> int:
    """Return a descriptor of an empty file in memory, with a high number that is drawn at random."""
    low = open_memory("ckstore-marker")
    try:
        limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _DESCRIPTORS_MOST)
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, limit // 2 + secrets.randbelow(limit // 4))
    finally:
        os.close(low)


def _write_marker(path: Path, store: Store, info: CheckpointInfo, pin: str | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    marker = {"ckstore": 1, "store": str(store.path), "run": info.run, "step": info.step, "id": info.id, "pin": pin}
    with files.opened_directory(path.parent) as folder:
        # By a rename: a marker that is cut short by a power cut would lose the way to a whole checkpoint.
        atomic_file.replace_by(f".{path.name}.tmp", folder, path.name, json.dumps(marker).encode())


def read_marker(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a marker says."""
    try:
        return _marker_in(path)
    except OSError as error:
        raise _no_marker(path, error) from error


def _marker_in(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a marker says."""
    try:
        # The path may be a symlink, as Lightning's last.ckpt is; of what it leads to only a regular file is read.
        with files.opened_regular(os.path.realpath(path)) as fd:
            content = os.read(fd, _MARKER_MOST_BYTES)
    except DamagedBlob as error:
        raise _no_marker(path, error) from error
    try:
        document: Any = parse_foreign(content)
        if document["ckstore"] == 1:
            marker: dict[str, Any] = {name: document[name] for name in ("store", "run", "step", "id")}
            marker["pin"] = document.get("pin")  # an earlier ckstore wrote none
            return marker
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _no_marker(path, error) from error
    msg = f"{os.fspath(path)} is a marker of a newer ckstore"
    raise BadInput(msg, hint="install that version")


def _no_marker(path: str | os.PathLike[str], error: Exception) -> BadInput:
    msg = f"{os.fspath(path)} is no marker of a checkpoint in a store: {error}"
    return BadInput(msg, hint="CkstoreCheckpointIO writes them; a .ckpt file of Lightning can be committed")


def _named_in(folder: Path) -> list[Any]:
    """Return the ids of the checkpoints that the markers in a folder name."""
    named = []
    for name in os.listdir(folder):  # `Path.glob` takes a folder that cannot be listed for an empty one
        if name.endswith(".ckpt"):
            with suppress(BadInput, FileNotFoundError, IsADirectoryError):  # no marker, or removed meanwhile
                named.append(_marker_in(folder / name)["id"])
    return named


def _names(path: str, checkpoint: str) -> bool:
    """Whether there is a marker at a path that names a checkpoint."""
    try:
        return bool(_marker_in(path)["id"] == checkpoint)
    except (BadInput, FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it may
        return True


def _reason(path: Path) -> str:
    """Return the reason of the pin of what a marker names."""
    # A reason is text, and the bytes of a path may not be UTF-8.
    return os.fsencode(os.path.abspath(path)).decode(errors="backslashreplace") + OF_A_FILE
