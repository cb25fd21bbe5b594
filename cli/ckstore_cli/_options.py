"""Options of several commands, and the parsers of their values."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import click

from ckstore.model.sizes import parse_size
from ckstore_cli._types import OneOf

F = TypeVar("F", bound=Callable[..., Any])


def parsed_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Return the number of bytes of a size such as ``16MiB``."""
    return None if value is None else parse_size(value)


def _parsed(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """Return the metrics given as texts such as ``loss=2.1``."""
    metrics: dict[str, float] = {}
    for value in values:
        name, equals, number = value.partition("=")
        try:
            metrics[name] = float(number) if not number.lstrip("+-").isdigit() else int(number)
        except ValueError:
            equals = ""
        if not name or not equals:
            raise click.BadParameter(f"wanted NAME=NUMBER such as loss=2.1, got {value!r}")
    return metrics


metric_option = click.option(
    "--metric",
    "metrics",
    metavar="NAME=NUMBER",
    multiple=True,
    callback=_parsed,
    help="Metric of the checkpoint. Repeatable.",
)


def adding(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds these options to a command, in this order."""
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


def if_exists_option(text: str) -> Callable[..., Any]:
    """Return the option ``--if-exists`` with the help `text`."""
    choice = OneOf(["error", "replace", "keep"])
    return click.option("--if-exists", type=choice, default="error", show_default=True, help=text)
