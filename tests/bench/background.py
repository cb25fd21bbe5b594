"""``python -m tests.bench async``: what a background save costs its trainer, beside a plain copy and DCP.

Each round runs every case once, in an order drawn from the seed and each in a process of its own: bare copies of the
state with one and with two threads, `Store.save_async`, and both forms of `async_save` of DCP. Between saves every
block of the state changes. What is written down is how long the call blocks, how long it takes until the trainer may
also die, how long until the save is durable, and how much slower a training step of one thread is meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tests.bench.background_cases import CASES, Lap, run_case
from tests.bench.places import Place, given, on_loops
from tests.bench.sizes import size

_TIMEOUT_S = 900.0
_ROOM = 4.0
_ROOM_BYTES = 2**30
_COLUMNS = (
    "blocked, ms",
    "min – max",
    "× the better copy",
    "until it may die, ms",
    "until durable, s",
    "step, ms",
    "step meanwhile, ms",
    "slower",
)
Laps = dict[str, list[Lap]]


def measure(options: argparse.Namespace, nbytes: int, place: Place) -> Laps:
    """Return the laps of all rounds, by the name of the case."""
    found: Laps = defaultdict(list)
    chance = random.Random(options.seed)
    names = [name for name in CASES if not options.only or name in options.only]
    for turn in range(options.rounds):
        for name in chance.sample(names, len(names)):
            laps = _in_a_process(name, nbytes, options, place)
            found[name] += laps
            blocked = " ".join(f"{lap['blocked_s'] * 1e3:.1f}" for lap in laps)
            print(f"round {turn + 1} of {options.rounds}, {name}: {blocked} ms", file=sys.stderr, flush=True)
    return found


def _in_a_process(name: str, nbytes: int, options: argparse.Namespace, place: Place) -> list[Lap]:
    command = [sys.executable, "-m", "tests.bench", "async", "--case", name, "--dir", str(place.path)]
    command += ["--size", str(nbytes), "--laps", str(options.laps), "--seed", str(options.seed)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=_TIMEOUT_S)
    laps: list[Lap] = json.loads(done.stdout)
    return laps


def table(found: Mapping[str, Sequence[Lap]]) -> str:
    """Return a table of the medians, with the least and the most of the time that the trainer is blocked."""
    copies = [_median(found[name], "blocked_s") for name in found if name.startswith("copy")]
    lines = [
        f"|  | {' | '.join(_COLUMNS)} |",
        f"|{' --- |' * (len(_COLUMNS) + 1)}",
    ]
    for name in (name for name in CASES if name in found):
        laps = found[name]
        blocked = [lap["blocked_s"] * 1e3 for lap in laps]
        middle = statistics.median(blocked)
        times = f"{middle / 1e3 / min(copies):.2f}" if copies else "–"
        cells = [name, f"{middle:.1f}", f"{min(blocked):.1f} – {max(blocked):.1f}", times]
        if "durable_s" in laps[0]:
            cells += [f"{_median(laps, 'owned_s') * 1e3:.1f}", f"{_median(laps, 'durable_s'):.2f}"]
            cells += _steps(laps)
        else:
            cells += ["–"] * 5
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _steps(laps: Sequence[Lap]) -> list[str]:
    both = [lap for lap in laps if "meanwhile_s" in lap]  # a small save is over before a step is
    if not both:
        return ["–"] * 3
    slower = statistics.median(lap["meanwhile_s"] / lap["step_s"] - 1 for lap in both)
    return [f"{_median(both, 'step_s') * 1e3:.1f}", f"{_median(both, 'meanwhile_s') * 1e3:.1f}", f"{slower:+.0%}"]


def _median(laps: Sequence[Lap], what: str) -> float:
    return statistics.median(lap[what] for lap in laps)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; or run one case, for the process that asked for it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench async", description=__doc__)
    parser.add_argument("--size", type=size, action="append", help="of the state; may be given several times")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--laps", type=int, default=3, help="saves of a case in a round, after one that is not counted")
    parser.add_argument("--seed", type=int, default=20_260)
    parser.add_argument("--only", action="append", default=[], choices=tuple(CASES), help="such cases only")
    parser.add_argument("--dir", type=Path, help="where to save; else, as root, a new ext4 on a loop device")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where the image of that lies")
    parser.add_argument("--case", choices=tuple(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = options.size or [2 * 2**30]
    if options.case is not None:
        laps = run_case(options.case, options.dir, sizes[0], options.laps, seed=options.seed)
        print(json.dumps(laps))
        return 0
    with _place(options, max(sizes)) as place:
        print(f"{options.rounds} rounds of {options.laps} saves, {place.words}", flush=True)
        for nbytes in sizes:
            print(f"\n{nbytes:,} bytes\n\n{table(measure(options, nbytes, place))}", flush=True)
    return 0


def _place(options: argparse.Namespace, nbytes: int) -> AbstractContextManager[Place]:
    options.out.mkdir(parents=True, exist_ok=True)
    if options.dir is None and os.geteuid() == 0:
        return on_loops(options.out, int(nbytes * _ROOM) + _ROOM_BYTES, 0)
    return given(options.dir or options.out, 0)
