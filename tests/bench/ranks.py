"""Four processes of a group save and load one sharded state: ckstore beside the FileSystemWriter of torch.

The processes start before the clock runs; an act begins and ends with a barrier.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tests.bench.case import Case, Here
from tests.bench.states import nbytes_of
from tests.bench.usage import cached_bytes, regular_files
from tests.support.gloo import Group

RANKS = 4
_WORK = Path(__file__).with_name("ranks_work.py")


class OfRanks(Case):
    """One act of all ranks."""

    def __init__(self, system: Literal["ckstore", "FileSystemWriter"], what: Literal["save", "again", "load"]) -> None:
        super().__init__()
        self.name = system
        self.role = "ckstore" if system == "ckstore" else "peer"
        self.cache = "warm" if what == "load" else "any"
        self._what = what

    def prepare(self, here: Here) -> None:
        """Start the processes and make the state; where it is saved again or loaded, save it."""
        self._folder = here.folder / "saved"
        self._group = Group(RANKS, here.folder, _WORK)
        self.nbytes = self._group.run("make", nbytes=nbytes_of("llm", here.sizes), seed=here.sizes.seed)[0]
        self._before = self._group.run("checksum")
        if here.rehearse:
            self._group.run("rehearse", system=self.name, folder=str(here.folder / "rehearsed"))
        self._group.run("begin", system=self.name, folder=str(self._folder))
        if self._what != "save":
            self._run("save", 0)
        if self._what == "load":
            self._group.run("zero")

    def act(self, lap: int) -> None:
        """Save or load."""
        del lap
        found = self._run("load" if self._what == "load" else "save", 0 if self._what == "load" else 1)
        self.figures["seconds_of_ranks"] = max(seconds for seconds, _ in found)
        self.figures["memory_bytes_of_ranks"] = float(sum(extra for _, extra in found))
        if self._what != "load":
            self.figures["page_cache_bytes"] = float(cached_bytes(regular_files(self._folder)))

    def check(self) -> None:
        """Look that the state is there again, and end the processes."""
        if self._what != "load":
            self._group.run("zero")
            self._run("load", 1)
        found = self._group.run("checksum")
        self._group.__exit__(None, None, None)
        if found != self._before:
            raise ValueError(f"{self.name} should give back {self._before}, it gave {found}")

    def _run(self, act: str, step: int) -> list[tuple[float, int]]:
        found: list[tuple[float, int]] = self._group.run(act, system=self.name, folder=str(self._folder), step=step)
        return found
