"""The model of one blob put together: what may happen next, what is bad, and whether everything comes right again."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.bounds import Scenario
from tests.protocol.catalog import uses
from tests.protocol.collector import collector
from tests.protocol.keepers import opener, reader, retention, undoer
from tests.protocol.locks import FILLING
from tests.protocol.savers import steps as saver_steps
from tests.protocol.search import Explored, Step, explore
from tests.protocol.world import ACTORS, CHECKPOINTS, INODES, SAVERS, Left, World, after_power_cut

_MOST_STEPS = 200
_NOTHING = Left()


class Model:
    """One scenario as a graph of states."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._right: set[World] = set()

    def explore(self) -> Explored:
        """Look at every state."""
        return explore(self._scenario.start(), lambda world: list(self.steps(world)), self.wrong)

    def steps(self, world: World) -> Iterator[Step[World]]:
        """Yield everything that may happen next."""
        scenario = self._scenario
        for x in scenario.savers:
            yield from saver_steps(scenario, world, x)
        if scenario.drop:
            yield from retention(scenario, world)
        yield from collector(scenario, world)
        yield from opener(scenario, world)
        yield from undoer(scenario, world)
        yield from reader(scenario, world)
        if world.left.kills:
            yield from self._kills(world)
        if world.left.cuts:
            for after in after_power_cut(world):
                yield Step("", "", f"POWER CUT: {after}", after)
        if world.left.losses:
            lost = world.spend("losses")._replace(rows=frozenset(), listed=False, counted=0, lost=True)
            yield Step("", "", "THE CATALOG IS LOST", lost)

    def _kills(self, world: World) -> Iterator[Step[World]]:
        for actor in ACTORS:
            if world.does(actor) not in ("new", "end", "failed", "dead", "idle"):
                yield Step("", "", f"KILL {actor}", _killed(world.spend("kills"), actor))

    def wrong(self, world: World) -> str:
        """Return what is bad in this state, or does not come right when everybody dies and the store is opened."""
        problem = self._bad(world)
        if problem:
            return problem
        bare = _settled_start(world)
        if bare in self._right:
            return ""
        problem = self._settle(bare)
        if not problem:
            self._right.add(bare)
        return problem

    def _bad(self, world: World) -> str:
        looks = (self._half_visible, self._lost, self._robbed, self._pulled_away, self._not_to_be_brought_back)
        problems = (look(world) for look in looks)
        return next((problem for problem in problems if problem), "")

    def _half_visible(self, world: World) -> str:
        for x in CHECKPOINTS:
            if world.where(x) != "P":
                continue
            inode = world.at(f"{x}b")
            if not world.at(f"{x}m") or not inode:
                return f"{x} is visible without its {'blob' if world.at(f'{x}m') else 'manifest'}"
            if world.state_of(inode) in "s-":
                return f"{x} is visible and its blob is short"
            if x in SAVERS and world.does(x) == "failed":
                return f"the save of {x} was reported as failed, and it is visible"
        return ""

    def _lost(self, world: World) -> str:
        for x in sorted(world.acknowledged - world.dropped):
            if world.where(x) != "P":
                return f"{x} was acknowledged and is lost"
        for x, y in sorted(world.kept):
            if y not in world.dropped and "P" not in (world.where(x), world.where(y)):
                return f"{x} was dropped because {y} stays, and neither is there"
        back = [x for x in sorted(world.told_gone) if world.where(x) == "P"]
        if back:
            return f"{back[0]} was reported as gone and is back"
        return "bytes were reported as freed, and a process has them" if world.lied else ""

    def _robbed(self, world: World) -> str:
        for x in self._scenario.savers:
            doing = world.does(x)
            if doing in FILLING and world.where(x) != x:
                return f"the directory of the live saver {x} was taken away"
            if doing in ("seal", "sync", "publish") and not world.at(f"{x}b"):
                return f"the claim of the live saver {x} is gone"
        return ""

    def _pulled_away(self, world: World) -> str:
        how, _, what = world.reader.partition(" ")
        if how == "map" and not world.links(what):
            return "bytes were freed under a mapping"
        if how == "open" and (not world.at(f"{what}b") or world.where(what) == "-"):
            return "an open checkpoint lost its names"
        return ""

    def _not_to_be_brought_back(self, world: World) -> str:
        for x in sorted(world.waits):
            if world.where(x) == "-" or not world.at(f"{x}b") or not world.at(f"{x}m"):
                return f"{x} can still be brought back, and its names are gone"
        return ""

    def _settle(self, world: World) -> str:
        """Open the store, collect, both twice and undisturbed; return what is left that should not be."""
        for _ in range(2):
            for actor, budget in (("O", Left(opens=1)), ("G", Left(gcs=1))):
                world = self._alone(world._replace(left=budget), actor)
            problem = self._bad(world)
            if problem:
                return f"after opening and gc: {problem}"
        return self._left_over(world)

    def _alone(self, world: World, actor: str) -> World:
        act = {"O": opener, "G": collector}[actor]
        for _ in range(_MOST_STEPS):
            step = next(iter(act(self._scenario, world)), None)
            if step is None:
                return world
            world = step.state
        raise RuntimeError(f"{actor} does not come to an end from {world}")

    def _left_over(self, world: World) -> str:
        visible = {x for x in CHECKPOINTS if world.where(x) == "P"}
        for x in CHECKPOINTS:
            if world.where(x) not in ("P", "-"):
                return f"the directory of {x} stays in {'trash' if world.where(x) == 'X' else 'staging'}/ for ever"
        for inode in INODES.values():
            needed = any(world.at(f"{x}b") == inode for x in visible)
            # A canonical copy beside checkpoints that own other copies goes when the last of them does.
            spare = world.at("C") == inode and bool(visible)
            if world.links(inode) and not needed and not spare:
                return f"nothing needs the inode {inode}, and it is never freed"
        if world.rows != visible:
            return f"the catalog lists {sorted(world.rows)}, visible are {sorted(visible)}"
        if visible and not world.listed:
            return "the catalog does not know a blob that is in use"
        if uses(self._scenario.rules, world) != len(visible):
            return f"the catalog counts {world.counted} uses, there are {len(visible)}"
        return ""


def _killed(world: World, actor: str) -> World:
    if actor in SAVERS:
        return world.then(actor, "dead")
    if actor == "R":
        world = world._replace(keeping="")
    elif actor == "G":
        world = world._replace(to_empty=frozenset())
    return world.then(actor, "idle")


def _settled_start(world: World) -> World:
    """Return what is left when everybody was killed, without what makes no difference then."""
    doing = tuple(does if does in ("new", "end", "failed") else "dead" for does in world.doing[:2])
    return world._replace(
        earlier=frozenset() if isinstance(world.earlier, frozenset) else (),
        doing=(*doing, *["idle"] * 4),
        left=_NOTHING,
        keeping="",
        reader="",
        has_read=True,
        to_empty=frozenset(),
        waits=frozenset(),
    )
