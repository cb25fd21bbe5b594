"""Select the files of a model for `from_pretrained`, from the committed directory of a trainer and from the user.

A trainer writes files for resuming next to the model, such as optimizers and random states. These are recognized by
name and are not selected. All other files belong to the model, since code and templates may have any name. If the
weights exist in several formats, one format is selected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ckstore.errors import BadInput, CannotStore, NoSuchFile, StateChanged
from ckstore.fs.tree import Entry, foreign, look_at
from ckstore.model.manifest.manifest import FileRecord, Manifest
from ckstore.ops.read.committed_file import file_record

_OF_TRAINERS = re.compile(
    r"""(?: optimizer(?:_\d+)?\.(?:pt|bin) | scheduler(?:_\d+)?\.(?:pt|bin) | scaler(?:_\d+)?\.(?:pt|bin)
      | rng_state(?:_\d+)?\.pth | random_states_\d+\.pkl | (?:sampler|dl_state_dict)(?:_\d+)?\.bin
      | custom_checkpoint_\d+\.pkl | trainer_state\.json | training_args\.bin | latest | zero_to_fp32\.py | \.metadata
      | (?: global_step\d+ | checkpoint[-_]\d+ | pytorch_model_fsdp_\d+ | optimizer_\d+ | runs | wandb ) (?:/.*)?
    )\Z""",
    re.VERBOSE | re.DOTALL,
)
_READ_BYTES = 2**20
_PART = re.compile(r"-\d+-of-\d+\.")
_WEIGHTS = re.compile(r"[^/]*\.(?:safetensors|bin|pt|pth|ckpt|h5|msgpack|gguf|onnx|distcp|index\.json)\Z")


@dataclass(frozen=True, slots=True)
class ModelForm:
    """A kind of model directory."""

    name: str  # the name of the format
    stem: str  # the beginning of the names of its safetensors weights
    pickled_stem: str  # the beginning of the names of its pickled weights
    config: str  # the file that must exist
    call: str  # the function that opens such a directory
    other: str  # the name of the other format
    is_cut: bool  # whether its weights may be split into several files

    def is_weights(self, path: str) -> bool:
        """Whether a file holds the weights, a part of the weights, or the index of the parts."""
        stems = f"{re.escape(self.stem)}|{re.escape(self.pickled_stem)}"
        return bool(re.fullmatch(rf"(?:{stems})(?:-\d+-of-\d+)?\.(?:safetensors|bin)(?:\.index\.json)?", path))


PRETRAINED = ModelForm("pretrained", "model", "pytorch_model", "config.json", "from_pretrained", "peft", is_cut=True)
PEFT = ModelForm(
    "peft",
    "adapter_model",
    "adapter_model",
    "adapter_config.json",
    "PeftModel.from_pretrained",
    "pretrained",
    is_cut=False,
)


@dataclass(frozen=True, slots=True)
class ModelSelection:
    """The committed files that are exported, and those that are not."""

    weights: tuple[FileRecord, ...]  # the files of the weights, with their index
    beside: tuple[FileRecord, ...]  # the other files that are exported
    left_out: tuple[str, ...]  # the paths of files that are not exported


def choose(manifest: Manifest, form: ModelForm, other: ModelForm) -> ModelSelection:
    """Return which committed files belong to the model. A symlink stands for its target."""
    weights: list[str] = []
    beside: list[str] = []
    left_out: list[str] = []
    files = {record.path: found for record in manifest.files if (found := _file(manifest, record)) is not None}
    for record in manifest.files:
        if record.kind == "directory":
            continue
        path = record.path
        not_ours = other.is_weights(path) or (other.config == path and form.name == "pretrained")
        if path not in files or _OF_TRAINERS.match(path) or not_ours:
            left_out.append(path)
        else:
            (weights if form.is_weights(path) else beside).append(path)
    kinds = [[path for path in weights if (".safetensors" in path) == is_safe] for is_safe in (True, False)]
    taken = next((kind for kind in kinds if not all(path.endswith(".index.json") for path in kind)), [])
    if not taken:
        name = manifest.name
        others = any(other.is_weights(path) for path in left_out)
        msg = f"{name} has no {form.stem}.safetensors or {form.pickled_stem}.bin at its top"
        raise BadInput(
            msg,
            hint=f"it has {other.stem} files: format={other.name!r}" if others else "ckstore ls REF lists its files",
        )
    parts = [path for path in taken if _PART.search(path)]
    single = [path for path in taken if path not in parts and not path.endswith(".index.json")]
    if parts and single:  # transformers 5.23 may leave the single file of an earlier save in the directory
        msg = (
            f"{manifest.name} has weights in {single[0]} and in {parts[0]}, and {form.call} would read only {single[0]}"
        )
        raise BadInput(msg, hint="commit a directory with the weights of one save: save into an empty directory")
    # The remaining weights are pickles of the same weights, or an index without parts.
    left_out += [path for path in weights if path not in taken]
    return ModelSelection(
        tuple(files[path] for path in taken), tuple(files[path] for path in beside), tuple(sorted(left_out))
    )


def _file(manifest: Manifest, record: FileRecord) -> FileRecord | None:
    """Return the file that a record stands for, under the path of the record."""
    if record.kind != "symlink":
        return record if record.kind == "file" else None
    try:
        return replace(file_record(manifest, record.path), path=record.path)
    except NoSuchFile:
        return None


@dataclass(frozen=True, slots=True)
class UserFile:
    """A file of the user that is copied next to the weights."""

    name: str  # its name in the export
    path: Path  # the path that the user gave
    entry: Entry  # the file at that path at the time of the check


def added_files(add: object) -> tuple[UserFile, ...]:
    """Return the files that `add` names. A directory stands for the files directly in it that are not weights.

    A `UserFile` in the list is returned unchanged. Reading it fails if the file has changed since it was checked.

    Raises:
        BadInput: `add` is not a list of paths, a path is neither a file nor a directory, or two files have the same
            name.
    """
    if isinstance(add, (str, os.PathLike)) or not isinstance(add, Sequence):
        raise BadInput(f"add must be a list of paths, got {add!r}")
    found: dict[str, UserFile] = {}
    for one in _files_of(add):
        if one.name in found:
            raise BadInput(f"two files to add are named {one.name}: {found[one.name].path} and {one.path}")
        found[one.name] = one
    return tuple(found.values())


def user_file_parts(one: UserFile) -> Iterator[memoryview]:
    """Yield a file of the user in parts.

    Raises:
        BadInput: The file has changed since it was listed, or cannot be read.
    """
    nbytes = one.entry.nbytes
    try:
        for at in range(0, max(nbytes, 1), _READ_BYTES):
            part = memoryview(bytearray(min(_READ_BYTES, nbytes - at)))
            one.entry.read_into(at, part)
            yield part
    except StateChanged as error:
        msg = f"{one.path}, which is to be added, was changed while it was being read"
        raise BadInput(msg, hint="try again when the program that writes it has finished") from error
    except OSError as error:
        raise BadInput(f"{one.path}, which is to be added, cannot be read: {os.strerror(error.errno or 0)}") from error


def _files_of(add: Iterable[object]) -> Iterator[UserFile]:
    for item in add:
        if isinstance(item, UserFile):
            yield item
            continue
        if not isinstance(item, (str, os.PathLike)):
            raise BadInput(f"add must be a list of paths, got {item!r} in it")
        name = os.fsdecode(item)
        if "\0" in name:
            msg = f"{name!r}, which is to be added, contains a NUL character"
            raise BadInput(msg, hint="give the path of a file or a directory without it")
        path = Path(os.path.abspath(os.path.expanduser(name)))
        try:
            yield from _files_at(path)
        except OSError as error:
            where = error.filename or path
            raise BadInput(f"{where}, which is to be added, cannot be read: {os.strerror(error.errno or 0)}") from error


def _files_at(path: Path) -> Iterator[UserFile]:
    entry = _entry(path)
    if entry is None:
        raise BadInput(f"{path}, which is to be added, is neither a file nor a directory")
    if entry.kind == "file":
        yield UserFile(path.name, path, entry)
        return
    for one in sorted(path.iterdir()):
        entry = None if _WEIGHTS.match(one.name) else _entry(one)
        if entry is not None and entry.kind == "file":
            yield UserFile(one.name, one, entry)


def _entry(path: Path) -> Entry | None:
    """Return the target of a path, or None if it is neither a file nor a directory."""
    try:
        entry = look_at(foreign(os.path.realpath(path)), str(path))
    except CannotStore:
        return None
    return None if entry.kind == "symlink" else entry  # a resolved path is a symlink only if it points to itself
