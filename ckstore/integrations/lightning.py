"""Lightning: a `CheckpointIO` that saves to a store, and writes a marker file where Lightning expects a checkpoint."""

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

import torch
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
# A marker has about 200 bytes. The limit applies if the file is a .ckpt of Lightning, which may have gigabytes.
_MARKER_MOST_BYTES = 4096
_VERSION = b"pytorch-lightning_version"
_OWN_FILES = TorchCheckpointIO()
# The upper limit of descriptor numbers. The kernel keeps a table with an entry for each number up to the highest one in
# use, which takes 512 kB for this number.
_DESCRIPTORS_MOST = 65536
_NO_SYMLINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS))
_OF_HYPERPARAMETERS = "hparams_name", "hparams_type"
_ADVICE = "Weights and optimizers are kept as they are; a resume takes the model and its schedulers from your program"

_Kept: TypeAlias = list[tuple[Path, CheckpointInfo, Pin]]
"""Markers, each with the checkpoint that it names and the pin of that checkpoint."""


class CkstoreCheckpointIO(CheckpointIO):
    """Saves checkpoints of Lightning as states in a store: ``Trainer(plugins=[CkstoreCheckpointIO(store)])``.

    The step of a checkpoint is the global step of the Trainer. At the path that Lightning chooses, this class writes a
    marker, which is a small JSON file that names the checkpoint. Therefore, `ModelCheckpoint` and ``ckpt_path="last"``
    work as usual. ``ckpt_path="ckstore:latest-valid"`` loads the newest valid checkpoint of the store, and
    ``ckstore:REF`` loads any other. All checkpoints of a training are in one run, including ``last.ckpt``.

    A resume compares the settings of the Trainer, its loader and its optimizers with those of the checkpoint. A warning
    lists the aspects that will not continue exactly, and `resumed_inexactly` has the same sentences.

    A fit without a load begins a training. The first save of the training raises `RunInUse` if the run has checkpoints
    of another training.

    Each marker pins its checkpoint, so the checkpoint is kept when another callback saves the same step again.
    When `ModelCheckpoint` removes a marker, the pin of the marker is also removed. The checkpoint is then deleted from
    the store, unless a tag, another pin or another marker names it. A copy of a marker protects the checkpoint only if
    the copy is in the same directory.

    Args:
        store: The store.
        run: Name of the run. If None, the run given to `Store.open`, or ``main``. ``auto`` creates a new run for each
            training.
        delete: If False, `ModelCheckpoint` removes only markers, and the policy of the store decides which checkpoints
            are kept. A checkpoint is then pinned only if another callback saves its step again, until the marker of the
            checkpoint is removed.
        background: Save in a separate process while the training continues. When a save is durable, the next save or
            the end of the run writes its marker, and carries out the removals that waited for this save. Errors of the
            save are raised at the same time.
    """

    def __init__(self, store: Store, run: str | None = None, *, delete: bool = True, background: bool = False) -> None:
        self.store = store
        self._run = run
        self.delete = delete
        self.background = background
        self.resumed_inexactly: tuple[str, ...] = ()
        self._warned: set[str] = set()
        self._to_do: deque[tuple[Path, PendingSave | None, _Kept]] = deque()
        self._named: dict[Path, CheckpointInfo] = {}  # path of a marker that this object wrote -> its checkpoint
        self._reserved: dict[Path, int] = {}  # paths of future markers -> the descriptors that reserve them
        self._failed: set[Path] = set()  # folders in which the last save failed and was tolerated
        self._spared: list[Path] = []  # markers that are removed only after a later save in their folder succeeds
        self._begun = False  # whether a training was begun or continued
        self._last_step = -1  # step of the last save of the training
        self._left: dict[str, Mapping[str, Any]] | None = None  # reason of a pin of an earlier process -> the pin

    @property
    def run(self) -> str:
        """The name of the run. For ``auto``, the first access creates the name of the new run."""
        return run_of(self.store, self._run)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Save a state durably, then write the marker. See `background`.

        An existing checkpoint of the same step is replaced, unless a marker, a tag or a pin names it. A dict that is
        not a checkpoint of a Trainer, such as the weights that `ddp_spawn` passes to the main process, is written as a
        file of Lightning at `path`.
        """
        if storage_options is not None:
            raise BadInput("storage_options: a store has none", hint="leave storage_options out")
        # In each checkpoint of a Trainer, this value is a number. In a dict of weights, it could only be a tensor.
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
            # Complete only finished saves, because waiting for others would block the training.
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
        """Convert hyperparameters and schedulers to values that a store can hold, and warn of converted values."""
        state, changed = {**checkpoint}, dict[str, str]()
        for name, value in checkpoint.items():
            if isinstance(value, Mapping) and name.endswith("hyper_parameters"):
                state[name] = kept_as_text(dict(value) if isinstance(value, dict) else value, name, changed)
            elif name.endswith(_OF_HYPERPARAMETERS):
                state[name] = kept_as_text(value, name, changed)
            elif name == "lr_schedulers":
                # A scheduler loads its state as attributes. An omitted attribute keeps the value from the program.
                state[name] = [
                    without_refused(one, f"{name}[{i}]", changed) if isinstance(one, dict) else one
                    for i, one in enumerate(value)
                ]
        warn_once(changed, self._warned, _ADVICE)
        return state

    def _mark(self, path: Path, save: Callable[[], CheckpointInfo | NotSaved], kept: _Kept) -> None:
        """Save a state, pin the checkpoint and write its marker. `kept` is the result of `_keep_named`."""
        info = save()
        if isinstance(info, NotSaved):
            # Write no marker, because markers only name saved checkpoints. Record the folder, so that `_remove` keeps
            # the previous marker when ModelCheckpoint removes it.
            self._failed.add(path.parent)
            return
        self._failed.discard(path.parent)
        # A last.ckpt often has the same state as the file before it. Both markers then name one checkpoint, which needs
        # no pin, and the policy decides whether the checkpoint is kept.
        for other, replaced, kept_by in kept:
            if replaced.content == info.content:
                self._name(other, info, None)
                self._remove_pins([kept_by])
        before = self._before(path)
        # Write the marker after the save, because it must never name a checkpoint that is not durable. Also write it
        # after the pin, which protects the checkpoint from a later save of the same step and from the removal of
        # another marker. A kill between the pin and the marker leaves a pin, which `_before` finds.
        pin = self.store.pin(info, _reason(path)).name if self.delete else None
        self._name(path, info, pin)
        if before is not None:
            self._unpin(path, before, but=pin)
            if before["id"] != info.id:
                self._delete(before["id"], path.parent)

    def _name(self, path: Path, info: CheckpointInfo, pin: str | None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        store = str(self.store.path)
        marker = {"ckstore": 1, "store": store, "run": info.run, "step": info.step, "id": info.id, "pin": pin}
        with files.opened_directory(path.parent) as folder:
            # Use a rename, because a marker that a power cut has truncated would no longer name its checkpoint.
            atomic_file.replace_by(f".{path.name}.tmp", folder, path.name, json.dumps(marker).encode())
        self._named[path] = info

    def _before(self, path: Path) -> Mapping[str, Any] | None:
        """Return the id and the pin in the marker at a path. If a kill left only the pin, take the id from the pin."""
        with suppress(BadInput):  # no marker
            return read_marker(path)
        if self._left is None:  # read pins only once, because a store may have thousands
            self._left = {pin.reason: {"id": pin.id, "pin": pin.name} for pin in self.store.pins()}
        return self._left.pop(_reason(path), None)

    def _keep_named(self, step: int) -> _Kept:
        """Pin and return the checkpoints with markers that the next save of a step would replace."""
        # The checkpoint of a pending background save has no pin yet, so the next save would replace that checkpoint.
        if any(pending is not None and pending.step == step for _, pending, _ in self._to_do):
            self._settle(wait=True)
        kept: _Kept = []
        if self.delete:
            return kept  # they are already pinned
        # A pin overrides the policy of the store, so pin only checkpoints that the next save would replace.
        for path, info in self._named.items():
            if (info.run, info.step) == (self.run, step):
                with suppress(BadInput, NoSuchRef):  # the marker was removed, or the policy dropped the checkpoint
                    if read_marker(path)["id"] == info.id:
                        kept.append((path, info, self.store.pin(info, _reason(path))))
        return kept

    def _settle(self, *, wait: bool) -> None:
        """Write the markers of durable saves and carry out the removals that waited for them, in order."""
        while self._to_do:
            path, pending, kept = self._to_do[0]
            if pending is not None and not wait and not pending.done():
                return
            # Remove the entry before reading the result, so that a failed save raises once and not at each later save.
            self._to_do.popleft()
            if pending is None:
                self._remove(path)
            else:
                try:
                    self._mark(path, pending.ended, kept)
                finally:
                    self._release(path)

    def _reserve(self, path: Path) -> bool:
        """Reserve the path of a future marker by a symlink, if the path is free, so that no other callback uses it.

        Returns:
            False if the filesystem has no symlinks.
        """
        # ModelCheckpoint uses a free name, and two callbacks may choose the same name. The target of the symlink is a
        # descriptor of this process. After a kill, the target does not exist, so no resume uses the symlink as a
        # checkpoint. The number of the descriptor is random, because in a container the resuming process often has the
        # PID of the killed process.
        if os.path.exists(path):
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = _open_for_a_name()
        try:
            path.unlink(missing_ok=True)  # the symlink of a killed process
            path.symlink_to(f"/proc/{os.getpid()}/fd/{fd}")
        except OSError as error:
            os.close(fd)
            # Another process may have created the name in the meantime.
            if not isinstance(error, FileExistsError) and error.errno not in _NO_SYMLINKS:
                raise
            return isinstance(error, FileExistsError)
        self._reserved[path] = fd
        return True

    def _release(self, path: Path) -> None:
        """Remove the symlink that `_reserve` created, if no marker has replaced it."""
        fd = self._reserved.pop(path, None)
        if fd is None:
            return
        os.close(fd)
        if path.is_symlink() and os.readlink(path) == f"/proc/{os.getpid()}/fd/{fd}":
            path.unlink()

    def teardown(self) -> None:
        """Wait for the background saves. Lightning calls this at the end of a run."""
        self._settle(wait=True)
        tell_failures(context_of(self.store).totals)
        # A later fit belongs to this training if its steps continue. If they start again, it begins another training.
        self._begun = False

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load the state that a marker or ``ckstore:REF`` names, without unpickling and regardless of `weights_only`.

        A file of Lightning at `path` that is not a checkpoint of a Trainer is loaded with ``weights_only=True``.

        Raises:
            NoSuchRef: The checkpoint does not exist, or the marker belongs to another store.
            BadInput: There is no marker at `path`.
        """
        # The load may need a checkpoint that is still being saved.
        self._settle(wait=True)
        found: dict[str, Any]
        location: Any = "cpu" if map_location is None else map_location
        name = os.fspath(path)
        if name.startswith(_PREFIX):
            self._continues()
            found = self.store.load(ref_of(self.store, self._run, name.removeprefix(_PREFIX)), location)
            self._compare(name, found)
            return found
        if _is_plain_state(Path(path)):
            # Do not use `TorchCheckpointIO`, which in Lightning 2.5 unpickles any file.
            found = torch.load(path, location, weights_only=True)
            return found
        marker = read_marker(path)
        self._continues()
        try:
            found = self.store.load(marker["id"], location)
        except NoSuchRef as error:
            ref = f"{marker['run']}@{marker['step']}"
            if marker["store"] != str(self.store.path):
                msg = f"{name} names {ref} of {marker['store']}, not of {self.store.path}"
                raise NoSuchRef(msg, hint="give CkstoreCheckpointIO that store") from error
            # Never load another checkpoint of the step, whose weights may be those of another training.
            msg = f"{name} names {ref} with the id {marker['id']}, which {self.store.path} does not have any more"
            hint = f"ckpt_path='{_PREFIX}{ref}' loads the current checkpoint of this step"
            raise NoSuchRef(msg, hint=hint) from error
        self._compare(name, found)
        return found

    def _compare(self, name: str, checkpoint: Mapping[str, Any]) -> None:
        """Compare the settings of a training with those of the loaded checkpoint when the training starts."""
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
        """Record that the training continues the next loaded checkpoint, as a fork if it is in another run."""
        own_run.begin(self.store, self._run)
        self._begun = True

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """When earlier saves are durable, remove a marker, and also its checkpoint unless something else names it."""
        # Wait for background saves, because ModelCheckpoint removes the old best checkpoint before the new one is
        # durable.
        self._to_do.append((Path(path), None, []))
        self._settle(wait=False)

    def _remove(self, place: Path) -> None:
        if place.parent in self._failed:
            # The save of its replacement failed, so the checkpoint of this marker may be the best or the newest.
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
            # The file belongs to a training without this plugin, and must not make this training fail.
            warnings.warn(f"kept {place}: {error.message}", CkstoreWarning, stacklevel=2)
            return
        # Remove the marker first. A marker without a checkpoint would make a resume fail, whereas a checkpoint without
        # a marker only takes space.
        place.unlink()
        self._named.pop(place, None)
        (self._left or {}).pop(_reason(place), None)
        self._unpin(place, marker)
        self._delete(marker["id"], place.parent)

    def _unpin(self, path: Path, marker: Mapping[str, Any], but: str | None = None) -> None:
        """Remove the pin of a removed marker, and leftover pins for its path. Keep the pin if the marker was a copy."""
        found = []
        for pin in self.store.pins():
            other = pin.reason.removesuffix(OF_A_FILE)
            # The reason of the pin may name another path, because the folder was moved or the marker is a copy. For a
            # copy, the original marker still exists at that path.
            is_moved = (
                (pin.name, pin.id) == (marker["pin"], marker["id"]) and pin.is_of_a_file and not _names(other, pin.id)
            )
            if pin.name != but and (pin.reason == _reason(path) or is_moved):
                found.append(pin)
        self._remove_pins(found)

    def _remove_pins(self, pins: Iterable[Pin]) -> None:
        for pin in pins:
            with suppress(NoSuchRef):  # another process removed it
                self.store.unpin(pin)

    def _delete(self, checkpoint: str, folder: Path) -> None:
        """Delete the checkpoint of a marker, unless another marker names it or it is tagged, pinned or open."""
        if not self.delete:
            return
        try:
            if checkpoint in _named_in(folder):
                return
        except OSError as error:
            msg = f"kept checkpoint {checkpoint}, since not every marker in {folder} can be read: {error}"
            warnings.warn(msg, CkstoreWarning, stacklevel=2)
            return
        try:
            # Delete the checkpoint as a retention rule does, because this may happen at each save and is no mistake of
            # a user.
            self.store.delete(checkpoint, now=not self.store.config.undo_by_rule_s)
        except (NoSuchRef, InUse):
            return  # the checkpoint is already dropped, or it is tagged, pinned or open


def _metrics(state: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for callback in state.get("callbacks", {}).values():
        if isinstance(callback, Mapping) and callback.get("monitor") and callback.get("current_score") is not None:
            found[str(callback["monitor"])] = float(callback["current_score"])
    return found


def _is_plain_state(path: Path) -> bool:
    """Whether a torch file lacks the version that every checkpoint of a Trainer has. Nothing is unpickled."""
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
    """Return a descriptor of an empty file in memory. The number of the descriptor is high and random."""
    low = open_memory("ckstore-marker")
    try:
        limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _DESCRIPTORS_MOST)
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, limit // 2 + secrets.randbelow(limit // 4))
    finally:
        os.close(low)


def read_marker(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a marker. Raise `BadInput` if the file is not a marker."""
    try:
        return _marker_in(path)
    except OSError as error:
        raise _no_marker(path, error) from error


def _marker_in(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a marker."""
    try:
        # The path may be a symlink, like Lightning's last.ckpt. Its target is read only if it is a regular file.
        with files.opened_regular(os.path.realpath(path)) as fd:
            content = os.read(fd, _MARKER_MOST_BYTES)
    except DamagedBlob as error:
        raise _no_marker(path, error) from error
    try:
        document: Any = parse_foreign(content)
        if document["ckstore"] == 1:
            marker: dict[str, Any] = {name: document[name] for name in ("store", "run", "step", "id")}
            marker["pin"] = document.get("pin")  # earlier versions of ckstore did not write it
            return marker
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _no_marker(path, error) from error
    msg = f"{os.fspath(path)} is a marker of a newer ckstore"
    raise BadInput(msg, hint="install that version")


def _no_marker(path: str | os.PathLike[str], error: Exception) -> BadInput:
    msg = f"{os.fspath(path)} is not a marker of a checkpoint in a store: {error}"
    return BadInput(msg, hint="CkstoreCheckpointIO writes them; a .ckpt file of Lightning can be committed")


def _named_in(folder: Path) -> list[Any]:
    """Return the ids of the checkpoints that the markers in a folder name."""
    named = []
    for name in os.listdir(folder):  # `Path.glob` treats an unreadable folder as empty
        if name.endswith(".ckpt"):
            with suppress(BadInput, FileNotFoundError, IsADirectoryError):  # not a marker, or removed in the meantime
                named.append(_marker_in(folder / name)["id"])
    return named


def _names(path: str, checkpoint: str) -> bool:
    """Whether a marker at a path names a checkpoint. True if the path cannot be read."""
    try:
        return bool(_marker_in(path)["id"] == checkpoint)
    except (BadInput, FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it may name the checkpoint
        return True


def _reason(path: Path) -> str:
    """Return the reason of the pin for the marker at a path."""
    # A reason is text, and the bytes of a path may not be UTF-8.
    return os.fsencode(os.path.abspath(path)).decode(errors="backslashreplace") + OF_A_FILE
