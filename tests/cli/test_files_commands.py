"""``commit`` and ``checkout``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckstore import Store
from tests.cli.conftest import Run
from tests.support.trees import look


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "out" / "checkpoint-500"
    folder.mkdir(parents=True)
    save_file({"w": np.arange(1000, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    (folder / "config.json").chmod(0o640)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    Store.init(tmp_path / "s").close()
    return tmp_path / "s"


def test_a_history_comes_in_and_one_that_is_incomplete_is_left_alone(run: Run, store: Path, files: Path) -> None:
    half = files.with_name("checkpoint-600")
    half.mkdir()
    (half / "checkpoint-is-incomplete.txt").touch()

    done = run("import-history", files.parent, "--store", store)
    again = run("import-history", files.parent, "--json", "--store", store)

    assert done.exit_code == 1
    assert "skipped checkpoint-600: incomplete: " in done.stdout
    assert "\nimported 1 checkpoint: " in done.stdout
    assert "checkpoint-600: incomplete, not imported" in done.stderr
    document = json.loads(again.stdout)
    assert (document["imported"], document["present"]) == ([], ["main@500"])


def test_a_conflict_of_an_import_gives_a_hint_with_its_own_options(run: Run, store: Path, files: Path) -> None:
    run("import-history", files.parent, "--store", store)
    save_file({"w": np.zeros(10, dtype=np.float32)}, files / "model.safetensors")

    done = run("import-history", files.parent, "--store", store)

    assert done.exit_code == 1
    assert "has another checkpoint at step 500" in done.stderr
    assert done.stderr.endswith("hint: --run main-2 imports the checkpoints into another run\n")
    assert run("import-history", files.parent, "--run", "main-2", "--store", store).exit_code == 0


def test_files_go_in_and_come_back(run: Run, store: Path, files: Path, tmp_path: Path) -> None:
    done = run(
        "commit", files, "--metric", "loss=2.5", "--metric", "n=3", "-m", "mine", "--tag", "best", "--store", store
    )
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("committed main@500 ")
    assert "new" in done.stdout

    with Store.open(store) as opened:
        info = opened.info("best")
    assert (info.metrics, info.message) == ({"loss": 2.5, "n": 3}, "mine")
    listed = run("ls", "best", "--store", store).stdout.split()
    assert {"config.json", "model.safetensors", "model.safetensors.w"} <= set(listed)

    done = run("checkout", "best", tmp_path / "back", "--store", store)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"wrote 2 files, 4.0 KiB, to {tmp_path / 'back'}\n"
    assert look(tmp_path / "back") == look(files)


@pytest.mark.parametrize(
    "words,end,source",
    [
        (["checkpoint-7"], "; step taken from the name", "name"),
        (["best"], "; next step of the run", "next"),
        (["checkpoint-8", "--step", "7"], "", "given"),
    ],
)
def test_a_step_that_was_guessed_is_said(words: list[str], end: str, source: str, run: Run, store: Path) -> None:
    name, *options = words
    place = store.parent / name
    place.write_text("x")
    assert run("commit", place, *options, "--store", store).stdout.endswith(f", all new{end}\n")
    again = run("commit", place, *options, "--run", "b", "--json", "--store", store)
    assert json.loads(again.stdout)["step_from"] == source


def test_other_files_supersede_a_protected_checkpoint_and_its_tag_still_names_it(
    run: Run, store: Path, files: Path
) -> None:
    first = json.loads(run("commit", files, "--tag", "best", "--json", "--store", store).stdout)["id"]
    (files / "config.json").write_text("[]")

    done = run("commit", files, "--if-exists", "replace", "--json", "--store", store)

    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    second = document["id"]
    assert "the older checkpoint of main@500 is kept: main@500 has the tag best" in " ".join(document["warnings"])
    with Store.open(store, readonly=True) as opened:
        assert (opened.info("best").id, opened.info(500).id) == (first, second)
    listed = run("log", "--all", "--json", "--store", store).stdout.splitlines()
    assert {one["id"]: one["superseded"] for one in map(json.loads, listed)} == {first: True, second: False}
    assert run("commit", files, "--force", "--store", store).exit_code == 2


def test_json(run: Run, store: Path, files: Path, tmp_path: Path) -> None:
    done = json.loads(run("commit", files, "--json", "--store", store).stdout)
    assert (done["run"], done["step"], done["warnings"]) == ("main", 500, [])

    done = json.loads(run("checkout", "500", tmp_path / "b", "--only", "*.json", "--json", "--store", store).stdout)
    assert done == {
        "v": 1,
        "destination": str(tmp_path / "b"),
        "paths": ["config.json"],
        "nbytes": 2,
        "shared_bytes": 0,
        "hardlinked": [],
    }


@pytest.mark.parametrize(
    "words, status, said",
    [
        (("commit",), 2, "Missing argument"),
        (("commit", "nothing"), 2, "nothing does not exist"),
        (("commit", "{files}", "--metric", "loss"), 2, "wanted NAME=NUMBER"),
        (("commit", "{files}", "--metric", "loss=x"), 2, "wanted NAME=NUMBER"),
        (("commit", "{files}", "--run", "a/b"), 2, "a run name"),
        (("commit", "{files}", "--step", "100"), 1, "another checkpoint at step 100"),
        (("commit", "{store}"), 2, "overlap"),
        (("checkout", "100"), 2, "Missing argument"),
        (("checkout", "999", "x"), 4, "999"),
        (("checkout", "100", "{files}"), 2, "not empty"),
        (("checkout", "100", "x", "--only", "*.bin"), 4, "no file that matches"),
        (("checkout", "100", "x", "--link", "soft"), 2, "soft"),
    ],
)
def test_what_cannot_be_is_refused_with_one_line(  # noqa: PLR0917 - a case has three
    run: Run, store: Path, files: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    (files.parent / "other").write_text("x")
    with Store.open(store) as opened:
        opened.commit(files.parent / "other", step=100)

    done = run(*(word.format(files=files, store=store) for word in words), "--store", store)

    assert done.exit_code == status, done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert not Path("x").exists()


def test_an_unfinished_checkpoint_is_refused_with_what_to_do(run: Run, store: Path, files: Path) -> None:
    (files / "checkpoint-is-incomplete.txt").touch()

    done = run("commit", files, "--store", store)
    assert done.exit_code == 2
    assert "--allow-incomplete" in done.stderr
    assert run("commit", files, "--allow-incomplete", "--store", store).exit_code == 0


def test_a_warning_goes_to_stderr(run: Run, store: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)

    done = run("commit", tmp_path / "model.safetensors", "--store", store)

    assert done.exit_code == 0
    assert done.stderr.startswith("warning: ")
    assert "model.safetensors" in done.stderr


def test_neither_command_imports_torch_or_numpy(run: Run, store: Path, files: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from ckstore import Store; s = Store.open(sys.argv[1]); s.config.health_share = 0;"
        "s.commit(sys.argv[2]);"  # to look for NaN needs numpy
        "s.checkout(500, sys.argv[3]); print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store), str(files), str(tmp_path / "o")],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"
    assert sorted(os.listdir(tmp_path / "o")) == ["config.json", "model.safetensors"]


def test_a_diff_names_the_files(run: Run, store: Path, files: Path) -> None:
    run("commit", files, "--store", store)
    (files / "config.json").write_text('{"a": 1}')
    (files / "config.json").chmod(0o600)
    (files / "new.txt").write_text("new")
    (files / "model.safetensors").unlink()
    run("commit", files, "--step", "501", "--store", store)

    lines = run("diff", "500", "501", "--store", store).stdout.splitlines()
    told = json.loads(run("diff", "500", "501", "--store", store, "--json").stdout)["files"]

    assert [" ".join(line.split()) for line in lines[1:4]] == [
        "changed file 640 -> file 600 8 B 8 B config.json",
        "removed file 4.0 KiB model.safetensors",
        "added file 3 B new.txt",
    ]
    assert lines[-1].startswith("from main@500 to main@501: files: 1 changed, 1 added, 1 removed; tensors: 1 removed")
    assert [(one["path"], one["kind"]) for one in told] == [
        ("config.json", "changed"),
        ("model.safetensors", "removed"),
        ("new.txt", "added"),
    ]
    assert told[0]["before"] == {"kind": "file", "mode": "0640", "nbytes": 2}
    assert (told[1]["after"], told[2]["before"]) == (None, None)


def test_show_counts_the_files(run: Run, store: Path, files: Path) -> None:
    run("commit", files, "--store", store)

    assert "in 2 files with 1 value" in run("show", "500", "--store", store).stdout
    assert json.loads(run("show", "500", "--store", store, "--json").stdout)["file_count"] == 2


def test_files_that_are_committed_without_their_tag_end_with_a_status_that_says_so(
    run: Run, store: Path, files: Path
) -> None:
    (store / "refs" / "best").mkdir()

    done = run("commit", files, "--tag", "best", "--tag", "first", "--store", store)

    assert done.exit_code == 1
    assert done.stdout.startswith("committed main@500 ")
    assert "warning: main@500 is saved, but its tag 'best' is not: Is a directory" in done.stderr
    assert "error: main@500 is committed and durable, but not tagged: best\n" in done.stderr
    assert "hint: ckstore tag best main@500 tries again" in done.stderr
    with Store.open(store) as opened:
        assert opened.info(500).tags == ("first",)
    (store / "refs" / "best").rmdir()
    assert run("tag", "best", "main@500", "--store", store).exit_code == 0
