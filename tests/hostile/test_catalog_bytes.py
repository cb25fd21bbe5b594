"""Whatever the bytes of the catalog are: nothing outside changes, nothing takes long, each refusal is typed.

``CKSTORE_CRASH=full`` draws 150 catalogs, else a few; the seed is printed.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ckstore.catalog import Catalog
from ckstore.errors import CatalogUnavailable
from tests.hostile.catalog_bytes import PAGE_BYTES, fill, spoil_catalog
from tests.hostile.scene import Scene
from tests.hostile.test_rows import questions
from tests.hostile.test_stores_from_elsewhere import place, tried
from tests.support.coverage import covered, lane_seed
from tests.support.requirements import CRASH_FULL, representatives

__all__ = ["place"]

VISITED = 150 if CRASH_FULL else 1
ASKED = 5_000 if CRASH_FULL else 30
_SCANS: tuple[Callable[[Catalog], object], ...] = (
    *(Catalog.infos, Catalog.listing, Catalog.counts, Catalog.count_and_sequence),
)
_TOLD = 5


@pytest.mark.crash
@pytest.mark.timeout(0)
def test_a_store_with_any_catalog_harms_nothing_outside_it(
    place: Path,
    room: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = lane_seed()
    wrong, acts = list[str](), 0
    for number in range(VISITED):
        draw = random.Random(seed + number)

        def build(scene: Scene, draw: random.Random = draw) -> None:
            fill(scene.store / "catalog.db")
            spoil_catalog(scene.store / "catalog.db", draw)

        found = tried(place, room, f"drawn from {seed + number}", build)
        acts += found.acts
        wrong += found.wrong

    with capsys.disabled():
        line = covered("hostile catalogs", "used", violations=len(wrong), seed=seed, catalogs=VISITED, acts=acts)
        print(f"\n{line}")
    assert not wrong, "\n".join(wrong[:_TOLD])


@pytest.mark.crash
@pytest.mark.timeout(0)
def test_each_question_to_any_catalog_is_answered_or_refused(
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed, counts = lane_seed(), {"answered": 0, "refused": 0}
    path = tmp_path / "catalog.db"
    template = place / "template" / "catalog.db"
    path.write_bytes(template.read_bytes())
    fill(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    good, found = path.read_bytes(), Catalog(tmp_path).infos()[:3]
    for number in range(ASKED):
        for left in tmp_path.glob("catalog.db*"):
            left.unlink()
        path.write_bytes(good)
        path.chmod(0o600)
        spoil_catalog(path, random.Random(seed + number))
        for ask in [*questions(Catalog(tmp_path), found, [f"xxh3-{7:032x}"]), Catalog(tmp_path).check]:
            try:
                ask()
            except CatalogUnavailable:
                counts["refused"] += 1
            else:
                counts["answered"] += 1

    with capsys.disabled():
        print("\n" + covered("hostile catalogs", "asked", seed=seed, catalogs=ASKED, **counts))
    assert min(counts.values()) > ASKED


@pytest.mark.parametrize("ask", representatives(_SCANS, Catalog.listing), ids=lambda ask: ask.__name__)
def test_a_table_whose_pages_share_their_children_does_not_run_for_ever(
    tmp_path: Path, place: Path, ask: Callable[[Catalog], object]
) -> None:
    """Sixteen levels, and on each level every child is the same page: a scan would give a page billions of times."""
    path = tmp_path / "catalog.db"
    path.write_bytes((place / "template" / "catalog.db").read_bytes())
    path.chmod(0o600)
    fill(path, checkpoints=4000)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        query = "SELECT rootpage FROM sqlite_schema WHERE tbl_name = 'checkpoints'"
        roots = [page for (page,) in connection.execute(query).fetchall()]
    data = bytearray(path.read_bytes())
    for root in roots:
        share_children(data, root)
    data[28:32] = (len(data) // PAGE_BYTES).to_bytes(4, "big")
    path.write_bytes(data)
    catalog = Catalog(tmp_path)

    assert catalog.check() != []
    with pytest.raises(CatalogUnavailable) as caught:
        ask(catalog)
    assert caught.value.why == "damaged"


def share_children(data: bytearray, root: int, levels: int = 16) -> None:
    """Put copies of the root of a table or an index below one another; each has one page for all its children."""
    start = (root - 1) * PAGE_BYTES
    copy = bytes(data[start : start + PAGE_BYTES])
    count = int.from_bytes(copy[3:5], "big")
    cells = [int.from_bytes(copy[12 + 2 * i : 14 + 2 * i], "big") for i in range(count)]
    assert copy[0] in (2, 5)
    assert count >= 1
    leaf = int.from_bytes(copy[cells[0] : cells[0] + 4], "big")
    first_new = len(data) // PAGE_BYTES + 1
    pages = [root, *range(first_new, first_new + levels - 1)]
    data += copy * (levels - 1)
    for page, child in zip(pages, [*pages[1:], leaf], strict=True):
        for at in (8, *cells):
            place = (page - 1) * PAGE_BYTES + at
            data[place : place + 4] = child.to_bytes(4, "big")
