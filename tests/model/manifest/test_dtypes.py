"""The tables of dtypes agree with torch and NumPy themselves."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.leaf_records import itemsize, numpy_itemsize

# bits64 and its like are not whole dtypes: no tensor operation knows them.
_NOT_HELD = {"bits", "qint", "quint"}


def test_every_torch_dtype_of_whole_bytes_is_held_with_its_size() -> None:
    here = {
        str(dtype).removeprefix("torch."): dtype.itemsize
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype)
    }
    whole = {
        name: size
        for name, size in here.items()
        if not any(name.startswith(other) for other in _NOT_HELD)
        and not (name.startswith(("int", "uint")) and int(name.lstrip("uint")) < 8)
    }

    assert {name: TORCH_ITEMSIZE.get(name) for name in whole} == whole


@given(dtype=st.one_of(hnp.scalar_dtypes(), hnp.byte_string_dtypes(min_len=1), hnp.unicode_string_dtypes(min_len=1)))
def test_numpy_dtypes_have_the_size_that_numpy_gives_them(dtype: "np.dtype[np.generic]") -> None:
    if dtype in (np.dtype("longdouble"), np.dtype("clongdouble")):
        assert numpy_itemsize(dtype.str) is None
    else:
        assert numpy_itemsize(dtype.str) == dtype.itemsize


@given(text=st.from_regex(r"[<>|=]?[a-zA-Z?][0-9]{0,11}(\[[0-9]{0,4}[a-zA-Z]{0,3}\])?", fullmatch=True))
def test_what_is_held_is_a_dtype_of_numpy_of_that_size(text: str) -> None:
    size = numpy_itemsize(text)

    if size is not None:
        assert np.dtype(text).itemsize == size


@pytest.mark.parametrize(
    "dtype",
    ["|O", "|O8", "|V8", "f4", "=f4", "<f3", "<f16", "<S0", "|S", "<U9999999999", "<M8[x]", "<M4", "<i8[ns]", "<f4\n"],
)
def test_other_numpy_dtypes_are_not_held(dtype: str) -> None:
    assert numpy_itemsize(dtype) is None


def test_a_kind_has_only_its_own_dtypes() -> None:
    assert itemsize("torch", "float32") == itemsize("numpy", "<f4") == 4
    assert itemsize("torch", "<f4") is itemsize("numpy", "float32") is itemsize("bytes", "uint8") is None
