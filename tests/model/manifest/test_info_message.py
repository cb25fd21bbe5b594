"""The information on a checkpoint is the same after a message, with the types of its values."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

from ckstore import CheckpointInfo, Store
from ckstore.model.manifest.info_message import info_from, info_json


def test_each_field_has_its_value_and_type_after_a_message(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        saved = store.save({"w": [1, 2]}, step=1, metrics={"loss": float("inf")}, metadata={"a": (1, None)}, tags=["t"])
        store.annotate(1, note="seen")
        noted = store.info(1)
    info = replace(noted, counters=saved.counters, warnings=("slow",), unchanged=("w",), remotes=("cold", "far"))

    back = info_from(json.loads(json.dumps(info_json(info))))

    for field in fields(CheckpointInfo):
        value = getattr(info, field.name)
        assert getattr(back, field.name) == value, field.name
        assert type(getattr(back, field.name)) is type(value), field.name
