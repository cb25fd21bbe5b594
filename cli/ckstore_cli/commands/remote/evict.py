"""``ckstore evict``: let go of local bytes that a remote has."""

from __future__ import annotations

import click

from ckstore.model.reports.evict_report import details, summary
from ckstore_cli._frame import Frame, json_option, pass_frame, store_option
from ckstore_cli._refs import complete_ref, complete_run


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1, shell_complete=complete_ref)
@click.option("--all", "all_of_them", is_flag=True, help="Every checkpoint.")
@click.option("--tagged", is_flag=True, help="Every checkpoint that has a tag.")
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="Every checkpoint of this run.")
@click.option("--rule", is_flag=True, help="Those that ckstore config keep-local does not keep here.")
@click.option("--remote", metavar="NAME", help="A remote, or the directory of a store. Default: the only remote.")
@click.option("--dry-run", is_flag=True, help="Only say what would be let go.")
@store_option
@json_option
@pass_frame
def evict(  # noqa: PLR0917 - one for each option
    frame: Frame,
    refs: tuple[str, ...],
    all_of_them: bool,  # noqa: FBT001 - click's
    tagged: bool,  # noqa: FBT001 - click's
    run: str | None,
    rule: bool,  # noqa: FBT001 - click's
    remote: str | None,
    dry_run: bool,  # noqa: FBT001 - click's
) -> None:
    """Let go of the local bytes of the checkpoints REF, which a remote has.

    They stay listed, and what reads them fetches what it needs. Before anything
    goes, every blob is compared at the remote. What is not there, or is open,
    keeps its bytes. ckstore pull brings them back.

    \b
    Example:
      ckstore evict main@1000 main@2000
      ckstore evict --run sweep-7 --remote cold --dry-run
      ckstore evict --rule --dry-run

    \b
    Exit status:
      0  done, also when some keep their bytes
      1  the remote does not answer
      2  wrong usage
      4  there is no such store, checkpoint or remote
    """
    out = frame.output()
    with frame.reading() if dry_run else frame.writing() as store:
        report = store.evict(refs or None, remote, run=run, all=all_of_them, tagged=tagged, rule=rule, dry_run=dry_run)
    out.document(report)
    for line in (*details(report), summary(report)):
        out.line(line)
