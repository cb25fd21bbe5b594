"""Convert the bytes of floating-point elements to another dtype. All NaNs in the result have the same bits."""

from __future__ import annotations

import torch

from ckstore.tensors.torch_leaves import DTYPES
from ckstore.tensors.torch_ranges import count_beyond

_BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
_NAN_BITS = {torch.float16: 0x7E00, torch.bfloat16: 0x7FC0, torch.float32: 0x7FC00000}


class DtypeCast:
    """Converts the elements of one tensor, in parts.

    The result depends only on the values of the elements, and not on the division into parts.

    Attributes:
        found, wanted: The old and the new dtype, by their names in torch.
        item_bytes: Bytes of an element in the new dtype.
        beyond: The number of values so far that were out of the range of the new dtype.
    """

    def __init__(self, found: str, wanted: str) -> None:
        self.found = found
        self.wanted = wanted
        self._found, self._wanted = DTYPES[found], DTYPES[wanted]
        self.item_bytes = self._wanted.itemsize
        self.beyond = 0

    def __call__(self, data: memoryview) -> memoryview:
        """Return the bytes of whole elements in the new dtype."""
        if not data:
            return data
        # torch warns about read-only memory, so such memory is copied.
        raw = torch.frombuffer(bytearray(data) if data.readonly else data, dtype=torch.uint8)
        # The format allows a tensor to begin at any byte of a storage, and torch needs aligned elements.
        values = (raw.clone() if raw.data_ptr() % self._found.itemsize else raw).view(self._found)
        out = values.to(self._wanted)
        # In torch, the bits of a converted NaN depend on its position, because the last elements of a block are
        # converted differently.
        is_nan = out.isnan()
        if is_nan.any():
            out.view(_BITS[self._wanted]).masked_fill_(is_nan, _NAN_BITS[self._wanted])
        self.beyond += count_beyond(values, self._wanted)
        return out.view(torch.uint8).numpy().data
