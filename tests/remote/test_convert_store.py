"""A store to which an earlier draft pushed becomes a remote. A clone relies on a store like an evicting store did."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ckstore import BadInput, CkstoreError, RetentionPolicy, Store
from ckstore.ops import config_file
from ckstore.remote import push as pushing
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.remote.remote_only import store_conversion as converting
from ckstore.store import context_of
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.stores import check_store

pytestmark = pytest.mark.usefixtures("no_mirror_process")


@pytest.fixture
def relying(tmp_path: Path) -> Store:
    """Return a store with one local checkpoint; the others are only in another store, which is its mirror."""
    with Store.init(tmp_path / "nas", chunk_bytes=MIB) as nas:
        for step in (1, 2, 3):
            nas.save(state(step), step=step)
        nas.save(state(12), step=2, if_exists="replace")
        nas.tag("best", 1)
        nas.pin(2, "paper")
        nas.annotate(1, metrics={"bleu": 1.0})
    store = Store.clone(tmp_path / "nas", tmp_path / "store", remote="nas")
    store.save(state(4), step=4)
    config_file.edit(context_of(store).layout, "mirror", lambda _: "nas")
    return store


def test_all_checkpoints_are_copied_and_read_from_the_remote(relying: Store, tmp_path: Path) -> None:
    report = relying.remotes.convert("nas", "gpt", tmp_path / "gpt")
    again = relying.remotes.convert("nas", "gpt", tmp_path / "gpt")
    shutil.rmtree(tmp_path / "nas")
    relying.remotes.remove("nas")

    assert (report.direction, report.new_count, again.new_count, again.moved_bytes) == ("push", 3, 0, 0)
    assert relying.config.mirror == "gpt"
    assert [same(relying.load(step), state(of)) for step, of in ((1, 1), (2, 12), (3, 3), (4, 4))] == [True] * 4
    assert relying.verify().ok
    (claims,) = relying.remotes.claims("gpt")
    assert {name.partition(".")[0] for name in claims.checkpoints} == {"main@1", "main@2", "main@3"}
    mirror = Mirror(context_of(relying))
    while mirror.step():
        pass
    assert mirror.problem is None
    with Store.clone(tmp_path / "gpt", tmp_path / "look") as look:
        assert sorted(info.step for info in look.checkpoints()) == [1, 2, 3, 4]
        assert (look.info("best").step, look.info(1).metrics["bleu"], look.pins()[0].step) == (1, 1.0, 2)
    check_store(relying.path)


def test_a_mirror_that_is_turned_off_during_the_conversion_stays_off(
    relying: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = config_file.edit

    def after_another(*arguments: Any) -> None:
        relying_layout, member, _ = arguments
        edit(relying_layout, member, lambda _: None)
        edit(*arguments)

    monkeypatch.setattr(converting, "edit", after_another)
    relying.remotes.convert("nas", "gpt", tmp_path / "gpt")

    assert relying.config.mirror is None


def test_no_policy_removes_checkpoints_that_rely_on_the_remote(relying: Store, tmp_path: Path) -> None:
    relying.remotes.convert("nas", "gpt", tmp_path / "gpt")
    with Store.init(tmp_path / "other", chunk_bytes=MIB) as other:
        other.remotes.add("gpt", tmp_path / "gpt")
        other.config.mirror = "gpt"
        other.pull(all=True, remote="gpt")
        other.config.keep_remote = RetentionPolicy(keep_last=1)
        other.remotes.prune("gpt")
    shutil.rmtree(tmp_path / "nas")

    assert [same(relying.load(step), state(of)) for step, of in ((1, 1), (2, 12), (3, 3))] == [True] * 3


@pytest.mark.parametrize("at", ["_begin", "_end", "push"])
def test_a_killed_conversion_can_be_repeated(
    relying: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    class Killed(BaseException):
        pass

    real, calls = getattr(converting, at), list[int]()

    def killed(*given: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == (1 if at == "push" else 2):
            raise Killed
        return real(*given, **more)

    monkeypatch.setattr(converting, at, killed)
    with pytest.raises(Killed):
        relying.remotes.convert("nas", "gpt", tmp_path / "gpt")
    monkeypatch.undo()
    assert relying.config.mirror == "nas"
    assert [same(relying.load(step), state(of)) for step, of in ((1, 1), (2, 12), (3, 3))] == [True] * 3
    relying.remotes.convert("nas", "gpt", tmp_path / "gpt")
    shutil.rmtree(tmp_path / "nas")

    assert [same(relying.load(step), state(of)) for step, of in ((1, 1), (2, 12), (3, 3))] == [True] * 3
    check_store(relying.path)


def test_checkpoints_damaged_at_the_remote_are_still_read_from_the_store(
    relying: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pushing.push

    def damaged(*given: Any) -> Any:
        report = real(*given)
        blobs = (path for path in (tmp_path / "gpt/blobs").rglob("*") if path.is_file())
        blob = max(blobs, key=os.path.getsize)
        with blob.open("r+b") as file:
            file.write(b"\0\1\2\3")
        return report

    monkeypatch.setattr("ckstore.remote.remote_only.store_conversion.push", damaged)
    with pytest.raises(CkstoreError, match="is damaged"):
        relying.remotes.convert("nas", "gpt", tmp_path / "gpt")

    assert relying.config.mirror == "nas"
    assert [same(relying.load(step), state(of)) for step, of in ((1, 1), (2, 12), (3, 3))] == [True] * 3


def test_only_a_store_is_converted(relying: Store, tmp_path: Path) -> None:
    relying.remotes.add("gpt", tmp_path / "gpt")
    with pytest.raises(BadInput, match="gpt is already a remote"):
        relying.remotes.convert("gpt", "x", tmp_path / "x")
    assert not (tmp_path / "x").exists()
