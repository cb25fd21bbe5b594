"""The optimizers of a checkpoint: their parameters, and state that is absent because a parameter had no gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckstore.model.manifest.manifest import LeafRecord, Manifest, Node
from ckstore.model.manifest.nodes import decode_key
from ckstore.model.names import unwrapped
from ckstore.tensors.state_restore import build_with
from ckstore.tensors.walks import DICTS, leaf_numbers

_GROUPS, _STATE, _PARAMETERS, _NAMES = "param_groups", "state", "params", "param_names"
_FIRST = {
    **dict.fromkeys(("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer"), 0.0),
    **dict.fromkeys(("square_avg", "grad_avg", "acc_delta"), 0.0),
    "mu_product": 1.0,
}
"""Initial values of the state of torch's optimizers. Entries with any other initial value are not listed."""

Groups = list[dict[str, list[Any]]]
"""The parameters of each group of an optimizer: ``params``, and ``param_names`` if the optimizer has names."""


class SavedOptimizers:
    """The optimizers of a checkpoint, by their names in `torch.distributed.checkpoint`."""

    def __init__(self, manifest: Manifest, names: Sequence[str]) -> None:
        self.groups: dict[str, Groups] = dict(_groups_in(manifest.state, manifest.leaves, ()))
        # A state dict that get_state_dict flattened has no list of parameters, only names such as param_groups.w.lr.
        self._above = {name.rpartition(".")[0] for name in names}
        self._parameters = {
            name: {str(parameter) for group in groups for parameter in group.get(_PARAMETERS, ())}
            for name, groups in self.groups.items()
        }

    def first_value(self, name: str) -> float | None:
        """Return the initial value of an entry that is absent because its parameter had no gradient, otherwise None."""
        above, _, entry = name.rpartition(".")
        first = _FIRST.get(entry)
        if first is None or above in self._above:
            return None
        at = -1
        while (at := f".{above}".find(f".{_STATE}.", at + 1)) >= 0:
            optimizer, parameter = above[: max(at - 1, 0)], above[at + len(_STATE) + 1 :]
            flattened = f"{optimizer}.{_GROUPS}.{parameter}".removeprefix(".")
            if parameter in self._parameters.get(optimizer, ()) or flattened in self._above:
                return first
        return None

    def other_order(self, optimizer: str, own: Sequence[Any]) -> str:
        """Return a text about the first parameter whose name differs in the checkpoint, or an empty string."""
        for i, (group, other) in enumerate(zip(own, self.groups.get(optimizer, ()), strict=False)):
            names, its = group.get(_NAMES) or (), other.get(_NAMES) or ()
            for j, (wanted, found) in enumerate(zip(names, its, strict=False)):
                if unwrapped(wanted) != unwrapped(found):
                    return f"parameter {j} of group {i} is {wanted}, found {found}"
        return ""


def own_groups(state: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the name and the groups of each optimizer whose state is in a state dict."""
    if not isinstance(state, Mapping):
        return
    groups = state.get(_GROUPS)
    if _STATE in state and isinstance(groups, list):
        yield ".".join(path), groups
    for key, item in state.items():
        yield from own_groups(item, (*path, str(key)))


def _groups_in(node: Node, leaves: Sequence[LeafRecord], path: tuple[str, ...]) -> Iterator[tuple[str, Groups]]:
    if not isinstance(node, list) or node[0] not in DICTS:
        return
    below = {str(decode_key(own)): item for own, item in node[1]}
    groups = below.get(_GROUPS)
    if _STATE in below and isinstance(groups, list) and groups[0] == "list":
        yield ".".join(path), [_group(group, leaves) for group in groups[1]]
    for key, item in below.items():
        yield from _groups_in(item, leaves, (*path, key))


def _group(node: Node, leaves: Sequence[LeafRecord]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for own, item in node[1] if isinstance(node, list) and node[0] in DICTS else ():
        is_list = isinstance(item, list) and item[0] == "list"
        # A long list of parameter numbers is stored as a leaf. Do not read it, because these parameters have no names.
        if own in {_PARAMETERS, _NAMES} and is_list and not any(True for _ in leaf_numbers(item)):
            found[own] = [build_with(one, _no_leaf, leaves) for one in item[1]]
    return found


def _no_leaf(number: int) -> object:
    raise LookupError(number)
