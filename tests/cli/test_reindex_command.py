"""``ckstore reindex`` on real stores, and what other commands say about a catalog that is not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.ops.open import reindex as reindexing
from tests.cli.conftest import Run
from tests.cli.test_command_line_page import keys, section
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.damage import blobs_by_size, flip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s"
    with Store.init(path) as store:
        for step in (1, 2):
            store.save({"w": np.arange(200_000), "step": step}, step, metrics={"loss": 1 / step}, tags=[f"t{step}"])
        store.pin(1, "x")
    return path


def document(text: str) -> dict[str, Any]:
    (line,) = text.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def without_catalog(path: Path) -> None:
    for left in path.glob("catalog.db*"):
        left.unlink()


def test_it_says_what_is_there_and_log_is_as_before(run: Run, path: Path) -> None:
    before = run("log", "--json", "--store", path).stdout
    without_catalog(path)

    shown = run("reindex", "--store", path)

    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == "2 checkpoints, 1 blob of 1.5 MiB, 2 tags, 1 pin\n"
    assert run("log", "--json", "--store", path).stdout == before
    again = run("reindex", "--store", path)
    assert again.stdout.splitlines()[1] == f"the old catalog is {path / 'catalog.db.old-1'}"


def test_an_incomplete_directory_is_named_and_the_exit_status_says_so(run: Run, path: Path) -> None:
    (checkpoint_dir(path, "main", 2) / "manifest.json").unlink()
    for blob in blobs_dir(path, "main", 1).iterdir():
        (path / "blobs" / blob.name[5:7] / blob.name).unlink()

    shown = run("reindex", "--store", path)
    told = document(run("reindex", "--json", "--store", path).stdout)

    assert shown.exit_code == 3
    first, second, third, _ = shown.stdout.splitlines()
    assert first.startswith("incomplete  main@2  ")
    assert first.endswith("manifest.json is missing")
    assert second == "1 checkpoint, 1 blob of 1.5 MiB, 2 tags, 1 pin"
    assert third == "restored the name of 1 blob in blobs/, so that new saves can share it"
    assert shown.stderr == "warning: the tag t2 names main@2, which does not exist\n"
    assert (told["ok"], [one["step"] for one in told["incomplete"]], len(told["problems"])) == (False, [2], 1)


def test_a_copy_is_told_and_relinked(run: Run, path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "copy", symlinks=True)
    wrong = blobs_by_size(Store.open(tmp_path / "copy"), 1)[-1]
    flip(wrong, keep_time=True)

    told = run("reindex", "--store", tmp_path / "copy").stdout
    done = run("reindex", "--relink", "--store", tmp_path / "copy")

    asked = "copies of blobs take 3.1 MiB in 2 files; ckstore reindex --relink replaces them with hardlinks"
    assert asked in told.splitlines()
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "relinked 2 names, which frees 3.1 MiB; 1.5 MiB read"
    assert Store.open(tmp_path / "copy").verify().ok


def test_a_blob_of_which_no_file_is_right_is_damage(run: Run, path: Path) -> None:
    flip(blobs_by_size(Store.open(path), 1)[-1])

    shown = run("reindex", "--relink", "--store", path)

    assert shown.exit_code == 3
    assert shown.stdout.startswith("damaged  every file of blob xxh3-")


def test_the_keys_of_relinked_are_those_named(run: Run, path: Path) -> None:
    told = document(run("reindex", "--relink", "--json", "--store", path).stdout)
    row = next(line for line in section("`ckstore reindex`").splitlines() if line.startswith("| `relinked`"))

    assert ["v", *keys(section("`ckstore reindex`"))] == list(told)
    assert all(f"`{key}`" in row for key in told["relinked"])


def test_a_full_disk_is_status_6(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reindexing, "_MARGIN_BYTES", 2**62)

    assert run("reindex", "--store", path).exit_code == 6


def test_a_missing_catalog_is_reported_by_a_reader_and_by_the_writer_that_rebuilds_it(run: Run, path: Path) -> None:
    without_catalog(path)

    reading, writing = run("log", "--oneline", "--store", path), run("gc", "--store", path)
    afterwards = run("log", "--oneline", "--store", path)

    assert (reading.exit_code, writing.exit_code) == (0, 0)
    assert reading.stderr.startswith("warning: the catalog ")
    assert "Reading the directories instead" in reading.stderr
    assert reading.stderr.count("\n") == 1
    assert writing.stderr.startswith("warning: Rebuilt the catalog from ")
    assert writing.stderr.count("\n") == 1
    assert afterwards.stderr == ""
    assert afterwards.stdout == reading.stdout
