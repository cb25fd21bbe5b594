"""A save counts the values that are not finite of every dtype that has such values."""

from __future__ import annotations

import pytest
import torch

from ckstore.codecs.nonfinite import FORMS
from ckstore.model.manifest.dtypes import DTYPES

_FLOATS = [
    one.torch
    for one in DTYPES
    if (dtype := getattr(torch, one.torch or " ", None)) is not None
    and (dtype.is_floating_point or dtype.is_complex)
    and one.bits >= 8  # those of four bits have no NaN and no infinity
]


@pytest.mark.parametrize("name", _FLOATS)
def test_each_float_dtype_has_a_form(name: str) -> None:
    assert name in FORMS


@pytest.mark.parametrize("name", sorted({one.numpy for one in DTYPES if one.numpy[1:2] in {"f", "c"}}))
def test_each_float_dtype_of_numpy_has_a_form(name: str) -> None:
    assert name in FORMS
