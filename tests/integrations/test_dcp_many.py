"""The long form of `test_dcp`: 1, 2, 4 and 8 processes, each with each; ``CKSTORE_CRASH=full`` runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckstore import Store
from tests.support.gloo import Group

CASES = Path(__file__).with_name("dcp_cases.py")
COUNTS = (1, 2, 4, 8)
MIB = 2**20

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(os.environ.get("CKSTORE_CRASH") != "full", reason="long: CKSTORE_CRASH=full"),
]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Group]]:
    made: dict[int, Group] = {}
    try:
        for count in COUNTS:
            made[count] = Group(count, tmp_path_factory.mktemp("group"), CASES)
        yield made
    finally:
        for group in made.values():
            group.__exit__(None, None, None)


def test_fsdp2_saved_on_any_number_of_ranks_loads_on_any_other(groups: dict[int, Group], tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    for saving in COUNTS:
        (state, _), *_ = groups[saving].run("save_fsdp", store=str(store.path), step=saving)
        for loading in COUNTS:
            assert groups[loading].run("load_fsdp", store=str(store.path), step=saving) == [state] * loading


def test_shards_by_rows_and_columns_saved_on_any_number_load_on_any_other(
    groups: dict[int, Group], tmp_path: Path
) -> None:
    store = Store.init(tmp_path / "store")
    for saving in COUNTS:
        groups[saving].run("save_shards", store=str(store.path), step=saving)
        for loading in COUNTS:
            assert groups[loading].run("load_shards", store=str(store.path), step=saving) == [True] * loading


@pytest.mark.parametrize("rows, columns, on_chunks", [(16384, 1024, True), (50257, 334, False), (2048, 1024, True)])
def test_the_same_weights_of_other_numbers_of_ranks_share_their_chunks(
    groups: dict[int, Group], tmp_path: Path, rows: int, columns: int, on_chunks: bool
) -> None:
    """Chunks of 1 MiB, so 8 a rank or, of 2,048 rows, one; the table of docs/how-to/ranks.md is of this.

    A boundary between ranks that does not fall on a chunk cuts one in two, and so costs one chunk at most.
    """
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    for step, count in enumerate(COUNTS):
        (new_bytes, logical_bytes), *_ = groups[count].run(
            "large", store=str(store.path), step=step, rows=rows, columns=columns
        )
        print(f"{rows} x {columns}, {count} ranks: {new_bytes / logical_bytes:.1%} new")
        if step:
            assert new_bytes <= (0 if on_chunks else (count - 1) * MIB)
    again, *_ = groups[4].run("large", store=str(store.path), step=9, rows=rows, columns=columns)
    assert again[0] == 0
