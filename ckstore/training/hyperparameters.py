"""Compare the settings that a program passed to its optimizers with the settings after a load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckstore.tensors.kinds import is_tensor

# The settings that a program passes. Other members of a group, such as those of schedule-free optimizers, are state.
_NAMES = (
    "lr",
    "betas",
    "momentum",
    "weight_decay",
    "eps",
    "dampening",
    "nesterov",
    "amsgrad",
    "maximize",
    "alpha",
    "rho",
    "centered",
    *("decoupled_weight_decay", "momentum_decay", "lr_decay", "lambd", "t0", "etas", "step_sizes", "beta2_decay"),
    *("ns_coefficients", "ns_steps", "adjust_lr_fn"),
    *("max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "line_search_fn"),
)
_CYCLED = {"betas", "momentum"}
Settings = dict[str, list[dict[str, Any]]]
"""Path of an optimizer -> the settings of each of its groups."""


def settings_of(optimizers: Any, path: str = "optimizer") -> Settings:
    """Return the current settings of one optimizer, or of a list or dict of several."""
    if isinstance(optimizers, Mapping | list | tuple):
        items = optimizers.items() if isinstance(optimizers, Mapping) else enumerate(optimizers)
        found: Settings = {}
        for name, one in items:
            found |= settings_of(one, f"{path}[{name!r}]")
        return found
    return {path: settings_in(getattr(optimizers, "param_groups", ()))}


def settings_in(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings in the groups of one optimizer, or of its state dict."""
    return [{name: _plain(value) for name, value in group.items() if name != "params"} for group in groups]


def overwritten(before: Settings, after: Settings, *, has_scheduler: bool) -> Iterator[str]:
    """Yield each setting of the program that a load has replaced. Changes by a schedule do not count."""
    for path, groups in before.items():
        for number, (own, loaded) in enumerate(zip(groups, after.get(path, []), strict=False)):
            for name in _NAMES:
                old, new = _given(own, name), _given(loaded, name)
                if name not in own or name not in loaded or old == new:
                    continue
                is_scheduled = has_scheduler and "initial_lr" not in loaded
                if (name == "lr" and is_scheduled) or (name in _CYCLED and "max_momentum" in loaded):
                    continue
                where = f"{path}.param_groups[{number}][{name!r}]"
                yield f"{where} is {new!r} as in the checkpoint, your program gave {old!r}"


def _given(group: Mapping[str, Any], name: str) -> Any:
    # A scheduler keeps the rate of the program in `initial_lr`, and changes `lr`.
    return group.get("initial_lr", group.get("lr")) if name == "lr" else group.get(name)


def _plain(value: Any) -> Any:
    if is_tensor(value):
        return value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
