from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, environment


@pytest.mark.parametrize("status", [0, 1])
def test_the_demo_is_called_with_what_was_asked_and_its_status_is_the_exit_status(
    status: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore_cli.demo import story

    called: list[tuple[object, ...]] = []

    def run_demo(directory: Path | None, keep: bool, quick: bool) -> int:
        called.append((directory, keep, quick))
        return status

    monkeypatch.setattr(story, "run_demo", run_demo)

    assert run("demo").exit_code == status
    assert run("demo", "--keep", "--quick", "--directory", "there").exit_code == status
    assert called == [(None, False, False), (Path("there"), True, True)]


def test_without_torch_it_says_what_to_install() -> None:
    code = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'torch' else found(name)\n"
        "from ckstore_cli.app import app\n"
        "app.main(['demo'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )

    assert done.returncode == 1
    assert done.stderr == ("error: the demo needs torch, which is not installed\nhint: pip install 'ckstore[torch]'\n")
