"""A store can be pickled for a worker that is spawned: there it is opened again."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from ckstore import Store


def test_a_pickled_store_is_opened_again_with_what_it_was_opened_with(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog" / "c.db"
    store = Store.init(tmp_path / "s", run="gpt", catalog_path=catalog)
    store.save({"w": np.arange(5)}, 1)

    again: Store = pickle.loads(pickle.dumps(store))
    reader: Store = pickle.loads(pickle.dumps(Store.open(store.path, readonly=True, catalog_path=catalog)))

    assert (again.path, again.run) == (store.path, "gpt")
    assert again.load("latest")["w"].tolist() == [0, 1, 2, 3, 4]
    assert again.save({"w": np.arange(6)}).name == "gpt@2"
    assert store.latest() == again.latest()
    assert reader.load(2)["w"].size == 6
    assert not (store.path / "catalog.db").exists()
