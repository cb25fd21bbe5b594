"""The catalog proposes, the directories decide: whatever one row says, the same is kept, dropped and named.

A store is drawn, and copied: the copy is the twin, whose catalog is rebuilt from its directories. Then one value of
one row of the first one's catalog is changed, as a flipped bit does, or by a program that writes the right checksum
too.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import Best, RetentionPolicy, Store
from tests.support.catalog_rows import change, columns_of, flipped, values_of
from tests.support.requirements import CRASH_FULL

RUNS = ("main", "side")
TABLES = (
    "checkpoints",
    *("checkpoints",) * 5,
    "blobs",
    "uses",
    "pieces",
    "candidates",
    "tags",
    "readings",
)
EXTREMES = (0, 1, -1, 2**32, 2**53 - 1, 2**62, -(2**62))
POLICIES = (
    RetentionPolicy(keep_last=1),
    RetentionPolicy(keep_last=2, keep_every=3),
    RetentionPolicy(keep_last=1, keep_best=Best("loss", n=2)),
    RetentionPolicy(keep_best=[Best("loss"), Best("acc", "max")]),
    RetentionPolicy(keep_last=1, keep_within="7d"),
)
ACTS = ("save", "prune", "gc", "look")
Saved = tuple[str, int, float, bool]
Extra = tuple[str, int, float]
SAVES = st.lists(
    st.tuples(st.sampled_from(RUNS), st.integers(0, 7), st.floats(allow_nan=True, width=16), st.booleans()),
    min_size=2,
    max_size=6,
)
EXTRAS = st.lists(
    st.tuples(st.sampled_from(("tag", "pin", "annotate", "delete")), st.integers(0, 5), st.floats(0, 9)), max_size=3
)


def state(value: int) -> dict[str, Any]:
    return {"frozen": np.arange(40), "w": np.full(10, value, dtype=np.int32), "name": f"{value}"}


def filled(path: Path, saves: list[Saved], extras: list[Extra]) -> None:
    with Store.init(path) as store:
        for value, (run, step, loss, both) in enumerate(saves):
            metrics = {"loss": loss, "acc": -loss} if both else {"loss": loss}
            store.save(state(value), step, run, metrics=metrics, if_exists="replace")
        for number, (what, which, bleu) in enumerate(extras):
            there = store.checkpoints()
            if not there:
                return
            info = there[which % len(there)]
            if what == "tag":
                store.tag(f"t{number}", info)
            elif what == "pin":
                store.pin(info, f"pin {number}")
            elif what == "annotate":
                store.annotate(info, metrics={"loss": bleu})
            elif not info.tags and len(there) > 1 and not any(x[0] == "pin" for x in extras):
                store.delete(info)


def act_on(store: Store, act: str, policy: RetentionPolicy) -> None:
    if act == "save":
        store.config.retention = policy
        store.save(state(99), None, "main", metrics={"loss": 1.0})
    elif act in {"prune", "gc"}:
        store.prune(policy)


def left(store: Store) -> Left:
    """Return what is kept and can be loaded, and what is named."""
    listed = store.checkpoints()
    for info in listed:
        store.load(info.name)
    newest = [store.latest(run) for run in RUNS]
    return Left(
        [info.name for info in listed], [info.id for info in listed], [info.name if info else None for info in newest]
    )


@dataclass(frozen=True)
class Left:
    kept: list[str]
    ids: list[str]
    latest: list[str | None]


def changed(path: Path, data: Any) -> str:
    """Change one value in the catalog; return whether a row of a checkpoint was forged: its checksum is right."""
    table = data.draw(st.sampled_from(TABLES), "table")
    columns = columns_of(table, path)
    column = data.draw(st.sampled_from(columns), "column")
    there = values_of(table, column, path)
    if not there:
        return ""
    at = data.draw(st.integers(0, len(there) - 1), "row")
    value = there[at]
    others: list[Any] = [*there, *(EXTREMES if isinstance(value, int) else ())]
    wrong = data.draw(st.integers(0, 400).map(lambda bit: flipped(value, bit)) | st.sampled_from(others), "value")
    forged = data.draw(st.booleans(), "forged")
    keys = " AND ".join(f'"{name}" IS (SELECT "{name}" FROM {table} LIMIT 1 OFFSET {at})' for name in columns)
    done = change(path, table, column, wrong, where=keys, forged=forged)
    return table if done and forged and column != "checksum" else ""


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@settings(
    max_examples=600 if CRASH_FULL else 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(drawn=st.tuples(SAVES, EXTRAS), act=st.sampled_from(ACTS), opened=st.booleans(), data=st.data())
def test_what_one_row_says_decides_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[list[Saved], list[Extra]],
    act: str,
    *,
    opened: bool,
    data: Any,
) -> None:
    folder = tmp_path_factory.mktemp("law")
    filled(folder / "store", *drawn)
    shutil.copytree(folder / "store", folder / "twin", symlinks=True)
    for path in (folder / "twin").glob("catalog.db*"):
        path.unlink()
    metrics = {name for info in Store.open(folder / "store").checkpoints() for name in info.metrics}
    known = [policy for policy in POLICIES if {best.metric for best in policy.bests} <= metrics]
    policy = data.draw(st.sampled_from(known), "policy")
    with Store.open(folder / "store") as store, Store.open(folder / "twin") as twin:
        forged = changed(folder / "store", data)
        with store if opened else Store.open(folder / "store") as acting:
            act_on(acting, act, policy)
            act_on(twin, act, policy)

            found, wanted = left(acting), left(twin)

    assert found.latest == wanted.latest
    assert set(found.kept) >= set(wanted.kept)
    if act != "save":  # whose ids have the time in them
        assert set(found.ids) >= set(wanted.ids) or forged == "checkpoints"
    if not forged:
        assert found.kept == wanted.kept
    shutil.rmtree(folder)
