"""Remotes that another user made, used by a victim: nothing outside the store changes, and nothing takes for ever.

Each is pushed to, pulled from, cloned, evicted to, pruned and followed (`tests.hostile.remotes.acts`), with the bounds
of `tests.hostile.test_stores_from_elsewhere`. What a remote holds is spoiled by hand, or is what a hostile store would
hold; hostile stores are remotes in a directory as well. ``CKSTORE_CRASH=full`` tries all, else a few, others for each
commit.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pytest

from ckstore.remote import keys
from tests.hostile.archives import HAND_MADE
from tests.hostile.archives import SHORT as SHORT_STORES
from tests.hostile.places import make_store
from tests.hostile.remotes import acts
from tests.hostile.remotes.contents import CASES, SHORT, Contents, contents_of, good_contents
from tests.hostile.scene import Builder, Scene, differences, made_scene, picture
from tests.hostile.stranger import Give, Visit, import_everything, visit
from tests.support.coverage import covered, lane_seed
from tests.support.requirements import CRASH_FULL

pytestmark = [pytest.mark.crash]

_PARTS = 10 if CRASH_FULL else 1
_TOLD = 5
_ENGINE_BYTES = 256 * 2**20
"""Of addresses, for the engine's own threads: where it gets none it ends the process."""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that other users may enter, with a store to spoil and one of the victim."""
    path = Path(tempfile.mkdtemp(prefix="ckstore-far-"))
    os.chmod(path, 0o755)
    make_store(path / "template")
    acts.make_own_store(path / "own")
    import_everything()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _nothing(_: Scene) -> None:
    """The victim's own store is as it was saved."""


@dataclass(frozen=True)
class _Places:
    """Where cases are made, where the stranger writes, and what a remote holds that is as it was made."""

    place: Path
    room: Path
    good: Contents

    def met(self, template: str, name: str, build: Builder, give: Give, nbytes: int = 0) -> Visit:
        """Let the victim do everything in a scene, and look at what lies around the store."""
        with made_scene(self.place / template, self.place / "case", self.room, build) as scene:
            before = picture(scene)
            found = visit(scene, give, nbytes)
            wrong = [*found.wrong, *differences(before, picture(scene))]
        return found._replace(wrong=[f"{name}: {text}" for text in wrong])

    def of_objects(self, name: str, contents: Contents) -> Visit:
        # Objects in memory are the victim's own memory, once as they are laid there and once as they are held.
        nbytes = _ENGINE_BYTES + 2 * sum(map(len, contents.values()))
        return self.met("own", name, _nothing, partial(acts.of_objects, contents), nbytes)

    def spoiled(self, name: str) -> Visit:
        contents = dict(self.good)
        CASES[name](contents)
        return self.of_objects(name, contents)

    def as_objects(self, name: str) -> Visit:
        with made_scene(self.place / "template", self.place / "made", self.place / "making", HAND_MADE[name]) as scene:
            contents = contents_of(scene.store, self.good[keys.INFO])
        return self.of_objects(f"{name}, as objects", contents)

    def as_directory(self, name: str) -> Visit:
        return self.met("template", f"{name}, in a directory", HAND_MADE[name], acts.of_directory)


@pytest.fixture(scope="module")
def places(place: Path, room: Path) -> _Places:
    return _Places(place, room, good_contents(place / "template"))


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(_PARTS))
def test_a_remote_from_elsewhere_harms_nothing_outside_it(
    part: int, places: _Places, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = lane_seed()
    draw = Random(seed)
    contents = [*CASES][part::_PARTS] if CRASH_FULL else [draw.choice(SHORT)]
    stores = [*HAND_MADE][part::_PARTS] if CRASH_FULL else [draw.choice(SHORT_STORES)]

    visits = [places.spoiled(name) for name in contents]
    # Briefly in one of the two forms, the other one for another commit.
    if CRASH_FULL or draw.random() < 0.5:
        visits += [places.as_objects(name) for name in stores]
    if CRASH_FULL or len(visits) == len(contents):
        visits += [places.as_directory(name) for name in stores]

    wrong = [text for found in visits for text in found.wrong]
    counts = {
        "remotes": len(visits),
        "acts": sum(found.acts for found in visits),
        "refused": sum(found.refused for found in visits),
    }
    with capsys.disabled():
        print("\n" + covered("hostile remotes", f"part {part}", violations=len(wrong), seed=seed, **counts))
    assert not wrong, "\n".join(wrong[:_TOLD])
    assert counts["acts"] > 20 * len(visits)


def test_what_is_tried_briefly_is_among_what_is_tried() -> None:
    assert set(SHORT) <= CASES.keys()
