"""The kit for a machine with a GPU: what is in it, that a run always writes its file, and what becomes of that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench import page
from tests.bench.gpu_section import section, tables
from tests.gpu import cores, kit, run
from tests.gpu.measure import CASES, copies_in

ROOT = Path(__file__).resolve().parents[2]


def started(out: Path, *options: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the script as on such a machine, with packages that are installed instead of the kit's wheels."""
    command = ["sh", str(ROOT / "tests" / "gpu" / "run.sh"), str(out), *options]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=check)


def test_the_kit_has_all_that_the_tests_need_and_nothing_that_is_there() -> None:
    names = {package.split("==")[0] for package in kit.packages("3.12")}

    assert {"xxhash", "click", "safetensors", "sqlite-utils", "pytest", "pytest-timeout", "hypothesis"} <= names
    assert {"pluggy", "python-dateutil", "tabulate", "iniconfig"} <= names  # what those need
    assert not names & {"torch", "numpy", "pip", "ckstore", "colorama", "tomli"}


def test_the_kit_has_the_pinned_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()

    assert set(kit.packages("3.12")) <= {line.replace("_", "-") for line in lines}


def test_a_package_without_a_pinned_version_stops_the_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    known = kit.pins()
    monkeypatch.setattr(kit, "pins", lambda: {name: known[name] for name in known if name != "tabulate"})

    with pytest.raises(SystemExit, match="no version of tabulate"):
        kit.packages("3.12")


def test_the_wheels_are_for_linux_on_the_python_that_was_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: asked.append(command))

    kit.main([str(tmp_path / "kit"), "--python", "3.13"])

    command = asked[0]
    assert command[command.index("--python-version") + 1] == "3.13"
    assert "manylinux_2_28_x86_64" in command
    assert "--no-deps" in command
    assert (tmp_path / "kit" / "tree" / "tests" / "gpu" / "run.sh").exists()
    assert not list((tmp_path / "kit").rglob("__pycache__"))


def test_a_kit_that_is_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(bytes(2_000))
    assert kit.size_of(tmp_path) == 2_000
    monkeypatch.setattr(kit, "MOST_BYTES", 2_000)

    with pytest.raises(SystemExit, match="must stay below"):
        kit.size_of(tmp_path)


@pytest.mark.slow
@pytest.mark.whole  # the two below run the kit as well, and end it
def test_without_a_gpu_a_run_says_so_and_writes_the_cpu_forms(tmp_path: Path) -> None:
    chosen = "tests/gpu/test_load.py::test_a_state_is_loaded_to_the_device"
    done = started(tmp_path / "gpu.json", "--wheels", str(tmp_path), "--dir", str(tmp_path), "--tests", chosen)

    assert "no CUDA device: the CPU forms ran" in done.stdout, done.stdout + done.stderr
    assert "no wheels in" in done.stdout  # they are what this environment has instead
    assert done.returncode == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["cases"]["about"]["card"] is None
    assert list(found["cases"]) == list(CASES) == list(run.CASES)
    assert [name for name, figures in found["cases"].items() if "error" in figures] == []
    assert all(found["cases"][name]["same"] for name in ("stall", "save", "load", "cores"))
    assert found["tests"] == {f"{chosen}[cpu]": "passed", f"{chosen}[cuda]": "skipped"}
    assert not list(tmp_path.glob("ckstore-gpu-*"))


@pytest.mark.slow
def test_when_time_runs_out_the_file_has_what_there_was(tmp_path: Path) -> None:
    done = started(tmp_path / "gpu.json", "--wheels", str(tmp_path), "--seconds", "0")

    assert done.returncode == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert {figures["error"] for figures in found["cases"].values()} == {"not run: no time was left"}


def test_tests_that_ended_before_the_time_did_are_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = "tests/gpu/test_a.py::test_b[cpu-x y] PASSED [ 50%]\ntests/gpu/test_a.py::test_c "
    one = run.Run(tmp_path / "gpu.json", tmp_path, seconds=2)
    stub = tmp_path / "python"
    stub.write_text(f"#!/bin/sh\nprintf '%s' '{printed}'\nsleep 300\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))

    one.test("tests/gpu")

    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["tests"] == {"tests/gpu/test_a.py::test_b[cpu-x y]": "passed"}
    assert "killed after" in found["errors"]["pytest"]


@pytest.mark.slow
def test_a_run_that_is_told_to_end_leaves_no_process_and_a_whole_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.run", str(tmp_path / "gpu.json"), "--dir", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    while not (tmp_path / "gpu.json").exists():
        time.sleep(0.02)
    time.sleep(0.5)

    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 143
    assert json.loads((tmp_path / "gpu.json").read_text())["format"] == run.FORMAT
    assert not list(tmp_path.glob("ckstore-gpu-*"))


def test_copies_between_device_and_memory_are_counted_from_a_trace() -> None:
    events: list[dict[str, Any]] = [
        {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "args": {"bytes": 100}},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "args": {"bytes": 20}},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "args": {"bytes": 7}},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "args": {"bytes": 3}},
        {"cat": "kernel", "name": "DtoH"},
        {"name": "no kind"},
    ]

    assert copies_in(events) == {"DtoH": 120, "HtoD": 3}


def of_a_card(**cases: dict[str, Any]) -> dict[str, Any]:
    """Return what a run on a GPU writes."""
    about = {
        "machine": {"cpu": "A CPU", "cores": 16, "memory_bytes": 2**37, "kernel": "6.18.44", "python": "3.12.3"},
        "versions": {"torch": "2.11.0"},
        "cuda": "13.0",
        "card": {"name": "A Card 80GB", "memory_bytes": 80 * 2**30, "count": 1},
    }
    tests = {"tests/gpu/a": "passed", "tests/gpu/b": "passed", "tests/gpu/c": "failed"}
    return {"format": 1, "date": "2026-12-01", "cases": {"about": about, **cases}, "tests": tests, "seconds": 200.0}


def test_the_section_has_the_card_the_stall_beside_the_copy_and_the_bytes_that_crossed() -> None:
    found = of_a_card(
        copies={"bytes": 10**9, "from_device_pinned_s": 0.02, "from_device_pageable_s": 0.2},
        stall={"bytes": 2 * 10**9, "call_s": 0.05, "first_call_s": 0.4, "durable_s": 2.0, "same": True},
        save={"error": "Traceback\nRuntimeError: CUDA error"},
        load={"bytes": 10**9, "ckstore_s": 0.5, "torch_load_s": 1.0, "same": False},
        crossed={"bytes": 10**9, "first_save": {"DtoH": 10**9, "HtoD": 0}},
    )

    for text in (section(found), tables(found)):
        assert "A Card 80GB (80 GiB)" in text
        assert "CUDA 13.0" in text
        assert "- `save` failed: RuntimeError: CUDA error" in text
        assert "- `load`: **the loaded bytes differ from the saved ones**" in text
    assert "| call of `save_async` | 0.05 (1.25 × copy, wanted 1.1) | |" in section(found)
    assert "Tests of `tests/gpu`: 2 passed, 1 failed." in tables(found)
    assert "first save 1.00 from and 0.00 to the GPU" in tables(found)
    assert "| load: torch.load(map_location) | 1 | |" in section(found)
    assert "| `save_async`: the call | 0.05 | 40 | 1.25 × the pinned copy (wanted: at most 1.1) |" in tables(found)
    assert "| *copy from the GPU, pinned* | 0.02 | 50 |  |" in tables(found)


def test_the_section_has_a_table_by_threads_where_the_run_has_that_case() -> None:
    shm = {"bytes": 10**9, "save": {"1": 5e9, "chosen": 2.25e10}, "load": {}}
    disk = {"bytes": 10**9, "write": {"4": 2e9}, "read": {}, "save": {"16": 1.5e9}, "load": {"chosen": 3e9}}
    cores = {
        "bytes": 2**32,
        "cores": 16,
        "chosen": 8,
        "hash": {"1": 2e10, "16": 1.2e11},
        "copy": {},
        "places": {"shm": shm, "disk": disk},
    }

    text = tables(of_a_card(cores=cores))

    assert "A state of 4.0 GiB in the processor's memory, 16 cores" in text
    assert "| | 1 | 2 | 4 | 8 | 16 | chosen (8) |\n| --- | --- | --- | --- | --- | --- | --- |\n" in text
    assert "| *hash* | 20 |  |  |  | 120 |  |" in text
    assert "| `save` to /dev/shm | 5 |  |  |  |  | 22.5 |" in text
    assert "*copy of memory*" not in text  # time ran out before it
    assert "by the number of threads" not in tables(of_a_card())
    assert "by the number of threads" not in tables(of_a_card(cores={"error": "not run: no time was left"}))


def test_states_by_threads_come_back_the_same_and_what_time_does_not_allow_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "THREADS", (cores.CHOSEN, "2"))  # a process for each
    home = tmp_path / "home"
    home.mkdir()

    found = cores.by_threads(home, 2**22, seconds=60)

    assert found["same"]
    assert list(found["places"]["disk"]["save"]) == list(found["places"]["disk"]["load"]) == list(cores.THREADS)
    assert not list(home.iterdir())
    assert cores.by_threads(home, 2**22, seconds=0)["places"]["disk"]["save"] == {}


def test_a_page_gets_the_section_of_a_run_that_had_a_gpu_and_keeps_its_own_otherwise(tmp_path: Path) -> None:
    path, found = tmp_path / "page.md", tmp_path / "gpu.json"
    before = f"Before.\n{page.GPU_BEGIN}\nnot run\n{page.GPU_END}\nAfter.\n"
    path.write_text(before)

    assert not page.write_gpu(path, found)
    found.write_text(json.dumps({"format": 1, "cases": {"about": {"card": None}}, "tests": {}}))
    assert not page.write_gpu(path, found)
    assert path.read_text() == before
    found.write_text(json.dumps(of_a_card()))
    assert page.write_gpu(path, found)

    text = path.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "A Card 80GB" in text
    assert "not run" not in text


def test_the_page_of_this_project_has_a_place_for_the_section() -> None:
    text = page.PAGE.read_text(encoding="utf-8")

    assert text.count(page.GPU_BEGIN) == text.count(page.GPU_END) == 1
