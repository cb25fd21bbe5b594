"""The acts that every system is measured by. A scenario (`tests.bench.scenarios`) says which systems do which."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import xxhash

from tests.bench import states
from tests.bench.case import Cache, Case, Here, System
from tests.bench.states import Kind, Sizes, State
from tests.bench.usage import cached_share, footprint, make_warm, use_memory

_REHEARSED = Sizes(state_bytes=2**25, small_count=20, layers=2)
_SAMPLED = 25


class _OfSystem(Case):
    """A case of a system; before the clock runs it has done the same once, with little, so that imports are done."""

    kind: Kind = "llm"

    def __init__(self, system: System, kind: Kind = "llm") -> None:
        super().__init__()
        self.system = system
        self.name = system.name
        self.role = system.role
        self.kind: Kind = kind

    def missing(self) -> str:
        return self.system.missing()

    def prepare(self, here: Here) -> None:
        self._here = here
        if here.rehearse and not self.system.program:
            rehearsal = here.folder / "rehearsal"
            rehearsal.mkdir()
            self.system.open(rehearsal)
            self._rehearse(states.make("rotation", _REHEARSED))
            shutil.rmtree(rehearsal)
        self.state: State = states.make(self.kind, here.sizes)
        self.nbytes = sum(tensor.nbytes for tensor in self.state.values())
        self._home = here.folder / "home"
        self._home.mkdir()
        self.system.open(self._home)

    def _rehearse(self, state: State) -> None:
        self.system.save(state, 0)
        self.system.load()

    def compare(self, found: Mapping[str, torch.Tensor]) -> None:
        """Raise unless what was loaded is what was saved."""
        assert states.same(found, self.state), f"{self.name} gave back another state"

    def compare_stored(self) -> None:
        """Load and compare, in a thorough pass; of a state larger than memory only ours, since torch cannot map it."""
        large = bool(self._here.sizes.large_file)
        if self._here.thorough and not (large and self.role == "peer"):
            self.compare(self.system.load_mapped() if large else self.system.load())


class FirstSave(_OfSystem):
    """The first save of a state into something new."""

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self.system.ready(self.state)

    def act(self, lap: int) -> None:
        self.system.save(self.state, 1)

    def check(self) -> None:
        self.compare_stored()


class SampledSave(FirstSave):
    """The first save of a part of a state, for what would take too long; times are scaled up."""

    scale = 1 / _SAMPLED

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self.state = dict(list(self.state.items())[::_SAMPLED])
        self.scale = sum(tensor.nbytes for tensor in self.state.values()) / self.nbytes


class UnchangedSave(_OfSystem):
    """The second save of a state that has not changed."""

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self.system.ready(self.state)
        self.system.save(self.state, 1)

    def act(self, lap: int) -> None:
        self.system.save(self.state, 2)

    def check(self) -> None:
        self.compare_stored()


class ChangingSaves(_OfSystem):
    """Saves of a state of which 10 % change, after a first one. `stored_bytes` is what the filesystem gave for them."""

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self.laps = here.sizes.changing_laps
        self._changing = states.a_tenth(self.state)
        self.system.ready(self.state)
        self.system.save(self.state, 1)
        changed_bytes = sum(self.state[name].nbytes for name in self._changing)
        self.figures |= {"changed_bytes": float(changed_bytes * self.laps), "stored_bytes": 0.0}
        self.nbytes *= self.laps

    def before(self, lap: int) -> None:
        self._count_stored()
        if lap and not self.system.deduplicates:
            self.system.forget(lap)
        states.change(self.state, lap + 1, self._changing)
        self.system.ready(self.state)
        self._before_bytes = self._stored_bytes()

    def act(self, lap: int) -> None:
        self.system.save(self.state, lap + 2)

    def check(self) -> None:
        self._count_stored()
        self.compare_stored()

    _before_bytes = -1

    def _count_stored(self) -> None:
        if self._before_bytes >= 0:
            self.figures["stored_bytes"] += self._stored_bytes() - self._before_bytes

    def _stored_bytes(self) -> int:
        source = self._home / "source"
        return footprint(self._home).allocated_bytes - footprint(source).allocated_bytes


class Rotation(_OfSystem):
    """Saves of a state of which all changes, of which three are kept; freeing the rest is a part of each."""

    keep = 3

    def __init__(self, system: System) -> None:
        super().__init__(system, "rotation")

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self.laps = here.sizes.rotation_laps
        self.nbytes *= self.laps
        try:
            self.system.rotate(self.keep)
            self._by_itself = True
        except NotImplementedError:
            self._by_itself = False

    def before(self, lap: int) -> None:
        states.change(self.state, lap + 1)

    def act(self, lap: int) -> None:
        self.system.save(self.state, lap)
        if not self._by_itself and lap >= self.keep:
            self.system.forget(lap - self.keep)

    def check(self) -> None:
        state_bytes = self.nbytes / self.laps
        kept = footprint(self._home).allocated_bytes / state_bytes
        # Tiny states are less than the catalog beside them.
        assert kept < self.keep + 1 or state_bytes < 2**20, f"{kept:.1f} states are there, wanted {self.keep}"
        self.compare_stored()


class SmallSaves(_OfSystem):
    """Saves of a small state of which all changes, one after another, as a loop with a small model does."""

    def __init__(self, system: System) -> None:
        super().__init__(system, "hundred")

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self.laps = here.sizes.hundred_laps
        self.nbytes *= self.laps
        self.system.ready(self.state)
        self.system.save(self.state, 0)

    def before(self, lap: int) -> None:
        states.change(self.state, lap + 1)
        self.system.ready(self.state)

    def act(self, lap: int) -> None:
        self.system.save(self.state, lap + 1)

    def check(self) -> None:
        self.compare_stored()


class SteadySaves(_OfSystem):
    """The second to the tenth save of a state of which all changes, with room given back between the laps."""

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self.laps = here.sizes.steady_laps
        self.nbytes *= self.laps
        self.system.ready(self.state)
        self.system.save(self.state, 0)

    def before(self, lap: int) -> None:
        if lap:
            self.system.forget(lap - 1)
        states.change(self.state, lap + 1)
        self.system.ready(self.state)

    def act(self, lap: int) -> None:
        self.system.save(self.state, lap + 1)

    def check(self) -> None:
        self.compare_stored()


class KeepsCache(_OfSystem):
    """A save and a load; `kept_share` of another file's pages are in the page cache afterwards."""

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self._other = here.folder / "other"
        block = states.as_bytes(self.state["model.embed"]).numpy().data
        with self._other.open("wb") as file:
            while file.tell() < self.nbytes // 2:
                file.write(block)
        self.system.ready(self.state)
        self.nbytes *= 2

    def before(self, lap: int) -> None:
        make_warm(self._other.parent)

    def act(self, lap: int) -> None:
        self.system.save(self.state, 1)
        self._found = self.system.load()

    def check(self) -> None:
        self.figures["kept_share"] = cached_share([self._other]) or 0.0
        self.compare(self._found)


class _AfterSave(_OfSystem):
    """An act on a state that was saved.

    Args:
        system: Which.
        cache: What its files are before it: anything, in the page cache, or not there.
        kind: Of state.
        again: It is the system's own load that brings them into the page cache, and gives its memory back.
        rest_s: Then another process uses as much memory, and so long passes before the clock; for the name, too.
            None: neither.
    """

    def __init__(
        self,
        system: System,
        *,
        cache: Cache = "any",
        kind: Kind = "llm",
        again: bool = False,
        rest_s: float | None = None,
    ) -> None:
        super().__init__(system, kind)
        self.cache = cache
        self._again = again
        self._rest_s = rest_s
        self.name += "" if rest_s is None else f", {rest_s:g} s"

    def warm(self, folder: Path) -> None:
        if self._again:
            self.system.load()  # what it returns is freed at once
        else:
            super().warm(folder)
        if self._rest_s is not None:
            use_memory(self.nbytes)
            time.sleep(self._rest_s)

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self.system.ready(self.state)
        self.system.save(self.state, 1)
        self.folder_read: Path = self._home


class Load(_AfterSave):
    """Load the state into fresh memory."""

    def act(self, lap: int) -> None:
        self._found = self.system.load()

    def check(self) -> None:
        self.compare(self._found)


class MappedLoad(_AfterSave):
    """Map the state; usable, but nothing is read.

    Args:
        system: Which.
        cache, again: As for all that is done after a save.
        touch: Read every byte on the clock, too.
    """

    def __init__(self, system: System, *, cache: Cache = "any", again: bool = False, touch: bool = False) -> None:
        super().__init__(system, cache=cache, again=again)
        self._touch = touch
        self.name += ", every byte" if touch else ""

    def _rehearse(self, state: State) -> None:
        self.system.save(state, 0)
        self.system.load_mapped()

    def act(self, lap: int) -> None:
        self._found = self.system.load_mapped()
        if self._touch:
            for tensor in self._found.values():
                xxhash.xxh3_64_intdigest(states.as_bytes(tensor).numpy().data)

    def check(self) -> None:
        self.compare(self._found)


class LoadInto(_AfterSave):
    """Read the state into tensors that exist."""

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self._target = states.like(self.state)

    def _rehearse(self, state: State) -> None:
        self.system.save(state, 0)
        self.system.load_into(states.like(state))

    def act(self, lap: int) -> None:
        self.system.load_into(self._target)

    def check(self) -> None:
        self.compare(self._target)


class LoadOne(_AfterSave):
    """Load one tensor of all; `needed_bytes` are its own, in whole pages."""

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self._name = f"model.layers.{here.sizes.layers // 2}.mlp.up"
        self.nbytes = self.state[self._name].nbytes
        self.figures["needed_bytes"] = float(-(-self.nbytes // 4096) * 4096)

    def _rehearse(self, state: State) -> None:
        self.system.save(state, 0)
        self.system.load_one(next(iter(state)))

    def act(self, lap: int) -> None:
        self._found = self.system.load_one(self._name)

    def check(self) -> None:
        assert states.same({"one": self._found}, {"one": self.state[self._name]}), f"{self.name} gave another tensor"


class Verify(_AfterSave):
    """Read everything and check it."""

    def _rehearse(self, state: State) -> None:
        self.system.save(state, 0)
        self.system.verify()

    def act(self, lap: int) -> None:
        self.system.verify()
