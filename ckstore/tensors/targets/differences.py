"""What of a checkpoint and a target does not fit, by name, and what the caller of a load allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class LoadRules:
    """What the caller of a load into a target allows."""

    keep: Callable[[str], bool] | None = None  # says by the checkpoint's name what is to be loaded; None: everything
    # See `renames.renamed`; for the keys of tensors in dicts and in the states of modules.
    rename: Mapping[str, str] = field(default_factory=dict)
    cast: bool = False  # convert to the dtype of the target
    assign: bool = False  # give memory to tensors of the target on the meta device
    strict: bool = True  # whether all has to fit


@dataclass(slots=True)
class Differences:
    """What a plan found, each by its name in the target (`unexpected`: in the checkpoint), in the order of the target.

    Attributes:
        missing: In the target only.
        unexpected: In the checkpoint only.
        mismatched: Name -> ``shape [2] float32 wanted, found a dict``: another shape or kind.
        dtypes: Name -> ``float32 wanted, found int64``, of tensors that agree in all else and are not converted.
        cast: Name -> ``float32 to bfloat16``, of tensors that will be converted.
        meta: Tensors of the target without memory, which are not assigned.
        replaceable: Tensors of `mismatched` that the checkpoint's would replace if they were assigned.
        partial: Tensor of a module -> its class, where the checkpoint has parts of it that the module does not take.
        strangers: Modules of which the checkpoint has names, and not one that fits.
        rename: A renaming with which more would fit.
        renaming: The keys of the caller's renaming that a name begins with, or has.
    """

    missing: list[str] = field(default_factory=list)  # in the target only
    unexpected: list[str] = field(default_factory=list)  # in the checkpoint only
    # Name -> ``shape [2] float32 wanted, found a dict``: another shape or kind.
    mismatched: dict[str, str] = field(default_factory=dict)
    # Name -> ``float32 wanted, found int64``, of tensors that agree in all else and are not converted.
    dtypes: dict[str, str] = field(default_factory=dict)
    # Name -> ``float32 to bfloat16``, of tensors that will be converted.
    cast: dict[str, str] = field(default_factory=dict)
    meta: list[str] = field(default_factory=list)  # tensors of the target without memory, which are not assigned
    # Tensors of `mismatched` that the checkpoint's would replace if they were assigned.
    replaceable: list[str] = field(default_factory=list)
    # Tensor of a module -> its class, where the checkpoint has parts of it that the module does not take.
    partial: dict[str, str] = field(default_factory=dict)
    # Modules of which the checkpoint has names, and not one that fits.
    strangers: list[str] = field(default_factory=list)
    rename: dict[str, str] = field(default_factory=dict)  # A renaming with which more would fit
    renaming: set[str] = field(default_factory=set)  # the keys of the caller's renaming that a name begins with, or has
