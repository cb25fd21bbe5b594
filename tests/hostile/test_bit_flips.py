"""One flipped bit in any file of a store: no wrong byte, no wrong decision, no save that cannot be loaded.

``CKSTORE_CRASH=full`` flips more than 5,000 bits, else some 20, in one of two stores; counts and seed are printed.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckstore import CkstoreWarning, Store
from tests.hostile.flips import Flip, StoreKind, Template, build, compared, draw_flips, flip, leave_wal, look
from tests.support.coverage import covered, drawn, lane_seed
from tests.support.memory import memory_folder
from tests.support.requirements import CRASH_FULL

_EACH = 130 if CRASH_FULL else 1
"""Bits of each file."""
_ALL_UP_TO = 1100 if CRASH_FULL else 0
"""Of files with no more bits, such as ``config.json``, each is flipped, in one of the stores."""
_CATALOG_EACH = 600 if CRASH_FULL else 3
_SHARDS = 8 if CRASH_FULL else 1


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory: thousands of small stores are made there."""
    with tempfile.TemporaryDirectory(prefix="ckstore-flips-", dir=memory_folder()) as path:
        yield Path(path)


def made(template: Template, root: Path, *, wal: bool = False) -> Path:
    """Return a copy of the store whose catalog knows its directories, as one has that was opened before."""
    template.make(root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CkstoreWarning)
        Store.open(root).close()
        if wal:
            leave_wal(root)
    return root


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shard", range(_SHARDS))
@pytest.mark.parametrize("kind", drawn(["small", "chunked", "compacted"], 2))
def test_no_flipped_bit_gives_wrong_bytes_wrong_drops_or_a_save_that_cannot_be_loaded(
    folder: Path, capfd: pytest.CaptureFixture[str], kind: StoreKind, shard: int
) -> None:
    template = _template(folder, kind)
    seed = lane_seed()
    every = draw_flips(template, random.Random(seed), _EACH, all_up_to=_ALL_UP_TO if kind == "small" else 0)
    flips = [one for one in every if one.kind != "catalog"]

    _judge(folder, template, flips[shard::_SHARDS], capfd, kind=kind, seed=seed)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shard", range(_SHARDS))
@pytest.mark.parametrize("file", ["catalog.db", "catalog.db-wal"])
def test_no_flipped_bit_of_the_catalog_gives_wrong_facts(
    folder: Path, capfd: pytest.CaptureFixture[str], file: str, shard: int
) -> None:
    template = _template(folder, "small")
    size = (made(template, folder / "looked at", wal=True) / file).stat().st_size
    seed = lane_seed()
    bits = sorted(random.Random(seed).sample(range(8 * size), _CATALOG_EACH))
    flips = [Flip(file, bit // 8, bit % 8) for bit in bits]

    _judge(folder, template, flips[shard::_SHARDS], capfd, kind="small", seed=seed)


def _template(folder: Path, kind: StoreKind) -> Template:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CkstoreWarning)  # memory keeps nothing through a power cut
        build(folder / "template", kind)
    return Template.of(folder / "template")


def _judge(
    folder: Path,
    template: Template,
    flips: list[Flip],
    capfd: pytest.CaptureFixture[str],
    *,
    kind: StoreKind,
    seed: int,
) -> None:
    wal = any(of.file.endswith("-wal") for of in flips)
    twin, broken = look(made(template, folder / "twin", wal=wal), kind)
    assert broken == []
    assert twin.planned == {1, 4}
    assert twin.dropped == {1, 4, 5, 6}
    counts: Counter[str] = Counter()
    found: list[str] = []
    for of in flips:
        root = made(template, folder / "flipped", wal=wal)
        if flip(root, of):
            counts[of.kind] += 1
            facts, broken = look(root, kind)
            found += [f"{of}: {what}" for what in (*broken, *compared(facts, twin, of))]
        shutil.rmtree(root)
    what = {"small": "a small state", "chunked": "chunks of their own", "compacted": "a compacted history"}[kind]
    named = {f"{kind}_bits": count for kind, count in sorted(counts.items())}
    line = covered("bit flips", what, violations=len(found), seed=seed, bits=counts.total(), **named)
    with capfd.disabled():
        print(f"\n{line}", file=sys.stderr, flush=True)
    assert found == []
