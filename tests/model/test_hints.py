"""A hint is advice that works where it is given: Python's name arguments, the command line's name options."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from ckstore_cli._errors import for_the_shell

ROOT = Path(__file__).parents[2]
OPTION = re.compile(r"(?<!ckstore log )(?<![\w-])--[a-z]")
SOME_OPTION = re.compile(r"(?<![\w-])(--[a-z-]+)")
ARGUMENT = re.compile(r"\b[a-z_]+=(?!\S*VALUE)|\bsave\(\)|\bstore\.\w+")
NO_COMMAND_ENTERS = (
    "ckstore/integrations/",
    "ckstore/model/settings/retention.py",
    "ckstore/ops/api_calls.py",
    "ckstore/ops/index/catalog_place.py",
    "ckstore/ops/read/committed_file.py",
    "ckstore/ops/read/load.py",
    "ckstore/ops/read/target_load.py",
    "ckstore/ops/read/storage_read.py",
    "ckstore/ops/save/packing.py",
    "ckstore/ops/save/recorded_chunks.py",
    "ckstore/ranks/own_state.py",
    "ckstore/saver/client/",
    "ckstore/tensors/",
    "ckstore/training/restore.py",
    "ckstore/store.py",
)
"""What only a program calls."""


@cache
def hints() -> list[tuple[str, str, str, bool]]:
    """Return place, keyword, source, and whether the command line has its own, of every hint in the library."""
    found = []
    for path in sorted((ROOT / "ckstore").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
            words = {word.arg: word.value for word in call.keywords if word.arg in ("hint", "command_hint")}
            place = f"{path.relative_to(ROOT)}:{call.lineno}"
            for word, value in words.items():
                text = ast.get_source_segment(source, value) or ""
                found.append((place, str(word), text, "command_hint" in words))
    return found


def test_no_hint_for_python_names_an_option() -> None:
    assert len(hints()) > 150
    assert [(place, text) for place, word, text, _ in hints() if word == "hint" and OPTION.search(text)] == []


def test_a_hint_that_names_an_argument_has_another_for_the_command_line() -> None:
    alone = [
        (place, text)
        for place, word, text, has_both in hints()
        if word == "hint" and not has_both and not place.startswith(NO_COMMAND_ENTERS)
        if ARGUMENT.search(for_the_shell(text))
    ]
    assert alone == []


def test_no_hint_of_the_command_line_names_an_argument() -> None:
    own = [(place, text) for place, word, text, _ in hints() if word == "command_hint"]
    printed = (ROOT / "tests/cli/messages.txt").read_text(encoding="utf-8").splitlines()
    own += [("messages", line.removeprefix("hint: ")) for line in printed if line.startswith("hint: ")]
    assert [(place, text) for place, text in own if re.search(r"\b[a-z_]+=|\bsave\(\)|\bstore\.\w+", text)] == []


def test_what_a_hint_for_python_becomes_is_an_option_of_the_command_line() -> None:
    page = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    shown = " ".join(for_the_shell(text) for _, word, text, has_both in hints() if word == "hint" and not has_both)
    options = set(SOME_OPTION.findall(shown))
    assert len(options) > 10
    assert {option for option in options if option not in page} == set()


def test_arguments_and_calls_of_python_become_options_and_commands() -> None:
    assert for_the_shell("leave max_shard_bytes= out, or give format='torch'") == (
        "leave --max-shard out, or give --format torch"
    )
    assert for_the_shell("make one: Store.init(path); if_exists='replace' replaces it") == (
        "make one: ckstore init; --if-exists replace replaces it"
    )
