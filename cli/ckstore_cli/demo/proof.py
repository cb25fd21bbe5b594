"""Digests of a training state that owe nothing to the store.

SHA-256 over names, types, shapes and bits. The trainer takes them of what it has in memory; they
are compared with those of another trainer and with those of what the store gives back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from hashlib import _Hash


def digests(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest, in hexadecimal, of each value of `state`; those may be Stateful."""
    return {name: digest(_plain(value)) for name, value in state.items()}


def digest(value: object) -> str:
    """Return the digest of nested dicts, lists and tuples of tensors, arrays and plain values."""
    sha256 = hashlib.sha256()
    _feed(sha256, value)
    return sha256.hexdigest()


def _plain(value: Any) -> object:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _feed(sha256: _Hash, value: object) -> None:
    # Every part is led by its kind and size, so that no two states feed the same bytes.
    match value:
        case torch.Tensor():
            sha256.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
            flat = value.detach().cpu().contiguous().flatten()
            sha256.update(flat.view(torch.uint8).numpy().data)
        case np.ndarray():
            sha256.update(f"array {value.dtype.str} {value.shape};".encode())
            sha256.update(value.tobytes())
        case dict():
            sha256.update(f"dict {len(value)};".encode())
            for key, item in value.items():
                sha256.update(f"{key!r};".encode())
                _feed(sha256, item)
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            sha256.update(f"{kind} {len(value)};".encode())
            for item in value:
                _feed(sha256, item)
        case _:  # repr() gives back every bit of a float
            sha256.update(f"{type(value).__name__} {value!r};".encode())
