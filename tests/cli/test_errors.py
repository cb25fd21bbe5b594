from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO

import click
import pytest

from ckstore import Store, errors
from ckstore.errors import CkstoreError, NoSuchRef
from ckstore_cli import _errors
from ckstore_cli._errors import EXIT_STATUSES
from tests.cli.conftest import ROOT, Run, environment, on_terminal, process

PAGE = ROOT / "docs" / "reference" / "exit-statuses.md"


def error_classes() -> list[type[CkstoreError]]:
    found = [CkstoreError]
    for cls in found:
        found.extend(sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__)
    return found


def test_the_page_has_every_status_with_its_meaning() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert {int(status): meaning for status, meaning in rows} == EXIT_STATUSES


def test_the_page_has_every_class_with_its_status_and_what_the_tree_says_of_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)

    assert {name: int(status) for name, status, _ in rows} == {cls.__name__: cls.exit_status for cls in error_classes()}
    tree = dict(re.findall(r"── (\w+) +\d+ +(.+)", errors.__doc__ or ""))
    for name, _, said in rows:
        assert name == "CkstoreError" or tree[name].startswith(said)


def test_every_class_exits_with_a_status_of_the_table() -> None:
    assert {cls.exit_status for cls in error_classes()} <= set(EXIT_STATUSES) - {0}


def example_of(cls: type[CkstoreError]) -> CkstoreError:
    if cls is errors.CannotStore:
        return errors.CannotStore("model.x", "no", hint="do this")
    if cls is errors.CatalogUnavailable:
        return errors.CatalogUnavailable("it went wrong", why="damaged", hint="do this")
    return cls("it went wrong", hint="do this")


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_an_error_is_told_with_its_hint_and_its_status(
    cls: type[CkstoreError],
    as_json: bool,
    run: Run,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = example_of(cls)
    monkeypatch.setattr(Store, "checkpoints", raising(error))

    shown = run("log", "--store", saved, *(["--json"] if as_json else []))

    assert shown.exit_code == cls.exit_status
    assert shown.stdout == ""
    if as_json:
        assert json.loads(shown.stderr) == {
            "v": 1,
            "error": cls.__name__,
            "message": error.message,
            "hint": "do this",
            "exit_status": cls.exit_status,
        }
    else:
        assert shown.stderr == f"error: {error.message}\nhint: do this\n"


def raising(error: BaseException) -> object:
    def fail(*args: object, **kwargs: object) -> object:
        raise error

    return fail


def test_an_error_without_a_hint_is_one_line(run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "checkpoints", raising(NoSuchRef("nothing")))

    assert run("log", "--store", saved).stderr == "error: nothing\n"


def test_wrong_usage_has_a_json_form_too(run: Run) -> None:
    shown = run("log", "-n", "none", "--json")

    told = json.loads(shown.stderr)
    assert shown.exit_code == told["exit_status"] == 2
    assert told["error"] == "UsageError"
    assert told["hint"] == "see ckstore log --help"


@pytest.mark.parametrize("number,status", [(errno.EACCES, 1), (errno.EIO, 1), (errno.ENOSPC, 6)])
def test_an_error_of_the_system_names_the_file_and_is_no_traceback(
    number: int, status: int, run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(number, os.strerror(number), "/data/store.json")
    monkeypatch.setattr(Store, "checkpoints", raising(error))

    shown = run("log", "--store", saved)

    assert shown.exit_code == status
    assert shown.stderr.startswith(f"error: /data/store.json: {os.strerror(number)}\n")


def test_ctrl_c_ends_with_130_and_no_traceback(run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "checkpoints", raising(KeyboardInterrupt()))

    shown = run("log", "--store", saved)

    assert shown.exit_code == 130
    assert shown.stderr.strip() == "error: interrupted"


def test_a_question_that_is_not_answered_is_a_failure() -> None:
    assert _errors.report(click.Abort(), as_json=False) == 1


def test_a_defect_is_not_hidden(run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "checkpoints", raising(ZeroDivisionError("a defect")))

    shown = run("log", "--store", saved)

    assert isinstance(shown.exception, ZeroDivisionError)


def test_what_an_error_quotes_cannot_move_the_cursor(run: Run, saved: Path) -> None:
    shown = run("show", "\x1b[2J", "--store", saved)

    assert shown.exit_code == 2
    assert "\x1b" not in shown.stderr


BUFFERS = pytest.mark.parametrize("buffer", ["buffered", "unbuffered"])
"""Whether Python buffers stdout, as it does unless PYTHONUNBUFFERED is set."""


def run_with_buffer(output: IO[bytes] | int, buffer: str, *words: str) -> tuple[int, bytes]:
    """Return the exit status and the errors of a command that writes to `output`, with or without Python's buffer."""
    done = subprocess.run(
        [sys.executable, "-m", "ckstore_cli", *words],
        check=False,
        stdout=output,
        stderr=subprocess.PIPE,
        timeout=60,
        env={**environment(), "PYTHONUNBUFFERED": "" if buffer == "buffered" else "1"},
    )
    return done.returncode, done.stderr


@BUFFERS
def test_a_reader_that_stops_reading_ends_it_quietly(saved: Path, buffer: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        status, errors = run_with_buffer(writing, buffer, "log", "--store", str(saved))
    finally:
        os.close(writing)

    assert (status, errors) == (141, b"")


@BUFFERS
@pytest.mark.parametrize("word", ["log", "--version", "doctor"])
def test_a_full_disk_under_the_output_is_an_error(own_saved: Path, buffer: str, word: str) -> None:
    own_saved.chmod(0o777)  # doctor finds an error, so it has another way to its exit
    with open("/dev/full", "wb") as full:
        status, errors = run_with_buffer(full, buffer, "--store", str(own_saved), word)

    assert (status, errors) == (6, b"error: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(saved: Path, closed: str) -> None:
    """As a service may start a program: with Python alone `sys.stdout` is None, and a file of the store gets its fd."""
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m ckstore_cli log --store "$1" {closed}', sys.executable, str(saved)],
        check=False,
        capture_output=True,
        timeout=60,
        env=environment(),
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (closed == "2>&-")


def test_ctrl_c_before_the_first_word_is_read_gives_no_traceback() -> None:
    program = """
from ckstore_cli import app

def interrupted():
    raise KeyboardInterrupt

app.Frame = interrupted
app.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, timeout=60, env=environment()
    )

    assert (done.returncode, done.stderr) == (130, b"")


def test_text_that_the_terminal_cannot_show_is_escaped(saved: Path) -> None:
    shown = process("show", "nöne", "--store", saved, env={"PYTHONIOENCODING": "ascii"})

    assert shown.returncode == 2
    assert "n\\xf6ne" in shown.stderr


@pytest.mark.parametrize(
    "env,colored",
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
    ids=["plain", "NO_COLOR", "NO_COLOR empty", "dumb"],
)
def test_errors_and_results_are_colored_on_a_terminal_unless_the_user_objects(
    env: dict[str, str], colored: bool, saved: Path
) -> None:
    _, error = on_terminal("show", "nowhere", "--store", saved, env=env)
    _, result = on_terminal("log", "--store", saved, env=env)

    assert ("\x1b[" in error) == colored
    assert ("\x1b[" in result) == colored


def test_nothing_is_colored_in_a_pipe(saved: Path) -> None:
    result, error = process("log", "--store", saved), process("show", "x", "--store", saved)

    assert "\x1b" not in result.stdout + result.stderr + error.stdout + error.stderr


def test_json_on_a_terminal_is_plain(saved: Path) -> None:
    status, shown = on_terminal("show", "best", "--json", "--store", saved, columns=40)

    assert status == 0
    assert json.loads(shown)["step"] == 200
