"""Completion as people meet it: real shells at a terminal, keys that are pressed.

The program that the line calls gives what the shell made of the line, so that no test has to read a screen.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import environment
from tests.support.requirements import representatives, require_program
from tests.support.terminal import Terminal

PROMPT = "READY> "
SET_UP = {
    "bash": f"""PS1={shlex.quote(PROMPT)}
bind 'set enable-bracketed-paste off'
eval "$(_CKSTORE_COMPLETE=bash_source ckstore)"
""",
    "zsh": f"""PROMPT={shlex.quote(PROMPT)}
unsetopt PROMPT_SP PROMPT_CR
autoload -Uz compinit
compinit -u -D
eval "$(_CKSTORE_COMPLETE=zsh_source ckstore)"
""",
    "fish": f"""function fish_prompt; printf {shlex.quote(PROMPT)}; end
function fish_title; end
set -g fish_greeting
set -g fish_autosuggestion_enabled 0
_CKSTORE_COMPLETE=fish_source ckstore | source
""",
}
LINES = [
    ("ckstore show be\t", ["show", "best"]),
    ("ckstore show main@2\t", ["show", "main@200"]),
    ("ckstore show swe\t7\t", ["show", "sweep-7@7"]),
    ("ckstore diff sweep-7@7 main@1\t5\t", ["diff", "sweep-7@7", "main@150"]),
    ("ckstore log --run s\t", ["log", "--run", "sweep-7"]),
]
ONLY_IN_BASH = [("ckstore log --run=s\t", ["log", "--run=sweep-7"])]


@pytest.mark.parametrize("shell", representatives(["bash", "zsh", "fish"], "bash"))
def test_a_ref_with_a_run_completes_at_a_terminal(shell: str, saved: Path, tmp_path: Path) -> None:
    program = require_program(shell)
    command, env = _prepared(shell, str(program), tmp_path)
    with Terminal(command, env=env, cwd=saved.parent) as terminal:
        terminal.until(PROMPT)
        for keys, words in LINES + (ONLY_IN_BASH if shell == "bash" else []):
            terminal.type(f"{keys}\r")
            shown = terminal.until("]GOT")
            assert shown.rpartition("GOT[")[2] == f"{' '.join(words)}]GOT"
            terminal.until(PROMPT)

        terminal.type("ckstore show sweep-7@\t\t")
        terminal.until("latest-valid")


def _prepared(shell: str, program: str, home: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of a shell that has nothing of the user's, and its environment."""
    called = home / "bin" / "ckstore"
    called.parent.mkdir()
    called.write_text(
        "#!/bin/sh\n"
        f'if [ -n "$_CKSTORE_COMPLETE" ]; then exec {shlex.quote(sys.executable)} -m ckstore_cli "$@"; fi\n'
        'printf "GOT[%s]GOT\\n" "$*"\n'
    )
    called.chmod(0o755)
    start = home / {"bash": "bashrc", "zsh": ".zshrc", "fish": "start.fish"}[shell]
    start.write_text(SET_UP[shell])
    env = {
        **environment(),
        "PATH": f"{called.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "ZDOTDIR": str(home),
        "XDG_CONFIG_HOME": str(home),
        "XDG_DATA_HOME": str(home),
        "INPUTRC": os.devnull,
        "LC_ALL": "C.UTF-8",
    }
    return {
        "bash": [program, "--noprofile", "--rcfile", str(start), "-i"],
        "zsh": [program, "-o", "NO_GLOBAL_RCS", "-i"],
        "fish": [program, "--no-config", "-i", "-C", f"source {shlex.quote(str(start))}"],
    }[shell], env
