"""The planner of `load`: it compares names, shapes and kinds before anything is read, and says what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_local_load_plan
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ckstore.errors import BadInput, DoesNotFit
from ckstore.ops.read.load_into import LoadReport, listed, pairs

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import LoadPlan

    from ckstore.model.manifest.info import CheckpointInfo


class ComparingPlanner(DefaultLoadPlanner):
    """Loads what fits.

    Args:
        strict: Refuse a name that the checkpoint lacks, and what has another shape or kind there.

    Attributes:
        missing, unexpected, not_loaded, cast: As in `LoadReport`, of this rank.
    """

    def __init__(self, *, strict: bool = True) -> None:
        super().__init__(allow_partial_load=not strict)
        self.missing: tuple[str, ...] = ()
        self.unexpected: tuple[str, ...] = ()
        self.not_loaded: dict[str, str] = {}
        self.cast: dict[str, str] = {}

    def create_local_plan(self) -> LoadPlan:
        """Plan what fits.

        Raises:
            DoesNotFit: Something does not, and all has to; or nothing does.
        """
        there: dict[str, Any] = {} if self.metadata is None else self.metadata.state_dict_metadata
        self.missing = tuple(name for name in self.state_dict if name not in there)
        self.unexpected = tuple(name for name in there if name not in self.state_dict)
        self._compare({name: there[name] for name in self.state_dict if name in there})
        fits = {name: value for name, value in self.state_dict.items() if name in there and name not in self.not_loaded}
        differs = self.missing or self.not_loaded
        if differs and not (self.allow_partial_load and fits):
            self._refuse()
        if self.metadata is None:
            raise BadInput("a plan was wanted before the checkpoint was looked at")
        return create_default_local_load_plan(fits, self.metadata, strict=False)

    def report(self, info: CheckpointInfo, read_bytes: int) -> LoadReport:
        """Return what was loaded, and what was not."""
        return LoadReport(info, self.missing, self.unexpected, self.not_loaded, self.cast, read_bytes)

    def _compare(self, found: dict[str, Any]) -> None:
        for name, stored in found.items():
            mine = self.state_dict[name]
            is_tensor = isinstance(stored, TensorStorageMetadata)
            if isinstance(mine, Tensor) != is_tensor:
                self.not_loaded[name] = f"{_kind(mine)} wanted, found {'a tensor' if is_tensor else 'a plain value'}"
            elif is_tensor and mine.size() != stored.size:
                self.not_loaded[name] = f"shape {list(mine.size())} wanted, found shape {list(stored.size)}"
            elif is_tensor and mine.dtype != stored.properties.dtype:
                self.cast[name] = f"{_short(stored.properties.dtype)} to {_short(mine.dtype)}"

    def _refuse(self) -> None:
        kinds = (
            ("another shape or kind", pairs(self.not_loaded)),
            ("only in the target", self.missing),
            ("only in the checkpoint", self.unexpected),
        )
        lines = [line for what, names in kinds for line in listed(what, names)]
        raise DoesNotFit(
            "\n".join(["the checkpoint does not fit the target, nothing was loaded:", *lines]),
            hint="" if self.allow_partial_load else "strict=False loads what fits and reports the rest",
            missing=self.missing,
            unexpected=self.unexpected,
            mismatched=self.not_loaded,
        )


def _kind(value: object) -> str:
    return "a tensor" if isinstance(value, Tensor) else f"a plain value ({type(value).__name__})"


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
