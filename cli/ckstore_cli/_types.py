"""Types of option values. Their errors have the form of other messages: wanted VALUE, got VALUE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import click

from ckstore_cli._compat import override

if TYPE_CHECKING:
    from collections.abc import Sequence


class _FromLeast:
    """A mixin that rewords the error of a range type of click. `what` describes the kind of number."""

    what: ClassVar[str]

    def convert(self: Any, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)  # type: ignore[misc] # the method of the range
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
    """One of several words. The error for another word suggests a similar one."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            from difflib import get_close_matches  # only for an error

            near = get_close_matches(str(value), self.choices, n=1)
            suggestion = f", did you mean {near[0]}?" if near else ""
            wanted = f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
            self.fail(f"wanted {wanted}, got {value!r}{suggestion}", param, ctx)
