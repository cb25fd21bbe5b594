"""What is not finite is counted as torch and NumPy count it, in each format of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore.codecs.nonfinite import FORMS
from ckstore.model.manifest.dtypes import DTYPES

TORCH = [name for name in FORMS if not name.startswith("<") and hasattr(torch, name)]


def of_torch(raw: bytes, dtype: str) -> tuple[int, int]:
    values: Any = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(getattr(torch, dtype))
    if values.is_complex():
        values = torch.view_as_real(values)
    wide = values.to(torch.float64)
    return int(wide.isnan().sum()), int(wide.isinf().sum())


@pytest.mark.property
@pytest.mark.parametrize("dtype", TORCH)
@given(raw=st.binary(min_size=16, max_size=256).map(lambda raw: raw[: len(raw) // 16 * 16]))
def test_any_bytes_are_counted_as_torch_counts_them(dtype: str, raw: bytes) -> None:
    counted = FORMS[dtype].count(memoryview(raw))

    assert tuple(counted) == of_torch(raw, dtype)
    assert FORMS[dtype].has_nonfinite(memoryview(raw)) == any(counted)


SHORT = [name for name in TORCH if FORMS[name].item_bytes <= 2 and "complex" not in name]


@pytest.mark.parametrize("dtype", SHORT)
def test_every_value_of_a_short_format_is_judged_as_torch_judges_it(dtype: str) -> None:
    form = FORMS[dtype]
    raw = np.arange(2 ** (8 * form.item_bytes), dtype=f"<u{form.item_bytes}").tobytes()

    assert tuple(form.count(memoryview(raw))) == of_torch(raw, dtype)
    for at in range(0, len(raw), form.item_bytes * (1 if form.item_bytes == 1 else 129)):
        one = raw[at : at + form.item_bytes]
        assert form.has_nonfinite(memoryview(one)) == any(of_torch(one, dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_one_value_anywhere_in_many_megabytes_is_found(dtype: str, value: str) -> None:
    values = torch.ones(300_000, dtype=getattr(torch, dtype))
    real = torch.view_as_real(values).view(-1) if values.is_complex() else values
    for at in (0, 131_072, len(real) - 1):
        old = real[at].clone()
        real[at] = float(value)
        raw = memoryview(real.view(torch.uint8).numpy().tobytes())

        assert tuple(FORMS[dtype].count(raw)) == ((1, 0) if value == "nan" else (0, 1))
        real[at] = old


def test_finite_extremes_are_finite() -> None:
    for dtype in TORCH:
        if "complex" not in dtype:
            about = torch.finfo(getattr(torch, dtype))
            wide = torch.tensor([about.max, about.min, about.tiny], dtype=torch.float64)
            raw = memoryview(wide.to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes())

            assert not FORMS[dtype].has_nonfinite(raw), dtype


def test_each_dtype_of_floating_point_numbers_has_its_form_or_is_packed() -> None:
    floating = {one.torch for one in DTYPES if one.torch.startswith(("float", "bfloat", "complex", "bcomplex"))}

    assert floating - FORMS.keys() == {"float4_e2m1fn_x2"}  # it has neither NaN nor infinity
