from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from tests.cli.conftest import Run, on_terminal


def steps_of(lines: str) -> list[str]:
    return [line.split()[0] for line in lines.splitlines()]


def test_the_newest_commit_is_first_whatever_its_step(run: Run, saved: Path) -> None:
    shown = run("log", "--store", saved)

    assert shown.exit_code == 0, shown.stderr
    assert steps_of(shown.stdout) == ["STEP", "150", "8", "7", "200", "100"]


@pytest.mark.usefixtures("steady_clock")
def test_a_line_has_everything_about_a_checkpoint(run: Run, saved: Path) -> None:
    line = run("log", "--store", saved).stdout.splitlines()[4]

    with Store.open(saved, readonly=True) as store:
        info = store.info("best")
    assert re.fullmatch(
        r" 200  ([0-9a-f]{10})  main     (\d+ (s|min) ago) +68\.9 KiB +0 B  "
        r"loss=2\.5 \(best, prod\) after the warmup",
        line,
    )
    assert info.id.partition("-")[2].startswith(line.split()[1])


def test_n_takes_the_newest_and_run_only_that_run(run: Run, saved: Path) -> None:
    assert steps_of(run("log", "-n", 2, "--store", saved).stdout) == ["STEP", "150", "8"]
    of_run = run("log", "--run", "main", "-n", 9, "--store", saved).stdout
    assert steps_of(of_run) == ["STEP", "150", "200", "100"]


def test_lacks_takes_those_without_a_metric_before_they_are_counted(run: Run, own_saved: Path) -> None:
    saved = own_saved
    assert steps_of(run("log", "--lacks", "loss", "--store", saved).stdout) == ["STEP", "150", "8", "7"]
    few = run("log", "--lacks", "loss", "-n", 3, "--run", "main", "--store", saved)
    assert steps_of(few.stdout) == ["STEP", "150"]
    _, shown = on_terminal("log", "--lacks", "loss", "-n", 1, "--store", saved)
    assert "2 older; -n 3 shows them all" in shown
    with Store.open(saved) as store:
        for info in store.checkpoints():
            store.annotate(info, metrics={"bleu": 1})
    none = run("log", "--lacks", "bleu", "--store", saved)
    assert (none.exit_code, none.stdout) == (0, "")
    assert "no checkpoint lacks bleu" in none.stderr
    assert run("log", "--lacks", "bleu", "--json", "--store", saved).stdout == ""


def test_a_run_that_is_not_there_is_an_error_with_those_that_are(run: Run, saved: Path) -> None:
    shown = run("log", "--run", "mian", "--store", saved)

    assert shown.exit_code == 4
    assert "there is no run 'mian'" in shown.stderr
    assert "hint: its runs: main, sweep-7" in shown.stderr


def test_oneline_is_id_name_and_what_was_said(run: Run, saved: Path) -> None:
    lines = run("log", "--oneline", "--store", saved).stdout.splitlines()

    assert [line[10:] for line in lines] == [
        " main@150",
        " sweep-7@8",
        " sweep-7@7 \\x1b[2Jgone\\udcff",
        " main@200 loss=2.5 (best, prod) after the warmup",
        " main@100 loss=3.25 nan=nan",
    ]


def test_json_is_a_document_a_line_in_the_same_order(run: Run, saved: Path) -> None:
    shown = run("log", "--json", "--store", saved)

    documents = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(d["run"], d["step"]) for d in documents] == [
        ("main", 150),
        ("sweep-7", 8),
        ("sweep-7", 7),
        ("main", 200),
        ("main", 100),
    ]
    assert documents[-1]["metrics"] == {"loss": 3.25, "nan": "nan"}
    assert documents[3]["tags"] == ["best", "prod"]
    assert documents[3]["parent"] == documents[4]["id"]
    assert documents[3]["metadata"] == {"host": "a", "seed": str(2**60)}
    assert documents[2]["message"] == "\x1b[2Jgone\udcff"
    assert [d["v"] for d in documents] == [1] * 5


def test_json_says_what_the_library_says(run: Run, saved: Path) -> None:
    documents = map(json.loads, run("log", "--json", "--store", saved).stdout.splitlines())

    with Store.open(saved, readonly=True) as store:
        for document, info in zip(documents, store.checkpoints()[::-1], strict=True):
            for key in ("id", "sequence", "created", "logical_bytes", "new_bytes", "leaf_count"):
                assert document[key] == getattr(info, key)
            assert document["reused_bytes"] == info.reused_bytes
            assert document["content"] == info.content
            assert document["durable"] == info.durable


def test_an_empty_store_is_no_error(run: Run, tmp_path: Path) -> None:
    Store.init(tmp_path / "empty").close()

    shown = run("log", "--store", tmp_path / "empty")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "no checkpoint yet\n")
    as_json = run("log", "--json", "--store", tmp_path / "empty")
    assert (as_json.exit_code, as_json.stdout, as_json.stderr) == (0, "", "")


def test_a_terminal_gets_the_newest_twenty_and_what_is_left_out(tmp_path: Path) -> None:
    with Store.init(tmp_path / ".ckstore") as store:
        for step in range(23):
            store.save({"lr": 0.1}, step=step)

    _, shown = on_terminal("log", env={"NO_COLOR": "1"})
    _, more = on_terminal("log", "-n", 22, "--oneline", env={"NO_COLOR": "1"})

    assert shown.splitlines()[1].split()[0] == "22"
    assert len(shown.splitlines()) == 1 + 20 + 1
    assert shown.splitlines()[-1] == "3 older; -n 23 shows them all"
    assert more.splitlines()[-1] == "1 older; -n 23 shows them all"


def test_a_narrow_terminal_gets_metrics_below_each_row_and_no_line_is_too_long(
    tmp_path: Path,
) -> None:
    names = ("loss", "val_loss", "lr", "grad_norm", "tokens_per_s")
    with Store.init(tmp_path / ".ckstore") as store:
        for step in (1, 2):
            store.save(
                {"w": np.arange(step)},
                step=step,
                metrics=dict.fromkeys(names, 123.456),
                message="a message of many words " * 8,
                tags=[f"tag-{step}"],
            )

    for columns in (60, 80, 120):
        _, shown = on_terminal("log", columns=columns, env={"NO_COLOR": "1"})
        lines = shown.splitlines()
        assert max(map(len, lines)) <= columns
        assert " ".join(shown.split()).count("val_loss=123.46 (tag-") == 2
        rows = [number for number, line in enumerate(lines) if re.match(r" *[12]  [0-9a-f]{10}", line)]
        assert len(rows) == 2
        assert all(lines[row + 1].startswith("      ") for row in rows)
    _, wide = on_terminal("log", columns=200, env={"NO_COLOR": "1"})
    assert "METRICS, TAGS, MESSAGE" in wide.splitlines()[0]
    assert all("loss=123.46" in line for line in wide.splitlines() if "tag-" in line)


def test_oneline_is_cut_to_the_terminal(saved: Path) -> None:
    _, shown = on_terminal("log", "--oneline", "--store", saved, columns=34, env={"NO_COLOR": "1"})

    assert max(map(len, shown.splitlines())) == 34
    assert "main@200 loss=2.5 (b" in shown
    assert "…" in shown
