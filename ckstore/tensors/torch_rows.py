"""Views of consecutive elements of a strided tensor in row-major order, to gather or fill the elements."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def views_of(tensor: torch.Tensor, first: int, count: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield views that together have `count` elements, from element `first` on.

    Each view is preceded by the number of elements in the views before it.
    """
    if tensor.dim() <= 1 or tensor.is_contiguous():
        yield 0, tensor.reshape(-1)[first : first + count]  # here, reshape returns a view
        return
    row = tensor[0].numel()
    at = 0
    while at < count:
        index, inside = divmod(first + at, row)
        rows = 0 if inside else (count - at) // row
        if rows:
            yield at, tensor[index : index + rows]
            at += rows * row
        else:
            part = min(row - inside, count - at)
            for before, view in views_of(tensor[index], inside, part):
                yield at + before, view
            at += part
