"""``annotate tag pin delete`` on stores of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from tests.cli.conftest import Run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Store.init(tmp_path / "s") as store:
        for step in (100, 200, 300):
            store.save({"w": np.full(1000, step)}, step=step)
    return tmp_path / "s"


def documents(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_metrics_and_notes_are_added_and_shown(run: Run, path: Path) -> None:
    done = run("annotate", "main@200", "--metric", "acc=0.5", "--metric", "loss=2", "-m", "first", "--store", path)
    assert done.stdout == "added to main@200: acc = 0.5, loss = 2, a note\n"
    again = run("annotate", "200", "--metric", "acc=0.75", "--note", "on\nv2", "--json", "--store", path)

    document = documents(again.stdout)[0]
    assert document["metrics"] == {"acc": 0.75, "loss": 2}
    assert [note["text"] for note in document["notes"]] == ["first", "on\nv2"]
    shown = run("show", "200", "--store", path).stdout
    assert re.search(r"notes +\d{4}-\d\d-\d\d \d\d:\d\d UTC  first\n +\d{4}-.* UTC  on\n +v2\n", shown)
    assert documents(run("show", "200", "--json", "--store", path).stdout)[0]["notes"] == document["notes"]
    info = Store.open(path).info(200)
    assert (info.metrics, [note.text for note in info.notes]) == ({"acc": 0.75, "loss": 2}, ["first", "on\nv2"])


@pytest.mark.parametrize(
    "words,status",
    [(["200"], 2), (["200", "--metric", "acc"], 2), (["200", "--metric", "=1"], 2), (["7", "-m", "x"], 4), ([], 2)],
)
def test_an_annotation_that_says_nothing_or_names_nothing_is_refused(
    words: list[str], status: int, run: Run, path: Path
) -> None:
    assert run("annotate", *words, "--store", path).exit_code == status
    assert not list(path.rglob("annotations.json"))


def test_a_tag_is_given_listed_moved_and_taken_away(run: Run, path: Path) -> None:
    assert run("tag", "--store", path).stderr == "no tags yet\n"
    assert run("tag", "best", "100", "--store", path).stdout == "best is main@100\n"
    assert run("tag", "newest", "300", "--store", path).stdout == "newest is main@300\n"
    assert run("tag", "best", "200", "--store", path).stdout == "best is main@200 (was main@100)\n"

    listed = run("tag", "--store", path).stdout.splitlines()
    assert [line.split()[:2] for line in listed] == [
        ["TAG", "CHECKPOINT"],
        ["best", "main@200"],
        ["newest", "main@300"],
    ]
    assert documents(run("tag", "--json", "--store", path).stdout)[0] == {
        "v": 1,
        "name": "best",
        "run": "main",
        "step": 200,
        "id": Store.open(path).info(200).id,
        "superseded": False,
    }
    assert run("tag", "-d", "best", "--store", path).stdout == "removed the tag best\n"
    again = run("tag", "-d", "best", "--store", path)
    assert (again.exit_code, again.stderr) == (4, "error: there is no tag 'best'\nhint: the tags are newest\n")


def test_a_tag_without_a_ref_is_shown_and_moves_nothing(run: Run, path: Path) -> None:
    run("tag", "best", "100", "--store", path)
    assert run("tag", "best", "--store", path).stdout == "best is main@100\n"
    assert documents(run("tag", "best", "--json", "--store", path).stdout)[0]["step"] == 100
    again = run("tag", "bset", "--store", path)
    assert (again.exit_code, again.stderr) == (
        4,
        ("error: there is no tag 'bset'\nhint: the tags are best; to tag a checkpoint: ckstore tag bset REF\n"),
    )
    assert [(tag.name, tag.step) for tag in Store.open(path).tags()] == [("best", 100)]


def test_a_tag_whose_checkpoint_is_gone_says_so(run: Run, path: Path) -> None:
    (path / "refs" / "gone").symlink_to("../checkpoints/main/7")

    assert "no longer exists" in run("tag", "--store", path).stdout


def test_a_tag_that_looks_like_a_step_is_wrong_usage(run: Run, path: Path) -> None:
    assert run("tag", "12", "100", "--store", path).exit_code == 2


def test_a_pin_protects_until_it_is_removed(run: Run, path: Path) -> None:
    made = run("pin", "100", "--reason", "in the\npaper", "--store", path)
    name = re.search(r"as (pin-\w+), until it is unpinned", made.stdout)
    assert name is not None

    refused = run("delete", "100", "--store", path)
    assert refused.exit_code == 5
    assert "pinned" in refused.stderr
    assert "in the\\npaper" in run("pin", "--store", path).stdout
    assert documents(run("pin", "-d", "main@100", "--json", "--store", path).stdout) == [{"v": 1, "removed": [name[1]]}]
    assert run("pin", "--store", path).stderr == "no pins\n"
    assert run("delete", "100", "--store", path).stdout == "deleted main@100\n"


@pytest.mark.usefixtures("steady_clock")
def test_a_pin_with_an_expiry_says_until_when(run: Run, path: Path) -> None:
    shown = run("pin", "latest", "--reason", "evaluation", "--expires", "36h", "--store", path).stdout

    assert re.search(r"pinned main@300 as pin-\w+, until \d{4}-\d\d-\d\d \d\d:\d\d UTC\n", shown)
    assert documents(run("pin", "--json", "--store", path).stdout)[0]["expired"] is False
    assert run("pin", "latest", "--reason", "x", "--expires", "soon", "--store", path).exit_code == 2


@pytest.mark.parametrize("words", [["latest"], ["--reason", "x"], ["--expires", "7d"]])
def test_a_pin_needs_a_checkpoint_and_a_reason(words: list[str], run: Run, path: Path) -> None:
    shown = run("pin", *words, "--store", path)

    assert shown.exit_code == 2
    assert "REF" in shown.stderr or "--reason" in shown.stderr


def test_a_pin_is_removed_by_its_name(run: Run, path: Path) -> None:
    name = Store.open(path).pin(100, "x").name

    assert run("pin", "-d", name, "--store", path).stdout == f"removed {name}\n"
    again = run("pin", "-d", name, "--store", path)
    assert again.exit_code == 4
    assert again.stderr.endswith("\nhint: ckstore pin lists the pins\n")


def test_rm_deletes_and_frees(run: Run, path: Path) -> None:
    before = len(list((path / "blobs").glob("*/*")))

    shown = run("delete", "100", "--json", "--store", path)

    assert shown.exit_code == 0
    assert list(documents(shown.stdout)[0]) == ["v", "dry_run", "run", "step", "id"]
    assert [info.step for info in Store.open(path).checkpoints()] == [200, 300]
    assert len(list((path / "blobs").glob("*/*"))) < before


def test_rm_of_what_has_a_tag_is_refused_with_the_next_step(run: Run, path: Path) -> None:
    Store.open(path).tag("best", 200)

    shown = run("delete", "200", "--store", path)

    assert shown.exit_code == 5
    assert "best" in shown.stderr
    assert "hint: remove the tag first: ckstore tag -d best\n" in shown.stderr


def steps_left(path: Path) -> list[int]:
    return [info.step for info in Store.open(path).checkpoints()]


def test_rm_takes_several_refs_and_ranges(run: Run, path: Path) -> None:
    store = Store.open(path)
    for step in (400, 500, 600):
        store.save({"w": np.full(10, step)}, step=step)
        store.save({"w": np.full(10, step)}, step=step, run="b")

    done = run("delete", "main@600", "main@150..400", "b@..400", "main@600", "--json", "--store", path)

    assert [(doc["run"], doc["step"]) for doc in documents(done.stdout)] == [
        ("main", 600),
        ("main", 200),
        ("main", 300),
        ("main", 400),
        ("b", 400),
    ]
    assert [info.name for info in store.checkpoints()] == ["main@100", "main@500", "b@500", "b@600"]
    assert run("delete", "b@600..", "--store", path).stdout == "deleted b@600\n"


@pytest.mark.parametrize(
    "refs,status",
    [
        (["100", "7"], 4),
        (["100", "201..299"], 4),
        (["100", "c@.."], 2),
        (["100", "c@1.."], 4),
        (["100", "9" * 5000 + ".."], 2),
        ([], 2),
    ],
)
def test_rm_deletes_nothing_unless_each_ref_names_something(refs: list[str], status: int, run: Run, path: Path) -> None:
    assert run("delete", *refs, "--store", path).exit_code == status
    assert steps_left(path) == [100, 200, 300]


def test_rm_guesses_no_run(run: Run, path: Path) -> None:
    store = Store.open(path)
    for step in (300, 400):
        store.save({"w": np.zeros(10)}, step=step, run="b")

    refused = run("delete", "300..", "--store", path)

    assert refused.exit_code == 4
    assert "300.. is ambiguous, since the store has several runs: b, main" in refused.stderr
    assert "name the run: RUN@300.." in refused.stderr
    assert "no checkpoint of the run b has a step in this range" in run("delete", "b@1..9", "--store", path).stderr
    refused = run("delete", "b@400", "300", "--store", path)
    assert refused.exit_code == 4
    assert "300 is ambiguous, since several runs have this step: b@300, main@300" in refused.stderr
    assert steps_left(path) == [100, 200, 300, 300, 400]


def test_a_dry_run_of_rm_deletes_nothing_and_says_what_would_stay(run: Run, path: Path) -> None:
    Store.open(path).tag("best", 200)

    with Store.open(path, readonly=True).open_checkpoint(100):
        shown = run("delete", "..300", "--dry-run", "--store", path)

    assert (shown.exit_code, shown.stdout) == (5, "would delete main@300\n")
    assert "2 of 3 checkpoints would not be deleted: main@100: main@100 is open for reading" in shown.stderr
    assert "main@200 has the tag best" in shown.stderr
    assert steps_left(path) == [100, 200, 300]


def test_rm_leaves_what_is_protected_and_deletes_the_others(run: Run, path: Path) -> None:
    store = Store.open(path)
    store.tag("best", 200)
    store.pin(100, "paper")

    shown = run("delete", "..300", "--store", path)

    assert (shown.exit_code, shown.stdout) == (5, "deleted main@300\n")
    assert "2 of 3 checkpoints were not deleted: main@100: " in shown.stderr
    assert "main@200 has the tag best" in shown.stderr
    assert steps_left(path) == [100, 200]


def test_rm_of_what_is_open_is_refused(run: Run, path: Path) -> None:
    with Store.open(path, readonly=True).open_checkpoint(200):
        assert run("delete", "200", "--store", path).exit_code == 5


@pytest.mark.parametrize(
    "words",
    [("tag", "-d"), ("tag", "-d", "best", "100"), ("pin", "-d"), ("pin", "-d", "100", "--reason", "x")],
)
def test_what_is_removed_is_named_and_nothing_else(run: Run, path: Path, words: tuple[str, ...]) -> None:
    shown = run(*words, "--store", path)

    assert shown.exit_code == 2
    assert "-d needs the" in shown.stderr


def test_a_run_gets_another_name(run: Run, path: Path) -> None:
    assert run("rename-run", "main", "gpt", "--store", path).stdout == "renamed 3 checkpoints of main to gpt\n"

    back = documents(run("rename-run", "gpt", "main", "--json", "--store", path).stdout)

    assert [(one["run"], one["step"]) for one in back] == [("main", 100), ("main", 200), ("main", 300)]
    assert run("rename-run", "absent", "main", "--store", path).exit_code == 4
    assert "did you mean rename-run?" in run("mv", "main", "gpt", "--store", path).stderr
