from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckstore import Store
from tests.cli.conftest import Run


def settings_of(path: Path) -> dict[str, object]:
    made: dict[str, object] = json.loads((path / "store.json").read_text(encoding="utf-8"))
    return made


def test_without_a_path_it_is_made_where_the_other_commands_find_it(run: Run, tmp_path: Path) -> None:
    made = run("init")

    assert made.exit_code == 0, made.stderr
    assert made.stdout == f"made a store at {tmp_path}/.ckstore\nhash xxh3_128, chunks of 32.0 MiB\n"
    assert run("log").exit_code == 0


def test_the_variable_and_the_option_say_where_too(run: Run, tmp_path: Path) -> None:
    assert run("init", env={"CKSTORE_PATH": "by-variable"}).exit_code == 0
    assert run("init", "--store", "by-option").exit_code == 0
    assert run("init", "by-argument", env={"CKSTORE_PATH": "by-variable"}).exit_code == 0
    for name in ("by-variable", "by-option", "by-argument"):
        assert (tmp_path / name / "store.json").is_file()


def test_size_of_pieces_and_hash_are_as_asked(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("blake3")

    assert run("init", "s", "--chunk-bytes", "16MiB", "--hash", "blake3").exit_code == 0
    assert settings_of(tmp_path / "s")["chunk_bytes"] == 16 * 2**20
    assert settings_of(tmp_path / "s")["hash"] == "blake3"


def test_json_says_what_was_made(run: Run, tmp_path: Path) -> None:
    made = run("init", "s", "--json")

    told = json.loads(made.stdout)
    assert made.stderr == ""
    assert told["path"] == str(tmp_path / "s")
    assert told["uuid"] == settings_of(tmp_path / "s")["uuid"]
    assert (told["hash"], told["chunk_bytes"]) == ("xxh3_128", 32 * 2**20)
    with Store.open(tmp_path / "s") as store:
        assert tuple(told["warnings"]) == store.warnings


def test_what_the_place_cannot_promise_is_said(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.ops.open.opening._notes_at_opening", lambda *_, **__: ("it is made of sand",))

    made = run("init", "s")
    assert made.exit_code == 0
    hint, warning = made.stderr.splitlines()
    assert hint.startswith("deletions can be undone for a day with ckstore undo; ")
    assert warning == "warning: it is made of sand"


def test_a_store_that_is_there_is_left_alone(run: Run, tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store:
        store.save({"x": 1}, step=1)
    before = settings_of(tmp_path / "s")

    again = run("init", "s")

    assert again.exit_code == 1
    assert again.stderr.startswith(f"error: there is already a store at {tmp_path}/s")
    assert settings_of(tmp_path / "s") == before
    assert run("log", "--oneline", "--store", "s").stdout.endswith("main@1\n")


@pytest.mark.parametrize("size,said", [("3.5MiB", "MiB"), ("lots", "a size is a number and a unit")])
def test_a_size_that_pieces_cannot_have_is_refused_and_nothing_is_left(
    size: str, said: str, run: Run, tmp_path: Path
) -> None:
    shown = run("init", "s", "--chunk-bytes", size)

    assert shown.exit_code == 2
    assert said in shown.stderr
    assert not (tmp_path / "s").exists()


def test_a_directory_that_holds_something_else_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").write_text("mine")

    shown = run("init", "s")

    assert shown.exit_code in (1, 2)
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["thesis.txt"]
