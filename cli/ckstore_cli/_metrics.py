"""The option ``--metric NAME=NUMBER``."""

from __future__ import annotations

import click


def _parsed(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """Return what ``loss=2.1`` and the like say."""
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
    "--metric", "metrics", metavar="NAME=NUMBER", multiple=True, callback=_parsed, help="Repeatable."
)
