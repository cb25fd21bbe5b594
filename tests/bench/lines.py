"""The goals of ckstore, each as a ratio of two figures of the same run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckstore.model.settings.settings import DEFAULT_CHUNK_BYTES
from ckstore.model.sizes import medium_count, pack_below_bytes
from ckstore.ops.save.packing import PACK_BYTES
from tests.bench import states
from tests.bench.results import Results, ratio
from tests.bench.scenarios import (
    COPY_BASELINES,
    FAST_HASHED,
    FAST_OURS,
    FAST_READ,
    FAST_WRITE,
    HASH_BASELINES,
    READ_BASELINES,
    WRITE_BASELINES,
)
from tests.bench.states import Sizes

_OURS = "ckstore"
_MIB = 2**20


@dataclass(frozen=True)
class Line:
    """One goal.

    Attributes:
        what: The name of the figure.
        limit: The figure must be at least, or at most, this.
        at_least: Whether the limit is a minimum.
        figure: Computes the figure. It returns None if it was not measured.
    """

    what: str
    limit: float
    at_least: bool
    figure: Callable[[Results], float | None]

    def reached(self, results: Results) -> bool | None:
        """Whether it is reached; None: it was not measured."""
        value = self.figure(results)
        if value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit


def _faster(scenario: str, than: str | None = None, ours: str = _OURS) -> Callable[[Results], float | None]:
    """How many times as long another case takes; None: the fastest peer."""

    def figure(results: Results) -> float | None:
        other = results.fastest(scenario) if than is None else results.seconds(scenario, than)
        return ratio(other, results.seconds(scenario, ours))

    return figure


def _baseline_share(scenario: str, *baselines: tuple[str, ...], ours: str = _OURS) -> Callable[[Results], float | None]:
    """Which part of the time the slowest of some baselines needs, each at its fastest."""

    def figure(results: Results) -> float | None:
        times = [results.fastest(scenario, names) for names in baselines]
        known = [seconds for seconds in times if seconds is not None]
        return ratio(max(known), results.seconds(scenario, ours)) if len(known) == len(times) else None

    return figure


def _memory(scenario: str) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.counted(scenario, _OURS, "private_bytes"), _MIB)


def _cpu_of_torch_save(results: Results) -> float | None:
    return ratio(results.value("save", _OURS, "cpu_s"), results.value("save", "torch.save", "cpu_s"))


def _unchanged(results: Results) -> float | None:
    hashing = results.fastest("unchanged", HASH_BASELINES)
    if hashing is None:
        return None
    allowed = hashing + 20e-6 * sum(_tensors_and_blobs(Sizes(**results.run("unchanged")["sizes"]))) + 10e-3
    return ratio(results.seconds("unchanged", _OURS), allowed)


def _tensors_and_blobs(sizes: Sizes) -> tuple[int, int]:
    nbytes = [shape.nbytes for shape in states.shapes("llm", sizes)]
    below = pack_below_bytes(medium_count(nbytes), DEFAULT_CHUNK_BYTES)
    packed = sum(n for n in nbytes if n < below)
    blobs = sum(-(-n // DEFAULT_CHUNK_BYTES) for n in nbytes if n >= below)
    return len(nbytes), blobs + -(-packed // PACK_BYTES)


def _changing(results: Results) -> float | None:
    """Our time over that of writing the changed bytes and hashing all of them, at the rates of the baselines."""
    write, hashing = results.fastest("changing", WRITE_BASELINES), results.fastest("changing", HASH_BASELINES)
    changed = results.value("changing", _OURS, "changed_bytes")
    every = results.value("changing", _OURS, "nbytes")
    one = results.value("changing", HASH_BASELINES[0], "nbytes")
    if write is None or hashing is None or changed is None or every is None or not one:
        return None
    return ratio(results.seconds("changing", _OURS), (changed * write + every * hashing) / one)


def _stored(results: Results) -> float | None:
    return ratio(results.value("changing", _OURS, "stored_bytes"), results.value("changing", _OURS, "changed_bytes"))


def _in_place(results: Results) -> float | None:
    return ratio(results.seconds("into", _OURS), results.fastest("into", COPY_BASELINES))


def _one(results: Results) -> float | None:
    return ratio(results.value("one", _OURS, "read_bytes"), results.value("one", _OURS, "needed_bytes"))


def _tail(results: Results) -> float | None:
    return results.tail("rotate", _OURS)


def _slower(scenario: str, than: str, ours: str = _OURS) -> Callable[[Results], float | None]:
    """How many times as long as another case ours takes."""
    return lambda results: ratio(results.seconds(scenario, ours), results.seconds(scenario, than))


def _on_fast(scenario: str, baselines: dict[int, str]) -> tuple[Line, Line]:
    """The share of a baseline with the threads that were chosen, and with two."""
    what = f"{scenario.removeprefix('fast-')}, a device in memory"
    chosen, two = (_baseline_share(scenario, tuple(baselines.values()), ours=ours) for ours in (_OURS, FAST_OURS[2]))
    return (
        Line(f"{what}, time of direct I/O ÷ ours", 0.85, True, chosen),
        Line(f"{what}, two threads, time of direct I/O ÷ ours", 0.85, True, two),
    )


def _mapped(scenario: str, what: str) -> tuple[Line, Line]:
    peer, every = "safetensors", ", every byte"
    return (
        Line(f"{what}, time ÷ safetensors", 2.0, False, _slower(scenario, peer)),
        Line(f"{what}{every}, time ÷ safetensors", 1.0, False, _slower(scenario, peer + every, _OURS + every)),
    )


LINES = (
    Line(
        "first save, time of the direct write ÷ ours (or the next line)",
        0.85,
        True,
        _baseline_share("save", WRITE_BASELINES),
    ),
    Line("first save, time of the fastest peer ÷ ours (or the line before)", 1.2, True, _faster("save")),
    Line("first save, time of torch.save + fsync ÷ ours", 1.5, True, _faster("save", "torch.save")),
    Line("first save, CPU-seconds ÷ those of torch.save", 0.5, False, _cpu_of_torch_save),
    Line("steady saves, time of the direct write ÷ ours", 0.85, True, _baseline_share("steady", WRITE_BASELINES)),
    Line("first save on tmpfs, time of safetensors ÷ ours", 1.0, True, _faster("tmpfs", "safetensors")),
    Line("save, unchanged, time ÷ (hash + 20 µs × (tensors + blobs) + 10 ms)", 1.3, False, _unchanged),
    Line("save, unchanged, time of restic ÷ ours", 20.0, True, _faster("unchanged", "restic")),
    Line("save, unchanged, time of borg ÷ ours", 20.0, True, _faster("unchanged", "borg")),
    Line("save, unchanged, time of the fastest peer ÷ ours", 10.0, True, _faster("unchanged")),
    Line("10 % changed, bytes stored ÷ bytes changed", 1.02, False, _stored),
    Line("10 % changed, time ÷ (writing the changed bytes + hashing all)", 1.3, False, _changing),
    Line("small tensors, time of torch.save + fsync ÷ ours", 1.0, True, _faster("small", "torch.save")),
    Line("small tensors, time of one file for each ÷ ours", 10.0, True, _faster("small", "file a tensor, fsync each")),
    Line("saves of 3 MB in 100 tensors, time ÷ torch.save + fsync", 1.5, False, _slower("small-state", "torch.save")),
    Line("the same on XFS, time ÷ torch.save + fsync", 1.5, False, _slower("small-state-xfs", "torch.save")),
    *_on_fast("fast-save", FAST_WRITE),
    Line(
        "save, a device in memory, time of hash, copy and direct write ÷ ours",
        0.85,
        True,
        _baseline_share("fast-save", tuple(FAST_HASHED.values())),
    ),
    *_on_fast("fast-load", FAST_READ),
    *_mapped("map", "mapped load, warm"),
    *_mapped("map-again", "mapped load after a load"),
    Line("load, warm, time of torch.load ÷ ours", 3.0, True, _faster("load", "torch.save")),
    Line("load after a load, time of torch.load ÷ ours", 3.0, True, _faster("load-again", "torch.save")),
    Line(
        "load, cold, time of the direct read ÷ ours",
        0.85,
        True,
        _baseline_share("load-cold", READ_BASELINES),
    ),
    Line("load in place, warm, time ÷ memcpy", 1.5, False, _in_place),
    Line("one tensor, cold, bytes read ÷ bytes needed", 1.1, False, _one),
    Line("first save, extra memory in MiB", 256.0, False, _memory("save")),
    Line("first save of a state larger than memory, extra memory in MiB", 256.0, False, _memory("save-large")),
    Line("load in place, extra memory in MiB", 128.0, False, _memory("into")),
    Line("keep the last three, p95 ÷ p50, median of the rounds", 1.5, False, _tail),
    Line(
        "share of the page cache of another file that is kept",
        0.95,
        True,
        lambda r: r.value("cache", _OURS, "kept_share"),
    ),
    Line(
        "verify, cold, time of the slower of read and hash ÷ ours",
        0.85,
        True,
        _baseline_share("verify", READ_BASELINES, HASH_BASELINES),
    ),
)
