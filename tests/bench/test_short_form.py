"""Every case of the benchmark runs, with next to nothing: states come back equal, and the report has every figure.

No time is asserted. Peers that are not installed are skipped with a reason, as in `make bench`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch

from ckstore import Store
from ckstore.model import sizes
from ckstore.ops.read import storage_read
from tests.bench import (
    background,
    brief,
    compact_loads,
    compaction,
    cores,
    counting,
    evaluators,
    long,
    page,
    scale,
    states,
)
from tests.bench.__main__ import chosen, main
from tests.bench.background_cases import CASES, run_case
from tests.bench.case import Here
from tests.bench.lines import LINES
from tests.bench.plot import plot
from tests.bench.report import report
from tests.bench.results import FORMAT, Results, machine
from tests.bench.runner import in_order
from tests.bench.scenarios import all_scenarios
from tests.bench.sizes import size
from tests.bench.states import Sizes
from tests.bench.summary import summary
from tests.support.requirements import representatives
from tests.support.stores import check_store

ROOT = Path(__file__).resolve().parents[2]
TINY = Sizes(4 * 2**20, small_count=50, layers=2)
OPTIONAL = ("tensorizer", "Orbax", "restic", "borg", "dvc")


def numbers(value: Any) -> list[float]:
    """Return every number in a document."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.slow
@pytest.mark.whole
def test_every_case_runs_and_the_report_is_complete(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "--tiny", "--no-count"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path), "--out", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    read = json.loads((tmp_path / "out" / "report.json").read_text())
    assert all(math.isfinite(number) for number in numbers(read))
    scenarios = [scenario for scenario in all_scenarios() if not scenario.curve]
    assert list(read["scenarios"]) == [scenario.name for scenario in scenarios]
    results = Results(read)
    for scenario in scenarios:
        told = read["scenarios"][scenario.name]
        for case in scenario.cases:
            samples = results.samples(scenario.name, case.name)
            assert bool(samples) != bool(told["skipped"].get(case.name)), f"{scenario.name}: {case.name}"
            assert samples or case.name in OPTIONAL or scenario.place != "disk", told["skipped"]
            assert all(seconds > 0 for sample in samples for seconds in sample["seconds"])
    assert {line.what for line in LINES if line.figure(results) is None} <= {
        line.what
        for line in LINES
        if any(
            word in line.what
            for word in ("restic", "borg", "extra memory", "tmpfs", "XFS", "a device in memory", "with two threads")
        )
    }
    assert report(read) == (tmp_path / "out" / "report.md").read_text().removesuffix("\n")
    assert ET.fromstring(plot(read)).tag.endswith("svg")  # noqa: S314 - our own


@pytest.mark.slow
@pytest.mark.whole  # that cases run is tried in this process, below
def test_some_cases_are_run_alone_and_the_report_says_that_others_were_left_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    chosen_cases = ["--only", "ckstore", "--only", "memcpy,"]
    command = [sys.executable, "-m", "tests.bench", "into", "--tiny", "--no-count", *chosen_cases]
    command += ["--dir", str(tmp_path), "--out", str(out)]

    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=100, check=True)

    told = json.loads((out / "report.json").read_text())["scenarios"]["into"]
    assert list(told["cases"]) == ["memcpy, 1 thread", "memcpy, 2 threads", "ckstore", "ckstore, unverified"]
    assert told["skipped"]["torch.save"] == "it was left out with --only"
    left_out = "; ".join(told["skipped"])
    assert f"- {left_out}: it was left out with --only (into)" in (out / "report.md").read_text()


def test_the_curves_are_run_by_name_and_with_other_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((storage_read, "_CORES"), (sizes, "MEDIUM_BELOW_BYTES")):
        monkeypatch.setattr(module, name, vars(module)[name])  # put back afterwards
    curves, *_ = chosen(["curve"], large=False)
    assert curves.name == "curve-save"
    assert not any(one.curve for one in chosen([], large=False))

    for number, case in enumerate(case for case in curves.cases if case.role == "ckstore"):
        home = tmp_path / str(number)
        home.mkdir()
        case.prepare(Here(home, TINY, thorough=True, rehearse=False))
        case.act(0)
        case.check()

    assert (storage_read._CORES, sizes.MEDIUM_BELOW_BYTES) == (8, 32 * 2**20)


def test_a_baseline_that_hashes_copies_and_writes_leaves_files_with_the_bytes(tmp_path: Path) -> None:
    save, load = chosen(["fast"], large=False)
    baseline = next(case for case in save.cases if case.name == "hash, copy and write, 2 files")

    home = tmp_path / "home"
    home.mkdir()
    baseline.prepare(Here(home, TINY, thorough=True, rehearse=False))
    baseline.before(0)
    baseline.act(0)
    baseline.check()

    assert {one.place for one in (save, load)} == {"fast"}
    data = (home / "000000").read_bytes()
    assert int.from_bytes(data[:8], "little") == 1
    assert data[8:] != bytes(len(data) - 8)


def test_what_limits_loads_is_run_by_name_beside_them(tmp_path: Path) -> None:
    limits = {scenario.name: scenario for scenario in chosen(["limit"], large=False)}
    files = next(case for case in limits["limit-mapped"].cases if case.name == "files of 2 MiB")
    rested = next(case for case in limits["limit-fresh"].cases if case.name == "memcpy to fresh memory, 0 s")

    for case in (files, rested):
        home = tmp_path / case.name
        home.mkdir()
        case.prepare(Here(home, TINY, thorough=True, rehearse=False))
        case.before(0)
        case.act(0)
        case.check()

    assert files.figures["page_faults"] > 0
    assert [case.name for case in limits["limit-fresh"].cases if case.role == "ckstore"] == [
        f"ckstore, {rest_s} s" for rest_s in (0, 2, 8)
    ]


def test_no_two_blocks_of_a_state_are_equal_and_a_lap_changes_all_of_them() -> None:
    state = states.make("llm", TINY)
    seen = blocks(state)

    states.change(state, 1)

    assert len(seen) == len(set(seen))
    assert set(seen).isdisjoint(blocks(state))
    assert not any(tensor.isnan().any() for tensor in state.values())


def blocks(state: states.State) -> list[bytes]:
    """Return the bytes of every block that a state can be cut into."""
    data = [states.as_bytes(tensor).numpy().tobytes() for tensor in state.values()]
    return [one[at : at + states.BLOCK_BYTES] for one in data for at in range(0, len(one), states.BLOCK_BYTES)]


def test_a_state_has_the_size_that_was_asked_for_and_comes_from_the_seed() -> None:
    sizes = Sizes(64 * 2**20)
    state = states.make("llm", sizes)
    changed = sum(state[name].nbytes for name in states.a_tenth(state))

    assert len(state) > 500
    assert states.nbytes_of("llm", sizes) == sum(tensor.nbytes for tensor in state.values())
    assert states.nbytes_of("llm", sizes) == pytest.approx(sizes.state_bytes, rel=0.1)
    assert 0.05 < changed / sizes.state_bytes <= 0.101
    assert states.same(states.make("llm", sizes), state)
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16, torch.float32}


def test_a_state_larger_than_memory_is_the_same_state(tmp_path: Path) -> None:
    path = tmp_path / "large.state"
    states.write_large(path, TINY)
    mapped = Sizes(TINY.state_bytes, layers=TINY.layers, large_file=str(path))

    assert states.same(states.make("llm", mapped), states.make("llm", TINY))


def test_fsyncs_are_counted_between_the_marks(tmp_path: Path) -> None:
    log = tmp_path / "strace.log"
    log.write_text(
        '7 fsync(3) = 0\n7 access("/ckstore-bench/begin/save|torch.save", F_OK) = -1 ENOENT\n'
        "7 fsync(3 <unfinished ...>\n8 fdatasync(4) = 0\n7 <... fsync resumed>) = 0\n"
        '7 access("/ckstore-bench/end/save|torch.save", F_OK) = -1 ENOENT\n7 fsync(3) = 0\n'
    )

    assert counting.fsyncs(log) == {("save", "torch.save"): 2}


@pytest.mark.parametrize("text,nbytes", [("2GiB", 2**31), ("64M", 2**26), ("4096", 4096), ("1.5 KiB", 1536)])
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert size(text) == nbytes


def test_scenarios_are_chosen_by_name_or_the_beginning_of_one() -> None:
    assert [scenario.name for scenario in chosen(["load", "rot"], large=False)] == ["load", "rotate"]
    assert [scenario.name for scenario in chosen([], large=True)] == ["save"]
    with pytest.raises(SystemExit, match="no scenario nothing"):
        chosen(["nothing"], large=False)


def test_each_round_has_an_order_of_its_own_that_follows_from_the_seed() -> None:
    cases = next(scenario.cases for scenario in all_scenarios() if scenario.name == "load")

    orders = [tuple(case.name for case in in_order(cases, 1, "load", number)) for number in range(5)]

    assert len(set(orders)) == 5
    assert {frozenset(order) for order in orders} == {frozenset(case.name for case in cases)}
    assert len({order[order.index("ckstore") - 1] for order in orders if order[0] != "ckstore"}) > 1
    assert orders[3] == tuple(case.name for case in in_order(cases, 1, "load", 3))


def test_cases_of_a_scenario_have_names_of_their_own() -> None:
    for scenario in all_scenarios():
        names = [case.name for case in scenario.cases]
        assert len(names) == len(set(names))


def test_the_page_of_this_project_has_a_place_for_the_table() -> None:
    text = page.PAGE.read_text(encoding="utf-8")

    assert text.count(page.BEGIN) == text.count(page.END) == 1


def test_the_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [scenario.name for scenario in all_scenarios()]


def test_all_tables_of_the_page_s_samples_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 0

    assert report(json.loads(page.PAGE.with_name(page.SAMPLES).read_text(encoding="utf-8"))) in capsys.readouterr().out


def test_a_run_of_some_scenarios_replaces_those_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"Before.\n{page.BEGIN}\nstale words\n{page.END}\nAfter.\n")

    page.write(path, told("verify", "2026-01-01", 3.0))
    page.write(path, told("save", "2026-01-02", 1.0))
    page.write(path, told("save", "2026-01-03", 2.0))

    read = json.loads((tmp_path / page.SAMPLES).read_text())
    assert list(read["scenarios"]) == ["save", "verify"]
    assert Results(read).seconds("save", "ckstore") == 2.0
    text = path.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "stale words" not in text
    assert "2026-01-01 to 2026-01-03: " in text
    assert "(`save`) | 2 | – | – |" in text
    assert "(`verify`) | 3 | – | – |" in text


def told(scenario: str, date: str, seconds: float) -> dict[str, Any]:
    """Return the document of a run of one case."""
    counts = dict.fromkeys(("nbytes", "cpu_s", "extra_bytes", "written_bytes", "read_bytes", "files", "scale"), 1)
    sample = {"seconds": [seconds], **counts, "figures": {}}
    run = {"date": date, "machine": machine(), "versions": {}, "place": "here", "rounds": 1, "sizes": vars(TINY)}
    return {
        "format": FORMAT,
        "scenarios": {
            scenario: {
                "title": scenario,
                "run": {**run, "larger_than_memory": False, "cold_by": "nothing"},
                "cases": {"ckstore": {"role": "ckstore", "samples": [sample]}},
                "skipped": {},
                "errors": {},
            }
        },
    }


def test_fsyncs_are_scaled_up_like_the_times() -> None:
    read = told("small", "2026-01-01", 1.0)
    case = read["scenarios"]["small"]["cases"]["ckstore"]
    case["samples"][0]["scale"] = 0.04
    case["counted"] = {"private_bytes": 0, "fsyncs": 80}

    assert "| 2,000 | scaled from 4.0% of the work |" in report(read)


def test_the_page_is_what_its_samples_say() -> None:
    read = json.loads(page.PAGE.with_name(page.SAMPLES).read_text(encoding="utf-8"))

    assert f"{page.BEGIN}\n\n{summary(read)}\n\n{page.END}" in page.PAGE.read_text(encoding="utf-8")
    assert plot(read) == page.PAGE.with_name(page.PLOT).read_text(encoding="utf-8")
    assert f"{brief.BEGIN}\n\n{brief.brief(read)}\n\n{brief.END}" in brief.README.read_text(encoding="utf-8")


def test_the_figures_of_compaction_are_written_between_their_markers(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("".join(f"<!--{name}:begin-->old<!--{name}:end-->" for name in ("compaction", "chain", "loads")))
    row = {"history": "w+m+v", "distance": 10, "times": 1.2, "plain_bytes": 300, "peers": {"zipnn": 200, "borg": 250}}
    chain = {"history": "chain of 3", "times": 20.0, "plain_bytes": 2**21, "encoded_bytes": 2**20}
    load = {"tensor": "float32", "first_times_plain": 4.0, "deepest_times_first": 2.0, "depth": 3, "beyond_bytes": 0}

    compaction._write_page(path, [row], "the command", {})
    compact_loads.write_page(path, "chain", [{**chain, "load_times_plain": 1.5}], "the command")
    compact_loads.write_page(path, "loads", [load], "the command")

    text = path.read_text()
    assert "| pre-training: weights, AdamW moments | **1.2 (1.3)** | 1.50 zipnn |\n" in text
    assert "a chain of 3, shrank 20.0 times, from 2.0 MiB to 1.0 (goal 15)." in text
    assert "- float32: 4.0 and 2.0 (3 links, 0 MiB)" in text
    assert text.count("`the command`:") == 3
    assert "old" not in text


def test_the_readme_keeps_all_but_its_figures(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"Before.\n{brief.BEGIN}\nstale words\n{brief.END}\nAfter.\n")

    brief.write(readme, told("save", "2026-01-02", 1.25))

    text = readme.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "stale words" not in text
    assert "| First durable save | 1.25 | – | – | – | – | – (direct write) |" in text

    readme.write_text(f"{brief.END} {brief.BEGIN}")
    with pytest.raises(ValueError, match="must have"):
        brief.write(readme, {"scenarios": {}})


def test_the_cost_in_a_store_of_many_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main(["--many", "6", "--few", "3", "--tensors", "50", "--rounds", "1", "--dir", str(tmp_path)]) == 0

    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[4:]]
    assert [row[0].strip() for row in rows] == [
        "save",
        "prune and gc",
        "delete",
        "gc, nothing to free",
        "log in a process of its own",
    ]
    assert not [*tmp_path.glob("ckstore-*")]


def test_the_processor_s_time_is_measured_by_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("_STATE_MIB", 4), ("_LAPS", 2), ("_CHUNKS_MIB", (2,)), ("_THREADS", (2,))):
        monkeypatch.setattr(cores, name, value)

    cores.main()

    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [["save", form] for form in cores._FORMS] + [["load", form] for form in cores._LOADS]


@pytest.mark.slow
def test_the_cost_of_an_evaluation_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--counts", "2", "--processes", "2", "--rounds", "1", "--dir", str(tmp_path)]

    assert evaluators.main(options) == 0

    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == ["`annotate`", "`follow(lacking=)` and `annotate`", "the same, 2 processes"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", representatives(CASES, "copy, 2 threads"))
def test_every_way_to_save_in_the_background_is_measured(tmp_path: Path, name: str) -> None:
    laps = run_case(name, tmp_path, 2**20, 1, seed=1)

    assert len(laps) == 1
    assert all(0 < seconds < math.inf for lap in laps for seconds in lap.values())
    assert set(laps[0]) >= ({"blocked_s"} if name.startswith("copy") else {"blocked_s", "owned_s", "durable_s"})
    assert f"| {name} | " in background.table({name: laps})
    assert not any(tmp_path.glob("async-*"))


def test_a_long_run_that_was_written_is_a_whole_store(tmp_path: Path) -> None:
    long.write_run(tmp_path / "s", 5)

    check_store(tmp_path / "s")
    with Store(tmp_path / "s") as store:
        assert [info.step for info in store.checkpoints()] == [0, 1, 2, 3, 4]
        assert store.info("latest").parent == store.info(3).id
        assert [int(store.load(step)["w"][0]) for step in range(5)] == [0, 1, 2, 3, 4]
        assert store.verify().ok


def test_the_table_of_long_runs_has_both_times_and_the_ratio_of_the_ends() -> None:
    found = {"save": {200: (0.1, 0.05), 2_000: (0.1, 0.05), 20_000: (0.15, 0.06)}}

    assert long.table(found).splitlines()[2:] == [
        "| save | 100.0 ms (50.0) | 100.0 ms (50.0) | 150.0 ms (60.0) | 1.50 (1.20) |"
    ]


@pytest.mark.slow
@pytest.mark.whole
def test_each_act_in_a_long_run_can_be_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert long.main(["--counts", "2", "3", "--rounds", "1", "--dir", str(tmp_path)]) == 0

    printed = capsys.readouterr().out
    assert all(f"| {act} |" in printed for act in long.ACTS)
