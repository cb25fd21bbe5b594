"""``ckstore clone``: a new store that lists what a remote has."""

from __future__ import annotations

from pathlib import Path

import click

from ckstore.model.words import counted, printable
from ckstore_cli._frame import Frame, json_option, pass_frame


@click.command()
@click.argument("source", metavar="URL")
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--remote", metavar="NAME", default="origin", show_default=True, help="What the new store calls it.")
@click.option("--endpoint", metavar="URL", help="An S3-compatible service, such as https://s3.example.org.")
@click.option("--region", help="Region of the bucket; that of the environment by default.")
@json_option
@pass_frame
def clone(frame: Frame, /, source: str, path: Path, remote: str, **place: str | None) -> None:
    """Make a store in DIR that lists every checkpoint of a remote, at once.

    No bytes of states are brought: what reads a checkpoint fetches what it needs,
    and ckstore pull brings all of it. Run again, it adds what is new at the
    remote. URL is object storage, the directory of a remote, or that of a store.

    \b
    Example:
      ckstore clone s3://bucket/run checkpoints
      ckstore clone /mnt/shared/store checkpoints

    \b
    Exit status:
      0  done
      1  the remote does not answer
      2  wrong usage, or there is something else in DIR
      4  there is no such remote
    """
    from ckstore.store import Store  # after click has read the options: this takes longer

    out = frame.output()
    with Store.clone(source, path, remote=remote, **place) as store:
        count = len(store.checkpoints())
        out.document({"path": store.path, "remote": remote, "checkpoint_count": count})
        out.line(printable(f"{store.path} lists {counted(count, 'checkpoint')} of {source}"))
