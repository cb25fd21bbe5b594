"""``ckstore push`` and ``pull``, to and from a directory."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ckstore import Store
from tests.cli.conftest import Run
from tests.cli.test_command_line_page import keys, section


def test_a_checkpoint_goes_there_and_comes_back(run: Run, own_saved: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "there", Store.init(tmp_path / "back")
    for path in (own_saved, back.path):
        assert run("remote", "add", "there", there, "--store", path).exit_code == 0
    plan = run("push", "--all", "--dry-run", "--store", own_saved)
    assert plan.exit_code == 0
    assert "would push" in plan.stdout
    assert not (there / "checkpoints").exists()
    pushed = run("push", "--all", "--store", own_saved)
    assert pushed.exit_code == 0, pushed.stderr
    assert pushed.stdout.startswith("pushed ")
    document = json.loads(run("pull", "best", "--remote", "there", "--store", back.path, "--json").stdout)
    assert document["new_count"] == 1
    assert list(document) == ["v", *keys(section("`ckstore push`"))]
    assert back.info("best").id == document["checkpoints"][0]["id"]


def test_what_is_not_there_is_named(run: Run, own_saved: Path, tmp_path: Path) -> None:
    there = Store.init(tmp_path / "store-there")
    run("remote", "add", "there", tmp_path / "there", "--store", own_saved)
    assert run("push", "nothing", "--store", own_saved).exit_code == 4
    assert run("pull", "9999", "--store", own_saved).exit_code == 4
    assert run("pull", "9999", "--remote", there.path, "--store", own_saved).exit_code == 4
    assert run("push", "best", "--all", "--store", own_saved).exit_code == 2
    assert run("push", "--remote", tmp_path / "no-store", "--store", own_saved).exit_code == 4
    refused = run("push", "best", "--remote", there.path, "--store", own_saved)
    assert refused.exit_code == 2
    assert "is a store: other stores may read it" in refused.stderr


def test_a_store_that_an_earlier_draft_pushed_to_becomes_a_remote(run: Run, own_saved: Path, tmp_path: Path) -> None:
    run("clone", own_saved, tmp_path / "clone")
    converted = run("remote", "convert", "origin", "new", tmp_path / "there", "--store", tmp_path / "clone")
    assert converted.exit_code == 0, converted.stderr
    assert converted.stdout.startswith("pushed ")
    assert run("remote", "convert", "new", "x", tmp_path / "y", "--store", tmp_path / "clone").exit_code == 2
    assert run("pull", "--all", "--remote", "new", "--store", tmp_path / "clone").exit_code == 0


def test_bytes_are_let_go_and_a_clone_lists_them(run: Run, own_saved: Path, tmp_path: Path) -> None:
    run("remote", "add", "there", tmp_path / "there", "--store", own_saved)
    run("push", "--all", "--store", own_saved)
    plan = run("evict", "best", "--dry-run", "--store", own_saved)
    assert plan.exit_code == 0, plan.stderr
    assert plan.stdout.startswith("would evict")
    document = json.loads(run("evict", "best", "--store", own_saved, "--json").stdout)
    assert list(document) == ["v", *keys(section("`ckstore evict`"))]
    assert len(document["evicted"]) == 1
    assert "keeps main" in run("evict", "best", "--store", own_saved).stdout
    assert run("evict", "--store", own_saved).exit_code != 0
    cloned = run("clone", tmp_path / "there", tmp_path / "clone")
    assert cloned.exit_code == 0, cloned.stderr
    assert "lists" in cloned.stdout
    assert Store.open(tmp_path / "clone").info("best").elsewhere
    shown = run("show", "best", "--store", tmp_path / "clone").stdout
    assert "elsewhere  on origin" in shown
    assert "ckstore verify reads them" not in shown  # it does not read what is elsewhere


def test_a_remote_is_verified(run: Run, own_saved: Path, tmp_path: Path) -> None:
    run("remote", "add", "there", tmp_path / "there", "--store", own_saved)
    run("push", "--all", "--store", own_saved)
    whole = run("verify", "--remote", "there", "--store", own_saved)
    assert whole.exit_code == 0, whole.stderr
    assert whole.stdout.endswith("read back: no damage\n")
    (blob, *_) = (path for path in sorted((tmp_path / "there" / "blobs").rglob("*")) if path.is_file())
    blob.chmod(0o600)
    blob.write_bytes(bytes(byte ^ 1 for byte in blob.read_bytes()))
    hurt = run("verify", "--remote", "there", "--store", own_saved)
    assert hurt.exit_code == 3
    assert "does not match the digest in its name" in hurt.stdout
    assert run("verify", "--remote", "there", "--quick", "--store", own_saved).exit_code == 0
    document = json.loads(run("verify", "--remote", "there", "--store", own_saved, "--json").stdout)
    assert document["damage"][0]["key"] == str(blob.relative_to(tmp_path / "there"))
    named = section("`ckstore verify`").split("With `--remote`")[1].split("With `--export`")[0]
    listed = re.findall(r"^- (.*?)(?::|$)", named, re.MULTILINE)
    assert [*document] == ["v", *(key for line in listed for key in re.findall(r"`(\w+)`", line))]
    assert run("verify", "--remote", "nowhere", "--store", own_saved).exit_code == 4
    assert run("verify", "--remote", "there", "--repair", "--store", own_saved).exit_code == 2
