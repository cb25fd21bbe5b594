"""A ref that names nothing, and no ref at all: every command that takes one does the same."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ckstore import NoSuchRef, Store
from ckstore_cli._refs import complete_ref
from ckstore_cli.app import COMMANDS, app
from tests.cli.conftest import Run

COMMANDS_WITH_REFS = {
    "checkout": ("REF", "out"),
    "export": ("REF", "out"),
    "show": ("REF",),
    "ls": ("REF",),
    "diff": ("REF", "1"),
    "annotate": ("REF", "-m", "a note"),
    "tag": ("best", "REF"),
    "pin": ("REF", "--reason", "a reason"),
    "delete": ("REF",),
    "verify": ("REF",),
    "compact": ("REF",),
    "push": ("REF",),
    "evict": ("REF",),
    "commit": ("file", "--parent", "REF"),
    "touch": ("REF",),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Store.init(tmp_path / "s") as store:
        for step in (1, 2):
            store.save({"w": bytes([step]) * 9000}, step=step)
    return tmp_path / "s"


def test_no_command_that_takes_a_ref_is_left_out() -> None:
    taking = set()
    for name in COMMANDS:
        command = app.get_command(click.Context(app), name)
        assert command is not None
        if any(param._custom_shell_complete is complete_ref for param in command.params):
            taking.add(name)

    assert taking == COMMANDS_WITH_REFS.keys()


@pytest.mark.parametrize("ref", ["9", "main@9", "nope", "abcdef0123", "other@latest", "other@latest-valid"])
def test_every_command_says_what_the_library_says_of_a_ref_that_names_nothing(run: Run, path: Path, ref: str) -> None:
    with pytest.raises(NoSuchRef) as raised:
        Store.open(path).info(ref)
    hint = raised.value.command_hint or raised.value.hint
    wanted = f"error: {raised.value.message}\nhint: {hint}\n"

    for command, words in COMMANDS_WITH_REFS.items():
        said = run(command, *(ref if word == "REF" else word for word in words), "--store", path)
        assert (said.exit_code, said.stderr) == (4, wanted), command
    said = run("diff", "1", ref, "--store", path)
    assert (said.exit_code, said.stderr) == (4, wanted)


def test_show_ls_and_diff_without_a_ref_take_the_latest_as_the_library_does(run: Run, path: Path) -> None:
    Store.open(path).annotate(2, note="a note")

    for words in (["show", "--json"], ["ls"]):
        assert run(*words, "--store", path).stdout == run(words[0], "latest", *words[1:], "--store", path).stdout
    assert run("diff", "1", "--store", path).stdout == run("diff", "1", "main@2", "--store", path).stdout


def test_without_a_ref_an_empty_store_has_none(run: Run, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "empty")
    with pytest.raises(NoSuchRef) as raised:
        store.info()

    for command in ("show", "ls"):
        said = run(command, "--store", store.path)
        assert (said.exit_code, said.stderr.splitlines()[0]) == (4, f"error: {raised.value.message}")
