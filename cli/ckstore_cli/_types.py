"""Types of options: what they refuse is said as other messages say it, what was wanted and what was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ckstore_cli._compat import override

if TYPE_CHECKING:
    from collections.abc import Sequence


def _wanted(what: str, least: float | None, *, is_open: bool) -> str:
    bound = "" if least is None else f" {'above' if is_open else 'from'} {least:g}"
    return f"wanted {what}{bound}{'' if is_open or not bound else ' on'}"


class WholeNumber(click.IntRange):
    """An integer, from a least one on."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            wanted = _wanted("a whole number", self.min, is_open=self.min_open)
            self.fail(f"{wanted}, got {str(value)!r}", param, ctx)


class Number(click.FloatRange):
    """A number, from a least one on."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{_wanted('a number', self.min, is_open=self.min_open)}, got {str(value)!r}", param, ctx)


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
