"""What one run of the model looks at: who takes part, how the world begins, how often what may happen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.protocol.rules import Rules
from tests.protocol.world import CHECKPOINTS, Left, Mode, World, start_world


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        name: As it is told.
        left: How often what may happen.
        rules: Which rules the code keeps.
        mode: What a power cut does.
        savers: Who saves.
        old: Whether there is an old checkpoint K.
        canonical: The old copy of D under its canonical name: ``d`` durable, ``s`` short, empty: the name is lost.
        same: Checkpoints that have one step and the same content.
        drop: What retention may drop, in this order of age.
        relies: Whether retention drops only while a newer checkpoint is there.
        undo: Whether what retention drops waits to be brought back.
        reader: ``open`` or ``map`` K; empty: no reader.
    """

    name: str
    left: Left
    rules: Rules = field(default_factory=Rules)
    mode: Mode = "ordered"
    savers: str = "AB"
    old: bool = True
    canonical: str = "d"
    same: str = ""
    drop: str = ""
    relies: bool = False
    undo: bool = False
    reader: str = ""

    def under(self, rules: Rules, mode: Mode) -> Scenario:
        """Return the same scenario with other rules and power cuts."""
        return replace(self, rules=rules, mode=mode)

    def start(self) -> World:
        """Return the world in which no actor has begun."""
        names = {"run": "run"} if self.old else {}
        data = "---"
        if self.old:
            names |= {"Kb": "o", "Km": "m", "Kl": "P"}
            data = "d--"
        if self.canonical and (self.old or self.canonical == "s"):
            names["C"] = "o"
            data = f"{self.canonical}--"
        world = start_world(self.mode, names, data, self.left)
        if self.old:
            known = frozenset("K")
            world = world._replace(rows=known, counted=1, acknowledged=known)
        return world._replace(listed=bool(names.get("C")) or self.old)

    def same_as(self, world: World, x: str) -> str:
        """Return another published checkpoint of the step of `x` with its content; empty if there is none."""
        same = self.same if x in self.same else ""
        return next((y for y in CHECKPOINTS if y != x and y in same and world.where(y) == "P"), "")
