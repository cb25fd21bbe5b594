"""``ckstore config``: show and change what a store does by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ckstore.errors import BadInput
from ckstore.model.times import duration_s
from ckstore_cli._frame import Frame, framed
from ckstore_cli._retention import options_of, policy_of, rule_options

if TYPE_CHECKING:
    from ckstore.model.settings.retention import RetentionPolicy

RETENTION, MAKE_ROOM, READ_BACK, RECHECK = "retention", "make-room", "read-back", "recheck"
GRACE, SHARED, THREADS = "grace", "shared", "threads"
_SETTINGS = [RETENTION, MAKE_ROOM, READ_BACK, RECHECK, GRACE, SHARED, THREADS]
_SHARED_WORDS = {
    None: "as its filesystem is",
    True: "on: other hosts use the store",
    False: "off: only this host uses the store",
}
_GRACE_HOW = "ckstore config grace --time 2h"
_SHARED_HOW = "ckstore config shared --on"
_THREADS_HOW = "ckstore config threads --count 8"


@click.command()
@click.argument("setting", required=False, type=click.Choice(_SETTINGS))
@rule_options
@click.option(
    "--on/--off", "wanted", default=None, help="Turn a setting on or off. Give a policy by its rules instead of --on."
)
@click.option("--share", type=float, help="Share of a state to read again, from 0 to 1; 0.005 by default.")
@click.option("--auto", "unset", is_flag=True, help="For shared and threads: as the filesystem, or the machine, is.")
@click.option("--count", type=int, metavar="N", help="How many threads a save, a load or a verification uses.")
@click.option("--time", "wait", metavar="TIME", help="How long what is dropped waits: 90s, 30m, 2h, 1d; 1h by default.")
@framed
def config(  # noqa: PLR0917 - one for each option
    frame: Frame,
    setting: str | None,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: tuple[str, ...],
    keep_within: str | None,
    wanted: bool | None,  # noqa: FBT001 - click's
    share: float | None,
    wait: str | None,
    unset: bool,  # noqa: FBT001 - click's
    count: int | None,
) -> None:
    """Show what the store does by itself, or change one SETTING.

    retention: the policy that is applied to a run after each save to it; the
    space of what it drops is freed. make-room: the policy by which a save that
    does not fit may drop the oldest checkpoints. read-back: whether a save reads
    back from the disk what it wrote before it counts as durable. recheck: the
    share of reused data that a save reads again, to find bit rot. grace: how long
    what is dropped waits in trash/ on a filesystem that other hosts have, too.
    shared: whether other hosts use the store, where its filesystem does not tell.
    threads: how many a save, a load or a verification uses.
    Settings are kept in the store and apply to every process.

    \b
    Example:
      ckstore config
      ckstore config retention --keep-last 3 --keep-best loss
      ckstore config make-room --keep-last 2
      ckstore config read-back --on
      ckstore config recheck --share 0.05
      ckstore config grace --time 2h
      ckstore config shared --on
      ckstore config threads --count 8
      ckstore config retention --off

    \b
    Exit status:
      0  done
      2  wrong usage
      4  there is no such store
    """
    policy = policy_of(keep_last, keep_every, keep_best, keep_within)
    _check_shared(setting, wanted, unset=unset)
    _check_threads(setting, count, wanted, unset=unset)
    _check(setting, policy, wanted, share, wait)
    grace_s = None if wait is None else duration_s(wait, "--time")
    out = frame.output()
    with frame.reading() if setting is None else frame.writing() as store:
        if setting == RETENTION:
            store.config.retention = policy
        elif setting == MAKE_ROOM:
            store.config.make_room = policy
        elif setting == READ_BACK:
            store.config.read_back = bool(wanted)
        elif setting == RECHECK:
            store.config.recheck_share = 0 if wanted is False else share
        elif setting == GRACE:
            store.config.grace_s = 0 if wanted is False else grace_s
        elif setting == SHARED:
            store.config.shared = wanted
        elif setting == THREADS:
            store.config.threads = count
        retention, make_room, read_back = store.config.retention, store.config.make_room, store.config.read_back
        share, grace_s, shared = store.config.recheck_share, store.config.grace_s, store.config.shared
        threads = store.config.threads
    out.document(
        {
            "retention": retention,
            "make_room": make_room,
            "read_back": read_back,
            "recheck_share": share,
            "grace_s": grace_s,
            "shared": shared,
            "threads": threads,
        }
    )
    out.line(f"{RETENTION}  {options_of(retention) or 'off: every checkpoint stays until it is deleted'}")
    out.line(f"{MAKE_ROOM}  {options_of(make_room) or 'off: a save that does not fit fails'}")
    out.line(f"{READ_BACK}  {'on' if read_back else 'off'}")
    out.line(
        f"{RECHECK}  {f'--share {share:g}' if share else 'off: saves reuse what is in the store without reading it'}"
    )
    waits = f"--time {grace_s:g}s" if grace_s else "off: gc frees at once, whatever other hosts have open"
    out.line(f"{GRACE}  {waits}")
    out.line(f"{SHARED}  {_SHARED_WORDS[shared]}")
    out.line(f"{THREADS}  {threads or 'as the machine has use for'}")


def _check(
    setting: str | None,
    policy: RetentionPolicy | None,
    wanted: bool | None,  # noqa: FBT001 - click's
    share: float | None,
    wait: str | None,
) -> None:
    """Raise where the options do not belong to the setting."""
    if setting is None and any(given is not None for given in (policy, wanted, share, wait)):
        raise BadInput("no SETTING was given", hint=f"name one: {', '.join(_SETTINGS)}")
    if setting != RECHECK and share is not None:
        raise BadInput(f"{setting} has no --share", hint="ckstore config recheck --share 0.05")
    if setting != GRACE and wait is not None:
        raise BadInput(f"{setting} has no --time", hint=_GRACE_HOW)
    if setting in (RETENTION, MAKE_ROOM) and (policy is None) != (wanted is False):
        raise BadInput(f"{setting} needs rules, or --off", hint=f"ckstore config {setting} --keep-last 3, for example")
    if setting == READ_BACK and (policy is not None or wanted is None):
        raise BadInput(f"{setting} is either --on or --off", hint="ckstore config read-back --on")
    if setting == RECHECK and (policy is not None or (wanted is None) == (share is None)):
        raise BadInput(f"{setting} is --on, --off, or has a --share", hint="ckstore config recheck --share 0.05")
    if setting == GRACE and (policy is not None or (wanted is None) == (wait is None)):
        raise BadInput(f"{setting} is --on, --off, or has a --time", hint=_GRACE_HOW)
    if setting == SHARED and policy is not None:
        raise BadInput(f"{setting} has no rules", hint=_SHARED_HOW)


def _check_shared(setting: str | None, wanted: bool | None, *, unset: bool) -> None:  # noqa: FBT001 - click's
    """Raise where --auto does not belong to the setting, or is not alone."""
    if unset and setting not in (SHARED, THREADS):
        raise BadInput("only shared and threads have --auto", hint=_SHARED_HOW)
    if setting == SHARED and (wanted is None) != unset:
        raise BadInput(f"{setting} is --on, --off or --auto", hint=_SHARED_HOW)


def _check_threads(setting: str | None, count: int | None, wanted: bool | None, *, unset: bool) -> None:  # noqa: FBT001
    """Raise where --count does not belong to the setting, or is missing."""
    if count is not None and setting != THREADS:
        raise BadInput("only threads has a --count", hint=_THREADS_HOW)
    if setting == THREADS and ((count is None) != unset or wanted is not None):
        raise BadInput(f"{setting} has a --count, or is --auto", hint=_THREADS_HOW)
