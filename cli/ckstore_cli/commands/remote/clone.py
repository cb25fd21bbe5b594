"""``ckstore clone``: make a store that lists the checkpoints of a remote."""

from __future__ import annotations

from pathlib import Path

import click

from ckstore.model.words import counted, printable
from ckstore_cli._frame import Frame, json_option, pass_frame


@click.command()
@click.argument("source", metavar="URL")
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--remote", metavar="NAME", default="origin", show_default=True, help="Name of the remote in the new store."
)
@click.option("--endpoint", metavar="URL", help="URL of an S3-compatible service, such as https://s3.example.org.")
@click.option("--region", help="Region of the bucket. Default: from the environment.")
@json_option
@pass_frame
def clone(frame: Frame, /, source: str, path: Path, remote: str, **place: str | None) -> None:
    """Make a store in DIR that lists all checkpoints of a remote.

    The command does not download the data of checkpoints. Reads download the data
    that they need, and ckstore pull downloads complete checkpoints. If DIR is already a
    clone of this remote, the command adds new checkpoints. URL is object storage, the
    directory of a remote, or the directory of a store.

    \b
    Example:
      ckstore clone s3://bucket/run checkpoints
      ckstore clone /mnt/shared/store checkpoints

    \b
    Exit status:
      0  done
      1  the remote does not answer
      2  wrong usage, or DIR has other content
      4  no such remote
    """
    from ckstore.store import Store  # slow, so only after click has read the options

    out = frame.output()
    with Store.clone(source, path, remote=remote, **place) as store:
        count = len(store.checkpoints())
        out.document({"path": store.path, "remote": remote, "checkpoint_count": count})
        out.line(printable(f"{store.path} lists {counted(count, 'checkpoint')} of {source}"))
