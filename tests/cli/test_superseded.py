"""What the command line says of a step that was saved twice, whose older checkpoint a tag keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from ckstore.model.digest import short_id
from tests.cli.conftest import Run
from tests.cli.test_completion import completed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Store.init(tmp_path / "s") as store:
        store.config.undo_by_hand_s = 3600
        store.save({"w": np.arange(1000.0)}, 3)
        store.save({"w": np.arange(1000.0)}, 4, tags=["good"])
        info = store.save({"w": np.arange(2000.0)}, 4, if_exists="replace")
    assert "has the tag good" in info.warnings[0]
    return tmp_path / "s"


@pytest.fixture
def ids(path: Path) -> Iterator[tuple[str, str]]:
    """The digits of the older and of the newer checkpoint of step 4."""
    with Store.open(path, readonly=True) as store:
        yield short_id(store.info("good").id), short_id(store.info(4).id)


def test_log_lists_it_on_request(run: Run, path: Path, ids: tuple[str, str]) -> None:
    listed = [line.split()[:2] for line in run("log", "--store", path).stdout.splitlines()[1:]]
    every = run("log", "--all", "--store", path).stdout.splitlines()

    assert [step for step, _ in listed] == ["4", "3"]
    assert [line.split()[:2] for line in every[1:3]] == [["4", ids[1]], ["4", ids[0]]]
    assert every[2].endswith("superseded (good)")


def test_a_step_shows_the_newer_one_and_the_digits_of_the_id_the_older(
    run: Run, path: Path, ids: tuple[str, str]
) -> None:
    newer, older = run("show", "4", "--store", path).stdout, run("show", ids[0], "--store", path).stdout

    assert f"xxh3-{ids[1]}" in newer
    assert "(main@4, superseded)" in newer  # its parent
    assert "superseded YES: main@4 is a newer checkpoint" in older
    assert json.loads(run("show", ids[0], "--store", path, "--json").stdout)["superseded"] is True


def test_tags_pins_and_differences_say_which_of_the_two(run: Run, path: Path, ids: tuple[str, str]) -> None:
    shown = f"main@4 ({ids[0]}, superseded)"

    assert run("tag", "good", "--store", path).stdout == f"good is {shown}\n"
    assert ["good", "main@4", "(superseded)", ids[0]] in [
        line.split() for line in run("tag", "--store", path).stdout.splitlines()
    ]
    assert run("tag", "good", "4", "--store", path).stdout == f"good is main@4 (was {shown})\n"
    assert run("tag", "good", ids[0], "--store", path).stdout.startswith(f"good is {shown} (was main@4)")
    assert run("pin", ids[0], "--reason", "x", "--store", path).stdout.startswith(f"pinned {shown} as ")
    assert ["main@4", ids[0]] in [line.split()[1:3] for line in run("pin", "--store", path).stdout.splitlines()]
    assert f"from main@4 ({ids[0]}) to main@4 ({ids[1]}): " in run("diff", "good", "4", "--store", path).stdout


def test_what_keeps_it_is_said_with_its_id_and_the_way_out_works(run: Run, path: Path, ids: tuple[str, str]) -> None:
    run("pin", ids[0], "--reason", "x", "--store", path)
    tagged = run("delete", ids[0], "--store", path)
    run("tag", "-d", "good", "--store", path)
    pinned = run("delete", ids[0], "--store", path)

    assert (tagged.exit_code, pinned.exit_code) == (5, 5)
    assert f"main@4 ({ids[0]}, superseded) has the tag good" in tagged.stderr
    assert f"hint: unpin it first: ckstore pin -d {ids[0]}\n" in pinned.stderr
    assert run("pin", "-d", ids[0], "--store", path).exit_code == 0
    assert run("delete", ids[0], "--store", path).stdout == f"deleted main@4 ({ids[0]}, superseded)\n"
    with Store.open(path, readonly=True) as store:
        assert short_id(store.info(4).id) == ids[1]


def test_a_delete_of_the_step_says_what_the_step_names_then(run: Run, path: Path, ids: tuple[str, str]) -> None:
    done = run("delete", "main@4", "--store", path)

    assert done.stdout == "deleted main@4\n"
    assert f"main@4 is now {ids[0]}, which was superseded\n" in done.stderr
    assert run("undo", "main@4", "--store", path).stdout == "restored main@4\n"
    assert run("tag", "good", "--store", path).stdout == f"good is main@4 ({ids[0]}, superseded)\n"


@pytest.mark.parametrize("words", [("--run", "main"), ("..9",)])
def test_all_of_a_run_and_a_range_are_deleted_with_the_superseded_ones(
    words: tuple[str, ...], run: Run, path: Path
) -> None:
    kept = run("delete", *words, "--store", path)

    assert kept.exit_code == 5  # the tag
    run("tag", "-d", "good", "--store", path)
    assert run("delete", *words, "--store", path).exit_code == 0
    assert run("log", "--all", "--store", path).stdout == ""
    run("undo", "--run", "main", "--store", path)
    assert len(run("log", "--all", "--store", path).stdout.splitlines()) == 1 + 3


def test_its_id_completes_and_its_step_once(path: Path, ids: tuple[str, str]) -> None:
    assert completed(["ckstore", "show", "--store", str(path), ids[0][:6]])[-1:] == [ids[0]]
    assert completed(["ckstore", "show", "--store", str(path), "main@"])[-2:] == ["main@4", "main@3"]


def test_the_report_and_du_have_both(run: Run, path: Path, ids: tuple[str, str], tmp_path: Path) -> None:
    assert f"main@4 ({ids[0]}, superseded)" in run("du", "--store", path).stdout
    assert run("report", "-o", tmp_path / "r.html", "--store", path).exit_code == 0
    page = (tmp_path / "r.html").read_text()
    assert "Superseded checkpoints" in page
    assert f"<td>{ids[0]}</td>" in page
