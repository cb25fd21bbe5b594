"""``ckstore log``: the checkpoints of a store, the newest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

from ckstore.model.checkpoint.external_run import external_runs
from ckstore.model.digest import short_id
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.sizes import size_text
from ckstore.model.times import start_of, time_of_text
from ckstore.model.words import metrics_text, printable
from ckstore_cli._format import age_text, columns, cut, wrap
from ckstore_cli._frame import Frame, framed
from ckstore_cli._output import Output
from ckstore_cli._refs import checkpoints, complete_run, no_such_run, runs, steps
from ckstore_cli._types import WholeNumber

ON_TERMINAL_COUNT = 20
"""The default number of checkpoints on a terminal. With more, the newest would scroll off the screen."""

_HEAD = ("STEP", "ID", "RUN", "AGE", "SIZE", "NEW")
_ALIGN = "><<<>>"


@click.command(context_settings={"allow_extra_args": True})
@click.option(
    "-n",
    "--count",
    metavar="N",
    type=WholeNumber(min=1),
    help=f"List only the newest N. Default: all, but on a terminal without --since only {ON_TERMINAL_COUNT}.",
)
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="Only checkpoints of this run.")
@click.option("--since", metavar="TIME", help="Only checkpoints saved within this time, such as 90m, 36h or 7d.")
@click.option("--lacks", metavar="METRIC", help="Only checkpoints without this metric.")
@click.option(
    "--all", "superseded", is_flag=True, help="Also superseded checkpoints, whose step has a newer checkpoint."
)
@click.option(
    "--oneline", is_flag=True, help="One short line per checkpoint, with id, name, metrics, tags and message."
)
@framed
@click.pass_context
def log(  # noqa: PLR0917 - one for each option
    ctx: click.Context,
    frame: Frame,
    count: int | None,
    run: str | None,
    since: str | None,
    lacks: str | None,
    superseded: bool,  # noqa: FBT001 - click's
    oneline: bool,  # noqa: FBT001 - click's
) -> None:
    """List the checkpoints, the newest first.

    SIZE is the size of the data in a checkpoint, NEW the bytes that its save added
    to the store. Checkpoints are listed in the order of their saves, even if a run
    went back to an earlier step. If a step was saved again, only its newest
    checkpoint is listed. --all also lists the superseded ones. In a pipe, each
    checkpoint is one line.

    \b
    Marks of a checkpoint:
      DAMAGED     a read or ckstore verify found corruption
      UNHEALTHY   a tensor has NaN, or infinite values that it did not always have
      unchanged   a part of the state no longer changes from step to step
      elsewhere   some data is only on a remote, and reads download it
      compacted   stored as differences (ckstore show has the sizes)
      superseded  its step has a newer checkpoint

    \b
    Example:
      ckstore log -n 5
      ckstore log --run sweep-7 --oneline
      ckstore log --since 1d
      ckstore log --lacks bleu
      ckstore log --json | jq -r 'select(.metrics.loss < 2) | .id'

    \b
    Exit status:
      0  done, even without any checkpoint
      2  wrong usage
      3  checkpoints exist, but all are incomplete
      4  no such store or run
    """
    if ctx.args:
        msg = f"unexpected argument {ctx.args[0]!r}: log --run NAME lists one run, show REF shows one checkpoint"
        raise click.UsageError(msg, ctx)
    out = frame.output()
    start = start_of(since, datetime.now(UTC), "--since")
    if count is None and out.width is not None and start is None:
        # Limit the list only on a terminal, since a program that reads the list must get the whole list.
        count = ON_TERMINAL_COUNT
    with frame.reading() as store:
        # To find the newest N checkpoints that lack a metric, read all of them.
        found = store.checkpoints(run, newest=count if lacks is None else None, superseded=superseded)
        # Call `latest`, which raises an error if all checkpoints are incomplete. "no checkpoint yet" would be wrong
        # in that case.
        if not found and store.latest(run) is None and run is not None:
            raise no_such_run(store.path, run)
    shown = [info for info in found[::-1] if start is None or time_of_text(info.created) >= start]
    if lacks is not None:
        _show_lacking(shown, lacks, count, out, oneline=oneline)
        return
    if out.as_json:
        out.documents(shown)
        return
    out.lines(_short(shown, out) if oneline else _table(shown, out))
    if not found:
        out.note("no checkpoint yet")
    elif not shown:
        out.note(f"no checkpoint was saved in the last {printable(since or '')}")
    elif out.width is not None and len(shown) == count:
        # Count the names of the directories. Reading the checkpoints would take as long as listing all of them.
        listed = checkpoints if superseded else steps
        total = sum(len(listed(store.path, name)) for name in (runs(store.path) if run is None else [run]))
        if total > count:
            out.note(f"{total - count} older; -n {total} shows them all")


def _show_lacking(
    infos: Sequence[CheckpointInfo], metric: str, count: int | None, out: Output, *, oneline: bool
) -> None:
    lacking = [info for info in infos if metric not in info.metrics]
    shown = lacking[:count]
    if out.as_json:
        out.documents(shown)
        return
    out.lines(_short(shown, out) if oneline else _table(shown, out))
    if not shown:
        out.note(f"no checkpoint lacks {printable(metric)}")
    elif len(lacking) > len(shown):
        out.note(f"{len(lacking) - len(shown)} older; -n {len(lacking)} shows them all")


def _short(infos: Sequence[CheckpointInfo], out: Output) -> Iterator[str]:
    for info in infos:
        head = f"{short_id(info.id)} {info.name}"
        rest = cut(" ".join(_about(info)), None if out.width is None else out.width - len(head) - 1)
        yield f"{out.style(short_id(info.id), 'yellow')} {info.name} {rest}".rstrip()


def _table(infos: Sequence[CheckpointInfo], out: Output) -> Iterator[str]:
    """Yield the lines of the table. Metrics, tags and messages follow in the same line or on lines below it."""
    # If the metrics of every checkpoint fit into its line, the lines contain them, followed by tags and messages as far
    # as these fit. Otherwise, the metrics of every checkpoint are printed below its line, so that the rows can be
    # compared.
    if not infos:
        return
    now = datetime.now(UTC)
    rows = [
        (
            str(info.step),
            short_id(info.id),
            info.run,
            age_text(info.created, now),
            size_text(info.logical_bytes),
            size_text(info.new_bytes),
        )
        for info in infos
    ]
    head, *lines = columns([_HEAD, *rows], _ALIGN)
    beside = None if out.width is None else out.width - len(head) - 2
    indent = " " * (len(head) - len(head.lstrip()) + len(_HEAD[0]) + 2)
    fit = beside is None or all(len(metrics_text(info.metrics)) <= beside for info in infos)
    yield out.style(cut(f"{head}  METRICS, TAGS, MESSAGE", out.width) if fit else head, "dim")
    for info, line in zip(infos, lines, strict=True):
        first, rest = (beside, _about(info)) if fit else (0, _about(info))
        here: list[str] = []
        while rest and (first is None or len(" ".join([*here, rest[0]])) <= first):
            here.append(rest.pop(0))
        short = short_id(info.id)
        lit = line.replace(short, out.style(short, "yellow"), 1)
        yield f"{lit}  {' '.join(here)}".rstrip()
        if rest and out.width is not None:
            words = " ".join(rest).split(" ")
            yield from (indent + text for text in wrap(words, out.width - len(indent)))


def _about(info: CheckpointInfo) -> list[str]:
    """Return marks, metrics and tags of a checkpoint, the first line of its message, and its runs in trackers."""
    tags = f"({', '.join(info.tags)})" if info.tags else ""
    message = info.message.strip().partition("\n")[0]
    found = ("DAMAGED" if info.damaged else "", "UNHEALTHY" if info.unhealthy else "")
    where = (
        "unchanged" if info.unchanged else "",
        "elsewhere" if info.elsewhere else "",
        "compacted" if info.compacted else "",
        "superseded" if info.superseded else "",
    )
    runs = " ".join(run.short for run in external_runs(info.metadata))
    return [part for part in (*found, *where, metrics_text(info.metrics), tags, printable(message), runs) if part]
