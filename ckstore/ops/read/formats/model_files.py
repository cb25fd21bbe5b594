"""Which files make a model that `from_pretrained` opens: of a directory that a trainer wrote, and of the user's own.

A trainer writes what it resumes from beside the model: optimizers, random states, its own state. That is known by name;
everything else belongs to the model, since there may be code and templates under any name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ckstore.errors import BadInput, CannotStore, NoSuchFile
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
_WEIGHTS = re.compile(r"[^/]*\.(?:safetensors|bin|pt|pth|ckpt|h5|msgpack|gguf|onnx|distcp|index\.json)\Z")


@dataclass(frozen=True, slots=True)
class ModelForm:
    """A kind of directory."""

    name: str  # of the format
    stem: str  # how the name of its weights begins
    pickled_stem: str  # the same where they are a pickle
    config: str  # the file that has to be there
    call: str  # what opens it
    other: str  # the other kind
    is_cut: bool  # whether its weights may be several files

    def is_weights(self, path: str) -> bool:
        """Whether a file holds the weights, or a part of them, or the list of the parts."""
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
class Chosen:
    """What is taken of committed files."""

    weights: tuple[FileRecord, ...]  # the files of the weights, with their index
    beside: tuple[FileRecord, ...]  # what else is taken
    left_out: tuple[str, ...]  # paths of what is not


def choose(manifest: Manifest, form: ModelForm, other: ModelForm) -> Chosen:
    """Return which committed files are the model's; a symlink stands for the file that it leads to."""
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
    left_out += [path for path in weights if path not in taken]  # once more as a pickle, or an index alone
    return Chosen(tuple(files[path] for path in taken), tuple(files[path] for path in beside), tuple(sorted(left_out)))


def _file(manifest: Manifest, record: FileRecord) -> FileRecord | None:
    """Return the file that a record stands for, under its own path."""
    if record.kind != "symlink":
        return record if record.kind == "file" else None
    try:
        return replace(file_record(manifest, record.path), path=record.path)
    except NoSuchFile:
        return None


@dataclass(frozen=True, slots=True)
class Added:
    """A file of the user's that is put beside the weights."""

    name: str  # in the export
    path: Path  # as it was given
    entry: Entry  # the file that it leads to, as it was when it was looked at


def added_files(add: object) -> tuple[Added, ...]:
    """Return the files that `add` names; of a directory those at its top that are no weights."""
    # Raises BadInput: it is no list of paths, or one is neither a file nor a directory, or two have the same name.
    if isinstance(add, (str, os.PathLike)) or not isinstance(add, Sequence):
        raise BadInput(f"add must be a list of paths, got {add!r}")
    found: dict[str, Added] = {}
    for one in _files_of(add):
        if one.name in found:
            raise BadInput(f"two files to add are named {one.name}: {found[one.name].path} and {one.path}")
        found[one.name] = one
    return tuple(found.values())


def _files_of(add: Iterable[object]) -> Iterator[Added]:
    for item in add:
        if not isinstance(item, (str, os.PathLike)):
            raise BadInput(f"add must be a list of paths, got {item!r} in it")
        name = os.fsdecode(item)
        if "\0" in name:
            msg = f"{name!r}, which is to be added, has a NUL in it, and no file has"
            raise BadInput(msg, hint="give the path of a file or a directory without it")
        path = Path(os.path.abspath(os.path.expanduser(name)))
        try:
            yield from _files_at(path)
        except OSError as error:
            where = error.filename or path
            raise BadInput(f"{where}, which is to be added, cannot be read: {os.strerror(error.errno or 0)}") from error


def _files_at(path: Path) -> Iterator[Added]:
    entry = _entry(path)
    if entry is None:
        raise BadInput(f"{path}, which is to be added, is no file and no directory")
    if entry.kind == "file":
        yield Added(path.name, path, entry)
        return
    for one in sorted(path.iterdir()):
        entry = None if _WEIGHTS.match(one.name) else _entry(one)
        if entry is not None and entry.kind == "file":
            yield Added(one.name, one, entry)


def _entry(path: Path) -> Entry | None:
    """Return what a path leads to; None if that is neither a file nor a directory."""
    try:
        entry = look_at(foreign(os.path.realpath(path)), str(path))
    except CannotStore:
        return None
    return None if entry.kind == "symlink" else entry  # one that leads to itself
