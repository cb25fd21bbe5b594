from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ckstore.training
from ckstore import LoopFailed
from ckstore.training import CheckedPoint, CheckReport, FirstDifference
from tests.cli.conftest import Run, process
from tests.cli.test_command_line_page import keys, section

_TRAIN = "tests.training.loops_to_check"


def report(**changes: Any) -> CheckReport:
    """Return the report of an exact training, with these changes."""
    values: dict[str, Any] = {
        "factory": "train:make_loop",
        "profile": "exact",
        "verdict": "exact",
        "difference": None,
        "points": (CheckedPoint("step", 3, 5, (), losses=(0.5,)),),
        "rtol": 0.0,
        "atol": 0.0,
        "ignored": (),
        "losses": (0.25, float("nan")),
        "rates": ((0.1,),),
        "sees_batches": True,
        "duration_s": 1.5,
        "provenance": {"python": "3.11"},
    }
    return CheckReport(**{**values, **changes})


class Checks:
    """Takes the place of `check`: keeps what it was called with, and returns a report or raises."""

    def __init__(self) -> None:
        self.result: CheckReport | Exception = report()
        self.called: dict[str, Any] = {}

    def __call__(self, make_loop: str, **options: Any) -> CheckReport:
        options.pop("progress")("the uninterrupted training")
        self.called = {"make_loop": make_loop, **options}
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    made = Checks()
    monkeypatch.setattr(ckstore.training, "check", made)
    return made


def test_a_real_loop_is_checked_in_fresh_processes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\n"
        f"from {_TRAIN} import steps\n"
        "def make_loop():\n"
        "    assert sys.argv[1:] == ['--width', '3'], sys.argv\n"
        "    return steps()\n"
    )

    options = ("--steps", "1", "--compare", "1", "--json", "--directory", tmp_path)
    done = process("check-resume", *options, "train:make_loop", "--", "--width", "3", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert [*document] == ["v", *keys(section("`ckstore check-resume`"))]
    assert (document["ok"], document["verdict"], document["factory"]) == (True, "exact", "train:make_loop")
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__", ".home"} == {"train.py"}


def test_what_was_asked_is_passed_on(checks: Checks, run: Run, tmp_path: Path) -> None:
    plain = run("check-resume", "train:make_loop")
    called = checks.called
    words = ["--profile", "tolerant", "--rtol", "0.5", "--atol", "0", "--ignore", "meter", "--ignore", "ema.*"]
    words += ["--point", "epoch", "--steps", "7", "--compare", "9", "--seed", "4", "--timeout", "90s"]
    run("check-resume", *words, "--directory", tmp_path, "train.py:make_loop", "tiny")

    assert (plain.exit_code, plain.stderr) == (0, "running the uninterrupted training\n")
    assert plain.stdout == (
        "exact: train:make_loop continues after a resume as if it had not stopped\n"
        "  saved after step 3: the 5 steps after the resume are the same\n"
    )
    assert called == {
        "make_loop": "train:make_loop",
        "arguments": (),
        "profile": "exact",
        "steps": 3,
        "compare": 5,
        "points": None,
        "ignore": (),
        "seed": 0,
        "timeout_s": 600.0,
        "directory": None,
    }
    assert checks.called == {
        "make_loop": "train.py:make_loop",
        "arguments": ("tiny",),
        "profile": "tolerant",
        "steps": 7,
        "compare": 9,
        "points": ("epoch",),
        "ignore": ("meter", "ema.*"),
        "seed": 4,
        "timeout_s": 90.0,
        "directory": tmp_path,
        "rtol": 0.5,
        "atol": 0.0,
    }


def test_a_difference_is_status_1_and_an_error_that_of_its_class(checks: Checks, run: Run) -> None:
    numbers = {"model.w": {"largest_absolute": 0.5, "ulps": 1 << 60, "size": float("inf")}}
    difference = FirstDifference(4, after_restore=False, kind="model", names=("model.w",), numbers=numbers)
    point = CheckedPoint("step", 3, 1, (), difference, "ckstore")
    checks.result = report(verdict="not exact", points=(point,), difference=difference)
    plain, as_json = run("check-resume", "train:make_loop"), run("check-resume", "train:make_loop", "--json")
    checks.result = LoopFailed("it did not end within 600 s", hint="timeout_s=", command_hint="--timeout waits longer")
    failed = run("check-resume", "train:make_loop")

    assert (plain.exit_code, as_json.exit_code, failed.exit_code) == (1, 1, 1)
    assert (
        "saved after step 3: differs first in step 4: model model.w (by up to 0.5 or 1152921504606846976 ulps)\n"
        in (plain.stdout)
    )
    document = json.loads(as_json.stdout)
    assert document["difference"]["numbers"]["model.w"] == {
        "largest_absolute": 0.5,
        "ulps": str(1 << 60),
        "size": "inf",
    }
    assert document["losses"] == [0.25, "nan"]
    assert as_json.stderr == ""
    assert failed.stderr.endswith("error: it did not end within 600 s\nhint: --timeout waits longer\n")


@pytest.mark.parametrize(
    "words, said",
    [
        (["train"], "error: wanted MODULE:FUNCTION or FILE.py:FUNCTION, got 'train'"),
        (["train:f", "--timeout", "soon"], "a timeout: wanted a number with s, m, h, d or w"),
        (["train:f", "--steps", "0"], "wanted a whole number of at least 1, got '0'"),
        (["train:f", "--profile", "loose"], "wanted exact or tolerant, got 'loose'"),
        (["train:f", "--directory", "absent"], "Directory 'absent' does not exist"),
    ],
)
def test_wrong_usage_is_status_2(words: list[str], said: str, run: Run) -> None:
    done = run("check-resume", *words)

    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr("ckstore_cli.commands.store.check_resume.find_spec", lambda _: None)

    done = run("check-resume", "train:make_loop")

    assert done.exit_code == 1
    assert done.stderr == ("error: the check needs torch, which is not installed\nhint: pip install 'ckstore[torch]'\n")
