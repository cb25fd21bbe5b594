"""Compare tensors that consist of other tensors with their parts in a checkpoint.

This module is imported only for such tensors. If the target is a subclass tensor with the same structure, its parts are
filled in place. If it is a sparse tensor with the same layout, the new values are copied into it. With ``assign=True``,
the tensor of the checkpoint replaces any other target, and a target on the meta device, as in torch's own
`load_state_dict`. Without ``assign=True``, these targets do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

import torch

from ckstore.model.manifest.manifest import Node
from ckstore.model.manifest.nodes import SPARSE_KINDS
from ckstore.tensors import torch_parts
from ckstore.tensors.named.named_objects import check_names
from ckstore.tensors.state_capture import Walk
from ckstore.tensors.targets import torch_targets
from ckstore.tensors.targets.load_comparison import Comparison
from ckstore.tensors.walks import shape_of_parts


class PartsLayout(Enum):
    """How a tensor receives its parts."""

    FILLED = auto()  # the parts of the tensor are filled in place
    COPIED = auto()  # a new tensor is made from the stored parts, and copied into the tensor; the caller must plan this
    ASSIGNED = auto()  # a new tensor is made from the stored parts, and replaces the tensor


def plan_parts(comparison: Comparison, target: torch.Tensor, node: Node, name: str) -> PartsLayout | None:
    """Plan how `target` receives the parts of `node`. If the parts do not fit, report this and return None."""
    check_names(node, name)
    on_meta = target.is_meta
    unlike = "" if on_meta else _unlike(comparison, target, node)
    if shape_of_parts(node) != tuple(target.shape):
        pass
    elif not on_meta and not unlike:
        for live, index in _pairs(target, node):
            comparison.filling.bind(live, index)
        return PartsLayout.FILLED
    elif node[2] in SPARSE_KINDS and not on_meta and target.layout is getattr(torch, node[2]):
        return PartsLayout.COPIED
    elif comparison.terms.assign:
        comparison.new(node)
        return PartsLayout.ASSIGNED
    elif on_meta:
        comparison.differences.meta.append(name)
        return None
    else:
        comparison.differences.replaceable.append(name)
    comparison.mismatch(name, torch_targets.describe(target), comparison.described(node) + unlike)
    return None


def _unlike(comparison: Comparison, target: Any, node: Node) -> str:
    """Return how the structure of a tensor differs from that in the checkpoint, or an empty text."""
    # Contexts are compared in their stored form, so that no comparison method of a foreign class is called. The target
    # is detached, because a saved tensor is, and the context may contain requires_grad.
    apart = torch_parts.take_apart(target.detach())
    if node[2] in SPARSE_KINDS or apart is None or apart.kind != node[2]:
        return ", which is of another class"
    walk = Walk()
    own = torch_parts.without_location(walk.node(apart.extra, "", 1))
    found = torch_parts.without_location(node[3])
    if walk.refused or own != found:
        return f", with another {_which(own, found)}"
    for (key, live), (wanted, item) in zip(apart.tensors.items(), node[1], strict=False):
        if key != wanted or not _takes(comparison, target, key, live, item):
            return f", of which {wanted} is {comparison.described(item)}"
    return "" if len(apart.tensors) == len(node[1]) else ", with other parts"


def _takes(comparison: Comparison, target: Any, key: str, live: torch.Tensor, item: Node) -> bool:
    # A property may create a new tensor at each access. Filling such a tensor would have no effect.
    if getattr(target, key) is not getattr(target, key):
        return False
    if item[0] == "parts":
        return not _unlike(comparison, live, item)
    leaf = comparison.leaves[item[1]]
    return torch_targets.can_be_filled(live) and torch_targets.takes(live, leaf)


def _which(own: Node, found: Node) -> str:
    """Return the names of the differing members of two contexts, or a general description, for messages."""
    contexts = own[1][0], found[1][0]
    if all(isinstance(context, list) and context[0] == "dict" for context in contexts):
        own_context, its = ({str(key): item for key, item in context[1]} for context in contexts)
        if names := [key for key in {**own_context, **its} if own_context.get(key) != its.get(key)]:
            return ", ".join(names)
    return "context, shape or strides"


def _pairs(target: Any, node: Node) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield each plain tensor inside a tensor, and the leaf for it."""
    for key, item in node[1]:
        if item[0] == "parts":
            yield from _pairs(getattr(target, key), item)
        else:
            yield getattr(target, key), item[1]
