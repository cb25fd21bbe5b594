"""``ckstore remote``: the remotes that checkpoints are pushed to and pulled from."""

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
    """Add, list, probe, prune and remove the remotes that checkpoints are pushed to.

    A remote is a prefix of object storage (s3://, gs://, az://), or a directory. The
    directory of another store can be added for reading. Credentials come from the
    environment, a profile or a role, and are never saved in the store.

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
      1  the remote cannot be reached or used
      2  wrong usage
      4  no such store or remote
      5  a push is in progress
    """


@remote.command("add")
@click.argument("name")
@click.argument("target")
@click.option("--endpoint", metavar="URL", help="URL of an S3-compatible service, such as https://s3.example.org.")
@click.option("--region", help="Region of the bucket. Default: from the environment.")
@framed
def add(frame: Frame, name: str, target: str, endpoint: str | None, region: str | None) -> None:
    """Add TARGET as the remote NAME, after a test of the service.

    TARGET is a URL of object storage, or a directory, which is created if needed.

    \b
    Example:
      ckstore remote add cold s3://bucket/run
      ckstore remote add lab s3://bucket/run --endpoint https://s3.example.org
      ckstore remote add nas /mnt/shared/gpt

    \b
    Exit status:
      0  done
      1  TARGET cannot be reached or used
      2  wrong usage, or the name is taken
      4  no such store
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
      0  done, even without any
      2  wrong usage
      4  no such store
    """
    out = frame.output()
    with frame.reading() as store:
        found = store.remotes.list()
    out.documents(found)
    if found:
        rows = [("name", "target", "endpoint"), *((one.name, one.target.address, one.target.endpoint) for one in found)]
        out.table(columns(rows, "<<<"))
    else:
        out.note("this store has no remote (add one with ckstore remote add NAME s3://BUCKET/PREFIX)")


@remote.command("probe")
@click.argument("name")
@framed
def probe(frame: Frame, name: str) -> None:
    """Test the service of the remote NAME again, and record the result.

    \b
    Example:
      ckstore remote probe cold

    \b
    Exit status:
      0  done
      1  the remote cannot be reached or used, or its target is another remote now
      2  wrong usage
      4  no such store or remote
    """
    with frame.writing() as store:
        entry = store.remotes.probe(name)
    _print(frame.output(), entry)


@remote.command("prune")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and change nothing.")
@click.option("--exclusive", is_flag=True, help="Assert that no other process writes to the remote.")
@click.option(
    "--grace", metavar="TIME", default="24h", help="Minimum time between marking and removing a blob. Default: 24h."
)
@framed
def prune(frame: Frame, name: str, dry_run: bool, exclusive: bool, grace: str) -> None:
    """Remove unreferenced blobs from the remote NAME.

    On the mirror, the command first removes the checkpoints that the rules of
    ckstore config keep-remote do not keep. It marks unreferenced blobs, and a later
    call removes them after the grace period. Pushes may run meanwhile if the service
    compares the version of an object before it writes. Otherwise --exclusive is
    required, and no push may run.

    \b
    Example:
      ckstore remote prune cold --dry-run
      ckstore remote prune cold --grace 12h

    \b
    Exit status:
      0  done
      1  the remote refused something, or needs --exclusive
      2  wrong usage
      4  no such store or remote
      5  --exclusive was given, and a push is in progress
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
    this copy until the claiming store has the data again or drops the checkpoint.

    \b
    Example:
      ckstore remote claims cold

    \b
    Exit status:
      0  done, even without any
      1  the remote does not answer
      2  wrong usage
      4  no such store or remote
    """
    out = frame.output()
    with frame.reading() as store:
        found = store.remotes.claims(name)
    out.documents(found)
    for one in found:
        out.line(str(one))
        out.lines(f"  {ref}" for ref in one.checkpoints)
    if not found:
        out.note(f"no store relies on a checkpoint on {name}")


@remote.command("release")
@click.argument("name")
@click.argument("uuid")
@framed
def release(frame: Frame, name: str, uuid: str) -> None:
    """End the claims of a store that is lost for good.

    UUID identifies the store, as shown by ckstore remote claims. The checkpoints that
    it relied on may then be removed from the remote NAME. If the store still exists,
    it loses these checkpoints when they are removed.

    \b
    Example:
      ckstore remote release cold 0d3c1f5e-7d0a-4c41-9b62-3f3c9a4e8a10

    \b
    Exit status:
      0  done
      1  the remote does not answer
      2  wrong usage, or that store has no claim
      4  no such store or remote
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
    """Mirror RUN to the remote NAME from this store instead of another one.

    Only one store mirrors a run. If its node fails, another store takes over the run
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
      4  no such store or remote
    """
    out = frame.output()
    with frame.writing() as store:
        store.remotes.take_over(name, run)
        entry = store.remotes.get(name)
    out.document(entry)
    out.line(f"this store now mirrors {run} to {name}")


@remote.command("convert")
@click.argument("name")
@click.argument("new")
@click.argument("directory")
@framed
def convert(frame: Frame, name: str, new: str, directory: str) -> None:
    """Copy NAME, a store to which a draft version pushed, into a remote.

    The new remote NEW in DIRECTORY replaces NAME in this store, also as the mirror.
    The store NAME itself is not changed.

    \b
    Example:
      ckstore remote convert nas gpt /mnt/nas/gpt

    \b
    Exit status:
      0  done
      1  DIRECTORY cannot be reached or used, or some checkpoints were not copied
      2  wrong usage, or NAME is not a store
      4  no such store or remote
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
    """Remove the remote NAME from the store. The data on the remote is kept.

    The mirror cannot be removed. Turn it off first, with ckstore config mirror off.

    \b
    Example:
      ckstore remote rm cold

    \b
    Exit status:
      0  done
      2  wrong usage, or the remote is the mirror
      4  no such store or remote
    """
    out = frame.output()
    with frame.writing() as store:
        entry = store.remotes.get(name)
        store.remotes.remove(name)
    out.document(entry)
    out.line(f"removed {entry.name}; the data in {entry.target} was kept")


def _print(out: Output, entry: RemoteEntry) -> None:
    out.document(entry)
    out.line(f"{entry.name} is {entry.target}")
    plain = ["a store, which can be pulled from but not pushed to"]
    out.lines(f"  {line}" for line in (plain if entry.abilities is None else entry.abilities.lines()))
