"""Every option and argument with odd values ends in a documented status, and a failure in an error with a hint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ckstore import Store
from ckstore_cli._errors import EXIT_STATUSES
from ckstore_cli.app import app
from tests.cli.conftest import Run
from tests.support.stores import check_store

ODD = ["", "-1", "nan", "1e400", "9" * 20, "x" * 5000, "missing", "main@", "@", "*", "a\nb", "\udcff", "./not/there"]
GIVEN = {
    "annotate": ["1", "--note", "x"],
    "checkout": ["1", "NEW"],
    "clone": ["copy", "NEW"],
    "commit": ["files", "--step", "2", "--if-exists", "keep"],
    "compact": ["--dry-run"],
    "delete": ["1", "--dry-run"],
    "demo": ["NEW"],
    "diff": ["1", "2"],
    "evict": ["1", "--dry-run"],
    "export": ["1", "NEW"],
    "gc": ["--dry-run"],
    "import-history": ["files"],
    "init": ["NEW"],
    "ls": ["1"],
    "pin": ["1", "--reason", "x"],
    "prune": ["--keep-last", "2", "--dry-run"],
    "publish": ["main", "NEW", "--once"],
    "pull": ["--dry-run"],
    "push": ["--dry-run"],
    "remote add": ["NEW", "NEW"],
    "rename-run": ["missing", "other"],
    "show": ["1"],
    "tag": ["a-tag"],
    "watch": ["--once"],
    "why": ["ffffff"],
}
"""Arguments with which an option of the command is tried, if it needs any."""
NOT_TRIED = {"check-resume", "demo"}
"""Commands that start trainings."""


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


COMMANDS = dict(commands(app))


def attempts(name: str) -> Iterator[list[str]]:
    """Yield the arguments of a command with one odd value each, and with each flag."""
    given = GIVEN.get(name, [])
    for param in COMMANDS[name].params:
        option = param.opts[-1]
        if isinstance(param, click.Option):
            values = [[option]] if param.is_flag or param.count else [[option, odd] for odd in ODD]
            yield from ([*given, *value] for value in values)
    yield from (["--", odd] for odd in ODD)
    if given and not given[0].startswith("-"):
        yield from ([*given[1:], "--", odd] for odd in ODD)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - NOT_TRIED))
def test_an_odd_value_ends_in_an_error_with_a_hint_or_is_used(
    tmp_path: Path, run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CKSTORE_PATH", "store")
    with Store.init("store") as store:
        for step in (1, 2):
            store.save({"w": step}, step=step, metrics={"loss": step})
        store.remotes.add("copy", "copy")
        store.push(remote="copy")
    Path("files").mkdir()
    Path("files/a").touch()
    for number, given in enumerate(attempts(name)):
        arguments = [one.replace("NEW", f"new-{number}") for one in given]
        if {"--follow", "--help"} & {*arguments} or (name == "watch" and "--once" not in arguments):
            continue
        found = run(*name.split(), *arguments)
        told = f"{name} {arguments}: {found.exit_code} {found.stdout[:300]} {found.stderr[:300]}"

        assert found.exception is None or isinstance(found.exception, SystemExit), told
        assert found.exit_code in EXIT_STATUSES, told
        if found.exit_code in (0, 3) or name == "doctor":
            assert found.stdout or found.stderr or "--json" in arguments, told
        elif "--json" in arguments:
            assert all(json.loads(found.stderr.splitlines()[-1])[key] for key in ("error", "message", "hint")), told
        else:
            assert "error: " in found.stderr, told
            assert "hint: " in found.stderr or "Usage: " in found.stderr, told
            assert len(found.stderr) < 20_000, told
    check_store(Path("store"))
