"""Types of options: what they refuse is said as other messages say it, what was wanted and what was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import click

from ckstore_cli._compat import override

if TYPE_CHECKING:
    from collections.abc import Sequence


class _FromLeast:
    """Goes before a range of click: a number, from a least one on; `what` is its kind."""

    what: ClassVar[str]

    def convert(self: Any, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)  # type: ignore[misc] # that of the range
        except click.BadParameter:
            bound = "" if self.min is None else f" {'above' if self.min_open else 'of at least'} {self.min:g}"
            self.fail(f"wanted {self.what}{bound}, got {str(value)!r}", param, ctx)


class WholeNumber(_FromLeast, click.IntRange):
    """An integer."""

    what = "a whole number"


class Number(_FromLeast, click.FloatRange):
    """A number that may have a fraction."""

    what = "a number"


class OneOf(click.Choice[str]):
    """One of some words; what looks like one of them is refused with it."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            from difflib import get_close_matches  # for an error alone

            near = get_close_matches(str(value), self.choices, n=1)
            meant = f", did you mean {near[0]}?" if near else ""
            wanted = f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
            self.fail(f"wanted {wanted}, got {value!r}{meant}", param, ctx)
