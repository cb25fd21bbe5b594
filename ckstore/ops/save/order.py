"""What the caller of a save in the background wants, as it goes to the saver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.model.saver.messages import Order

if TYPE_CHECKING:
    from ckstore.ops.save.save import Request


def order_of(request: Request, parent: str) -> Order:
    """Return the order of a request, which is checked; its number and its state are still to come."""
    request.check()
    return Order(
        number=0,
        run=request.run,
        step=request.step,
        about=request.about,
        tags=request.tags,
        if_exists=request.if_exists,
        force=request.force,
        parent=parent,
    )
