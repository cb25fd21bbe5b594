"""``ckstore config``: show and change the settings of a store."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from ckstore.errors import BadInput
from ckstore.model.sizes import exact_size, parse_size
from ckstore.model.times import duration_s
from ckstore.model.words import printable
from ckstore_cli._frame import Frame, framed
from ckstore_cli._retention import options_of, policy_of, rule_options
from ckstore_cli._types import Number, OneOf, WholeNumber

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckstore.model.settings.retention import Budget, RetentionPolicy

RETENTION, MAKE_ROOM, READ_BACK, RECHECK, HEALTH = "retention", "make-room", "read-back", "recheck", "health"
GRACE, SHARED, THREADS, BUDGET, UNDO, MIRROR = "grace", "shared", "threads", "budget", "undo", "mirror"
EVALUATION = "evaluation"
RETRY, FAILURES = "retry", "failures"
KEEP_LOCAL, KEEP_REMOTE, CACHE, DELTAS, COMPACT = "keep-local", "keep-remote", "cache", "push-deltas", "compact"
_ATTRIBUTES = {
    RETENTION: "retention",
    BUDGET: "budget",
    MAKE_ROOM: "make_room",
    READ_BACK: "read_back",
    RECHECK: "recheck_share",
    RETRY: "save_retries",
    FAILURES: "on_failed_save",
    HEALTH: "health_share",
    UNDO: "undo_by_hand_s",
    GRACE: "grace_s",
    EVALUATION: "evaluation_patience_s",
    SHARED: "shared",
    THREADS: "threads",
    MIRROR: "mirror",
    KEEP_LOCAL: "keep_local",
    KEEP_REMOTE: "keep_remote",
    CACHE: "cache_bytes",
    COMPACT: "compact_after",
    DELTAS: "push_deltas",
}
_SETTINGS = [*_ATTRIBUTES]
_SHARES = (RECHECK, HEALTH)
_POLICIES = (RETENTION, MAKE_ROOM, KEEP_LOCAL, KEEP_REMOTE)
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_MORE = {
    UNDO: ("undo_by_rule_s",),
    MIRROR: ("mirror_age_s", "mirror_bytes_s", "mirror_keep"),
    COMPACT: ("compact_share", "compact_keep"),
    RETENTION: ("retention_by_run",),
    RETRY: ("wait_for_space_s",),
    FAILURES: ("failed_saves_most",),
}
"""Further attributes of a setting."""
_COMPACT_HOW = "ckstore config compact --time 12h --share 0.1 --count 3"
_RETRY_HOW = "ckstore config retry --count 5 --time 10m"
_FAILURES_HOW = "ckstore config failures --on --count 3"
_MIRROR_HOW = "ckstore config mirror NAME --time 10m --bwlimit 200MB --count 3"
_HOW = {MIRROR: _MIRROR_HOW, COMPACT: _COMPACT_HOW, RETRY: _RETRY_HOW, FAILURES: _FAILURES_HOW}
_SHARED_WORDS = {
    None: "detected from the filesystem",
    True: "on: other hosts use the store",
    False: "off: only this host uses the store",
}
_GRACE_HOW = "ckstore config grace --time 2h"
# Rules drop checkpoints at each save, and these take space. A user may notice a mistake only on the next day.
_BY_HAND_S, _BY_RULE_S = 86400.0, 3600.0
_BUDGET_HOW = "ckstore config budget --max-bytes 2TB --low-bytes 1.8TB"
_CACHE_HOW = "ckstore config cache --max-bytes 100GB"
_SHARED_HOW = "ckstore config shared --on"
_THREADS_HOW = "ckstore config threads --count 8"


@click.command()
@click.argument("setting", required=False, metavar="[SETTING]", type=OneOf(_SETTINGS))
@click.argument("name", required=False)
@rule_options
@click.option(
    "--run", metavar="RUN", help="For retention: set the policy of this run, or of the runs that match a glob."
)
@click.option(
    "--on/--off", "wanted", default=None, help="Turn a setting on or off. Instead of --on, a policy needs rules."
)
@click.option(
    "--share",
    metavar="SHARE",
    type=Number(min=0),
    help="Share from 0 to 1 of a state (recheck), of new data (health) or of one processor (compact).",
)
@click.option(
    "--auto",
    "unset",
    is_flag=True,
    help="For shared, threads and cache: use the default for the filesystem or the machine.",
)
@click.option(
    "--count",
    type=WholeNumber(min=0),
    metavar="N",
    help="Number of threads (threads), checkpoints of each run to keep (mirror, compact), retries (retry) or failures "
    "in a row (failures).",
)
@click.option(
    "--time",
    "wait",
    metavar="TIME",
    help="A time such as 30m, 2h or 1d. For undo and grace, how long dropped data is kept. For evaluation, how long an "
    "evaluator protects its checkpoint. For mirror, how long a checkpoint may be missing on the mirror before ckstore "
    "doctor warns. For compact, the minimum age. For retry, how long a save waits on a full disk.",
)
@click.option("--bwlimit", metavar="SIZE", help="For mirror: the maximum upload rate per second, such as 200MB.")
@framed
def config(  # noqa: PLR0917 - one for each option
    frame: Frame,
    /,
    setting: str | None,
    name: str | None,
    run: str | None,
    wanted: bool | None,  # noqa: FBT001 - click's
    share: float | None,
    wait: str | None,
    bwlimit: str | None,
    unset: bool,  # noqa: FBT001 - click's
    count: int | None,
    **rules: Any,
) -> None:
    """Show all settings of the store, or show or change one SETTING.

    Settings are saved in the store and apply to every process.

    \b
    The settings are
      retention    rules that are applied to a run after each save to it, and that
                   drop and free its other checkpoints (with --run, rules of one run
                   or of the runs that match a glob)
      budget       maximum size of all checkpoints, above which a save drops the
                   oldest
      make-room    rules for the checkpoints that a save must keep when it drops the
                   oldest because it does not fit
      read-back    whether a save reads its data back from the disk before it counts
                   as durable
      recheck      share of a state that a save reads again from reused blobs, to find
                   bit rot
      retry        number of retries when the storage fails, and waiting time on a
                   full disk
      failures     whether a training continues when the storage fails a save, and for
                   how many saves in a row
      health       share of new data that a save checks for NaN and infinite values
      undo         how long ckstore undo can restore deleted checkpoints, which is a
                   day by default (--on also keeps checkpoints that rules drop or
                   saves replace, for an hour)
      grace        how long dropped data is kept if other hosts use the filesystem
      evaluation   how long rules wait for a checkpoint that is being evaluated
      shared       whether other hosts use the store (by default detected from the
                   filesystem)
      threads      number of threads of a save, a load or a verification
      mirror       the remote NAME to which every durable checkpoint is copied
      keep-local   rules for the checkpoints whose data remains local once the mirror
                   has it
      keep-remote  rules for the checkpoints that the mirror keeps
      cache        maximum size of downloaded data that is kept locally
      push-deltas  whether pushes to object storage send differences to earlier
                   checkpoints
      compact      age at which checkpoints are compacted in the background

    \b
    Example:
      ckstore config
      ckstore config retention
      ckstore config retention --keep-last 3 --keep-best loss
      ckstore config retention --run 'sweep-*' --keep-last 1
      ckstore config budget --max-bytes 2TB --low-bytes 1.8TB
      ckstore config make-room --keep-last 2
      ckstore config read-back --on
      ckstore config recheck --share 0.05
      ckstore config retry --count 5 --time 10m
      ckstore config failures --on --count 3
      ckstore config undo --time 7d
      ckstore config grace --time 2h
      ckstore config shared --on
      ckstore config threads --count 8
      ckstore config mirror cold --time 10m --bwlimit 200MB
      ckstore config keep-local --keep-last 3
      ckstore config keep-remote --keep-last 50 --keep-every 10000
      ckstore config cache --max-bytes 100GB
      ckstore config compact --time 12h --share 0.1 --count 3
      ckstore config push-deltas --on
      ckstore config retention --off

    \b
    Exit status:
      0  done
      2  wrong usage
      4  no such store
    """
    shown = setting
    given = (name, run, wanted, share, wait, bwlimit, count, *rules.values())
    if not unset and all(one in (None, ()) for one in given):
        setting = None  # nothing is changed, and the setting is shown
    more = (
        _mirror_of(setting, name, wanted, wait, bwlimit, count)
        or _compact_of(setting, wanted, wait, share, count)
        or _retry_of(setting, wanted, wait, count)
        or _failures_of(setting, wanted, count)
    )
    if more is not None:
        wanted = wait = count = None
        share = None if setting == COMPACT else share
    budget = _budget_of(setting, rules)
    policy = None if budget is not None else policy_of(rules)
    if run is not None and setting != RETENTION:
        raise BadInput("only retention has a --run", hint="ckstore config retention --run 'sweep-*' --keep-last 3")
    _check_shared(setting, wanted, unset=unset)
    _check_threads(setting, count, wanted, unset=unset)
    _check(setting, policy, wanted, share, wait)
    if setting == BUDGET and (budget is None) != (wanted is False):
        raise BadInput(f"{BUDGET} needs --max-bytes, or --off", hint=_BUDGET_HOW)
    if setting == CACHE and [budget is not None, wanted is False, unset].count(True) != 1:
        raise BadInput(f"{CACHE} needs --max-bytes, --auto or --off", hint=_CACHE_HOW)
    grace_s = None if wait is None else duration_s(wait, "--time")
    undo_s = (_BY_HAND_S if wanted else 0) if wait is None else grace_s
    out = frame.output()
    with frame.reading() if setting is None else frame.writing() as store:
        if setting == RETENTION and run is not None:
            others = {glob: own for glob, own in store.config.retention_by_run.items() if glob != run}
            store.config.retention_by_run = others if policy is None else {**others, run: policy}
        elif more is not None:
            for attribute, value in more.items():
                setattr(store.config, attribute, value)
        elif setting is not None:
            values: dict[str, object] = {
                RETENTION: policy,
                BUDGET: budget,
                MAKE_ROOM: policy,
                KEEP_LOCAL: policy,
                KEEP_REMOTE: policy,
                CACHE: 0 if wanted is False else None if budget is None else budget.most,
                READ_BACK: bool(wanted),
                DELTAS: bool(wanted),
                RECHECK: 0 if wanted is False else share,
                HEALTH: 0 if wanted is False else share,
                UNDO: undo_s,
                GRACE: 0 if wanted is False else grace_s,
                EVALUATION: 0 if wanted is False else grace_s,
                SHARED: wanted,
                THREADS: count,
            }
            setattr(store.config, _ATTRIBUTES[setting], values[setting])
        if setting == UNDO:
            store.config.undo_by_rule_s = None if undo_s is None else min(undo_s, _BY_RULE_S)
        found = {name: getattr(store.config, name) for name in chain(_ATTRIBUTES.values(), *_MORE.values())}
    own = found if shown is None else (_ATTRIBUTES[shown], *_MORE.get(shown, ()))
    out.document({name: found[name] for name in own})
    out.lines(f"{name}  {words}" for name, words in _words(found) if shown in (None, name))
    if setting in (RETENTION, BUDGET) and wanted is None:
        out.note(
            "applied after each save from now on; to apply it at once, run ckstore prune (--dry-run shows the result)"
        )


def _words(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each setting with its value. Retention is repeated for each run or glob with its own rules."""
    share, health, grace_s = found["recheck_share"], found["health_share"], found["grace_s"]
    yield RETENTION, options_of(found["retention"]) or "off: checkpoints are kept until they are deleted"
    for glob, own in found["retention_by_run"].items():
        yield RETENTION, f"--run {printable(glob)} {options_of(own)}"
    yield BUDGET, _budget_words(found["budget"])
    yield MAKE_ROOM, options_of(found["make_room"]) or "off: a save that does not fit fails"
    yield READ_BACK, "on" if found["read_back"] else "off"
    yield RECHECK, f"--share {share:g}" if share else "off: saves do not read the blobs that they reuse"
    yield RETRY, _retry_words(found)
    yield FAILURES, _failures_words(found)
    yield HEALTH, f"--share {health:g}" if health else "off: no checkpoint is marked as unhealthy"
    by_rule = _time(found["undo_by_rule_s"]) if found["undo_by_rule_s"] else "not"
    undo = f"--time {_time(found['undo_by_hand_s'])}, but {by_rule} for checkpoints that rules drop"
    yield UNDO, undo if found["undo_by_hand_s"] else "off: dropped checkpoints are freed at once"
    yield (
        GRACE,
        f"--time {_time(grace_s)}" if grace_s else "off: gc frees at once, even data that other hosts have open",
    )
    patience_s = found["evaluation_patience_s"]
    yield (
        EVALUATION,
        f"--time {_time(patience_s)}" if patience_s else "off: rules also drop checkpoints that are being evaluated",
    )
    yield SHARED, _SHARED_WORDS[found["shared"]]
    yield THREADS, str(found["threads"] or "default for the machine")
    yield MIRROR, _mirror_words(found)
    yield KEEP_LOCAL, options_of(found["keep_local"]) or "off: all data remains local"
    yield KEEP_REMOTE, options_of(found["keep_remote"]) or "off: the mirror keeps all checkpoints"
    yield CACHE, _cache_words(found["cache_bytes"])
    yield DELTAS, "on" if found["push_deltas"] else "off"
    yield COMPACT, _compact_words(found)


def _check(
    setting: str | None,
    policy: RetentionPolicy | None,
    wanted: bool | None,  # noqa: FBT001 - click's
    share: float | None,
    wait: str | None,
) -> None:
    """Raise if the options do not fit the setting."""
    if setting in _HOW:
        if policy is not None or share is not None:
            raise BadInput(f"{setting} has no rules" + " and no --share" * (setting != COMPACT), hint=_HOW[setting])
        return
    if setting is None and any(given is not None for given in (policy, wanted, share, wait)):
        raise BadInput("no SETTING was given", hint=f"name one of {', '.join(_SETTINGS)}")
    if setting not in _SHARES and share is not None:
        raise BadInput(f"{setting} has no --share", hint="ckstore config recheck --share 0.05")
    if setting not in (GRACE, EVALUATION, UNDO) and wait is not None:
        raise BadInput(f"{setting} has no --time", hint=_GRACE_HOW)
    if setting in _POLICIES and (policy is None) != (wanted is False):
        raise BadInput(f"{setting} needs rules, or --off", hint=f"ckstore config {setting} --keep-last 3, for example")
    if setting in (READ_BACK, DELTAS) and (policy is not None or wanted is None):
        raise BadInput(f"{setting} needs either --on or --off", hint=f"ckstore config {setting} --on")
    if setting in _SHARES and (policy is not None or (wanted is None) == (share is None)):
        raise BadInput(f"{setting} needs --on, --off or --share", hint=f"ckstore config {setting} --share 0.05")
    if setting in (GRACE, EVALUATION, UNDO) and (policy is not None or (wanted is None) == (wait is None)):
        raise BadInput(f"{setting} needs --on, --off or --time", hint=f"ckstore config {setting} --time 2h")
    if setting == SHARED and policy is not None:
        raise BadInput(f"{setting} has no rules", hint=_SHARED_HOW)


def _mirror_of(  # noqa: PLR0917
    setting: str | None,
    name: str | None,
    wanted: bool | None,  # noqa: FBT001 - click's
    wait: str | None,
    bwlimit: str | None,
    count: int | None,
) -> dict[str, object] | None:
    """Return the new values of the mirror settings, or None if `setting` is another one."""
    if setting != MIRROR:
        if name is not None or bwlimit is not None:
            raise BadInput("only mirror has a NAME and --bwlimit", hint=_MIRROR_HOW)
        return None
    given = _given(
        mirror=name,
        mirror_age_s=None if wait is None else duration_s(wait, "--time"),
        mirror_bytes_s=None if bwlimit is None else parse_size(bwlimit),
        mirror_keep=count,
    )
    if wanted or bool(given) == (wanted is False):
        raise BadInput(f"{MIRROR} needs the NAME of a remote, options, or --off", hint=_MIRROR_HOW)
    return given or {"mirror": None}


def _compact_of(
    setting: str | None,
    wanted: bool | None,  # noqa: FBT001 - click's
    wait: str | None,
    share: float | None,
    count: int | None,
) -> dict[str, object] | None:
    """Return the new values of the compaction settings, or None if `setting` is another one."""
    if setting != COMPACT:
        return None
    given = _given(compact_after=wait, compact_share=share, compact_keep=count)
    if wanted or bool(given) == (wanted is False):
        raise BadInput(f"{COMPACT} needs options, or --off", hint=_COMPACT_HOW)
    return given or {"compact_after": None}


def _retry_of(
    setting: str | None,
    wanted: bool | None,  # noqa: FBT001 - click's
    wait: str | None,
    count: int | None,
) -> dict[str, object] | None:
    """Return the new values of the retry settings, or None if `setting` is another one."""
    if setting != RETRY:
        return None
    given = _given(save_retries=count, wait_for_space_s=None if wait is None else duration_s(wait, "--time"))
    if wanted or bool(given) == (wanted is False):
        raise BadInput(f"{RETRY} needs --count, --time or --off", hint=_RETRY_HOW)
    return given or {"save_retries": 0, "wait_for_space_s": 0}


def _failures_of(
    setting: str | None,
    wanted: bool | None,  # noqa: FBT001 - click's
    count: int | None,
) -> dict[str, object] | None:
    """Return the new values of the settings for failed saves, or None if `setting` is another one."""
    if setting != FAILURES:
        return None
    if wanted is None or (count is not None and not wanted):
        raise BadInput(f"{FAILURES} needs --on, optionally with --count, or --off", hint=_FAILURES_HOW)
    # The number is set first, so that an invalid one changes nothing.
    return {**_given(failed_saves_most=count), "on_failed_save": "warn" if wanted else "raise"}


def _given(**values: object) -> dict[str, object]:
    return {attribute: value for attribute, value in values.items() if value is not None}


def _time(seconds: float) -> str:
    """Return a time as a user writes it, in the largest unit of which it is a multiple."""
    unit, unit_s = next(one for one in _UNITS if not seconds % one[1] or one[1] == 1)
    # With 15 digits, since :g rounds to six, and the text must give the same value when it is entered again.
    return f"{seconds / unit_s:.15g}{unit}"


def _mirror_words(found: Mapping[str, Any]) -> str:
    if found["mirror"] is None:
        return "off: checkpoints are not copied to a remote"
    limit = "" if found["mirror_bytes_s"] is None else f" --bwlimit {exact_size(found['mirror_bytes_s'])}"
    name = printable(found["mirror"])
    return f"{name} --time {_time(found['mirror_age_s'])} --count {found['mirror_keep']}{limit}"


def _compact_words(found: Mapping[str, Any]) -> str:
    after = found["compact_after"]
    if after is None:
        return "off: only ckstore compact compacts"
    age = after if isinstance(after, str) else _time(after)
    return f"--time {age} --share {found['compact_share']:g} --count {found['compact_keep']}"


def _retry_words(found: Mapping[str, Any]) -> str:
    count, wait_s = found["save_retries"], found["wait_for_space_s"]
    if not count and not wait_s:
        return "off: a failed save is not retried"
    return f"--count {count}" + (f" --time {_time(wait_s)}" if wait_s else "")


def _failures_words(found: Mapping[str, Any]) -> str:
    if found["on_failed_save"] == "warn":
        return f"on --count {found['failed_saves_most']}"
    return "off: a failed save ends the training"


def _budget_of(setting: str | None, rules: Mapping[str, Any]) -> Budget | None:
    """Return the budget that --max-bytes and --low-bytes specify for the setting, or None if they do not."""
    if setting not in (BUDGET, CACHE) or rules["max_bytes"] is None:
        return None
    from ckstore.model.settings.retention import Budget

    if any(value not in (None, ()) for name, value in rules.items() if not name.endswith("_bytes")):
        raise BadInput(f"{setting} accepts only --max-bytes and --low-bytes", hint=_BUDGET_HOW)
    return Budget(rules["max_bytes"], rules["low_bytes"])


def _budget_words(budget: Budget | None) -> str:
    if budget is None:
        return "off: checkpoints may fill the disk"
    low = "" if budget.low == budget.most else f" --low-bytes {exact_size(budget.low)}"
    return f"--max-bytes {exact_size(budget.most)}{low}"


def _cache_words(cache_bytes: int | None) -> str:
    if cache_bytes is None:
        return "a tenth of the disk"
    return f"--max-bytes {exact_size(cache_bytes)}" if cache_bytes else "off: downloaded data is not kept"


def _check_shared(setting: str | None, wanted: bool | None, *, unset: bool) -> None:  # noqa: FBT001 - click's
    """Raise if --auto does not fit the setting or is combined with another option."""
    if unset and setting not in (SHARED, THREADS, CACHE):
        raise BadInput("only shared, threads and cache have --auto", hint=_SHARED_HOW)
    if setting == SHARED and (wanted is None) != unset:
        raise BadInput(f"{setting} needs --on, --off or --auto", hint=_SHARED_HOW)


def _check_threads(setting: str | None, count: int | None, wanted: bool | None, *, unset: bool) -> None:  # noqa: FBT001
    """Raise if --count does not fit the setting or is missing."""
    if count is not None and setting != THREADS:
        raise BadInput("only threads has a --count", hint=_THREADS_HOW)
    if setting == THREADS and ((count is None) != unset or wanted is not None):
        raise BadInput(f"{setting} needs --count or --auto", hint=_THREADS_HOW)
