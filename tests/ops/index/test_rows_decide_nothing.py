"""What a wrong row would drop stays, where it says that a piece is is looked at, what it would free is counted."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ckstore import Best, CkstoreWarning, RetentionPolicy, Store
from ckstore.catalog import Catalog
from ckstore.model.manifest.parse import parse_facts, parse_manifest
from ckstore.objects import checkpoints
from ckstore.ops.free.gc_plan import freed_in_turn, next_to_free
from ckstore.ops.free.retain import carry_out
from ckstore_cli.app import app
from tests.support.catalog_rows import change, flipped, forge_stamps, values_of
from tests.support.checkpoint_dirs import checkpoint_dir, step_of_name
from tests.support.examples import examples
from tests.support.look import directory_of
from tests.support.plans import plan_of

BEST = RetentionPolicy(keep_last=1, keep_best=Best("loss"))


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(10, value, dtype=np.int32)}


def fill(store: Store, losses: tuple[float, ...] = (3.0, 0.5, 2.0, 4.0)) -> None:
    for step, loss in enumerate(losses):
        store.save(state(step), step, metrics={"loss": loss})


def steps(store: Store) -> list[int]:
    return [info.step for info in store.checkpoints()]


@pytest.mark.parametrize("forged", [True, False])
@pytest.mark.parametrize(
    "step, metrics",
    [(1, '{"loss":9.5}'), (0, '{"loss":0.1}'), (1, '{"lost":0.5}'), (3, '{"loss":0.25}')],
)
def test_retention_keeps_the_best_whatever_the_metrics_of_a_row_are(
    store: Store, step: int, metrics: str, *, forged: bool
) -> None:
    fill(store)
    change(store.path, "checkpoints", "metrics", metrics, where=f"step = {step}", forged=forged)
    store.config.retention = BEST

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        store.save(state(9), 9, metrics={"loss": 5.0})

    assert steps(store) == [1, 9]
    assert len([warning for warning in said if "the catalog" in str(warning.message)]) == 1
    assert [info.metrics for info in store.checkpoints()] == [{"loss": 0.5}, {"loss": 5.0}]
    assert sorted(values_of("checkpoints", "metrics", store.path)) == ['{"loss":0.5}', '{"loss":5.0}']


def test_a_plan_says_what_a_twin_with_right_rows_says(store: Store) -> None:
    fill(store)
    expected = [str(entry) for entry in plan_of(store, BEST).entries]
    change(store.path, "checkpoints", "metrics", '{"loss":99}', where="step = 1", forged=True)
    change(store.path, "checkpoints", "sequence", 1, where="step = 3", forged=True)

    with Store.open(store.path) as opened, pytest.warns(CkstoreWarning, match="the manifest is used"):
        plan = plan_of(opened, BEST)

    assert [str(entry) for entry in plan.entries] == expected


def test_a_store_that_cannot_be_written_plans_by_its_manifests(store: Store) -> None:
    fill(store)
    change(store.path, "checkpoints", "metrics", '{"loss":99}', where="step = 1", forged=True)

    with Store.open(store.path, readonly=True) as reader:
        with pytest.warns(CkstoreWarning, match="the manifest is used"):
            plan = plan_of(reader, BEST)
        assert [entry.step for entry in plan.kept] == [1, 3]
        assert [entry.step for entry in plan_of(reader, BEST).kept] == [1, 3]
    assert '{"loss":99}' in values_of("checkpoints", "metrics", store.path)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("ref", ["main@1", 1, "good"])
def test_what_a_ref_names_is_opened_whatever_id_its_row_has(store: Store, ref: str | int, *, readonly: bool) -> None:
    fill(store)
    store.tag("good", 1)
    wanted = store.info(1).id
    other = f"{wanted[:-1]}{int(wanted[-1], 16) ^ 1:x}"
    change(store.path, "checkpoints", "manifest_id", other, where="step = 1", forged=True)

    with Store.open(store.path, readonly=readonly) as opened:
        with pytest.warns(CkstoreWarning, match="disagree about main@1; the manifest is used"):
            assert opened.load(ref)["w"][0] == 1
        assert opened.info(ref).id == wanted


def test_what_has_no_readable_manifest_is_not_dropped(store: Store) -> None:
    fill(store)
    path = directory_of(store, 0) / "manifest.json"
    right = path.read_bytes()
    change_in_place(path, right.replace(b'"loss":3.0', b'"loss":7.0'))
    forge_stamps(store.path / "catalog.db", path.parent, where="step = 0")  # as rot leaves the times

    plan = plan_of(Store.open(store.path), RetentionPolicy(keep_last=1))
    carry_out(store._context, plan)

    assert [entry.step for entry in plan.kept] == [0, 3]
    assert "its manifest cannot be read" in str(plan.entries[0])
    assert path.exists()
    change_in_place(path, right)


def change_in_place(path: Any, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


@pytest.mark.parametrize("hidden", [1, 3])
def test_a_newest_that_a_row_hides_lets_more_be_kept(store: Store, hidden: int) -> None:
    policy = RetentionPolicy(keep_last=2, keep_every=10)
    for step in (1, 2, 3, 4, 20):
        store.save(state(step), step)
    store.config.retention = policy
    change(store.path, "checkpoints", "sequence", hidden, where="step = 20", forged=True)

    store.save(state(30), 30)

    assert {20, 30} <= set(steps(store)) <= {4, 20, 30}


def test_a_save_with_a_policy_reads_each_manifest_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    read: list[tuple[str, str]] = []

    def watched(parse: Callable[..., Any]) -> Callable[..., Any]:
        def parsing(data: bytes, *, where: str, **options: Any) -> Any:
            read.append((parse.__name__, os.path.basename(os.path.dirname(where))))
            return parse(data, where=where, **options)

        return parsing

    monkeypatch.setattr("ckstore.model.manifest.parse.parse_facts", watched(parse_facts))
    monkeypatch.setattr(checkpoints, "parse_manifest", watched(parse_manifest))
    with Store.open(store.path) as opened:
        opened.config.retention = RetentionPolicy(keep_last=2)
        for step in range(10, 15):
            opened.save(state(step), step)

    # That of the newest is whole for two rules: whose training it is, and what is known of its values.
    again = {(name, step_of_name(folder)) for (name, folder), count in Counter(read).items() if count > 1}
    assert again <= {("parse_manifest", 3)}
    assert len(read) <= len(set(read)) + 1
    assert {step_of_name(name) for _, name in read} <= {0, 1, 2, 3}


# -------------------------------------------------------------------------------------------------- pieces


COLUMNS = (
    *(("pieces", column) for column in ("digest", "blob_id", "offset", "nbytes")),
    *(("blobs", "digest"), ("blobs", "nbytes"), ("uses", "used_bytes")),
)
WRONG: dict[str, Callable[[Any, Any, int], Any]] = {
    "a bit": lambda value, _, bit: flipped(value, bit),
    "of another": lambda _, other, __: other,
    "from the end": lambda value, _, bit: value - bit * 64 if isinstance(value, int) else value,
    "more": lambda value, _, bit: value + bit if isinstance(value, int) else value,
}


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    where=st.sampled_from(COLUMNS),
    rows=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    how=st.sampled_from(tuple(WRONG)),
    bit=st.integers(0, 300),
)
@example(where=("pieces", "offset"), rows=(0, 1), how="of another", bit=0)
def test_what_is_saved_is_loaded_whatever_the_index_says_of_pieces(
    tmp_path_factory: pytest.TempPathFactory, where: tuple[str, str], rows: tuple[int, int], how: str, bit: int
) -> None:
    whole = {f"w{i}": np.full(30 + i, i, dtype=np.int32) for i in range(6)} | {"chunk": np.ones(300, dtype=np.int64)}
    root = tmp_path_factory.mktemp("pieces") / "s"
    with Store.init(root) as store:
        store.save(whole, 1)
        store.save(state(1), 2)
    table, column = where
    there = values_of(table, column, root)
    at, other = (row % len(there) for row in rows)
    wrong = WRONG[how](there[at], there[other], bit)
    change(root, table, column, wrong, where=f'"{column}" IS (SELECT "{column}" FROM {table} LIMIT 1 OFFSET {at})')

    with Store.open(root) as store:
        for step in (3, 4):
            store.save(whole, step)
    with Store.open(root) as again:
        for step in (3, 4):
            loaded = again.load(step)
            assert all(np.array_equal(loaded[name], value) for name, value in whole.items())


def test_a_place_counted_from_the_end_is_not_used(store: Store) -> None:
    whole = {f"w{i}": np.full(30, i, dtype=np.int32) for i in range(6)}
    names = [f"w{i}" for i in range(5)]  # the last piece would end at 0, where nothing is
    store.save(whole, 1)
    ((nbytes,), offsets) = values_of("blobs", "nbytes", store.path), values_of("pieces", "offset", store.path)
    real = Catalog.find_pieces

    def from_the_end(catalog: Catalog, digests: Any) -> Any:
        places, counted = real(catalog, digests)
        return {digest: place._replace(offset=place.offset - nbytes) for digest, place in places.items()}, counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalog, "find_pieces", from_the_end)
        with Store.open(store.path) as opened:
            opened.save({name: whole[name] for name in names}, 2)

    assert max(offsets) > 0
    assert store.load(2).keys() == set(names)


# --------------------------------------------------------------------------------------------------- space


def test_what_deleting_would_free_is_counted_by_links(store: Store) -> None:
    shared = {"big": np.zeros(2**20, dtype=np.uint8)}
    for step in range(3):
        store.save({**shared, "own": np.full(2**20, step + 1, dtype=np.uint8)}, step)
    change(store.path, "uses", "used_bytes", 1, where="1")
    change(store.path, "blobs", "nbytes", 7, where="1")

    run = store._context.layout.checkpoints / "main"
    folders = [run / checkpoint_dir(store.path, "main", step).name for step in range(3)]
    freed = freed_in_turn(store._context, folders)
    advice = next_to_free(store._context)
    assert advice is not None

    assert [sum(nbytes for _, nbytes in blobs) >= 2**20 for blobs in freed] == [True, True, True]
    assert sum(nbytes for blobs in freed for _, nbytes in blobs) == sum(
        path.stat().st_size for path in (store.path / "blobs").rglob("*") if path.is_file()
    )
    assert advice.name == "main@0"
    assert advice.nbytes == sum(nbytes for _, nbytes in freed[0])


def test_a_checkpoint_whose_metadata_has_more_digits_than_str_takes_is_found_listed_and_shown(store: Store) -> None:
    store.save({"a": 1}, step=7, metadata={"n": [10**5000, -(10**5000)], "nan": float("nan")})

    assert store.info("latest").step == 7
    assert store.info("latest").metadata["n"] == [10**5000, -(10**5000)]
    assert store.checkpoints()[0].step == 7
    for command in (["show", "latest"], ["log"]):
        done = CliRunner().invoke(app, ["--store", str(store.path), *command, "--json"])
        assert (done.exit_code, done.stdout.count("0" * 5000)) == (0, 2)
