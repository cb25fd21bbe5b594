"""``ckstore config``: show and change the settings of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from ckstore.errors import BadInput
from ckstore.model.sizes import exact_size, parse_size
from ckstore.model.times import duration_s
from ckstore.model.words import printable
from ckstore_cli._frame import Frame, framed
from ckstore_cli._retention import options_of, policy_of, rule_options
from ckstore_cli._types import OneOf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckstore import Store
    from ckstore.model.settings.retention import Budget

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def _number(value: float) -> str:
    """Return the shortest text of a number that gives the same value when it is entered again, without an exponent."""
    return f"{Decimal(repr(value)).normalize():f}"


def _time(seconds: float | str) -> str:
    """Return a time as a user writes it, in the largest unit of which it is a multiple."""
    if isinstance(seconds, str):  # as it was given
        return seconds
    unit, unit_s = next(one for one in _UNITS if not seconds % one[1] or one[1] == 1)
    return f"{_number(seconds / unit_s)}{unit}"


def _budget_text(budget: Budget) -> str:
    low = "" if budget.low == budget.most else f" --low-bytes {exact_size(budget.low)}"
    return f"{exact_size(budget.most)}{low}"


@dataclass(frozen=True)
class _Kind:
    """The text form of a kind of values. `read` raises ValueError if a text does not have this form."""

    wanted: str
    read: Callable[[str], object]
    text: Callable[[Any], str]


_RULES = _Kind("rules", str, options_of)
_BUDGET = _Kind("a size such as 2TB", str, _budget_text)
_TIME = _Kind("a time such as 90s, 30m, 2h or 7d", lambda text: duration_s(text, "VALUE"), _time)
_AGE = _Kind("a time such as 12h", str, _time)  # stored as it was given
_SIZE = _Kind("a size such as 100GB", parse_size, exact_size)
_SHARE = _Kind("a number", float, _number)
_COUNT = _Kind("a whole number", int, str)
_NAME = _Kind("the name of a remote", str, printable)
_SWITCH = _Kind("one of its words", str, str)


@dataclass(frozen=True)
class _Setting:
    """A setting. `words` has words for some of its values, each with the value and an explanation."""

    attribute: str
    kind: _Kind
    words: Mapping[str, tuple[object, str]] = field(default_factory=dict)

    def value_of(self, key: str, text: str) -> object:
        """Return the value of a text that a user has entered."""
        if text in self.words:
            return self.words[text][0]
        wanted = [self.kind.wanted] * (self.kind is not _SWITCH) + [*self.words]
        msg = f"{key}: wanted {', or '.join(wanted)}, got {text!r}"
        if self.kind is _SWITCH:
            raise BadInput(msg)
        if self.kind is _RULES:
            raise BadInput(msg, hint=f"ckstore config {key} --keep-last 3, for example")
        try:
            return self.kind.read(text)
        except (ValueError, BadInput) as error:
            raise BadInput(msg) from error

    def text_of(self, value: object) -> str:
        """Return a value in a form that can be entered again. A word is followed by its explanation."""
        for word, (stands_for, means) in self.words.items():
            if value == stands_for and isinstance(value, bool) is isinstance(stands_for, bool):
                return f"{word}: {means}" if means else word
        return self.kind.text(value)


SETTINGS = {
    "retention": _Setting("retention", _RULES, {"off": (None, "checkpoints are kept until they are deleted")}),
    "budget": _Setting("budget", _BUDGET, {"off": (None, "checkpoints may fill the disk")}),
    "make-room": _Setting("make_room", _RULES, {"off": (None, "a save that does not fit fails")}),
    "read-back": _Setting("read_back", _SWITCH, {"on": (True, ""), "off": (False, "")}),
    "recheck-share": _Setting("recheck_share", _SHARE, {"off": (0, "saves do not read the blobs that they reuse")}),
    "save-retries": _Setting("save_retries", _COUNT, {"off": (0, "a failed save is not retried")}),
    "wait-for-space": _Setting("wait_for_space_s", _TIME, {"off": (0, "a save fails at once on a full disk")}),
    "on-failed-save": _Setting(
        "on_failed_save",
        _SWITCH,
        {
            "raise": ("raise", "a failed save ends the training"),
            "warn": ("warn", "the training continues, up to failed-saves-most"),
        },
    ),
    "failed-saves-most": _Setting("failed_saves_most", _COUNT),
    "health-share": _Setting("health_share", _SHARE, {"off": (0, "no checkpoint is marked as unhealthy")}),
    "undo-by-hand": _Setting("undo_by_hand_s", _TIME, {"off": (0, "deleted checkpoints are freed at once")}),
    "undo-by-rule": _Setting(
        "undo_by_rule_s", _TIME, {"off": (0, "checkpoints that rules drop or saves replace are freed at once")}
    ),
    "grace": _Setting("grace_s", _TIME, {"off": (0, "gc frees at once, even data that other hosts have open")}),
    "evaluation-patience": _Setting(
        "evaluation_patience_s", _TIME, {"off": (0, "rules also drop checkpoints that are being evaluated")}
    ),
    "shared": _Setting(
        "shared",
        _SWITCH,
        {
            "auto": (None, "detected from the filesystem"),
            "on": (True, "other hosts use the store"),
            "off": (False, "only this host uses the store"),
        },
    ),
    "threads": _Setting("threads", _COUNT, {"auto": (None, "default for the machine")}),
    "mirror": _Setting("mirror", _NAME, {"off": (None, "checkpoints are not copied to a remote")}),
    "mirror-age": _Setting("mirror_age_s", _TIME),
    "mirror-rate": _Setting("mirror_bytes_s", _SIZE, {"off": (None, "no limit")}),
    "mirror-keep": _Setting("mirror_keep", _COUNT),
    "keep-local": _Setting("keep_local", _RULES, {"off": (None, "all data remains local")}),
    "keep-remote": _Setting("keep_remote", _RULES, {"off": (None, "the mirror keeps all checkpoints")}),
    "cache": _Setting(
        "cache_bytes", _SIZE, {"auto": (None, "a tenth of the disk"), "off": (0, "downloaded data is not kept")}
    ),
    "push-deltas": _Setting("push_deltas", _SWITCH, {"on": (True, ""), "off": (False, "")}),
    "compact-after": _Setting("compact_after", _AGE, {"off": (None, "only ckstore compact compacts")}),
    "compact-share": _Setting("compact_share", _SHARE),
    "compact-keep": _Setting("compact_keep", _COUNT),
}
"""The settings by their keys. A key is the name of the attribute of `ckstore.StoreConfig` without its unit."""

_RUNS = "retention_by_run"


@click.command()
@click.argument("key", required=False, metavar="[KEY]", type=OneOf([*SETTINGS]))
@click.argument("value", required=False, metavar="[VALUE]")
@rule_options
@click.option("--run", metavar="RUN", help="For retention: the policy of this run, or of the runs that match a glob.")
@click.option("--unset", is_flag=True, help="Restore the default of KEY.")
@framed
def config(frame: Frame, /, key: str | None, value: str | None, run: str | None, *, unset: bool, **rules: Any) -> None:
    """Show all settings of the store, show the setting KEY, or set it to VALUE.

    Settings are saved in the store and apply to every process. A running training
    reads on-failed-save, failed-saves-most and threads only when it opens the store.
    A policy has rules instead of a VALUE. A TIME is 90s, 30m, 2h or 7d, for example.

    \b
    The settings are
      retention RULES      the checkpoints of each run to keep. After a save, the other
                           checkpoints of its run are dropped and freed (with --run,
                           for one run or for the runs that match a glob)
      budget SIZE          maximum size of all checkpoints. Above it, a save drops the
                           oldest until --low-bytes are left
      make-room RULES      the checkpoints that a save must keep when it drops the
                           oldest because it does not fit
      read-back on         whether a save reads its data back from the disk before it
                           counts as durable
      recheck-share SHARE  share of a state that a save reads again from reused blobs,
                           to find bit rot
      save-retries N       number of retries when the storage fails
      wait-for-space TIME  how long a save waits on a full disk
      on-failed-save warn  whether a training continues if the storage fails
      failed-saves-most N  for how many saves in a row it continues
      health-share SHARE   share of new data that a save checks for NaN and infinite
                           values
      undo-by-hand TIME    how long ckstore undo can restore deleted checkpoints
      undo-by-rule TIME    the same, for checkpoints that rules drop or saves replace
      grace TIME           how long dropped data is kept if other hosts use the
                           filesystem
      evaluation-patience TIME
                           how long rules wait for a checkpoint that is being evaluated
      shared on            whether other hosts use the store (auto detects it from the
                           filesystem)
      threads N            number of threads of a save, a load or a verification
      mirror NAME          the remote to which every durable checkpoint is copied
      mirror-age TIME      how long a checkpoint may be missing on the mirror before
                           ckstore doctor warns
      mirror-rate SIZE     maximum upload rate per second
      mirror-keep N        for each run, how many of the checkpoints that the mirror
                           lacks are kept
      keep-local RULES     the checkpoints whose data remains local once the mirror has
                           it
      keep-remote RULES    the checkpoints that the mirror keeps
      cache SIZE           maximum size of downloaded data that is kept locally
      push-deltas on       whether pushes to object storage send differences to earlier
                           checkpoints
      compact-after TIME   age at which checkpoints are compacted in the background
      compact-share SHARE  share of one processor that background compaction may use
      compact-keep N       how many of the newest checkpoints of each run stay plain

    \b
    Example:
      ckstore config
      ckstore config retention
      ckstore config retention --keep-last 3 --keep-best loss
      ckstore config retention --run 'sweep-*' --keep-last 1
      ckstore config retention off
      ckstore config budget 2TB --low-bytes 1.8TB
      ckstore config undo-by-hand 7d
      ckstore config read-back on
      ckstore config threads 8
      ckstore config mirror cold
      ckstore config --unset threads

    \b
    Exit status:
      0  done
      2  wrong usage
      4  no such store
    """
    given = {name for name, rule in rules.items() if rule not in (None, ())}
    if key is None:
        if given or run is not None or unset:
            raise BadInput("no KEY was given", hint="ckstore config --help lists the keys")
        changes = None
    else:
        changes = _change(key, value, given, run, rules, unset=unset)
    out = frame.output()
    with frame.reading() if changes is None else frame.writing() as store:
        if changes is not None and key is not None:
            _set(store, key, run, changes[0])
        found = {one.attribute: getattr(store.config, one.attribute) for one in SETTINGS.values()}
        found[_RUNS] = store.config.retention_by_run
    shown = SETTINGS if key is None else {key: SETTINGS[key]}
    attributes = [one.attribute for one in shown.values()] + [_RUNS] * ("retention" in shown)
    out.document({name: found[name] for name in attributes})
    out.lines(f"{name}  {text}" for name, text in _lines(shown, found))
    if changes is not None and key in ("retention", "budget") and changes[0] is not None:
        out.note(
            "applied after each save from now on; to apply it at once, run ckstore prune (--dry-run shows the result)"
        )


def _change(
    key: str, value: str | None, given: set[str], run: str | None, rules: Mapping[str, Any], *, unset: bool
) -> tuple[object] | None:
    """Return the new value of a setting in a tuple, or None if the setting is only shown."""
    setting = SETTINGS[key]
    if run is not None and key != "retention":
        raise BadInput("only retention has a --run", hint="ckstore config retention --run 'sweep-*' --keep-last 3")
    if [value is not None, setting.kind is _RULES and bool(given), unset].count(True) > 1:
        raise BadInput(f"{key}: give either a value, rules or --unset")
    if unset:
        return (None,)
    if setting.kind is _BUDGET and value is not None and value not in setting.words:
        if given - {"low_bytes"}:
            raise BadInput("budget has no rules but --low-bytes", hint="ckstore config budget 2TB --low-bytes 1.8TB")
        from ckstore.model.settings.retention import Budget

        return (Budget(value, rules["low_bytes"]),)
    if setting.kind is _RULES and given:
        return (policy_of(rules),)
    if given:
        raise BadInput(
            f"{key} has no rules", hint=f"ckstore config {key} VALUE; ckstore config --help lists the values"
        )
    if value is not None:
        return (setting.value_of(key, value),)
    if run is not None:
        raise BadInput(f"the rules of the run {printable(run)} are missing", hint="give rules, off or --unset")
    return None


def _set(store: Store, key: str, run: str | None, value: Any) -> None:
    from ckstore.ops.config import set_run_policy

    if run is None:
        setattr(store.config, SETTINGS[key].attribute, value)
        return
    set_run_policy(store.config, run, value)


def _lines(shown: Mapping[str, _Setting], found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each setting with its value. Retention is repeated for each run or glob with its own rules."""
    for key, setting in shown.items():
        yield key, setting.text_of(found[setting.attribute])
        if key == "retention":
            for glob, own in found[_RUNS].items():
                yield key, f"--run {printable(glob)} {options_of(own)}"
