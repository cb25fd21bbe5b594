"""Any act of one member of a group, after the same act of another: nothing acknowledged is lost."""

from __future__ import annotations

import os
import pickle
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.saver import helper_start
from tests.pairs.acts import ACTS, BY_MEMBERS
from tests.pairs.world import World
from tests.support.coverage import drawn
from tests.support.users import FIRST_UID, GROUP, common_folder

pytestmark = [pytest.mark.root, pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")]
ONE, TWO = FIRST_UID, FIRST_UID + 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of the group, with all modules imported: other users cannot read where Python is."""
    with pytest.MonkeyPatch.context() as patch, common_folder() as folder:
        patch.setattr(helper_start, "start", lambda *_: None)
        for name in BY_MEMBERS:
            world = World.of(tmp_path_factory.mktemp("warm"))
            ACTS[name](world, world.hands[0])
            world.settle(name)
            world.check()
        yield folder


def as_member(uid: int, folder: Path, world: World | None, work: Callable[[World], None]) -> World:
    """Do it in a forked process of that user; return what is known then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([GROUP])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o077)
            os.environ["HOME"] = str(folder / f"home-{uid}")
            known = World.of(folder) if world is None else world
            known.hands = [Store.open(known.root), Store.open(known.root)]
            work(known)
            for holds in known.at_end:
                holds()
            for reader in known.readers:
                reader.close()
            known.hands, known.at_end, known.readers, known.remote_is_judged = [], [], [], False
            said = pickle.dumps(known)
        except BaseException:
            said = pickle.dumps(traceback.format_exc())
        with open(writing, "wb") as file:
            file.write(said)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        known = pickle.loads(file.read())
    os.waitpid(child, 0)
    assert isinstance(known, World), known
    return known


@pytest.mark.parametrize("name", drawn(BY_MEMBERS, 3))
def test_each_act_of_a_member_after_those_of_another_loses_nothing(name: str, place: Path) -> None:
    folder = place / name
    folder.mkdir()
    for uid in (ONE, TWO):
        (folder / f"home-{uid}").mkdir(mode=0o700)
        os.chown(folder / f"home-{uid}", uid, uid)
    for shared in (folder, folder / "store", folder / "remote"):
        shared.mkdir(exist_ok=True)
        os.chown(shared, ONE, GROUP)
        shared.chmod(0o2770)

    def act(world: World) -> None:
        ACTS[name](world, world.hands[0])
        world.settle(name)

    def save_and_act(world: World) -> None:
        world.save(world.hands[1])
        act(world)

    def begin(world: World) -> None:
        world.remote = str(folder / "remote")

    world = as_member(ONE, folder, None, begin)
    world = as_member(TWO, folder, world, save_and_act)
    assert TWO in {path.stat().st_uid for path in (folder / "store").glob("checkpoints/*/*/manifest.json")}
    world = as_member(ONE, folder, world, act)
    as_member(TWO, folder, world, World.check_contents)

    shutil.rmtree(folder)
