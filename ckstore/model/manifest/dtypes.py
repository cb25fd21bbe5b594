"""The table of all dtypes that a tensor may have, with their names in torch, safetensors and NumPy.

A new dtype needs a line here.
"""

from __future__ import annotations

from typing import NamedTuple


class Dtype(NamedTuple):
    """A dtype of elements."""

    torch: str  # the name in torch and in manifests; empty if torch does not have this dtype
    bits: int  # bits of an element in a safetensors file; torch packs two 4-bit elements into one byte
    safetensors: str = ""  # the name in safetensors, or empty
    numpy: str = ""  # the name in NumPy, or empty
    storage: str = ""  # the class of storages with this dtype in older files of torch, or empty


# This is the order of safetensors 0.8. It writes the tensors with the last of these dtypes first, so that every tensor
# is aligned to the size of its elements.
DTYPES = (
    Dtype("bool", 8, "BOOL", "|b1", "BoolStorage"),
    Dtype("float4_e2m1fn_x2", 4, "F4"),
    Dtype("", 6, "F6_E2M3"),
    Dtype("", 6, "F6_E3M2"),
    Dtype("uint8", 8, "U8", "|u1", "ByteStorage"),
    Dtype("int8", 8, "I8", "|i1", "CharStorage"),
    Dtype("float8_e5m2", 8, "F8_E5M2"),
    Dtype("float8_e4m3fn", 8, "F8_E4M3"),
    Dtype("float8_e8m0fnu", 8, "F8_E8M0"),
    Dtype("float8_e4m3fnuz", 8, "F8_E4M3FNUZ"),
    Dtype("float8_e5m2fnuz", 8, "F8_E5M2FNUZ"),
    Dtype("int16", 16, "I16", "<i2", "ShortStorage"),
    Dtype("uint16", 16, "U16", "<u2"),
    Dtype("float16", 16, "F16", "<f2", "HalfStorage"),
    Dtype("bfloat16", 16, "BF16", "", "BFloat16Storage"),
    Dtype("int32", 32, "I32", "<i4", "IntStorage"),
    Dtype("uint32", 32, "U32", "<u4"),
    Dtype("float32", 32, "F32", "<f4", "FloatStorage"),
    Dtype("complex32", 32),
    Dtype("bcomplex32", 32),  # two bfloat16; torch 2.15 and later have it
    Dtype("complex64", 64, "C64", "<c8", "ComplexFloatStorage"),
    Dtype("float64", 64, "F64", "<f8", "DoubleStorage"),
    Dtype("int64", 64, "I64", "<i8", "LongStorage"),
    Dtype("uint64", 64, "U64", "<u8"),
    Dtype("complex128", 128, "", "", "ComplexDoubleStorage"),
)
TORCH_ITEMSIZE = {one.torch: max(1, one.bits // 8) for one in DTYPES if one.torch}  # bytes of an item in memory
