from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from ckstore.model.times import time_of_text
from tests.cli.conftest import Run
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.look import directory_of


def labels(text: str) -> dict[str, str]:
    """Return label -> text, with lines that continue one joined by a line feed."""
    found: dict[str, str] = {}
    label = ""
    for line in text.splitlines():
        label = line[:11].strip() or label
        found[label] = f"{found[label]}\n{line[11:]}" if label in found else line[11:]
    return found


def test_everything_about_a_checkpoint_is_shown(run: Run, saved: Path) -> None:
    shown = run("show", "best", "--store", saved)

    with Store.open(saved, readonly=True) as store:
        info, first = store.info("best"), store.info("main@100")
        directory = directory_of(store, "best")
    assert shown.exit_code == 0, shown.stderr
    told = labels(shown.stdout)
    assert told["checkpoint"] == "main@200"
    assert told["id"] == info.id
    assert told["parent"] == f"{first.id} (main@100)"
    assert told["created"].startswith(f"{info.created[:10]} {info.created[11:19]} UTC, ")
    assert told["tags"] == "best, prod"
    assert told["message"] == "after the warmup\nsecond line"
    assert told["metrics"] == "loss = 2.5"
    assert json.loads(told["metadata"]) == {"host": "a", "seed": str(2**60)}
    assert told["holds"] == f"68.9 KiB in {info.leaf_count} values"
    assert told["new"] == "0 B written by its save"
    assert told["reused"] == "68.9 KiB already in the store, 100.0 % of it"
    assert told["read"].startswith("every blob was written or read since 20")
    assert told["read"].endswith(" ago")
    assert told["content"] == info.content
    assert told["directory"] == str(directory)
    assert (directory / "manifest.json").is_file()


def test_json_has_the_keys_of_log_and_more(run: Run, saved: Path) -> None:
    shown = json.loads(run("show", "best", "--json", "--store", saved).stdout)
    logged = json.loads(run("log", "-n", 4, "--json", "--store", saved).stdout.splitlines()[3])

    directory = Path(shown.pop("directory"))
    assert (shown.pop("reused_share"), shown.pop("file_count")) == (1.0, 0)
    assert time_of_text(shown.pop("oldest_reading")) <= datetime.now(UTC)
    assert (shown.pop("notes"), shown.pop("remotes")) == ([], [])
    assert (shown.pop("kept_bytes") > 0, shown.pop("saved_bytes")) == (True, 0)
    assert shown == logged
    assert directory == checkpoint_dir(saved, "main", 200)


def test_a_compacted_checkpoint_says_what_is_kept_and_saved(run: Run, tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store:
        weight = np.random.default_rng(0).standard_normal(100_000).astype("<f4")
        for step in range(3):
            weight[step] += 1
            store.save({"w": weight}, step=step)
        store.compact(keep_newest=1)

    assert "saved by compaction" in labels(run("show", "main@0", "--store", tmp_path / "s").stdout)["kept"]
    assert "kept" not in labels(run("show", "main@2", "--store", tmp_path / "s").stdout)
    shown = json.loads(run("show", "main@0", "--json", "--store", tmp_path / "s").stdout)
    assert shown["kept_bytes"] + shown["saved_bytes"] == 400_000
    lines = run("log", "--store", tmp_path / "s").stdout.splitlines()[1:]
    assert ["compacted" in line for line in lines] == [False, True, True]
    (file,) = [path for path in blobs_dir(tmp_path / "s", "main", 0).iterdir() if path.stat().st_size < 400_000]
    assert "encoded, " in run("why", file.name, "--store", tmp_path / "s").stdout
    assert "saved by compaction" in run("du", "--store", tmp_path / "s").stdout


def test_a_checkpoint_that_holds_no_bytes_has_no_share(run: Run, saved: Path) -> None:
    told = labels(run("show", "sweep-7@8", "--store", saved).stdout)

    assert "reused" not in told
    assert "read" not in told
    assert told["holds"] == "0 B in 0 values"
    shown = run("show", "sweep-7@8", "--json", "--store", saved)
    assert json.loads(shown.stdout)["reused_share"] is None


def test_a_parent_that_was_deleted_is_said_to_be_gone(run: Run, tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store:
        first = store.save({"x": 1}, step=1)
        store.save({"x": 2}, step=2, parent=first)
        store.delete(first)

    told = labels(run("show", "2", "--store", tmp_path / "s").stdout)
    assert told["parent"] == f"{first.id} (no longer in the store)"


def test_a_checkpoint_without_a_parent_says_so(run: Run, saved: Path) -> None:
    assert labels(run("show", "main@100", "--store", saved).stdout)["parent"] == "none"


@pytest.mark.parametrize(
    "ref,said",
    [("main@999", "999"), ("nothing", "nothing"), ("nowhere@1", "there is no run 'nowhere'")],
)
def test_a_ref_without_a_checkpoint_exits_with_4(ref: str, said: str, run: Run, saved: Path) -> None:
    shown = run("show", ref, "--store", saved)

    assert shown.exit_code == 4
    assert shown.stdout == ""
    assert shown.stderr.startswith("error: ")
    assert said in shown.stderr


def test_an_id_of_ten_digits_as_log_prints_it_is_a_ref(run: Run, saved: Path) -> None:
    digits = run("log", "--oneline", "-n", 1, "--store", saved).stdout.split()[0]

    assert "main@150" in run("show", digits, "--store", saved).stdout
