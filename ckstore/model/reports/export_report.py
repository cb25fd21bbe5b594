"""What an export wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file.

    Attributes:
        name: In the directory of the export.
        nbytes: Its size.
        tensor_count: Tensors in it; 0 for the index and for ``state.json``.
    """

    name: str
    nbytes: int
    tensor_count: int = 0


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What `ckstore.Store.export` or `ckstore.Store.export_safetensors` wrote.

    Attributes:
        checkpoint: Full ref of the checkpoint, ``RUN@STEP``.
        checkpoint_id: Its id.
        destination: The directory, or the torch file.
        files: What is in it: the tensors first, in the order of the shards.
        tied: Name that no file has -> name of the tensor that it shares its memory with.
        state_names: What safetensors cannot hold and is in ``state.json``, by its whole path in the state.
        left_out: What is in no file, a sentence each: the versions of modules that torch keeps beside a state dict, and
            committed files that are no part of a model.
        unsafe_globals: Classes and functions in a torch file that ``torch.load(weights_only=True)`` does not admit: it
            loads with ``weights_only=False``, or after ``torch.serialization.add_safe_globals``.
    """

    checkpoint: str
    checkpoint_id: str
    destination: Path
    files: tuple[ExportedFile, ...]
    tied: Mapping[str, str] = field(default_factory=dict)
    state_names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unsafe_globals: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    @property
    def tensor_count(self) -> int:
        """Tensors in all files; tied ones count once."""
        return sum(file.tensor_count for file in self.files)
