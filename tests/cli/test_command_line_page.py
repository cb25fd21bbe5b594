"""docs/reference/command-line.md names every command, option and JSON key, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from ckstore import Store
from ckstore_cli.app import COMMANDS, app
from tests.cli.conftest import ROOT, Run

PAGE = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")


COMMON = {"--store", "--json"}
"""The options of every command, which the page describes once, as it does the key `v`."""


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def keys(text: str) -> list[str]:
    """Return the keys of the tables with a column Key."""
    tables = re.findall(r"^\| Key \|.*\n\|[ -:|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return re.findall(r"^\| `(\w+)` \|", "".join(tables), re.MULTILINE)


def test_every_command_has_a_line_and_a_section_and_there_are_no_others() -> None:
    lines = re.findall(r"^\| \[`ckstore ([\w-]+)`\]\(#ckstore-\1\) \|", PAGE, re.MULTILINE)
    sections = re.findall(r"^## `ckstore ([\w-]+)`$", PAGE, re.MULTILINE)

    assert tuple(lines) == tuple(sections) == tuple(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_named_and_no_other(name: str) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    options = {
        option
        for param in command.params
        if isinstance(param, click.Option)
        for option in (*param.opts, *param.secondary_opts)
    }
    rows = re.findall(r"^\| (`-.*?) \|", section(f"`ckstore {name}`"), re.MULTILINE)
    named = {option for row in rows for option in re.findall(r"`(--?[\w-]+)", row)}

    assert named == options - COMMON


def test_a_command_has_the_common_options_unless_the_page_names_it() -> None:
    top = PAGE.split("\n| Command |")[0]

    for name in COMMANDS:
        command = app.get_command(click.Context(app), name)
        assert command is not None
        has = {option for param in command.params for option in param.opts}
        assert (has >= COMMON) == (f"`{name}`" not in top)


def test_the_options_of_the_program_are_named() -> None:
    for option in ("--store", "--json", "--version", "--help", "-h"):
        assert f"`{option}" in PAGE or f" {option}`" in PAGE


def first(text: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(text.splitlines()[0])
    return document


def test_the_keys_of_log_and_show_are_those_printed(run: Run, saved: Path) -> None:
    log = list(first(run("log", "--json", "--store", saved).stdout))
    show = list(first(run("show", "best", "--json", "--store", saved).stdout))

    assert ["v", *keys(section("`ckstore log`"))] == log
    assert log + keys(section("`ckstore show`")) == show


def test_the_keys_of_annotate_are_those_printed(run: Run, tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as made:
        made.save({"x": 1}, step=1)
    log = list(first(run("log", "--json", "--store", tmp_path / "s").stdout))

    printed = list(first(run("annotate", "1", "-m", "a note", "--json", "--store", tmp_path / "s").stdout))

    assert log + keys(section("`ckstore annotate`")) == printed


def test_the_keys_of_ls_are_those_printed(run: Run, saved: Path) -> None:
    printed = list(first(run("ls", "best", "--json", "--store", saved).stdout))

    assert ["v", *keys(section("`ckstore ls`"))] == printed


def test_the_keys_of_init_are_those_printed(run: Run) -> None:
    assert ["v", *keys(section("`ckstore init`"))] == list(first(run("init", "--json").stdout))


@pytest.mark.parametrize(
    "words",
    [
        ("tag", "paper", "100"),
        ("pin", "100", "--reason", "x"),
        ("delete", "sweep-7@7"),
        ("prune", "--keep-last", "1", "--dry-run"),
        ("gc", "--keep-last", "1"),
        ("diff", "main@7", "main@100"),
        ("du",),
        ("runs",),
        ("metrics",),
        ("verify",),
        ("reindex",),
        ("export", "best", "exported"),
    ],
    ids=lambda words: words[0],
)
def test_the_keys_of_a_command_are_those_printed(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    store = tmp_path / "copy"
    with Store.init(store) as made:
        for step in (7, 100):
            made.save({"lr": step, "w": b"1" * 9000}, step=step, tags=["best"])
        made.save({"lr": 1}, step=7, run="sweep-7")
        made.pin("main@7", "x")

    shown = run(*words, "--json", "--store", store)

    assert ["v", *keys(section(f"`ckstore {words[0]}`"))] == list(first(shown.stdout)), shown.stderr


@pytest.mark.parametrize("words, key", [(("tag", "-d", "best"), "name"), (("pin", "-d", "main@7"), "removed")])
def test_the_keys_of_what_was_removed_are_those_printed(
    words: tuple[str, ...], key: str, run: Run, tmp_path: Path
) -> None:
    with Store.init(tmp_path / "s") as made:
        made.save({"lr": 1}, step=7, tags=["best"])
        made.pin("main@7", "x")

    printed = list(first(run(*words, "--json", "--store", tmp_path / "s").stdout))

    assert printed == ["v", key]
    assert re.search(rf"`{words[0]} -d`.*`v` and `{key}`", section(f"`ckstore {words[0]}`"))


def test_the_keys_of_an_error_are_those_printed(run: Run) -> None:
    assert ["v", *keys(section("Output"))] == list(first(run("log", "--json").stderr))
