"""The warm Python behaves as the real one: arguments, environment, directory, streams, status, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SAYS = """
import os, sys
mask = os.umask(0)
print(sys.argv, os.environ.get("TOLD"), os.getcwd(), oct(mask), sys.stdin.read(), __name__, __file__)
print("and this", file=sys.stderr)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(SAYS)
    return path


def ended(python: Path | str, *words: object, **options: object) -> tuple[int, str, str]:
    done = subprocess.run(  # type: ignore[call-overload]
        [python, *map(str, words)], capture_output=True, text=True, check=False, timeout=60, umask=0o027, **options
    )
    return done.returncode, done.stdout, done.stderr


def test_a_program_finds_what_it_was_given(warm: Path, program: Path, tmp_path: Path) -> None:
    told = {"input": "from here", "cwd": tmp_path, "env": {**os.environ, "TOLD": "yes"}}

    status, out, err = ended(warm / "python", program, "a b", "", **told)

    assert (status, err) == (0, "and this\n")
    assert (status, out, err) == ended(sys.executable, program, "a b", "", **told)


@pytest.mark.parametrize(
    "code",
    ["raise SystemExit(3)", "raise SystemExit('no')", "1 / 0", "import os; os.kill(os.getpid(), 9)", "import no_such"],
)
def test_it_ends_as_the_program_ends(warm: Path, code: str) -> None:
    status, out, err = ended(warm / "python", "-c", code)
    wanted = ended(sys.executable, "-c", code)

    assert (status, out) == wanted[:2]
    assert err.splitlines()[-1:] == wanted[2].splitlines()[-1:]


def test_what_is_to_be_done_at_exit_is_done_and_threads_are_waited_for(warm: Path) -> None:
    code = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
    )

    assert ended(warm / "python", "-c", code) == (0, "thread\nat exit\n", "")


@pytest.mark.parametrize("words", [("-uc",), ("-u", "-c")])
def test_what_is_not_to_be_buffered_is_told_at_once(warm: Path, words: tuple[str, ...]) -> None:
    started = subprocess.Popen(
        [warm / "python", *words, "print('told'); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with started:
        assert started.stdout is not None
        assert started.stdout.readline() == "told\n"


def test_ckstore_is_the_command(warm: Path, tmp_path: Path) -> None:
    assert ended(warm / "ckstore", "init", tmp_path / "store")[0] == 0
    status, out, err = ended(warm / "python", "-m", "ckstore_cli", "log", "--store", tmp_path / "nowhere")

    assert (status != 0, out) == (True, "")
    assert err.startswith("error: ")


def test_a_signal_is_passed_on_and_a_kill_takes_the_program_with_it(warm: Path, tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    for number in (signal.SIGTERM, signal.SIGKILL):
        started = subprocess.Popen([warm / "python", "-c", code], stdout=subprocess.PIPE)
        with started:
            assert started.stdout is not None
            pid = int(started.stdout.readline())
            started.send_signal(number)
            assert started.wait(30) == -number
        deadline = time.monotonic() + 30
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not Path(f"/proc/{pid}").exists()
