from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import environment
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.requirements import require_program


def completed(words: list[str], shell: str = "zsh", **env: str) -> list[str]:
    """Return what is offered for the last of `words`, without the words about it."""
    asked = {
        **environment(),
        "_CKSTORE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        **env,
    }
    done = subprocess.run(
        [sys.executable, "-m", "ckstore_cli"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=asked,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    return lines[1::3] if shell == "zsh" else [line.partition(",")[2] for line in lines]


@pytest.fixture(autouse=True)
def _in_the_store(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved.parent)


def test_commands_and_options_complete() -> None:
    assert "show" in completed(["ckstore", "sh"])
    assert completed(["ckstore", "log", "--one"]) == ["--oneline"]


@pytest.mark.crossed
@pytest.mark.parametrize(
    "typed,offered",
    [
        ("", ["latest", "latest-valid", "latest-healthy", "best", "prod", "200", "150", "100", "main@", "sweep-7@"]),
        ("la", ["latest", "latest-valid", "latest-healthy"]),
        ("1", ["150", "100"]),
        ("pr", ["prod"]),
        ("sw", ["sweep-7@latest", "sweep-7@latest-valid", "sweep-7@latest-healthy", "sweep-7@8", "sweep-7@7"]),
        ("sweep-7@", ["sweep-7@latest", "sweep-7@latest-valid", "sweep-7@latest-healthy", "sweep-7@8", "sweep-7@7"]),
        ("main@2", ["main@200"]),
        ("gone@", []),
        ("xyz", []),
    ],
)
@pytest.mark.parametrize("command", ["show", "ls", "annotate"])
def test_refs_complete(command: str, typed: str, offered: list[str]) -> None:
    assert completed(["ckstore", command, typed or "''"]) == offered


def test_an_id_completes_after_four_digits(saved: Path) -> None:
    manifest = (checkpoint_dir(saved, "main", 150) / "manifest.json").read_text()
    digits = manifest.split('"')[3].partition("-")[2]

    assert completed(["ckstore", "show", digits[:4]]) == [digits[:10]]
    assert completed(["ckstore", "show", digits[:12]]) == [digits[:12]]


def test_runs_complete() -> None:
    assert completed(["ckstore", "log", "--run", "s"]) == ["sweep-7"]


def test_the_store_of_the_option_or_the_variable_is_looked_at(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert completed(["ckstore", "show", "be"]) == []
    assert completed(["ckstore", "show", "--store", str(saved), "be"]) == ["best"]
    assert completed(["ckstore", "--store", str(saved), "show", "be"]) == ["best"]
    assert completed(["ckstore", "show", "be"], CKSTORE_PATH=str(saved)) == ["best"]


def test_what_cannot_be_read_is_left_out_without_a_word(tmp_path: Path) -> None:
    store = tmp_path / "odd"
    (store / "checkpoints" / "main" / "12").mkdir(parents=True)
    (store / "checkpoints" / "main" / "x").mkdir()
    (store / "checkpoints" / "a run").mkdir()
    (store / "store.json").touch()

    assert completed(["ckstore", "show", "--store", str(store), "1"]) == ["12"]
    assert completed(["ckstore", "show", "--store", str(store), "12ab"]) == []


def test_what_leads_out_of_the_store_or_would_be_waited_for_is_left_out(tmp_path: Path) -> None:
    store, elsewhere = tmp_path / "odd", tmp_path / "elsewhere"
    (store / "checkpoints" / "main" / "12").mkdir(parents=True)
    os.mkfifo(store / "checkpoints" / "main" / "12" / "manifest.json")
    (elsewhere / "7").mkdir(parents=True)
    (store / "checkpoints" / "linked").symlink_to(elsewhere)
    (store / "refs").symlink_to(elsewhere)
    (store / "store.json").touch()

    assert completed(["ckstore", "show", "--store", str(store), "12ab"]) == []
    assert completed(["ckstore", "show", "--store", str(store), "linked@7"]) == []
    assert completed(["ckstore", "show", "--store", str(store), "7"]) == []


def test_it_imports_no_store_and_no_catalog() -> None:
    code = (
        "import sys\n"
        "from ckstore_cli.app import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "bad = ('torch', 'numpy', 'sqlite3', 'sqlite_utils', 'ckstore.store')\n"
        "print([name for name in bad if name in sys.modules])\n"
    )
    asked = {"_CKSTORE_COMPLETE": "zsh_complete", "COMP_WORDS": "ckstore show be", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**environment(), **asked},
    )

    assert done.stdout.splitlines()[1] == "best"
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "words,offered",
    [
        (["ckstore", "show", "sweep-7", "@", "8"], ["8"]),
        (["ckstore", "show", "sweep-7", "@"], ["@latest", "@latest-valid", "@latest-healthy", "@8", "@7"]),
        (["ckstore", "log", "--run", "=", "s"], ["sweep-7"]),
        (["ckstore", "diff", "sweep-7", "@", "7", "main", "@", "1"], ["150", "100"]),
        (["ckstore", "show", "be"], ["best"]),
        (["ckstore", "log", "--run", "ma"], ["main"]),
    ],
)
def test_in_bash_a_ref_with_a_run_completes_although_bash_splits_it(
    words: list[str], offered: list[str], tmp_path: Path
) -> None:
    """The real script in the real shell; only the pressing of the key is left out."""
    bash = require_program("bash")
    program = tmp_path / "bin" / "ckstore"
    program.parent.mkdir()
    program.write_text(f'#!{bash}\nexec {sys.executable} -m ckstore_cli "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(_CKSTORE_COMPLETE=bash_source ckstore)"\n'
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
        f"_ckstore_completion ckstore {words[-1]}; "
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    env = environment()
    env["PATH"] = f"{program.parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(
        [str(bash), "--norc", "-c", script],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
    )

    assert done.stdout.splitlines() == offered
    assert done.stderr == ""
