"""A handle that is bound to a run means that run; one that is not takes no run for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import AmbiguousRef, BadInput, CheckpointInfo, RetentionPolicy, Store
from tests.support.look import directory_of, files_of, leaves_of
from tests.support.plans import plan_of

Act = Callable[[Store, str], Any]


def value(number: int) -> dict[str, Any]:
    return {"w": np.full(10, number)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with two runs, of which `other` was saved last."""
    store = Store.init(tmp_path / "s")
    for step in (1, 2):
        store.save(value(step), step, "gpt")
    store.save(value(9), 9, "other", tags=["paper"])
    return store.path


READS: dict[str, Act] = {
    "load": lambda store, ref: store.load(ref),
    "load_into": lambda store, ref: store.load_into(value(0), ref),
    "info": lambda store, ref: store.info(ref),
    "open_checkpoint": lambda store, ref: store.open_checkpoint(ref).close(),
    "leaves": leaves_of,
    "files": files_of,
    "directory_of": directory_of,
    "diff": lambda store, ref: store.diff("gpt@1", ref),
    "verify": lambda store, ref: store.verify(ref),
    "delete": lambda store, ref: store.delete(ref),
    "tag": lambda store, ref: store.tag("best", ref),
    "pin": lambda store, ref: store.pin(ref, "why"),
    "annotate": lambda store, ref: store.annotate(ref, {"loss": 1}),
    "export": lambda store, ref: store.export_safetensors(ref, store.path.parent / "out"),
    "parent": lambda store, ref: store.save(value(3), 3, "gpt", parent=ref),
    "latest()": lambda store, ref: store.latest(valid=ref == "latest-valid"),
}


@pytest.mark.parametrize("run", [None, "gpt"])
def test_the_runs_of_a_store_are_listed_whatever_the_handle_is_bound_to(run: str | None, path: Path) -> None:
    store = Store.open(path, run=run)
    store.save(value(7), 1, "gpt", if_exists="replace")

    first, last = store.runs()

    assert (first.name, first.checkpoint_count, first.newest.name, first.highest_step) == ("other", 1, "other@9", 9)
    assert (last.name, last.checkpoint_count, last.newest.name, last.highest_step) == ("gpt", 2, "gpt@1", 2)
    assert Store.init(path.parent / "empty").runs() == []


@pytest.mark.crossed
@pytest.mark.parametrize("ref", ["latest", "latest-valid"])
@pytest.mark.parametrize("name", READS)
def test_without_a_run_and_with_several_runs_the_newest_is_ambiguous(name: str, ref: str, path: Path) -> None:
    store = Store.open(path)
    with pytest.raises(AmbiguousRef, match=r"has 2 runs, so it may be other@9 or gpt@2") as caught:
        READS[name](store, ref)
    assert f"other@{ref}" in caught.value.hint
    assert "run='other'" in caught.value.hint
    assert "Store.open" not in caught.value.command_hint
    assert [info.name for info in store.checkpoints()] == ["gpt@1", "gpt@2", "other@9"]


@pytest.mark.parametrize("ref", ["latest", "latest-valid", "2"])
def test_a_bound_handle_means_its_run(ref: str, path: Path) -> None:
    store = Store.open(path, run="gpt")
    assert store.info(ref).name == "gpt@2"
    assert store.load(ref)["w"][0] == 2
    assert store.load(f"other@{'9' if ref == '2' else ref}")["w"][0] == 9
    target = value(0)
    assert store.load_into(target, ref).info.name == "gpt@2"


def test_a_bound_handle_saves_and_lists_in_its_run(path: Path, tmp_path: Path) -> None:
    store = Store.open(path, run="gpt")
    assert store.save(value(3)).name == "gpt@3"
    (tmp_path / "file").write_bytes(b"x")
    assert store.commit(tmp_path / "file").name == "gpt@4"
    assert store.save(value(3), 3, "other").name == "other@3"
    assert [info.name for info in store.checkpoints()] == ["gpt@1", "gpt@2", "gpt@3", "gpt@4"]
    assert [info.name for info in store.checkpoints("other")] == ["other@9", "other@3"]
    for latest in (store.latest(), store.latest(valid=True)):
        assert latest is not None
        assert latest.name == "gpt@4"
    assert repr(store).endswith("run='gpt')")


def test_a_bound_handle_drops_only_in_its_run(path: Path) -> None:
    Store.open(path).save(value(10), 10, "other")
    Store.open(path).save(value(11), 11, "other")
    store = Store.open(path, run="gpt")
    policy = RetentionPolicy(keep_last=1)
    assert [entry.info.name for entry in plan_of(store, policy).dropped] == ["gpt@1"]
    store.prune(policy)
    assert [info.name for info in Store.open(path).checkpoints()] == ["gpt@2", "other@9", "other@10", "other@11"]


def test_tags_and_ids_are_of_the_whole_store(path: Path) -> None:
    store = Store.open(path, run="gpt")
    paper = store.info("paper")
    assert paper.name == "other@9"
    assert store.info(paper.id[:16]).name == "other@9"


def test_a_run_that_has_no_checkpoint_yet_is_no_reason_to_resume_another(path: Path) -> None:
    store = Store.open(path, run="new")
    assert store.latest() is None
    assert store.latest(valid=True) is None
    with pytest.raises(LookupError, match="no run 'new'"):
        store.load("latest")
    with pytest.raises(LookupError, match="the run 'new' has no checkpoints"):
        store.load("latest-valid")


def test_a_run_whose_checkpoints_are_gone_makes_nothing_ambiguous(path: Path) -> None:
    store = Store.open(path)
    store.untag("paper")
    store.delete("other@9")
    assert store.info("latest").name == "gpt@2"
    assert store.info("latest-valid").name == "gpt@2"


def test_every_way_of_opening_binds(tmp_path: Path) -> None:
    made = Store.init(tmp_path / "a", run="x")
    stores = [made, Store.open_or_init(tmp_path / "a", run="x"), Store.open_or_init(tmp_path / "b", run="x")]
    saved: list[CheckpointInfo] = [store.save(value(1)) for store in [*stores, Store(tmp_path / "a", run="x")]]
    assert {info.run for info in saved} == {"x"}
    with pytest.raises(BadInput, match="run"):
        Store.open(tmp_path / "a", run="a/b")
