"""An opening or a mapping that ends with an error leaves nothing open or locked, also while the error is kept."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckstore
from ckstore import Store
from ckstore.errors import CkstoreError, CkstoreWarning
from ckstore.fs import mapping
from ckstore.objects.layout import ANNOTATIONS
from ckstore.ops.read import open_checkpoint
from tests.support.descriptors import open_below
from tests.support.look import directory_of

OPENINGS: dict[str, Callable[[Store, Path], object]] = {
    "info_of": lambda store, _: store.open_checkpoint(1),
    "read_annotations": lambda _, path: ckstore.open_checkpoint(path),
    "examine": lambda _, path: ckstore.open_checkpoint(path),
}


def failing(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("refused", OPENINGS)
def test_what_could_not_be_opened_whole_is_not_held(
    store: Store, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    store.save({"w": np.arange(10)}, step=1)
    path = directory_of(store, 1)

    with monkeypatch.context() as patch:
        patch.setattr(open_checkpoint, refused, failing)
        with pytest.raises(CkstoreError, match="Input/output error") as caught:
            OPENINGS[refused](store, path)
    left = open_below(store.path)
    store.delete(1)

    assert caught.value.__cause__ is not None  # the error, and what its frames refer to, is still there
    assert left == {}
    assert store.checkpoints() == []


def test_a_warning_that_is_made_an_error_leaves_nothing_open(store: Store) -> None:
    store.save({"w": np.arange(10)}, step=1)
    path = directory_of(store, 1)
    (path / ANNOTATIONS).write_text("no annotations")

    with pytest.raises(CkstoreWarning, match="ignored the annotations") as caught:
        ckstore.open_checkpoint(path)

    assert caught.value.__traceback__ is not None
    assert open_below(store.path) == {}
    store.delete(1)


def test_a_mapping_that_the_kernel_refuses_leaves_no_blob_open(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save({"w": np.arange(3 * 2**17)}, step=1)  # of three chunks
    map_, calls = mapping._map, []

    def refused(*args: Any) -> int:
        calls.append(args)
        if len(calls) == 3:  # the second part
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return map_(*args)

    with monkeypatch.context() as patch:
        patch.setattr(mapping, "_map", refused)
        with pytest.raises(CkstoreError, match="Cannot allocate memory") as caught:
            store.load(1, mmap=True)

    assert caught.value.__cause__ is not None
    assert open_below(store.path) == {}
    assert store.load(1, mmap=True)["w"][-1] == 3 * 2**17 - 1
