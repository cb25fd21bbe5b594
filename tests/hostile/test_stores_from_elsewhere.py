"""Stores that another user made, opened as a victim: nothing outside them changes, and nothing takes for ever.

Each is used in every way (`tests.hostile.acts`). Afterwards all around it is as it was, no act has taken longer than
10 s or more than 256 MiB beyond the bytes of the store, and every refusal was an error of ckstore.
``CKSTORE_CRASH=full`` tries all that are made by hand and 100 that are drawn, else two of a dozen, other ones
for each commit.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.hostile.archives import HAND_MADE, SHORT, drawn
from tests.hostile.places import make_store
from tests.hostile.scene import Builder, differences, made_scene, picture
from tests.hostile.stranger import Visit, import_everything, visit
from tests.support.coverage import covered, lane_seed
from tests.support.requirements import CRASH_FULL

pytestmark = [pytest.mark.crash]

_DRAWN = 100
_PARTS = 10 if CRASH_FULL else 1
"""Each can be run alone, and by a worker of its own."""
_SHORT_COUNT = 2
_TOLD = 5


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that other users may enter."""
    path = Path(tempfile.mkdtemp(prefix="ckstore-elsewhere-"))
    os.chmod(path, 0o755)
    make_store(path / "template")
    import_everything()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def tried(place: Path, room: Path, name: str, build: Builder) -> Visit:
    """Make a store, use it as its owner, and look at what lies around it."""
    with made_scene(place / "template", place / "case", room, build) as scene:
        before = picture(scene)
        found = visit(scene)
        wrong = [*found.wrong, *differences(before, picture(scene))]
    return found._replace(wrong=[f"{name}: {text}" for text in wrong])


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(_PARTS))
def test_a_store_from_elsewhere_harms_nothing_outside_it(
    part: int, place: Path, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = lane_seed()
    names = [*HAND_MADE][part::_PARTS] if CRASH_FULL else Random(seed).sample(SHORT, _SHORT_COUNT)
    cases = {name: HAND_MADE[name] for name in names}
    if CRASH_FULL:
        cases |= {f"drawn from {seed + i}": drawn(seed + i) for i in range(part, _DRAWN, _PARTS)}

    visits = {name: tried(place, room, name, build) for name, build in cases.items()}

    wrong = [text for found in visits.values() for text in found.wrong]
    counts = {
        "stores": len(visits),
        "acts": sum(found.acts for found in visits.values()),
        "refused": sum(found.refused for found in visits.values()),
    }
    with capsys.disabled():
        print("\n" + covered("hostile stores", f"part {part}", violations=len(wrong), seed=seed, **counts))
    assert not wrong, "\n".join(wrong[:_TOLD])
    assert counts["acts"] > 50 * len(visits)


def test_there_are_at_least_two_hundred_hand_made_stores() -> None:
    assert len(HAND_MADE) >= 200
    assert set(SHORT) <= HAND_MADE.keys()
