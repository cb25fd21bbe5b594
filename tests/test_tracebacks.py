"""The traceback of an error that ckstore raises on purpose ends at the caller's line; other errors keep all frames."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckstore
from ckstore import Best, CkstoreError, RetentionPolicy, Store, tracebacks, training
from ckstore.ops.save import save

OWN = f'File "{Path(ckstore.__file__).parent}{os.sep}'


def _opened(act: Callable[[Any], object]) -> Callable[[Store], object]:
    def call(store: Store) -> object:
        with store.open_checkpoint(1) as opened:
            return act(opened)

    return call


USER_ERRORS: dict[str, Callable[[Store], object]] = {
    "no store": lambda store: Store.open(store.path / "no"),
    "no store by its name": lambda store: Store(store.path / "no"),
    "there is one": lambda store: Store.init(store.path),
    "no parent": lambda store: Store.open_or_init(store.path / "no" / "no"),
    "no hash": lambda store: Store.init(store.path / "new", hash="md5"),
    "no run": lambda store: Store.open(store.path, run="a/b"),
    "no ref": lambda store: store.load(77),
    "no tag": lambda store: store.info("best"),
    "no file": lambda store: store.load(1, file="x.pt"),
    "no name": lambda store: store.load(1, select="nothing"),
    "a lambda": lambda store: store.save({"a": {"b": [lambda: 1]}}, step=5),
    "step exists": lambda store: store.save({"w": np.ones(3)}, step=1),
    "no step": lambda store: store.save({"w": 1}, step=-1),
    "no metric": lambda store: store.save({"w": 1}, step=5, metrics={"loss": "x"}),
    "in the background": lambda store: store.save_async({"a": lambda: 1}, step=5).result(),
    "does not fit": lambda store: store.load_into({"model": torch.nn.Linear(7, 7)}, 1),
    "no directory": lambda store: store.commit(store.path / "no", step=9),
    "not empty": lambda store: store.export(1, store.path),
    "no format": lambda store: store.export(1, store.path / "x", format="gguf"),  # type: ignore[arg-type]
    "no checkpoint": lambda store: ckstore.open_checkpoint(store.path),
    "no leaf": _opened(lambda opened: opened["x"]),
    "no digest": lambda store: store.why("xyz"),
    "no pin": lambda store: store.unpin("1"),
    "no time": lambda store: store.pin(1, "figure 3", expires="soon"),
    "nothing to add": lambda store: store.annotate(1),
    "no policy": lambda store: RetentionPolicy(),
    "no mode": lambda store: Best("loss", "most"),  # type: ignore[arg-type]
    "no share": lambda store: setattr(store.config, "recheck_share", 7),
    "no policy for all": lambda store: setattr(store.config, "retention", 7),
    "no value for all": lambda store: delattr(Store(store.path, readonly=True).config, "retention"),
    "read-only": lambda store: Store(store.path, readonly=True).save({"w": 1}, step=9),
    "no folder": lambda store: training.import_history(store, store.path / "no"),
    "not captured": lambda store: training.restore(store, 1, model=torch.nn.Linear(1, 1)),
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv(tracebacks.FULL)
    store = Store.init(tmp_path / "store")
    store.save({"w": np.zeros(3)}, step=1)
    return store


@pytest.mark.parametrize("name", USER_ERRORS)
def test_the_traceback_of_an_error_of_the_user_ends_at_the_line_of_the_caller(store: Store, name: str) -> None:
    with pytest.raises(CkstoreError) as excinfo:
        USER_ERRORS[name](store)

    shown = "".join(traceback.format_exception(excinfo.value))
    assert shown.count(OWN) == 0, shown
    assert traceback.extract_tb(excinfo.value.__traceback__)[-1].filename == __file__


def test_the_chain_of_causes_stays(store: Store) -> None:
    with pytest.raises(CkstoreError) as excinfo:
        training.import_history(store, store.path / "no")

    assert isinstance(excinfo.value.__cause__, FileNotFoundError)
    assert "FileNotFoundError: [Errno 2]" in "".join(traceback.format_exception(excinfo.value))


def test_all_frames_are_there_where_the_user_asks_for_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracebacks.FULL, "1")
    with pytest.raises(CkstoreError) as excinfo:
        store.load(77)

    assert "".join(traceback.format_exception(excinfo.value)).count(OWN) > 3


def test_an_error_that_nothing_raised_on_purpose_keeps_its_frames(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(save, "capture", broken)
        with pytest.raises(KeyError) as excinfo:
            store.save({"w": 1}, step=5)
    assert "".join(traceback.format_exception(excinfo.value)).count(OWN) > 2


def test_an_error_of_the_system_keeps_the_frames_of_its_cause(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied", "somewhere")

    with monkeypatch.context() as patch:
        patch.setattr("ckstore.ops.refs.find.find", failing)
        with pytest.raises(CkstoreError) as excinfo:
            store.info(1)

    assert isinstance(excinfo.value.__cause__, PermissionError)
    assert traceback.extract_tb(excinfo.value.__traceback__)[-1].filename == __file__
    assert "in failing" in "".join(traceback.format_exception(excinfo.value))


def test_the_frames_of_a_callback_and_of_an_error_that_was_being_handled_are_the_users(store: Store) -> None:
    class Broken:
        def state_dict(self) -> dict[str, object]:
            store.load(77)  # an error of ckstore, raised by code of the user in the middle of an act
            return {}

        def load_state_dict(self, state: object) -> None:
            pass

    with pytest.raises(CkstoreError) as excinfo:
        store.save({"broken": Broken()}, step=5)
    assert "in state_dict" in "".join(traceback.format_exception(excinfo.value))

    def handled(own: dict[str, int]) -> None:
        try:
            own["mine"]
        except KeyError:
            store.load(77)

    with pytest.raises(CkstoreError) as excinfo:
        handled({})
    shown = "".join(traceback.format_exception(excinfo.value))
    assert 'own["mine"]' in shown
    assert shown.count(OWN) == 0
