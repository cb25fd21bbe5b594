"""The acts during which the power is cut: those of `tests.faults`, and what changes only what is said of a state."""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError, NoSuchRef
from tests.faults.journal import Journal
from tests.faults.scenarios import RUN, SCENARIOS, Scenario, save
from tests.faults.states import CHUNK_BYTES
from tests.support.plans import plan_of

_STATES = ("first", "second", "other", "small-0", "small-1", "small-sparse")
_HISTORY_ACTS = 14


def _saved(*names: str) -> Callable[[Path, Journal], None]:
    def prepare(path: Path, journal: Journal) -> None:
        with Store.init(path, chunk_bytes=CHUNK_BYTES) as store:
            journal.store_made()
            for step, name in enumerate(names, 1):
                save(store, journal, step, name)

    return prepare


def _open(path: Path, journal: Journal) -> Store:
    return Store.open(path)


def _tag(store: Store, journal: Journal, name: str, step: int) -> None:
    journal.begin(("tag", name), f"{RUN}@{step}")
    store.tag(name, f"{RUN}@{step}")
    journal.done(("tag", name), f"{RUN}@{step}")


def _untag(store: Store, journal: Journal, name: str) -> None:
    journal.begin(("tag", name), None)
    with suppress(NoSuchRef):  # an attempt may have failed after that
        store.untag(name)
    journal.done(("tag", name), None)


def _pin(store: Store, journal: Journal, step: int, reason: str) -> None:
    place = f"{RUN}@{step}"
    journal.begin(("pin", place), reason)
    if not any((pin.run, pin.step) == (RUN, step) for pin in store.pins()):  # as above
        store.pin(place, reason)
    journal.done(("pin", place), reason)


def _unpin(store: Store, journal: Journal, step: int) -> None:
    place = f"{RUN}@{step}"
    journal.begin(("pin", place), None)
    with suppress(NoSuchRef):
        store.unpin(place)
    journal.done(("pin", place), None)


def _annotate(store: Store, journal: Journal, step: int, metric: str, value: float) -> None:
    fact = ("metric", f"{RUN}@{step} {metric}")
    journal.begin(fact, repr(value))
    store.annotate(f"{RUN}@{step}", {metric: value})
    journal.done(fact, repr(value))


def _keep(store: Store, journal: Journal, policy: RetentionPolicy) -> None:
    text = json.dumps(policy.to_json(), sort_keys=True)
    journal.begin(("retention", "policy"), text)
    store.config.retention = policy
    journal.done(("retention", "policy"), text)


def _prune(store: Store, journal: Journal, policy: RetentionPolicy) -> None:
    plan = plan_of(store, policy)
    for entry in plan.dropped:
        journal.begin((entry.info.run, entry.info.step), None)
    report = store.prune(policy)
    for info in report.dropped:
        journal.done((info.run, info.step), None)
    if report.retention is not None and report.retention.refused:  # the disk failed after the first drop
        raise CkstoreError(f"prune could not drop all: {report}") from report.retention.refused[0]
    if len(report.dropped) != len(plan.dropped):
        raise RuntimeError(f"no other process is there, and yet not all was dropped: {report}")


def _delete(store: Store, journal: Journal, step: int) -> None:
    journal.begin((RUN, step), None)
    store.delete(f"{RUN}@{step}")
    journal.done((RUN, step), None)


def _tagging(store: Store, journal: Journal) -> None:
    _tag(store, journal, "best", 1)
    _tag(store, journal, "best", 2)
    _untag(store, journal, "best")


def _pinning(store: Store, journal: Journal) -> None:
    _pin(store, journal, 1, "the paper's figure 3")
    _unpin(store, journal, 1)


def _annotating(store: Store, journal: Journal) -> None:
    _annotate(store, journal, 1, "loss", 0.5)
    _annotate(store, journal, 1, "accuracy", 0.75)


def _choosing(store: Store, journal: Journal) -> None:
    _keep(store, journal, RetentionPolicy(keep_last=50))
    _keep(store, journal, RetentionPolicy(keep_last=60, keep_every=5))


def _pruning(store: Store, journal: Journal) -> None:
    _prune(store, journal, RetentionPolicy(keep_last=2))


def _compacted(path: Path, journal: Journal) -> None:
    """A store of which three checkpoints are encoded against the newest, and one more was saved."""
    names = ("first", "second", "small-0", "small-1")
    _saved(*names, "second")(path, journal)
    with Store.open(path) as store:
        store.compact(keep_newest=1)
        save(store, journal, len(names) + 2, "first")


def _compacting_again(store: Store, journal: Journal) -> None:
    """Encode what others are decoded with: each of them gets a new directory."""
    store.compact(keep_newest=1)


def _dropping_a_base(store: Store, journal: Journal) -> None:
    _delete(store, journal, 5)
    store.gc()
    store.compact(keep_newest=1)


def history(seed: int) -> Scenario:
    """Return a scenario of many acts of all kinds, drawn from a seed: the longest log, with the most to lose."""

    def act(store: Store, journal: Journal) -> None:
        drawn = random.Random(seed)
        for number in range(_HISTORY_ACTS):
            steps = [info.step for info in store.checkpoints(RUN)]
            kind = drawn.choice(("save", "save", "save", "replace", "delete", "tag", "pin", "annotate", "prune"))
            step, name = drawn.choice(steps), drawn.choice(_STATES)
            if kind == "save" or len(steps) < 3:
                save(store, journal, 100 + number, name)
            elif kind == "replace":
                if not _kept(store, step):
                    save(store, journal, step, name, if_exists="replace", parent=f"{RUN}@{step}")
            elif kind == "delete":
                if not _kept(store, step):
                    _delete(store, journal, step)
            elif kind == "tag":
                _tag(store, journal, drawn.choice(("best", "last")), step)
            elif kind == "pin":
                (_unpin if _pinned(store, step) else _pinned_now)(store, journal, step)
            elif kind == "annotate":
                _annotate(store, journal, step, "loss", drawn.random())
            elif not any(_annotated(store, step) for step in steps):
                _prune(store, journal, RetentionPolicy(keep_last=3))

    return Scenario(f"history-{seed}", _saved("first", "other", "small-0"), _open, act, uncertain=True)


def _pinned_now(store: Store, journal: Journal, step: int) -> None:
    _pin(store, journal, step, "drawn")


def _pinned(store: Store, step: int) -> bool:
    return any((pin.run, pin.step) == (RUN, step) for pin in store.pins())


def _annotated(store: Store, step: int) -> bool:
    """Whether something was added, which would go with the checkpoint: the journal knows no such thing."""
    return bool(store.info(f"{RUN}@{step}").metrics)


def _kept(store: Store, step: int) -> bool:
    tagged = any((tag.run, tag.step) == (RUN, step) for tag in store.tags())
    return tagged or _pinned(store, step) or _annotated(store, step)


_MORE = (
    Scenario("tag", _saved("first", "other"), _open, _tagging, uncertain=True),
    Scenario("pin", _saved("first", "other"), _open, _pinning, uncertain=True),
    Scenario("annotate", _saved("first"), _open, _annotating, uncertain=True),
    Scenario("set_retention", _saved("first"), _open, _choosing, uncertain=True),
    Scenario("compact_again", _compacted, _open, _compacting_again),
    Scenario("compact_over_a_hole", _compacted, _open, _dropping_a_base, uncertain=True),
    Scenario("prune", _saved("first", "second", "other", "small-0"), _open, _pruning, uncertain=True),
)
_NOT_THE_STORE = ("checkout", "export")
CHANGING = {name: one for name, one in SCENARIOS.items() if name not in _NOT_THE_STORE} | {
    one.name: one for one in _MORE
}
"""Every scenario that changes the store."""


def scenario(name: str) -> Scenario:
    """Return a scenario by its name; ``history-N`` is drawn from the seed N."""
    if name.startswith("history-"):
        return history(int(name.removeprefix("history-")))
    return CHANGING[name]


def attempt(one: Scenario, store: Path, journal: Journal) -> dict[str, Any]:
    """Open and act; after an error say what it was, and note what is known of what was tried."""
    try:
        with one.open(store, journal) as opened:
            one.act(opened, journal)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        journal.failed(unknown=one.uncertain or "may or may not" in said)
        if isinstance(error, CkstoreError):
            return {"error": said, "wrong": []}
        return {"error": said, "wrong": ["not a CkstoreError: " + "".join(traceback.format_exception(error))]}
    return {"error": "", "wrong": []}
