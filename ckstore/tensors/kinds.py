"""Whose a value is, without importing torch or NumPy for it.

A value can only be theirs if another module has imported them already.
"""

from __future__ import annotations

import sys
from typing import Any


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor, of whatever class."""
    # Asked of every value of a state: importing a module of ours here takes longer than the answer. While another
    # thread imports torch it may have no tensors yet.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def is_plain_layout(tensor: Any) -> bool:
    """Whether a tensor is strided: not sparse, nor of another layout."""
    return tensor.layout is sys.modules["torch"].strided


def is_array(value: object) -> bool:
    """Whether `value` is a NumPy array that is nothing more: no subclass but a file's mapping."""
    if "numpy" not in sys.modules:
        return False
    from ckstore.tensors import numpy_leaves

    return numpy_leaves.is_array(value)


def is_numpy_scalar(value: object) -> bool:
    """Whether `value` is a NumPy scalar; numpy.float64 is a float too, and numpy.str_ a str."""
    if "numpy" not in sys.modules:
        return False
    from ckstore.tensors import numpy_leaves

    return numpy_leaves.is_scalar(value)
