from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ckstore.version import __version__
from ckstore_cli._errors import EXIT_STATUSES
from ckstore_cli.app import COMMANDS, app
from tests.cli.conftest import ROOT, Run, environment, process


def command_of(name: str) -> click.Command:
    command = app.get_command(click.Context(app), name)

    assert command is not None
    return command


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example_and_its_exit_statuses(name: str, run: Run) -> None:
    shown = run(name, "--help")

    assert shown.exit_code == 0
    example = re.search(r"Example:\n((?:    .+\n)+)", shown.stdout)
    assert example is not None
    assert all(line.startswith(f"    ckstore {name}") for line in example[1].splitlines())
    statuses = re.search(r"Exit status:\n((?:    .+\n)+)", shown.stdout)
    assert statuses is not None
    listed = [int(line.split()[0]) for line in statuses[1].splitlines()]
    assert listed == sorted(set(listed))
    assert {0, 2} <= set(listed) <= set(EXIT_STATUSES)


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Give the commands below one with their names, which of most is the command itself."""
    if isinstance(command, click.Group):
        for below in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), below)
            assert found is not None
            yield from leaves(found, f"{name} {below}")
    else:
        yield name, command


LEAVES = {name: command for top in COMMANDS for name, command in leaves(command_of(top), top)}


@pytest.mark.parametrize("name", LEAVES)
def test_what_cannot_be_a_value_is_refused_with_what_was_wanted(name: str) -> None:
    for param in LEAVES[name].params:
        kind = param.type
        if isinstance(kind, click.types.StringParamType | click.types.BoolParamType | click.Path):
            continue  # these take any word, a flag none
        with pytest.raises(click.BadParameter, match=r"^wanted .+, got 'abc'"):
            kind.convert("abc", param, None)


@pytest.mark.parametrize(
    "words, said",
    [
        (["log", "-n", "abc"], "Invalid value for '-n' / '--count': wanted a whole number of at least 1, got 'abc'"),
        (["log", "-n", "0"], "Invalid value for '-n' / '--count': wanted a whole number of at least 1, got '0'"),
        (["watch", "--every", "0.01"], "Invalid value for '--every': wanted a number of at least 0.1, got '0.01'"),
        (["commit", "x", "--timeout", "0"], "Invalid value for '--timeout': wanted a number above 0, got '0'"),
        (["init", "--hash", "blake"], "'--hash': wanted xxh3_128 or blake3, got 'blake', did you mean blake3?"),
        (["events", "--since", "x"], "--since: wanted a number with s, m, h, d or w"),
        (["remote", "prune", "a", "--grace", "x"], "--grace: wanted a number with s, m, h, d or w"),
        (["pin", "best", "--reason", "r", "--expires", "x"], "--expires: wanted a number with s, m, h, d or w"),
        (["gc", "--keep-within", "x"], "--keep-within: wanted a number with s, m, h, d or w"),
    ],
)
def test_a_wrong_value_is_named_with_its_option_and_what_was_wanted(
    words: list[str], said: str, run: Run, saved: Path
) -> None:
    shown = run(*words, *(["--store", saved] if words[0] != "init" else []))

    assert (shown.exit_code, said in shown.stderr) == (2, True), shown.stderr


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_takes_store_and_json(name: str) -> None:
    options = {option for param in LEAVES[name].params for option in param.opts}

    # `demo` tells a story in a store of its own, and README names it; `clone` makes the store that it names.
    assert ("--json" in options) == (name != "demo")
    assert ("--store" in options) == (name not in ("demo", "clone", "check-resume"))
    assert "but `demo` have `--json`" in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


_OF_ONE = ("checkout", "export", "show", "ls", "diff", "annotate", "tag", "pin", "verify")
_WITHOUT_RUN = dict.fromkeys(_OF_ONE, "write the run into the REF") | {"rename-run": "write the run without an option"}


@pytest.mark.parametrize("name", LEAVES)
def test_a_command_takes_a_run_as_the_others_do_or_says_how(name: str, run: Run) -> None:
    options = {option for param in LEAVES[name].params for option in param.opts}
    if "--run" in options:
        return

    shown = run(*name.split(), "--run", "gpt")

    assert shown.exit_code == 2
    assert _WITHOUT_RUN.get(name, "is not about one run") in shown.stderr


@pytest.mark.parametrize("name", ["events", "gc", "prune"])
def test_a_run_that_stands_alone_is_refused_with_its_option(name: str, run: Run) -> None:
    assert run(name, "gpt").stderr.endswith(f"hint: name a run with --run: ckstore {name} --run RUN\n")


def test_the_help_lists_every_command_in_order(run: Run) -> None:
    shown = run("--help")

    listed = re.findall(r"^  ([\w-]+)  +\S", shown.stdout.split("Create, save and export:")[1], re.MULTILINE)
    assert tuple(listed) == tuple(COMMANDS)


def test_without_a_command_the_help_is_shown_and_it_is_wrong_usage(run: Run) -> None:
    shown = run()

    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert "Create, save and export:" in shown.stderr


def test_a_command_that_does_not_exist_is_refused_with_one_that_looks_like_it(run: Run) -> None:
    shown = run("shwo")

    assert shown.exit_code == 2
    assert shown.stderr == ("error: there is no command 'shwo', did you mean show?\nhint: see ckstore --help\n")


@pytest.mark.parametrize(
    "word, meant", [("rm", "delete"), ("df", "du"), ("history", "log"), ("untag", "tag -d"), ("unpin", "pin -d")]
)
def test_a_word_of_another_program_is_refused_with_the_word_here(word: str, meant: str, run: Run) -> None:
    assert run(word).stderr.startswith(f"error: there is no command {word!r}, did you mean {meant}?\n")


@pytest.mark.parametrize("word", ["ru", "urn", "rnu", "punt", "rune", "purge", "trim", "grm", "cg"])
def test_a_word_that_is_not_very_like_it_is_never_said_to_be_a_command_that_deletes(word: str, run: Run) -> None:
    said = run(word).stderr

    assert re.search(r"\b(delete|prune|gc)\b", said) is None, said


@pytest.mark.parametrize("word, meant", [("prun", "prune"), ("pruen", "prune"), ("gcc", "gc"), ("delte", "delete")])
def test_a_command_that_deletes_is_named_for_a_word_that_is_very_like_it(word: str, meant: str, run: Run) -> None:
    assert f"did you mean {meant}" in run(word).stderr


def test_a_run_that_is_given_to_log_without_its_option_is_refused_with_it(run: Run, saved: Path) -> None:
    shown = run("log", "gpt", "--store", saved)

    assert shown.exit_code == 2
    assert shown.stderr == (
        "error: unexpected argument 'gpt': log --run NAME lists one run, show REF shows one checkpoint\n"
        "hint: see ckstore log --help\n"
    )


def test_a_wrong_option_is_refused_with_the_command_s_help_as_next_step(run: Run) -> None:
    shown = run("log", "--onelin")

    assert shown.exit_code == 2
    assert shown.stderr.startswith("error: No such option")
    assert shown.stderr.endswith("hint: see ckstore log --help\n")


@pytest.mark.parametrize("option", [["--store"], ["-n"]])
def test_a_missing_value_leads_to_the_help_of_the_command(run: Run, option: list[str]) -> None:
    shown = run("log", *option)

    assert shown.stderr.endswith("requires an argument.\nhint: see ckstore log --help\n")


def test_the_version_is_the_package_s(run: Run) -> None:
    shown = run("--version").stdout

    assert re.fullmatch(rf"ckstore {re.escape(__version__)} \(commit ([0-9a-f]{{40,64}}(, .*)?|unknown)\)\n", shown)


@pytest.mark.parametrize("place", ["before", "after"])
def test_store_and_json_may_stand_before_or_after_the_command(place: str, run: Run, saved: Path) -> None:
    options = ["--store", saved, "--json"]
    shown = run(*options, "log") if place == "before" else run("log", *options)

    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count('{"v": 1, ') == 5


def test_what_stands_after_the_command_wins(run: Run, saved: Path) -> None:
    assert run("--store", "nowhere", "log", "--store", saved).exit_code == 0
    assert run("--store", saved, "log", "--store", "nowhere").exit_code == 4


def test_python_m_is_the_same_program(saved: Path) -> None:
    shown = process("log", "--oneline", "--store", saved)

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("\n") == 5


HEAVY = ("torch", "numpy", "sqlite_utils", "safetensors")


@pytest.mark.parametrize(
    "args",
    [
        ["log"],
        ["log", "--json"],
        ["show", "main@latest"],
        ["ls", "main@latest"],
        ["diff", "100", "200"],
        ["du"],
        ["runs"],
        ["tag"],
        ["pin"],
        ["prune", "--keep-last", "1", "--dry-run"],
        ["--help"],
        ["demo", "-h"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_no_tensors_imports_nothing_heavy(args: list[str], saved: Path) -> None:
    store = [] if args[-1] in ("--help", "-h") else ["--store", str(saved)]

    assert loaded_by([*args, *store]) == []


def test_init_imports_no_torch(tmp_path: Path) -> None:
    # The catalog is made with sqlite_utils, which imports NumPy where there is one.
    assert set(loaded_by(["init", str(tmp_path / "new")])) <= {"sqlite_utils", "numpy"}


def test_a_command_imports_no_other_command(saved: Path) -> None:
    mine = loaded_by(["log", "--store", str(saved)], prefix="ckstore_cli.commands.")

    assert mine == ["ckstore_cli.commands.look", "ckstore_cli.commands.look.log"]


def loaded_by(args: list[str], prefix: str = "") -> list[str]:
    """Return which of HEAVY, or which modules below `prefix`, a command has imported at its end."""
    code = (
        "import sys\n"
        "from ckstore_cli.app import main\n"
        f"sys.argv = ['ckstore', *{args!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    status = end.code\n"
        f"wanted = {prefix!r}\n"
        f"names = [n for n in sys.modules if wanted and n.startswith(wanted) or n in {HEAVY!r}]\n"
        "print('LOADED', status, *names)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    last = done.stdout.splitlines()[-1].split()

    assert last[:2] == ["LOADED", "0"], done.stdout + done.stderr
    return last[2:]
