"""Doctor on real stores and real filesystems: what is wrong is found, and nothing is changed."""

from __future__ import annotations

import errno
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ckstore import Best, RetentionPolicy, Store
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.holding import holding
from tests.support.loopfs import Kind
from tests.support.requirements import require, require_root
from tests.support.stores import check_store

STATE = {"w": b"1" * 9000}


def levels(store: Store) -> dict[str, str]:
    report = store.doctor()
    assert all(finding.do or finding.level == "ok" for finding in report.findings)
    return {finding.what: finding.level for finding in report.findings}


def told(store: Store, what: str) -> str:
    (finding,) = (finding for finding in store.doctor().findings if finding.what == what)
    return f"{finding.level}: {finding.found} -> {finding.do}"


def everything(root: Path) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for path in root.rglob("*"):
        if not path.name.startswith("catalog.db"):
            status = path.lstat()
            found[str(path)] = (status.st_ino, status.st_mode, status.st_nlink, status.st_size)
    return found


@pytest.mark.parametrize("kind,reflink", [("ext4", "note"), ("xfs", "ok")])
def test_a_healthy_store_is_told_so_and_nothing_is_changed(
    kind: Kind, reflink: str, make_filesystem: Callable[[Kind, int], Path]
) -> None:
    root = make_filesystem(kind, 64) / "store"
    with Store.init(root) as store:
        store.save(STATE, step=1)
        before = everything(root)

        report = store.doctor()
        found = levels(store)

        assert report.ok
        assert everything(root) == before
    assert len(found) == len(report.findings), "every finding has a name of its own"
    assert found.pop("reflink") == reflink
    assert found.pop("SQLite") in ("ok", "note")
    assert found.pop("durability") in ("ok", "note")  # of the filesystem that the image lies on
    assert {found.pop(name) for name in ("dirty pages", "read-ahead", "direct I/O", "open files")} <= {
        "ok",
        "note",
        "warning",
    }
    assert {what: level for what, level in found.items() if level != "ok"} == {}


def test_the_version_and_the_commit_are_those_that_the_command_line_prints(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        shown = subprocess.run(
            [sys.executable, "-m", "ckstore_cli", "--version"], check=True, capture_output=True, text=True, timeout=60
        )

        assert f"ok: {shown.stdout.strip()} -> " == told(store, "ckstore").replace("ok: ", "ok: ckstore ")


def test_a_store_in_memory_is_an_error(tmp_path: Path) -> None:
    require_root()
    (tmp_path / "m").mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "none", str(tmp_path / "m")], check=False)
    require(done.returncode == 0, "cannot mount a tmpfs")
    try:
        with Store.init(tmp_path / "m" / "store") as store:
            assert levels(store)["durability"] == "error"
            assert not store.doctor().ok
            assert "ext4 or XFS" in told(store, "durability")
    finally:
        subprocess.run(["umount", str(tmp_path / "m")], check=True)


@pytest.mark.usefixtures("steady_clock")
def test_what_dead_saves_left_is_told_with_its_size_and_owner(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        dead = tmp_path / "store" / "staging" / "main@5.0123"
        (dead / "blobs").mkdir(parents=True)
        (dead / "blobs" / "x").write_bytes(b"x" * 3 * 2**20)
        (tmp_path / "store" / "trash" / "old").write_bytes(b"x" * 2**20)

        assert "note: 1 save died and left 3.0 MiB: main@5.0123 (untouched for" in told(store, "staging")
        assert "note: 1 entry with 1.0 MiB" in told(store, "trash")
        store.gc()
        assert levels(store)["staging"] == levels(store)["trash"] == "ok"


@pytest.mark.usefixtures("steady_clock")
def test_pins_that_expired_or_lost_their_checkpoint_are_told(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save(STATE, step=1)
        pin = store.pin(1, "paper", expires=timedelta(seconds=1000))
        assert levels(store)["pins"] == "ok"
        path = tmp_path / "store" / "pins" / f"{pin.name}.json"
        members = json.loads(path.read_bytes()) | {"expires": "2001-09-09T01:46:40.000000Z"}
        del members["digest"]  # of the file as it was
        path.write_text(json.dumps(members))
        assert f"note: expired, so it protects nothing now: {pin.name}" in told(store, "pins")
        path.write_bytes(b"{}")
        assert told(store, "pins").startswith("warning:")


@pytest.mark.filterwarnings("ignore::ckstore.errors.CkstoreWarning")  # that the catalog is left aside
def test_damage_a_lost_catalog_and_wrong_permissions_are_told(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.init(root) as store:
        store.save(STATE, step=1)
        (checkpoint_dir(root, "main", 1) / "damaged.json").write_text("{}")
        assert "warning: 1 checkpoint marked as damaged: main@1" in told(store, "damage")
        (root / "catalog.db").write_bytes(b"no database" * 1000)
        assert "reindex" in told(store, "catalog")
        (blob,) = root.glob("blobs/*/xxh3-*")
        blob.chmod(0o644)
        assert "warning: blobs with write permission, which a program may change by mistake: 1" in told(
            store, "permissions"
        )
        root.chmod(0o707)
        assert told(store, "permissions").startswith(f"error: any user of this machine may change {root} ->")
    (root / "catalog.db").unlink()


@pytest.mark.parametrize("place", ["checkpoints/main", "reserve/space-0", "blobs", "refs"])
def test_doctor_names_each_place_that_any_user_may_change(tmp_path: Path, place: str) -> None:
    # In a run, any user could rename and replace checkpoints.
    root = tmp_path / "store"
    with Store.init(root) as store:
        store.save(STATE, step=1)
        assert levels(store)["permissions"] == "ok"
        path = root / place
        path.chmod(path.stat().st_mode | 0o002)
        assert told(store, "permissions").startswith(f"error: any user of this machine may change {path} ->")
    check_store(root)


def test_a_store_of_another_user_is_reported_at_opening_and_by_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By root without the right to give its files away; with it (tests/machines/test_other_users.py) all is well."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    require_root()
    root = tmp_path / "store"
    Store.init(root)
    for folder, names, files in os.walk(root):
        for name in (".", *names, *files):
            os.chown(os.path.join(folder, name), 65534, 65534)
    monkeypatch.setattr(os, "fchown", refused)
    for module in ("ckstore.ops.open.opening", "ckstore.ops.report.doctor"):
        monkeypatch.setattr(f"{module}.may_give", lambda: False)

    with Store(root) as store:
        assert any("belongs to uid 65534" in note and "root will own" in note for note in store.warnings)
        store.save(STATE, step=1)
        assert levels(store)["owner"] == "warning"
        assert f"that do not belong to {pwd.getpwuid(65534).pw_name}" in told(store, "permissions")
    assert not any("belongs to" in note for note in Store(root, readonly=True).warnings)


def test_a_store_that_any_user_may_change_is_reported_at_opening(tmp_path: Path) -> None:
    Store.init(tmp_path / "store")
    (tmp_path / "store").chmod(0o777)

    assert any("any user of this machine may change" in note for note in Store(tmp_path / "store").warnings)


def test_parts_of_the_store_that_lead_elsewhere_are_an_error(tmp_path: Path) -> None:
    root = tmp_path / "store"
    Store.init(root)
    (root / "refs").rename(tmp_path / "refs")
    (root / "refs").symlink_to(tmp_path / "refs")

    with Store(root, readonly=True) as store:
        assert f"error: {root}/refs is a symlink" in told(store, "layout")


def test_deleted_files_of_the_store_that_are_held_are_told_by_process(
    make_filesystem: Callable[[Kind, int], Path],
) -> None:
    mount = make_filesystem("ext4", 64)
    with Store.init(mount / "store") as store:
        leaked, foreign = store.path / "blobs" / "leaked", mount / "store of another program"
        for path in (leaked, foreign):
            path.write_bytes(b"x" * 2**20)
        with holding("read", leaked), holding("read", foreign) as other:
            for path in (leaked, foreign):
                path.unlink()
            found = told(store, "leaked files")
            assert "1 deleted file of the store with 1.0 MiB not yet freed: 1.0 MiB by PID" in found
            assert f"PID {other.pid} " not in f"{store.doctor()}{store.report().html}"
        assert levels(store)["leaked files"] == "ok"


def test_what_cannot_be_looked_at_is_a_finding_and_the_rest_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ckstore.objects import survey

    def refuse(_layout: object) -> None:
        raise PermissionError(13, "Permission denied", "/store/blobs")

    monkeypatch.setattr(survey, "survey", refuse)
    with Store.init(tmp_path / "store") as store:
        assert "warning: could not be checked: Permission denied (/store/blobs)" in told(store, "permissions")
        assert levels(store)["leaked files"]


def test_a_rule_that_keeps_the_worst_by_the_name_of_its_metric_is_named(tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store:
        store.config.retention = RetentionPolicy(keep_best=[Best("loss"), Best("val", "min"), Best("acc", "max")])
        store.config.keep_local = RetentionPolicy(keep_last=3)
        assert "rules" not in levels(store)

        # As an earlier ckstore kept `Best("accuracy")`, and as a person may write it.
        path = store.path / "config.json"
        config = json.loads(path.read_bytes())
        del config["digest"]
        config["retention"]["keep_best"].append({"metric": "accuracy"})
        config["keep_remote"] = {"keep_best": [{"metric": "eval_f1", "mode": "min", "n": 2}]}
        config["retention_by_run"] = {"gpt-*": {"keep_best": [{"metric": "loss", "mode": "max", "n": 1}]}}
        path.write_text(json.dumps(config))

        assert told(store, "rules") == (
            "warning: retention keeps the best by accuracy (min), but the name of the metric suggests max, "
            "keep_remote keeps the 2 best by eval_f1 (min), but the name of the metric suggests max, "
            "retention_by_run 'gpt-*' keeps the best by loss (max), but the name of the metric suggests min"
            " -> unless that is intended, set the rules again with --keep-best accuracy:max; ckstore config shows them"
        )
        # Until it is set again it keeps what it always kept.
        kept = store.config.retention
        assert kept is not None
        assert Best("accuracy", "min") in kept.bests


def test_a_remote_in_a_directory_that_is_often_purged_is_named(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save(STATE, step=1)
        store.remotes.add("near", tmp_path / "near")
        assert "purge of remotes" not in levels(store)
        (tmp_path / "scratch").mkdir()
        store.remotes.add("far", tmp_path / "scratch" / "far")

        found = told(store, "purge of remotes")

    assert found.startswith(f"warning: far ({tmp_path}/scratch/far): files in such directories are often deleted")
    assert "near" not in found
