"""Features that Python 3.11 lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method: object) -> object:
        """Return `method`. Python has had `typing.override` since 3.12, and only type checkers need it."""
        return method


__all__ = ["override"]
