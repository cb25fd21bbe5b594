"""``ckstore commit``: put files into the store as they are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ckstore.errors import CkstoreError
from ckstore.model.times import duration_s, text_of_time
from ckstore_cli._documents import to_json
from ckstore_cli._frame import Frame, framed
from ckstore_cli._options import if_exists_option, metric_option
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_ref, complete_run
from ckstore_cli._types import Number, WholeNumber


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--step", type=WholeNumber(min=0), help="Default: as in checkpoint-500, else the next of the run.")
@click.option("--run", metavar="RUN", default="main", show_default=True, shell_complete=complete_run, help="The run.")
@metric_option
@click.option("--message", "-m", metavar="TEXT", default="", help="Shown by ckstore log.")
@click.option("--tag", "tags", metavar="NAME", multiple=True, help="A tag for the checkpoint. Repeatable.")
@if_exists_option("What to do if the run has another checkpoint at that step.")
@click.option(
    "--retries",
    type=WholeNumber(min=0),
    metavar="N",
    help="How many times to retry. Default: the setting of the store.",
)
@click.option(
    "--wait-for-space",
    metavar="TIME",
    help="How long to wait on a full disk, such as 10m. Default: the setting of the store.",
)
@click.option(
    "--parent",
    metavar="REF",
    shell_complete=complete_ref,
    help="The checkpoint that this one continues. Only checkpoints of the same training are replaced.",
)
@click.option("--times", is_flag=True, help="Keep modification times as well.")
@click.option("--allow-incomplete", is_flag=True, help="Commit files that are marked as unfinished.")
@click.option("--rank", type=WholeNumber(min=0), help="Number of this process, of several that commit together.")
@click.option("--world-size", type=WholeNumber(min=1), help="How many processes commit together.")
@click.option(
    "--timeout",
    type=Number(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds to wait for the other ranks.",
)
@click.option("--attempt", metavar="NAME", help="Names this start of the job. Default: of torchrun or Slurm.")
@framed
def commit(
    frame: Frame, paths: tuple[Path, ...], step: int | None, run: str, tags: tuple[str, ...], **options: Any
) -> None:
    """Store the files at PATHS: a checkpoint directory of any trainer, or anything else.

    They come back byte for byte with ckstore checkout. Nothing is unpickled.
    Equal tensors in safetensors and torch files are stored once, whatever file
    they are in. A single directory is stored as it is, several paths under
    their names. No metric is read out of the files: give it with --metric.

    \b
    Example:
      ckstore commit out/checkpoint-500
      ckstore commit model.safetensors config.json --step 3 --metric loss=2.1

    \b
    Exit status:
      0  done: the files now survive a power cut
      1  the step exists, a file changed, a rank is missing, a tag was not written
      2  wrong usage: no such path, or a checkpoint that is not complete
      4  there is no such store
      6  the disk is full
    """
    out = frame.output()
    from ckstore.ranks.attempt import Ranks

    if (wait := options.pop("wait_for_space")) is not None:
        options["wait_for_space_s"] = duration_s(wait, "--wait-for-space")
    rank, world_size, attempt, timeout_s = map(options.pop, ("rank", "world_size", "attempt", "timeout"))
    # One of them alone is refused by what it lacks.
    ranks = None if rank is None and world_size is None else Ranks(rank, world_size, attempt, timeout_s)
    # A checkpoint that is older than this call was there already, with the same content.
    begun = text_of_time(datetime.now(UTC))
    with frame.saving() as store, Progress("committing", quiet=out.as_json) as shown:
        info = store.commit(paths, step, run, tags=tags, ranks=ranks, progress=shown.at, **options)
    source = _source_of_step(step, paths)
    out.document({**to_json(info), "warnings": info.warnings, "step_from": source})
    was_there = info.created < begun
    out.line(f"{'already there:' if was_there else 'committed'} {info}{_GUESSED[source]}")
    untagged = sorted(set(tags) - set(info.tags))
    # An error although the commit is durable: a script that relies on the tag must stop.
    if untagged:
        msg = f"{info.name} is committed and durable, but not tagged: {', '.join(untagged)}"
        raise CkstoreError(msg, hint=f"ckstore tag {untagged[0]} {info.name} tries again")


_GUESSED = {"given": "", "name": "; the step is from the name", "next": "; the step is the next one of the run"}


def _source_of_step(step: int | None, paths: tuple[Path, ...]) -> str:
    from ckstore.ops.save.gather import step_in_name

    return "given" if step is not None else "next" if step_in_name(paths) is None else "name"
