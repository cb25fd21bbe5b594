"""``ckstore remote``: the places outside that checkpoints are pushed to and pulled from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ckstore.model.times import duration_s
from ckstore.model.words import printable
from ckstore_cli._format import columns
from ckstore_cli._frame import Frame, framed, json_option, store_option
from ckstore_cli._retention import print_plan

if TYPE_CHECKING:
    from ckstore.remote.service.remote_entries import RemoteEntry
    from ckstore_cli._output import Output


@click.group()
@store_option
@json_option
def remote() -> None:
    """Name, try and forget the places that checkpoints are pushed to.

    A remote is a prefix of object storage (s3://, gs://, az://), or a
    directory. Another store can be added to be read from. Credentials come
    from the environment, a profile or a role; they are never kept in the store.

    \b
    Example:
      ckstore remote add cold s3://bucket/run
      ckstore remote list
      ckstore remote probe cold
      ckstore remote prune cold
      ckstore remote claims cold
      ckstore remote rm cold

    \b
    Exit status:
      0  done
      1  the place cannot be reached or used
      2  wrong usage
      4  there is no such store or remote
      5  a push is under way
    """


@remote.command("add")
@click.argument("name")
@click.argument("target")
@click.option("--endpoint", metavar="URL", help="An S3-compatible service, such as https://s3.example.org.")
@click.option("--region", help="Region of the bucket; that of the environment by default.")
@framed
def add(frame: Frame, name: str, target: str, endpoint: str | None, region: str | None) -> None:
    """Give the place TARGET a NAME, after trying what it does.

    \b
    Example:
      ckstore remote add cold s3://bucket/run
      ckstore remote add lab s3://bucket/run --endpoint https://s3.example.org
      ckstore remote add nas /mnt/shared/gpt

    \b
    Exit status:
      0  done
      1  the place cannot be reached or used
      2  wrong usage, or the name is taken
      4  there is no such store
    """
    with frame.writing() as store:
        entry = store.remotes.add(name, target, endpoint=endpoint, region=region)
    _print(frame.output(), entry)


@remote.command("list")
@framed
def list_(frame: Frame) -> None:
    """List the remotes of the store.

    \b
    Example:
      ckstore remote list --json

    \b
    Exit status:
      0  done, also where there are none
      2  wrong usage
      4  there is no such store
    """
    out = frame.output()
    with frame.reading() as store:
        found = store.remotes.list()
    out.documents(found)
    if found:
        rows = [("name", "target", "endpoint"), *((one.name, one.target.address, one.target.endpoint) for one in found)]
        out.table(columns(rows, "<<<"))
    else:
        out.note("this store has no remote; add one: ckstore remote add NAME s3://BUCKET/PREFIX")


@remote.command("probe")
@click.argument("name")
@framed
def probe(frame: Frame, name: str) -> None:
    """Try again what the remote NAME does, and remember it.

    \b
    Example:
      ckstore remote probe cold

    \b
    Exit status:
      0  done
      1  the place cannot be reached or used, or another remote is there
      2  wrong usage
      4  there is no such store or remote
    """
    with frame.writing() as store:
        entry = store.remotes.probe(name)
    _print(frame.output(), entry)


@remote.command("prune")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--exclusive", is_flag=True, help="No other process writes to the remote.")
@click.option("--grace", metavar="TIME", default="24h", help="How long what nothing names stays; 24h by default.")
@framed
def prune(frame: Frame, name: str, dry_run: bool, exclusive: bool, grace: str) -> None:
    """Remove from the remote NAME the blobs that nothing names.

    At the mirror, the checkpoints that ckstore config keep-remote does not keep
    are removed first. A blob that nothing names is marked; once the grace is over,
    a later call removes it. Pushes may go on meanwhile if the service compares the
    version of an object before it writes; otherwise say with --exclusive that
    there are none.

    \b
    Example:
      ckstore remote prune cold --dry-run
      ckstore remote prune cold --grace 12h

    \b
    Exit status:
      0  done
      1  the remote refused something, or needs --exclusive
      2  wrong usage
      4  there is no such store or remote
      5  --exclusive was given, and a push is under way
    """
    out = frame.output()
    grace_s = duration_s(grace, "--grace")
    with frame.reading() if dry_run else frame.writing() as store:
        report = store.remotes.prune(name, dry_run=dry_run, exclusive=exclusive, grace=grace_s)
    out.document(report)
    if report.retention is not None:
        print_plan(out, report.retention.plan.entries)
        for text in report.retention.plan.notes:
            out.warning(printable(text))
        for skipped in report.retention.skipped:
            out.warning(printable(str(skipped)))
    out.line(str(report))


@remote.command("claims")
@click.argument("name")
@framed
def claims(frame: Frame, name: str) -> None:
    """Show which stores rely on checkpoints on the remote NAME.

    A store that evicts a checkpoint claims the copy on the remote. No store removes
    that copy until the first one has the bytes again or drops the checkpoint.

    \b
    Example:
      ckstore remote claims cold

    \b
    Exit status:
      0  done, also where there are none
      1  the remote does not answer
      2  wrong usage
      4  there is no such store or remote
    """
    out = frame.output()
    with frame.reading() as store:
        found = store.remotes.claims(name)
    out.documents(found)
    for one in found:
        out.line(str(one))
        out.lines(f"  {ref}" for ref in one.checkpoints)
    if not found:
        out.note(f"no store relies on a checkpoint at {name}")


@remote.command("release")
@click.argument("name")
@click.argument("uuid")
@framed
def release(frame: Frame, name: str, uuid: str) -> None:
    """End the claims of a store that is lost for good.

    UUID is that of the store, as shown by ckstore remote claims. The checkpoints that it
    relied on may then be removed from the remote NAME. If the store still exists, it
    loses these checkpoints when they are removed.

    \b
    Example:
      ckstore remote release cold 0d3c1f5e-7d0a-4c41-9b62-3f3c9a4e8a10

    \b
    Exit status:
      0  done
      1  the remote does not answer
      2  wrong usage, or that store has no claim
      4  there is no such store or remote
    """
    out = frame.output()
    with frame.writing() as store:
        released = store.remotes.release(name, uuid)
    out.document(released)
    out.line(f"released: {released}")


@remote.command("take-over")
@click.argument("name")
@click.argument("run")
@framed
def take_over(frame: Frame, name: str, run: str) -> None:
    """Mirror RUN to the remote NAME from this store, not from another one.

    Only one store mirrors a run. If its node dies, another store takes over the run
    automatically after ten minutes. This command does so at once. If the former store
    is still in use, its later checkpoints remain on its own disk.

    \b
    Example:
      ckstore remote take-over mirror main

    \b
    Exit status:
      0  done
      1  the remote does not answer
      2  wrong usage
      4  there is no such store or remote
    """
    out = frame.output()
    with frame.writing() as store:
        store.remotes.take_over(name, run)
        entry = store.remotes.get(name)
    out.document(entry)
    out.line(f"{run} is mirrored to {name} by this store from now on")


@remote.command("convert")
@click.argument("name")
@click.argument("new")
@click.argument("directory")
@framed
def convert(frame: Frame, name: str, new: str, directory: str) -> None:
    """Copy the store NAME, which an earlier draft pushed to, into a remote.

    The remote NEW in DIRECTORY takes the place of that store here, also as the
    mirror. The store itself is not changed.

    \b
    Example:
      ckstore remote convert nas gpt /mnt/nas/gpt

    \b
    Exit status:
      0  done
      1  the place cannot be reached or used, or some checkpoints were not copied
      2  wrong usage, or NAME is no store
      4  there is no such store or remote
    """
    out = frame.output()
    with frame.writing() as store:
        report = store.remotes.convert(name, new, directory)
    out.document(report)
    out.line(str(report))


@remote.command("rm")
@click.argument("name")
@framed
def rm(frame: Frame, name: str) -> None:
    """Forget the remote NAME; nothing at its place is touched.

    \b
    Example:
      ckstore remote rm cold

    \b
    Exit status:
      0  done
      2  wrong usage
      4  there is no such store or remote
    """
    out = frame.output()
    with frame.writing() as store:
        entry = store.remotes.get(name)
        store.remotes.remove(name)
    out.document(entry)
    out.line(f"forgot {entry.name}; nothing at {entry.target} was touched")


def _print(out: Output, entry: RemoteEntry) -> None:
    out.document(entry)
    out.line(f"{entry.name} is {entry.target}")
    plain = ["a store: it is read, and never pushed to"]
    out.lines(f"  {line}" for line in (plain if entry.abilities is None else entry.abilities.lines()))
