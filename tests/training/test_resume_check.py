"""The check of a resume certifies exact loops, and says of each broken one what differs first."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckstore.errors import BadInput, LoopFailed
from ckstore.training import CheckReport, Loop, check
from ckstore.training.resume_check import fresh_process
from tests.support.requirements import require, require_c_compiler
from tests.support.warm_bin import warm_bin
from tests.training import loops_to_check

Check = Callable[..., CheckReport]
ROOT = Path(__file__).resolve().parents[2]
_MODULE = "tests.training.loops_to_check"
_REASON = (
    "the data loader does not save its position in the data, so a run that was saved inside an epoch resumes at the "
    "beginning of an epoch"
)


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python that has imported what each process of a check imports."""
    require_c_compiler()
    with warm_bin(
        "torch", "torch._dynamo", "torch.utils.data", "ckstore.training.resume_check.check_process"
    ) as folder:
        yield folder / "python"


@pytest.fixture
def checked(python: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Check:
    """Check a loop of `loops_to_check`, by its name; nothing is left behind."""
    monkeypatch.setattr(sys, "executable", str(python))
    places = tmp_path / "places"
    places.mkdir()

    def call(name: str, **options: Any) -> CheckReport:
        try:
            return check(f"{_MODULE}:{name}", directory=places, **options)
        finally:
            assert [*places.iterdir()] == []
            assert [*Path.home().glob(".cache/ckstore/*")] == []

    return call


def test_an_exact_loop_gets_a_certificate(checked: Check) -> None:
    said: list[str] = []

    report = checked("epochs", points=["epoch"], progress=said.append)

    assert report.ok
    (point,) = report.points
    assert (point.point, point.step, point.compared, point.inexact) == ("epoch", 4, 5, ())
    assert point.losses == report.losses[4:]
    assert report.rates == ((0.01,),) * 4 + ((0.005,),) * 4 + ((0.0025,),)
    assert str(report) == (
        f"exact: {_MODULE}:epochs continues after a resume as if it had not stopped\n"
        "  saved at the end of an epoch, after step 4: the 5 steps after the resume are the same"
    )
    assert said == [
        "the uninterrupted training",
        "the second uninterrupted training",
        "the training that is saved",
        "the training that is resumed at the end of an epoch",
    ]
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["ok"] is True
    assert document["provenance"]["packages"]["torch"]


@pytest.mark.parametrize("name", ["steps", "steps_in_a_function", "own_generator_as_part", "averaged", "own_functions"])
def test_what_a_loop_draws_keeps_and_saves_by_itself_is_exact_after_a_resume(name: str, checked: Check) -> None:
    report = checked(name, steps=2, compare=3)

    assert (report.verdict, report.difference) == ("exact", None)
    assert [(point.step, point.compared) for point in report.points] == [(2, 3)]
    assert report.sees_batches == (name == "steps_in_a_function")
    assert ("batches were not compared" in str(report)) != report.sees_batches


def test_a_plain_loader_inside_an_epoch_reads_another_batch(checked: Check) -> None:
    report = checked("epochs")

    inside, after = report.points
    assert report.verdict == "not exact"
    assert inside.difference is not None
    assert (inside.difference.kind, inside.difference.step, inside.cause) == ("batch", 4, "reported")
    assert inside.inexact is not None
    assert inside.inexact[0].startswith(_REASON)
    assert (after.difference, after.inexact) == (None, ())
    assert "saved after step 3: differs first in step 4: batch; also random state, loss" in str(report)
    assert f"restore reported: {_REASON}" in str(report)
    assert 'use points=["epoch"] (--point epoch)' in str(report)


# The name of a loop -> the point, whether it differs before any step, what differs first, its name, the cause, and the
# variable that is named.
BROKEN: dict[str, tuple[str, bool, str, str, str, tuple[str, ...]]] = {
    "without_optimizer": (
        *("step", True, "optimizer", "variable parts.optimizer.state.0.weight.step"),
        *("left out", ("parts.optimizer",)),
    ),
    "without_model": (
        *("step", True, "part", "variable parts.model.0.weight"),
        *("left out", ("parts.model",)),
    ),
    "epochs_without_scheduler": (
        *("epoch", True, "scheduler", "variable parts.scheduler.last_epoch"),
        *("left out", ("parts.scheduler",)),
    ),
    "own_generator": ("step", True, "random state", "variable noise", "left out", ("noise",)),
    "without_average": ("step", True, "part", "variable ema.n_averaged", "left out", ("ema",)),
    "without_random_states": ("step", True, "random state", "torch", "reported", ()),
    "without_numpy": ("epoch", True, "random state", "numpy", "own load", ()),
    "epochs_without_extra": ("epoch", False, "loss", "loss", "variable", ("epoch",)),
    "random_projection": ("step", False, "loss", "loss", "variable", ("projection",)),
    "six_steps": ("step", False, "position", "step", "variable", ("_",)),
    "forgetful_part": ("step", True, "part", "meter.sum", "part", ()),
    "hidden_state": ("step", False, "loss", "loss", "ckstore", ()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_broken_loop_lacks_is_the_first_difference(name: str, checked: Check) -> None:
    where, after_restore, kind, first, cause, suspects = BROKEN[name]

    report = checked(name, points=[where])

    (point,) = report.points
    assert report.verdict == "not exact"
    assert not report.ok
    assert point.difference is not None
    assert point.difference == report.difference
    assert (point.difference.after_restore, point.difference.kind) == (after_restore, kind)
    assert (point.difference.names[0], point.cause, point.suspects) == (first, cause, suspects)
    assert (point.inexact == ("random states were not restored, since rng=False",)) == (name == "without_random_states")
    is_blamed = "restore reported this resume as exact, but it is not" in str(report)
    assert is_blamed == (name == "hidden_state")
    assert all(f"{one}: " in str(report) or f": {one}." in str(report) for one in suspects)


def test_a_difference_of_tensors_and_losses_has_its_size(checked: Check) -> None:
    lost, late = checked("without_model").difference, checked("hidden_state").difference

    assert lost is not None
    assert late is not None
    weight = lost.numbers["variable parts.model.0.weight"]
    assert 0.01 < weight["largest_absolute"] < 1
    assert weight["ulps"] > 1000
    assert "parts.model.0.weight (not a part), parts.model.0.bias (not a part)" in str(lost)
    assert f"(the first by up to {weight['largest_absolute']:.3g} or {weight['ulps']} ulps)" in str(lost)
    loss = late.numbers["loss"]
    old, new = (float(text.partition(" ")[0]) for text in (late.expected, late.found))
    assert loss["largest_absolute"] == abs(old - new)
    assert f"{loss['ulps']} ulps apart" in str(late)


def test_a_loop_that_is_not_deterministic_by_itself_is_told_from_an_inexact_resume(checked: Check) -> None:
    report, late = checked("not_deterministic"), checked("late_not_deterministic")

    assert report.verdict == late.verdict == "not deterministic"
    assert report.points == ()
    assert report.difference is not None
    assert (report.difference.step, report.difference.after_restore) == (1, False)
    assert report.difference.kind in ("loss", "gradient")
    assert report.difference.numbers[report.difference.names[0]]["ulps"] > 0
    assert "a resume cannot be judged" in str(report)
    assert late.difference is not None
    assert late.difference.step == 5


def test_the_profile_tolerant_lets_small_differences_pass_and_no_lost_state(checked: Check) -> None:
    near = checked("not_deterministic", profile="tolerant", rtol=1e-2, atol=1e-2)
    lost = checked("noisy_without_optimizer", profile="tolerant", rtol=1e-2, atol=1e-2)
    far = checked("far_from_deterministic", profile="tolerant")

    assert (near.verdict, near.ok, near.rtol, near.atol) == ("within tolerance", True, 1e-2, 1e-2)
    assert lost.difference is not None
    assert (lost.verdict, lost.difference.kind, lost.difference.after_restore) == ("not exact", "optimizer", True)
    assert (far.verdict, far.ok) == ("not deterministic", False)


def test_tensors_that_end_too_far_apart_are_named_by_the_profile_tolerant(checked: Check) -> None:
    report = checked("not_deterministic", profile="tolerant", rtol=0.0, atol=1e-30)

    assert report.verdict == "not deterministic"
    strict = checked("drifts", profile="tolerant", rtol=1e-3, atol=1e-3)
    assert (strict.verdict, strict.points[0].cause) == ("not exact", "ckstore")
    assert strict.difference is not None
    assert (strict.difference.kind, strict.difference.step) == ("part", 8)
    assert strict.difference.numbers["table.table"]["largest_absolute"] == 1.0


def test_a_save_that_changes_the_training_is_told_from_an_inexact_resume(checked: Check) -> None:
    report = checked("changed_by_its_save")

    assert (report.verdict, report.points) == ("changed by the save", ())
    assert report.difference is not None
    assert (report.difference.kind, report.difference.names, report.difference.step) == ("random state", ("torch",), 4)


def test_a_name_that_may_differ_is_left_aside(checked: Check) -> None:
    report = checked("without_average", ignore=["em?"], steps=1, compare=1)

    assert (report.verdict, report.ignored) == ("exact", ("em?",))


def test_an_error_of_the_loop_is_shown_as_it_is(checked: Check) -> None:
    with pytest.raises(LoopFailed) as crash:
        checked("crashes")
    with pytest.raises(LoopFailed) as restore:
        checked("crashes_when_restored")
    with pytest.raises(LoopFailed, match="the uninterrupted training failed while the loop was made: SystemExit: 3"):
        checked("exits")

    assert crash.value.message.startswith(
        "the uninterrupted training failed in step 2: ZeroDivisionError: no learning rate\n"
        "Traceback (most recent call last):\n"
    )
    assert crash.value.message.endswith(
        'in train\n    raise ZeroDivisionError("no learning rate")\nZeroDivisionError: no learning rate'
    )
    assert "resume_check" not in crash.value.message
    assert "the training that is resumed failed while it was restored: KeyError: 'no optimizer in 7'" in str(
        restore.value
    )


REFUSED = {
    "gives_no_loss": "the loop yielded no loss",
    "gives_only_accuracy": "the loop yielded ['accuracy'] and no loss",
    "gives_losses": "loss has 3 elements, not one",
    "gives_text": "loss must be a number, got str",
    "trains_nothing": "train must be a function, got list_iterator",
    "half_a_pair": "save and load go together, and only one was given",
    "parts_in_a_list": "parts and extra must be dicts, got list and dict",
    "only_parts": f"{_MODULE}:only_parts must return a Loop, got dict",
    "A_NUMBER": f"{_MODULE}:A_NUMBER must be a function, got int",
    "absent": f"{_MODULE} has no absent",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_factory_that_makes_no_loop_is_refused(name: str, checked: Check) -> None:
    with pytest.raises(BadInput) as refused:
        checked(name)

    assert refused.value.message == REFUSED[name]
    assert refused.value.hint


def test_a_loop_that_ends_too_early_is_refused(checked: Check) -> None:
    with pytest.raises(BadInput, match="the loop ended after 6 steps, so no step after the save can be compared"):
        checked("six_steps", steps=6)
    with pytest.raises(BadInput, match="the loop ended after 6 steps and yielded no EPOCH_END"):
        checked("six_steps", points=["epoch"])


NAMES: dict[Any, str] = {
    "train": "wanted MODULE:FUNCTION or FILE.py:FUNCTION, got 'train'",
    "train:": "wanted MODULE:FUNCTION or FILE.py:FUNCTION, got 'train:'",
    "train:make loop": "wanted MODULE:FUNCTION or FILE.py:FUNCTION, got 'train:make loop'",
    "absent.py:make_loop": "absent.py is not a file",
    7: "make_loop must be a function or its name, got int",
    (lambda: Loop(print)): "is defined inside a function, and a fresh process cannot import it",
}


@pytest.mark.parametrize("given", NAMES, ids=lambda given: str(given) if isinstance(given, str | int) else "a lambda")
def test_a_name_that_no_process_can_import_is_refused_at_once(given: Any) -> None:
    with pytest.raises(BadInput) as refused:
        check(given)

    assert NAMES[given] in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("name", ["absent", "absent.part", "tests.training.absent", "a..b"])
def test_a_module_that_does_not_exist_is_refused(name: str, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(python))

    with pytest.raises(BadInput, match=f"there is no module {name}"):
        check(f"{name}:make_loop")


def test_a_module_that_fails_to_import_shows_why(python: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(python))
    (tmp_path / "broken_train.py").write_text("import not_installed_anywhere\n")

    with pytest.raises(LoopFailed, match=r"failed while its module was imported: ModuleNotFoundError: No module named"):
        check("broken_train:make_loop")  # from the working directory, as `python -m` finds it


@pytest.mark.parametrize(
    "options, message",
    [
        ({"profile": "loose"}, "profile must be one of exact, tolerant, got 'loose'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"compare": 0}, "compare must be at least 1, got 0"),
        ({"points": []}, "points must be a list of step and epoch, got"),
        ({"points": "step"}, "points must be a list of step and epoch, got 'step'"),
        ({"points": ["night"]}, "points must be a list of step and epoch, got"),
        ({"rtol": -1.0}, "rtol and atol must be at least 0, got -1.0 and 1e-06"),
        ({"atol": float("nan")}, "rtol and atol must be at least 0, got 0.001 and nan"),
        ({"timeout_s": 0.0}, "timeout_s must be above 0 and at most 1e+06, got 0.0"),
        ({"timeout_s": float("inf")}, "timeout_s must be above 0 and at most 1e+06, got inf"),
        ({"ignore": "ema"}, "ignore must be a list of texts, got 'ema'"),
        ({"arguments": "--width 3"}, "arguments must be a list of texts, got '--width 3'"),
        ({"directory": "absent"}, "absent is not a directory"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        check(loops_to_check.steps, **options)

    assert refused.value.message.startswith(message)


def test_a_loop_that_hangs_is_stopped_and_shows_where() -> None:
    error, timeout_s = _stopped_in_a_step(loops_to_check.hangs)

    assert error.message.startswith(
        f"the uninterrupted training did not end within {timeout_s} s; it was stopped in step 2\n"
    )
    assert "waiting for the other ranks" in error.output
    assert "loops_to_check.py" in error.output.partition("(most recent call first)")[2]
    assert "timeout_s=" in error.hint
    assert _children_in(error.output) == []


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_process_that_a_kill_does_not_end_is_not_waited_for_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_process, "_KILLED_S", 0.5)
    monkeypatch.setattr(fresh_process, "_MARGIN_S", 0.5)

    error, _ = _stopped_in_a_step(loops_to_check.is_traced)
    gc.collect()  # now, so that the warning of its process is ignored

    tracer, pid, seized = next(line for line in error.output.splitlines() if line.startswith("tracer ")).split()
    os.kill(int(pid), signal.SIGKILL)
    require(seized == "0", f"needs ptrace, which {tracer} {pid} may not use")
    assert "the uninterrupted training was killed in step 2, and process " in error.message
    assert "has not ended 0.5 s later" in error.message
    assert "/status" in error.hint


def _stopped_in_a_step(make_loop: Callable[[], Any]) -> tuple[LoopFailed, int]:
    """Check a loop that does not end; return the error, and the seconds that it was given."""
    for timeout_s in (20, 200):  # a busy machine may need all of a short time to import torch
        begin_s = time.monotonic()
        with pytest.raises(LoopFailed) as stopped:
            check(make_loop, timeout_s=float(timeout_s))
        assert time.monotonic() - begin_s < timeout_s + 40
        error = stopped.value.with_traceback(None)
        if " in step " in error.message:
            return error, timeout_s
    pytest.fail("the loop did not begin a step")


def _children_in(output: str) -> list[int]:
    """Return the processes that the loop printed and that still run after a moment."""
    pids = [int(line.partition(" ")[2]) for line in output.splitlines() if line.startswith("pid ")]
    assert len(pids) == 2
    deadline_s = time.monotonic() + 10
    while (running := [pid for pid in pids if _runs(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.05)  # a process that was killed takes a moment to end
    return running


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_loop_whose_process_is_killed_says_so() -> None:
    with pytest.raises(LoopFailed, match=rf"was killed by signal {signal.SIGKILL.value} in step 2") as killed:
        check(loops_to_check.is_killed)

    assert killed.value.hint


SCRIPT = """
from ckstore.training import check
from tests.training.loops_to_check import steps
import argparse, os, sys

def make_loop():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int)
    assert parser.parse_args().width == 3
    return steps()

def main():
    sys.executable = os.environ["FRESH_PYTHON"]  # the one that starts quickly
    print(check(make_loop, steps=1, compare=1, arguments=["--width", "3"]))
"""


@pytest.mark.parametrize(
    "end, said",
    [
        ('if __name__ == "__main__":\n    main()\n', "continues after a resume as if it had not stopped"),
        ("main()\n", "BadInput: check was called while one of its processes imported the module (call it below if"),
    ],
    ids=["guarded", "unguarded"],
)
def test_a_script_checks_its_own_function(end: str, said: str, python: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + end)

    done = _python(python, python, str(script))

    assert said in done.stdout + done.stderr
    assert (f"exact: {script}:make_loop" in done.stdout) == ("__name__" in end)


def test_a_module_that_is_run_checks_its_own_function(python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT + 'if __name__ == "__main__":\n    main()\n')

    done = _python(python, Path(sys.executable), "-m", "train")

    assert "exact: train:make_loop continues" in done.stdout, done.stderr


def test_a_function_of_a_prompt_is_refused(python: Path) -> None:
    done = _python(python, python, "-c", SCRIPT + "main()\n")

    assert "BadInput: make_loop is defined in a prompt or a notebook" in done.stderr


def _python(fresh: Path, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*map(str, (ROOT, ROOT / "cli", ROOT / "migrations")), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "FRESH_PYTHON": str(fresh)}
    return subprocess.run(
        [str(program), *words], check=False, capture_output=True, text=True, timeout=150, env=environment
    )
