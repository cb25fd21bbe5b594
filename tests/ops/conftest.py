"""Stores for the tests of the verbs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from ckstore import CkstoreWarning, Store
from tests.support.descriptors import open_below
from tests.support.stores import check_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new store; after the test everything in it must agree, and no descriptor may be open in it."""
    made = Store.init(tmp_path / "store", chunk_bytes=2**20)
    yield made
    assert open_below(made.path) == {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CkstoreWarning)  # a test may have taken the catalog away
        Store.open(made.path)
    check_store(made.path)
