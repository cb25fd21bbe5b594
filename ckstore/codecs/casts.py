"""Predictions from a base: the base itself, or its values rounded to half the width.

A wrong prediction only costs bytes, because the difference from the prediction is always stored. See
docs/format/encoded-1.md, "Predictions".
"""

from __future__ import annotations

from typing import Literal, get_args

from ckstore.errors import DamagedBlob
from ckstore.model.digest import Buffer

Prediction = Literal["same", "bf16", "fp16"]
PREDICTIONS: tuple[Prediction, ...] = get_args(Prediction)

_QUIET_NAN = 0x7FC0


def base_bytes(prediction: Prediction, nbytes: int) -> int:
    """Return the number of base bytes from which `nbytes` bytes are predicted."""
    return nbytes if prediction == "same" else 2 * nbytes


def predict(prediction: Prediction, base: Buffer, out: memoryview) -> None:
    """Fill memory with the prediction from bytes of a base."""
    if len(base) != base_bytes(prediction, len(out)):
        raise DamagedBlob(f"a base of {len(base)} bytes cannot predict {len(out)} bytes")
    out[:] = base if prediction == "same" else predicted(prediction, base)


def predicted(prediction: Prediction, base: Buffer) -> Buffer:
    """Return the prediction from bytes of a base."""
    if prediction == "same":
        return base
    return _bf16(base) if prediction == "bf16" else _fp16(base)


def _bf16(base: Buffer) -> memoryview:
    """Return float32 rounded to the nearest bfloat16, ties to even. Each NaN becomes 0x7fc0."""
    import numpy as np

    bits = np.frombuffer(base, "<u4")
    rounded = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    rounded += bits
    out = (rounded >> 16).astype("<u2")
    nan = (bits & 0x7FFFFFFF) > np.uint32(0x7F800000)
    if nan.any():
        out[nan] = _QUIET_NAN
    return out.view("u1").data


def _fp16(base: Buffer) -> memoryview:
    """Return float32 rounded to the nearest float16, ties to even. NaN becomes 0x7e00; large values become infinite."""
    import numpy as np

    values = np.frombuffer(base, "<f4")
    with np.errstate(all="ignore"):
        out = values.astype("<f2")
    nan = np.isnan(values)
    if nan.any():
        out.view("<u2")[nan] = 0x7E00
    return out.view("u1").data
