"""``ckstore push`` and ``pull``, to and from another store in a directory."""

from __future__ import annotations

import json
from pathlib import Path

from ckstore import Store
from tests.cli.conftest import Run
from tests.cli.test_command_line_page import keys, section


def test_a_checkpoint_goes_there_and_comes_back(run: Run, own_saved: Path, tmp_path: Path) -> None:
    there, back = Store.init(tmp_path / "there"), Store.init(tmp_path / "back")
    plan = run("push", "--all", "--remote", there.path, "--dry-run", "--store", own_saved)
    assert plan.exit_code == 0
    assert "would push" in plan.stdout
    assert there.checkpoints() == []
    pushed = run("push", "--all", "--remote", there.path, "--store", own_saved)
    assert pushed.exit_code == 0, pushed.stderr
    assert pushed.stdout.startswith("pushed ")
    document = json.loads(run("pull", "best", "--remote", there.path, "--store", back.path, "--json").stdout)
    assert document["new_count"] == 1
    assert list(document) == keys(section("`ckstore push`"))
    assert back.info("best").id == document["checkpoints"][0]["id"]


def test_what_is_not_there_is_named(run: Run, own_saved: Path, tmp_path: Path) -> None:
    there = Store.init(tmp_path / "there")
    assert run("push", "nothing", "--remote", there.path, "--store", own_saved).exit_code == 4
    assert run("pull", "9999", "--remote", there.path, "--store", own_saved).exit_code == 4
    assert run("push", "best", "--all", "--remote", there.path, "--store", own_saved).exit_code == 2
    assert run("push", "--remote", tmp_path / "no-store", "--store", own_saved).exit_code == 4


def test_bytes_are_let_go_and_a_clone_lists_them(run: Run, own_saved: Path, tmp_path: Path) -> None:
    there = Store.init(tmp_path / "there")
    run("push", "--all", "--remote", there.path, "--store", own_saved)
    plan = run("evict", "best", "--remote", there.path, "--dry-run", "--store", own_saved)
    assert plan.exit_code == 0, plan.stderr
    assert plan.stdout.startswith("would let go of")
    document = json.loads(run("evict", "best", "--remote", there.path, "--store", own_saved, "--json").stdout)
    assert list(document) == keys(section("`ckstore evict`"))
    assert len(document["evicted"]) == 1
    assert "keeps main" in run("evict", "best", "--remote", there.path, "--store", own_saved).stdout
    assert run("evict", "--store", own_saved).exit_code != 0
    cloned = run("clone", there.path, tmp_path / "clone")
    assert cloned.exit_code == 0, cloned.stderr
    assert "lists" in cloned.stdout
    assert Store.open(tmp_path / "clone").info("best").elsewhere
    shown = run("show", "best", "--store", tmp_path / "clone").stdout
    assert "elsewhere  at origin" in shown
    assert "ckstore verify reads them" not in shown  # it does not read what is elsewhere
