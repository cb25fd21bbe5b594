"""A ref that names nothing: every method that takes one says the same, and every command too."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pytest
import torch

from ckstore import BadInput, CheckpointInfo, NoSuchRef, Store
from ckstore.store import RefLike
from tests.support.look import directory_of

STATE = {"w": np.arange(1000, dtype=np.float32)}


def in_background(store: Store, ref: RefLike) -> None:
    with Store.open(store.path) as own:  # its saver ends with it
        own.save_async({"x": 1}, parent=ref).result(60)


METHODS: dict[str, Callable[[Store, RefLike, Path], object]] = {
    "save": lambda store, ref, _: store.save({"x": 1}, parent=ref),
    "commit": lambda store, ref, _: store.commit(__file__, parent=ref),
    "save_async": lambda store, ref, _: in_background(store, ref),
    "load": lambda store, ref, _: store.load(ref),
    "load_into": lambda store, ref, _: store.load_into({"w": STATE["w"].copy()}, ref),
    "open_checkpoint": lambda store, ref, _: store.open_checkpoint(ref),
    "info": lambda store, ref, _: store.info(ref),
    "delete": lambda store, ref, _: store.delete(ref),
    "verify": lambda store, ref, _: store.verify(ref),
    "diff": lambda store, ref, _: store.diff(ref, 1),
    "diff, the second": lambda store, ref, _: store.diff(1, ref),
    "tag": lambda store, ref, _: store.tag("best", ref),
    "pin": lambda store, ref, _: store.pin(ref, "a reason"),
    "annotate": lambda store, ref, _: store.annotate(ref, note="a note"),
    "checkout": lambda store, ref, folder: store.checkout(ref, folder / "out"),
    "export": lambda store, ref, folder: store.export(ref, folder / "out.pt", format="torch"),
    "compact": lambda store, ref, _: store.compact([ref]),
    "push": lambda store, ref, _: store.push(ref),
    "evict": lambda store, ref, _: store.evict(ref),
    "touch": lambda store, ref, _: store.touch(ref),
    "export_safetensors": lambda store, ref, folder: store.export_safetensors(ref, folder / "out"),
}
OTHERWISE = {
    "unpin": "the name of a pin is not a ref",
    "follow": "it takes a ref as one of the run that it follows",
    "undo": "it takes a ref of a dropped checkpoint",
    "pull": "its refs are looked up at the remote",
}

MISSING = ["9", "main@9", "nope", "main@nope", "abcdef0123", "other@1", "other@latest", "other@latest-valid"]


@pytest.fixture
def filled(store: Store) -> Store:
    for step in (1, 2):
        store.save({"w": STATE["w"] + step}, step=step)
    return store


def test_no_method_that_takes_a_ref_is_left_out() -> None:
    taking = {
        name
        for name, method in inspect.getmembers(Store, inspect.isfunction)
        if not name.startswith("_") and re.search("RefLike|SaveOptions", str(inspect.signature(method)))
    }

    assert taking == {name.partition(",")[0] for name in METHODS} | OTHERWISE.keys()


@pytest.mark.parametrize("ref", MISSING)
def test_every_method_says_the_same_of_a_ref_that_names_nothing(filled: Store, ref: str, tmp_path: Path) -> None:
    said = said_by_each(filled, ref, tmp_path)

    assert set(said.values()) == {said["info"]}, said


def test_every_method_says_the_same_of_a_checkpoint_that_is_gone(filled: Store, tmp_path: Path) -> None:
    gone: CheckpointInfo = filled.info(2)
    filled.delete(2)

    said = said_by_each(filled, gone, tmp_path)

    assert set(said.values()) == {said["info"]}, said


@pytest.mark.parametrize("ref", ["latest", "latest-valid", "1"])
def test_every_method_says_the_same_of_an_empty_store(store: Store, ref: str, tmp_path: Path) -> None:
    said = said_by_each(store, ref, tmp_path)
    del said["diff, the second"]  # of an empty store the first is missing as well

    assert set(said.values()) == {said["info"]}, said


def test_a_ref_to_the_newest_where_there_is_none_says_what_a_first_start_does(store: Store) -> None:
    for ref, asked in (("latest", ""), ("latest-valid", ""), ("gpt@latest-valid", "'gpt'"), ("gpt@latest", "'gpt'")):
        if ref == "gpt@latest":
            store.save({"a": 1}, run="other")
        with pytest.raises(NoSuchRef) as caught:
            store.info(ref)

        assert f"At the first start of a run, store.latest({asked}) returns None; do not load then" in caught.value.hint


@pytest.mark.parametrize("ref", [-1, "-1", "main@-20", np.int64(-3)])
def test_a_negative_number_is_no_step_and_the_newest_is_named(filled: Store, ref: RefLike) -> None:
    with pytest.raises(
        NoSuchRef, match=r"a step is an integer from 0, and there is no tag '-\d+' \(latest is main@2\)"
    ):
        filled.load(ref)

    filled.tag("-1", 1)
    assert filled.load(-1)["w"][0] == 1


@pytest.mark.parametrize("ref", [1, "main@1", "best"])
def test_an_incomplete_checkpoint_is_not_answered_with_the_step_of_another_run(store: Store, ref: RefLike) -> None:
    """The weights of another training load without any error."""
    store.save(STATE, step=1, tags=["best"])
    store.save({"w": STATE["w"] + 1}, step=1, run="side")
    directory = directory_of(store, "main@1")
    (directory / "manifest.json").unlink()

    with pytest.raises(NoSuchRef, match=rf"; but checkpoints/main/{directory.name} exists and is incomplete"):
        store.load(ref)
    assert store.load("side@1")["w"][0] == 1
    shutil.rmtree(directory)
    assert store.load(1)["w"][0] == 1  # now there is one run


def said_by_each(store: Store, ref: RefLike, folder: Path) -> dict[str, str]:
    said = {}
    for name, act in METHODS.items():
        with pytest.raises(NoSuchRef) as raised:
            act(store, ref, folder)
        assert raised.value.exit_status == 4
        said[name] = str(raised.value)
    return said


@pytest.mark.parametrize("step", [np.int64(3), np.uint8(3), torch.tensor(3)])
def test_any_integer_is_a_step(step: SupportsIndex, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "s")
    store.save({"x": 1}, 3)
    assert store.load(step) == {"x": 1}
    assert store.info(step).step == 3


@pytest.mark.parametrize("ref", [True, np.bool_(True), 3.0, np.float64(3), None, b"3"])
def test_what_is_no_integer_is_no_step(ref: Any, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "s")
    store.save({"x": 1}, 3)
    with pytest.raises(BadInput, match=r"a ref is a string, a step number or a CheckpointInfo, got"):
        store.load(ref)
