"""Lightning: a `CheckpointIO` that saves into a store, with a marker file where Lightning expects the checkpoint."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO

from ckstore.errors import BadInput, CkstoreWarning, DamagedBlob, InUse, NoSuchRef
from ckstore.fs import files
from ckstore.integrations.beside import kept_as_text, warn_once, without_refused
from ckstore.integrations.directories import ref_of
from ckstore.model.document import parse_foreign
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.objects.documents import atomic_file
from ckstore.ops.save.options import SaveOptions
from ckstore.saver.client.pending import PendingSave
from ckstore.store import Store
from ckstore.training.history import run_of

_PREFIX = "ckstore:"
# A marker has some 200 bytes; a real .ckpt of Lightning at the same path has gigabytes, and is not read.
_MARKER_MOST_BYTES = 4096
_HAS_STEP = re.compile(r"step=\d+")
_OF_HYPERPARAMETERS = "hparams_name", "hparams_type"
_ADVICE = "Weights and optimizers are kept as they are; a resume makes the model and its schedulers from your program"
_NOT_IN_RUN = re.compile(r"[^A-Za-z0-9._-]+")


class CkstoreCheckpointIO(CheckpointIO):
    """``Trainer(plugins=[CkstoreCheckpointIO(store)])``: checkpoints are states in the store, at their global step.

    At the path that Lightning gives lies a marker, a small JSON file that names the checkpoint, so `ModelCheckpoint`
    goes on as always, ``ckpt_path="last"`` too. ``ckpt_path="ckstore:latest-valid"`` is the newest checkpoint of the
    store that is whole; ``ckstore:REF`` any other. A path without ``step=`` in its name, such as ``last.ckpt``, has a
    run of its own, ``RUN.last``, so that it is not the same checkpoint as the one of that step.

    When `ModelCheckpoint` removes a checkpoint, it is deleted from the store, unless another marker in that directory,
    a tag or a pin names it.

    Args:
        store: The store.
        run: The run in it; None: that of `Store.open`, else ``main``.
        delete: False: `ModelCheckpoint` removes markers only, and the store's own policy says what is kept.
        background: Save while training goes on, by a process of its own. A marker is written, and what was to be
            removed meanwhile is, when the save before it is durable: at the next save, or at the end of the run. What
            a save raises is raised there.
    """

    def __init__(self, store: Store, run: str | None = None, *, delete: bool = True, background: bool = False) -> None:
        self.store = store
        self.run = run_of(store, run)
        self.delete = delete
        self.background = background
        self._warned: set[str] = set()
        self._to_do: deque[tuple[Path, PendingSave | None]] = deque()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Save a state durably, then write the marker; a checkpoint of that step is replaced. See `background`."""
        if storage_options is not None:
            raise BadInput("storage_options: a store has none", hint="leave storage_options out")
        state = self._storable(checkpoint)
        step, run = int(checkpoint["global_step"]), self._run_of(path)
        options: SaveOptions = {"metrics": _metrics(state), "if_exists": "replace"}
        if self.background:
            # Only what is done already: waiting here would make the save a blocking one.
            self._settle(wait=False)
            self._to_do.append((Path(path), self.store.save_async(state, step, run, **options)))
        else:
            self._mark(Path(path), lambda: self.store.save(state, step, run, **options))

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

    def _mark(self, path: Path, save: Callable[[], CheckpointInfo]) -> None:
        """Have a state saved, then write its marker."""
        info = save()
        # Read before it is overwritten: it names the checkpoint that this save replaces.
        before = None
        with suppress(BadInput):  # no marker
            before = read_marker(path)
        # After the save: a marker must never name a checkpoint that is not durable.
        _write_marker(path, self.store, info)
        # Equal content gives the same checkpoint: the new marker names it, so it must stay.
        if before is not None and before["id"] != info.id:
            self._delete(before["id"], path.parent)

    def _settle(self, *, wait: bool) -> None:
        """Write the markers of saves that are durable and remove what was to be removed after them, in order."""
        while self._to_do:
            path, pending = self._to_do[0]
            if pending is not None and not wait and not pending.done():
                return
            # Before its result is read: a save that failed raises once, and must not raise at each later save.
            self._to_do.popleft()
            if pending is None:
                self._remove(path)
            else:
                self._mark(path, pending.result)

    def teardown(self) -> None:
        """Wait for the saves in the background; Lightning calls it at the end of a run."""
        self._settle(wait=True)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load the state that a marker or ``ckstore:REF`` names; nothing is unpickled, whatever `weights_only`.

        Raises:
            NoSuchRef: There is no such checkpoint, or the marker is of another store.
            BadInput: There is no marker at `path`.
        """
        # A load may want the checkpoint that is still being saved.
        self._settle(wait=True)
        found: dict[str, Any]
        device = "cpu" if map_location is None else map_location
        name = os.fspath(path)
        if name.startswith(_PREFIX):
            found = self.store.load(ref_of(self.store, self.run, name.removeprefix(_PREFIX)), device)
            return found
        marker = read_marker(path)
        try:
            found = self.store.load(marker["id"], device)
        # Saved again at its step since: Lightning overwrote a path, and another marker of it is old.
        except NoSuchRef as error:
            if marker["store"] != str(self.store.path):
                msg = f"{name} names {marker['run']}@{marker['step']} of {marker['store']}, not of {self.store.path}"
                raise NoSuchRef(msg, hint="give CkstoreCheckpointIO that store") from error
            ref = f"{marker['run']}@{marker['step']}"
            info = self.store.info(ref)
            warnings.warn(f"{name}: {ref} was saved again since; that is loaded", CkstoreWarning, stacklevel=2)
            found = self.store.load(info, device)
        return found

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a marker, and what it names unless something else names it; when the saves before are durable."""
        # Behind the saves under way: ModelCheckpoint removes the old best before the new one is durable.
        self._to_do.append((Path(path), None))
        self._settle(wait=False)

    def _remove(self, place: Path) -> None:
        if not place.exists():
            return
        try:
            marker = read_marker(place)
        except BadInput as error:  # written by Lightning itself, before it had this plugin: no training ends for it
            warnings.warn(f"kept {place}: {error.message}", CkstoreWarning, stacklevel=2)
            return
        # The marker first: a marker without a checkpoint would make a resume fail, the other way round costs space
        # only.
        place.unlink()
        self._delete(marker["id"], place.parent)

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

    def _run_of(self, path: str | os.PathLike[str]) -> str:
        stem = Path(path).name.removesuffix(".ckpt")
        return self.run if _HAS_STEP.search(stem) else f"{self.run}.{_NOT_IN_RUN.sub('-', stem)}"


def _metrics(state: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for callback in state.get("callbacks", {}).values():
        if isinstance(callback, Mapping) and callback.get("monitor") and callback.get("current_score") is not None:
            found[str(callback["monitor"])] = float(callback["current_score"])
    return found


def _write_marker(path: Path, store: Store, info: CheckpointInfo) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    marker = {"ckstore": 1, "store": str(store.path), "run": info.run, "step": info.step, "id": info.id}
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
