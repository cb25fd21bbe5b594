"""``ckstore commit``: store files unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ckstore.errors import CkstoreError
from ckstore.model.times import duration_s, text_of_time
from ckstore.model.words import arguments
from ckstore_cli._documents import to_json
from ckstore_cli._frame import Frame, framed
from ckstore_cli._options import if_exists_option, metric_option
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_ref, complete_run
from ckstore_cli._types import Number, WholeNumber


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--step",
    type=WholeNumber(min=0),
    help="The step. Default: the number in the name, such as 500 in checkpoint-500, or the next step of the run.",
)
@click.option("--run", metavar="RUN", default="main", show_default=True, shell_complete=complete_run, help="The run.")
@metric_option
@click.option("--message", "-m", metavar="TEXT", default="", help="Message of the checkpoint, which ckstore log shows.")
@click.option(
    "--tag", "tags", metavar="NAME", multiple=True, help="Tag for the checkpoint. An existing tag moves. Repeatable."
)
@if_exists_option("What to do if the run has another checkpoint at that step.")
@click.option(
    "--retries",
    type=WholeNumber(min=0),
    metavar="N",
    help="How often to retry after a failure of the storage. Default: ckstore config save-retries.",
)
@click.option(
    "--wait-for-space",
    metavar="TIME",
    help="How long to wait for space on a full disk, such as 10m. Default: ckstore config wait-for-space.",
)
@click.option(
    "--parent",
    metavar="REF",
    shell_complete=complete_ref,
    help="The checkpoint that this one continues. --if-exists replace only replaces checkpoints of the same training.",
)
@click.option("--times", is_flag=True, help="Also store modification times.")
@click.option("--allow-incomplete", is_flag=True, help="Commit files that are marked as unfinished.")
@click.option(
    "--rank",
    type=WholeNumber(min=0),
    help="Number of this process, if several processes commit one checkpoint together.",
)
@click.option("--world-size", type=WholeNumber(min=1), help="Number of processes that commit together.")
@click.option(
    "--timeout",
    type=Number(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds to wait for the other ranks.",
)
@click.option(
    "--attempt",
    metavar="NAME",
    help="Name of this start of the job, the same on all ranks. Default: from torchrun or Slurm.",
)
@framed
def commit(
    frame: Frame, paths: tuple[Path, ...], step: int | None, run: str, tags: tuple[str, ...], **options: Any
) -> None:
    """Store the files at PATHS: a checkpoint directory of any trainer, or anything else.

    ckstore checkout writes the same files, byte for byte. Equal tensors in files
    of a known format are stored once. No file is unpickled. The content of a
    single directory is stored directly. Several paths are stored under their
    names. Metrics are not read from the files. Give them with --metric.

    \b
    Example:
      ckstore commit out/checkpoint-500
      ckstore commit model.safetensors config.json --step 3 --metric loss=2.1

    \b
    Exit status:
      0  done, and the files survive a power cut
      1  the step exists, a file changed, a rank is missing, or a tag was not written
      2  wrong usage, no such path, or an incomplete checkpoint
      4  no such store
      6  the disk is full
    """
    out = frame.output()
    from ckstore.ranks.attempt import Ranks

    if (wait := options.pop("wait_for_space")) is not None:
        options["wait_for_space_s"] = duration_s(wait, "--wait-for-space")
    rank, world_size, attempt, timeout_s = map(options.pop, ("rank", "world_size", "attempt", "timeout"))
    # If only one of --rank and --world-size is given, `Ranks` raises an error.
    ranks = None if rank is None and world_size is None else Ranks(rank, world_size, attempt, timeout_s)
    # If the returned checkpoint is older than this call, it already existed with the same content.
    begun = text_of_time(datetime.now(UTC))
    with frame.saving() as store, Progress("committing", quiet=out.as_json) as shown:
        info = store.commit(paths, step, run, tags=tags, ranks=ranks, progress=shown.at, **options)
    from ckstore.ops.save.gather import step_in_name

    source = "given" if step is not None else "next" if step_in_name(paths) is None else "name"
    out.document({**to_json(info), "warnings": info.warnings, "step_from": source})
    existed = info.created < begun
    out.line(f"{'already stored:' if existed else 'committed'} {info}{_GUESSED[source]}")
    untagged = sorted(set(tags) - set(info.tags))
    # Raise an error although the commit is durable, since a script that relies on the tag must stop.
    if untagged:
        msg = f"{info.name} is committed and durable, but not tagged: {', '.join(untagged)}"
        raise CkstoreError(msg, hint=f"ckstore tag {arguments(untagged[0], info.name)} tries again")


_GUESSED = {"given": "", "name": "; step taken from the name", "next": "; next step of the run"}
