"""The few concepts: a `System` saves and loads, a `Case` is one act that is measured, a `Scenario` compares cases.

A baseline is a case without a system: the plain operation on the same bytes. A peer is a system, and ckstore is one,
too: each is measured by the same cases (`tests.bench.acts`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from tests.bench.states import Sizes, State
from tests.bench.usage import make_warm

Role = Literal["baseline", "ckstore", "peer"]
Cache = Literal["any", "warm", "cold"]


@dataclass(frozen=True)
class Here:
    """What a case is given.

    Attributes:
        folder: An empty directory of its own, on the filesystem that is measured.
        sizes: How much.
        thorough: Whether `check` compares all that was stored; in timed passes it looks at little, to save time.
        rehearse: Whether a case does its act with little before it is measured, so that imports are done.
    """

    folder: Path
    sizes: Sizes
    thorough: bool = False
    rehearse: bool = True


class Case(ABC):
    """One act. A fresh process calls `prepare`, then for each lap `before` and, on the clock, `act`; then `check`.

    Attributes:
        name: Of the system or baseline, unique in its scenario.
        cache: State of the page cache, for all files of the case, that is made and checked before each lap.
        laps: How often `act` is called; its time is the sum.
        nbytes: Bytes that all laps together work on; set by `prepare`.
        scale: The act does this part of the work; times and counts are multiplied by its inverse.
        figures: What else it found out.
    """

    name: str = ""
    role: Role = "peer"
    cache: Cache = "any"
    laps: int = 1
    scale: float = 1.0
    nbytes: int = 0

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def missing(self) -> str:
        """Return why it cannot run here; empty: it can."""
        return ""

    @abstractmethod
    def prepare(self, here: Here) -> None:
        """Do what is not measured."""

    def before(self, lap: int) -> None:  # noqa: B027 - most have nothing to do
        """Do what is not measured before each lap."""

    def warm(self, folder: Path) -> None:
        """Bring all files below its directory into the page cache."""
        make_warm(folder)

    @abstractmethod
    def act(self, lap: int) -> None:
        """Do what is measured; when it returns it is as durable as the scenario says."""

    def check(self) -> None:  # noqa: B027 - the same
        """Raise unless the act did what it should."""


class System(ABC):
    """Something that keeps states. Its directory is given by `open`; methods that it lacks raise NotImplementedError.

    Attributes:
        role: Whether it is ours.
        program: It is a program that keeps files; the file is written before the clock runs.
        deduplicates: It keeps equal bytes once. What does not is given the room of old saves back between laps.
    """

    name: str = ""
    role: Role = "peer"
    program: bool = False
    deduplicates: bool = False

    def missing(self) -> str:
        """Return why it cannot run here; empty: it can."""
        return ""

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Make ready in an empty directory."""

    def ready(self, state: State) -> None:  # noqa: B027 - most have nothing to do
        """Do what comes before a save and is not a part of it."""

    @abstractmethod
    def save(self, state: State, step: int) -> None:
        """Save durably: content, names, the directory."""

    def forget(self, step: int) -> None:
        """Remove a step; it is there."""
        raise NotImplementedError

    def rotate(self, keep: int) -> None:
        """Keep only so many steps from now on; without it a case calls `forget`."""
        raise NotImplementedError

    def load(self) -> Mapping[str, torch.Tensor]:
        """Return the newest state in fresh memory."""
        raise NotImplementedError

    def load_mapped(self) -> Mapping[str, torch.Tensor]:
        """Return the newest state mapped."""
        raise NotImplementedError

    def load_into(self, state: State) -> None:
        """Read the newest state into tensors that exist."""
        raise NotImplementedError

    def load_one(self, name: str) -> torch.Tensor:
        """Return one tensor of the newest state, in memory."""
        raise NotImplementedError

    def verify(self) -> None:
        """Read the newest state and check every byte; raise if one is wrong."""
        raise NotImplementedError


@dataclass(frozen=True)
class Scenario:
    """Cases that are compared.

    Attributes:
        name: For the command line.
        title: For the report.
        place: Which filesystem: the one that is measured, memory, an XFS made as the ext4 is, or an ext4 on a device
            that is memory.
        without_fsync: Make every fsync of Python do nothing: what durability costs.
        large: Whether it can be run with a state larger than memory.
        curve: What a choice of ckstore costs instead of another one; only run where it is named.
    """

    name: str
    title: str
    cases: tuple[Case, ...]
    place: Literal["disk", "tmpfs", "xfs", "fast"] = "disk"
    without_fsync: bool = False
    large: bool = False
    curve: bool = False


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(folder: Path) -> None:
    """Make all that lies below a directory durable, and its name: what a peer lacks that does not do so itself."""
    for parent, _, names in os.walk(folder):
        for name in names:
            sync_file(Path(parent, name))
        sync_file(Path(parent))
    sync_file(folder.parent)
