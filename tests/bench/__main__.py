"""``python -m tests.bench [SCENARIO …]``: measure, and write the report. ``make bench`` calls it.

``python -m tests.bench list`` prints the scenarios, ``… report`` all tables of the last run of each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.bench import background, brief, counting, long, page, results, states
from tests.bench.case import Scenario
from tests.bench.child import Settings, preload
from tests.bench.gpu_section import tables
from tests.bench.places import Place, given, on_loops
from tests.bench.plot import plot
from tests.bench.report import report
from tests.bench.runner import fast_room_needed, room_needed, run
from tests.bench.scenarios import all_scenarios
from tests.bench.sizes import size
from tests.bench.states import Sizes

_LARGER = 1.25


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help="names of scenarios, or parts of names; none: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=size, default=2 * 2**30, help="of the LLM-shaped state, such as 2GiB")
    parser.add_argument("--small", type=int, default=50_000, help="number of small tensors")
    parser.add_argument("--laps", type=int, default=60, help="saves a round of the rotation")
    parser.add_argument("--small-saves", type=int, default=100, help="saves a round of the state of 3 MB")
    parser.add_argument("--seed", type=int, default=20_250)
    parser.add_argument("--large", action="store_true", help="a state larger than memory, mapped from a file")
    parser.add_argument(
        "--only", action="append", default=[], metavar="CASE", help="such cases only, by name or the beginning of one"
    )
    parser.add_argument("--dir", type=Path, help="where to measure; else, as root, a new ext4 on a loop device")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="for the reports; the image lies there")
    parser.add_argument("--page", action="store_true", help="write the summary into docs/performance.md and README.md")
    parser.add_argument("--no-count", action="store_true", help="leave out the untimed pass that counts fsyncs")
    parser.add_argument(
        "--tiny", action="store_true", help="one round with next to nothing, all of it compared: a test"
    )
    parser.add_argument("--counting", type=Path, help=argparse.SUPPRESS)  # the untimed pass, by itself
    return parser.parse_args(arguments)


def chosen(names: Sequence[str], *, large: bool) -> list[Scenario]:
    """Return the scenarios with these names, or those that begin with them.

    Raises:
        SystemExit: A name fits none.
    """
    possible = [scenario for scenario in all_scenarios() if scenario.large or not large]
    known = {scenario.name for scenario in possible}
    for name in names:
        if name not in known and not any(other.startswith(name) for other in known):
            raise SystemExit(f"error: there is no scenario {name}; there are: {', '.join(sorted(known))}")
    return [
        scenario
        for scenario in possible
        if (not names and not scenario.curve)
        or scenario.name in names
        or any(scenario.name.startswith(name) for name in names if name not in known)
    ]


@contextmanager
def place_for(options: argparse.Namespace, sizes: Sizes, scenarios: Sequence[Scenario]) -> Iterator[Place]:
    """Give the place to measure in."""
    room_bytes = room_needed(sizes, scenarios)
    shm_bytes = 0 if sizes.large_file else 3 * states.nbytes_of("llm", sizes)
    if options.dir is not None:
        with given(options.dir, shm_bytes) as place:
            yield place
    elif os.geteuid() == 0:
        try:
            xfs = any(scenario.place == "xfs" for scenario in scenarios)
            fast_bytes = fast_room_needed(sizes, scenarios)
            with on_loops(options.out, room_bytes, shm_bytes, xfs=xfs, fast_bytes=fast_bytes) as place:
                yield place
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise SystemExit(
                f"error: no filesystem on a loop device: {said.strip()}\nhint: make bench BENCH_DIR=…"
            ) from error
    else:
        with given(options.out, shm_bytes) as place:
            yield place


def main(arguments: Sequence[str]) -> int:
    """Measure; return the exit status: 1 if a case failed."""
    if arguments[:1] == ["async"]:
        return background.main(arguments[1:])
    if arguments[:1] == ["long"]:
        return long.main(arguments[1:])
    if arguments[:1] == ["report"]:
        print(report(json.loads(page.PAGE.with_name(page.SAMPLES).read_text(encoding="utf-8"))))
        return 0
    if arguments[:1] == ["list"]:
        print("\n".join(f"{scenario.name:<16} {scenario.title}" for scenario in all_scenarios()))
        return 0
    if arguments[:1] == ["predict"]:
        from tests.bench import predict

        return predict.main(arguments[1:])
    if arguments[:1] == ["encodings"]:
        from tests.bench import encodings

        return encodings.main(arguments[1:])
    if arguments[:1] == ["compact"]:
        from tests.bench import compaction  # torch, which the others load in children only

        return compaction.main(arguments[1:])
    if arguments[:1] == ["remote"]:
        from tests.bench import off_node  # the engine of remotes, which the others do without

        return off_node.main(arguments[1:])
    options = parse(arguments)
    if options.scenarios == ["gpu"]:
        return _gpu(options.out)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the filesystem is taken down
    options.out.mkdir(parents=True, exist_ok=True)
    preload()
    scenarios = chosen(options.scenarios, large=options.large)
    sizes = Sizes(
        options.size,
        options.small,
        rotation_laps=options.laps,
        hundred_laps=options.small_saves,
        seed=options.seed,
    )
    if options.tiny:
        sizes, options.rounds = (
            Sizes(
                8 * 2**20,
                small_count=200,
                changing_laps=2,
                rotation_laps=5,
                hundred_laps=3,
                steady_laps=2,
                seed=options.seed,
                layers=2,
            ),
            1,
        )
    if not options.large:
        return _measure(arguments, options, scenarios, sizes)
    sizes = _large(options.out, options.seed)
    if options.counting is not None:  # the process that waits for this one has made it, and removes it
        return _measure(arguments, options, scenarios, sizes)
    try:
        states.write_large(Path(sizes.large_file), sizes)
        return _measure(arguments, options, scenarios, sizes)
    finally:
        Path(sizes.large_file).unlink(missing_ok=True)


def _measure(arguments: Sequence[str], options: argparse.Namespace, scenarios: Sequence[Scenario], sizes: Sizes) -> int:
    with place_for(options, sizes, scenarios) as place:
        settings = Settings(
            sizes,
            drop_everything=os.geteuid() == 0 and not options.tiny,
            own_filesystem=place.own,
            thorough=options.tiny,
            rehearse=not options.tiny,
            fsync=not options.tiny,
            only=tuple(options.only),
        )
        if options.counting is not None:
            return _count_here(scenarios, place, settings, options.counting)
        found = run(scenarios, place, settings, options.rounds, lambda line: print(line, flush=True))
        read = results.document(scenarios, found, place, settings, options.rounds)
        if not options.no_count:
            _count(read, settings, [*arguments, "--dir", str(place.path)], options.out)
    return _write(read, options)


def _gpu(out: Path) -> int:
    """Write the section of the page from the file of a run on a machine with a GPU, and print all tables of it."""
    found = out.parent / "gpu.json"
    if page.write_gpu(page.PAGE, found):
        print(tables(json.loads(found.read_text(encoding="utf-8"))))
        print(f"{page.PAGE}: the section on GPUs is that of {found}")
        return 0
    print(f"error: {found} does not exist, or its run had no GPU\nhint: tests/gpu/run.sh writes it", file=sys.stderr)
    return 1


def _large(out: Path, seed: int) -> Sizes:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Sizes(int(memory_bytes * _LARGER), seed=seed, large_file=str((out / "large.state").resolve()))


def _count(read: dict[str, Any], settings: Settings, arguments: Sequence[str], out: Path) -> None:
    """Run the untimed pass under strace in a process of its own; add what it counted to the document."""
    log, counted = (out / "strace.log").resolve(), (out / "counted.json").resolve()
    counted.unlink(missing_ok=True)
    command = [*counting.strace_command(log), sys.executable, "-m", "tests.bench", *arguments]
    print("counting: every case once more, untimed", flush=True)
    done = subprocess.run([*command, "--counting", str(counted)], check=False, stdout=subprocess.DEVNULL)
    if not counted.exists():
        read["not_counted"] = f"the untimed pass ended with {done.returncode}"
        return
    fsyncs = counting.fsyncs(log) if log.exists() else {}
    said = json.loads(counted.read_text())
    for name in said["samples"]:
        scenario = read["scenarios"][results.key_of(name, settings)]
        for case, about in scenario["cases"].items():
            samples = said["samples"][name].get(case, [])
            if samples:
                about["counted"] = {"private_bytes": samples[0]["extra_bytes"], "fsyncs": fsyncs.get((name, case))}
        for case, errors in said["errors"].get(name, {}).items():
            scenario["errors"].setdefault(case, []).extend(errors)
    log.unlink(missing_ok=True)
    counted.unlink()


def _count_here(scenarios: Sequence[Scenario], place: Place, settings: Settings, out: Path) -> int:
    thorough = replace(settings, thorough=True, counting=True)
    found = run(scenarios, place, thorough, 1, lambda line: None)
    out.write_text(json.dumps(asdict(found)))
    return 0


def _write(read: dict[str, Any], options: argparse.Namespace) -> int:
    (options.out / "report.json").write_text(json.dumps(read, indent=1))
    (options.out / "report.md").write_text(report(read) + "\n")
    (options.out / "report.svg").write_text(plot(read))
    if options.page:
        brief.write(brief.README, page.write(page.PAGE, read))
        page.write_gpu(page.PAGE, options.out.parent / "gpu.json")
    errors = sum(len(scenario["errors"]) for scenario in read["scenarios"].values())
    print(f"{options.out}/report.md, report.json, report.svg: {errors} cases failed")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
