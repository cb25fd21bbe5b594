"""`store.config`: what a store does by itself, read and set as attributes."""

from __future__ import annotations

from typing import Any

import pytest

from ckstore import BadInput, Budget, RetentionPolicy, SaveFailed, Store, StoreConfig

OTHER_VALUES: dict[str, tuple[Any, Any]] = {  # the default, and another value
    "retention": (None, RetentionPolicy(keep_last=5)),
    "make_room": (None, RetentionPolicy(keep_every=1000)),
    "read_back": (False, True),
    "recheck_share": (0.005, 0.25),
    "health_share": (0.0625, 1),
    "grace_s": (3600.0, 60.0),
    "evaluation_patience_s": (3600.0, 60.0),
    "shared": (None, False),
    "threads": (None, 7),
    "retention_by_run": ({}, {"gpt-*": RetentionPolicy(keep_last=2)}),
    "budget": (None, Budget("1GB")),
    "undo_by_hand_s": (0.0, 3600.0),
    "undo_by_rule_s": (0.0, 60.0),
    "mirror_age_s": (600.0, 60.0),
    "mirror_bytes_s": (None, 1024),
    "mirror_keep": (3, 5),
    "cache_bytes": (None, 10**9),
    "keep_local": (None, RetentionPolicy(keep_last=2)),
    "keep_remote": (None, RetentionPolicy(keep_last=9)),
    "push_deltas": (False, True),
    "compact_after": (None, "12h"),
    "compact_share": (0.1, 0.5),
    "compact_keep": (3, 1),
    "save_retries": (2, 0),
    "wait_for_space_s": (0.0, 600.0),
    "on_failed_save": ("raise", "warn"),
    "failed_saves_most": (3, 9),
}
ELSEWHERE = {"mirror"}  # it names a remote: tests/remote/test_mirror.py


def test_every_setting_is_tried_here() -> None:
    assert {name for name in vars(StoreConfig) if not name.startswith("_")} == OTHER_VALUES.keys() | ELSEWHERE


@pytest.mark.crossed
@pytest.mark.parametrize("name", OTHER_VALUES)
@pytest.mark.parametrize("how", ["None", "del"])
def test_a_setting_is_kept_for_every_handle_until_it_gets_its_default_again(store: Store, name: str, how: str) -> None:
    default, other = OTHER_VALUES[name]
    assert getattr(store.config, name) == default

    setattr(store.config, name, other)

    assert getattr(store.config, name) == getattr(Store.open(store.path).config, name) == other
    if how == "del":
        delattr(store.config, name)
    else:
        setattr(store.config, name, None)
    assert getattr(Store.open(store.path).config, name) == default
    assert name not in (store.path / "config.json").read_text()


@pytest.mark.crossed
@pytest.mark.parametrize("name", OTHER_VALUES)
@pytest.mark.parametrize("wrong", ["yes", -3, {"keep_last": 3}])
def test_a_value_of_another_type_is_refused_by_name_and_changes_nothing(store: Store, name: str, wrong: object) -> None:
    setattr(store.config, name, OTHER_VALUES[name][1])
    before = (store.path / "config.json").read_bytes()

    with pytest.raises(BadInput, match=f"{name} must be"):
        setattr(store.config, name, wrong)

    assert (store.path / "config.json").read_bytes() == before


def test_a_misspelt_setting_is_an_error(store: Store) -> None:
    with pytest.raises(AttributeError):
        store.config.retension = RetentionPolicy(keep_last=5)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        del store.config.retension  # type: ignore[attr-defined]
    assert not (store.path / "config.json").exists()


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_store_that_was_opened_for_reading_gives_its_settings_and_takes_none(store: Store, name: str) -> None:
    reader = Store.open(store.path, readonly=True)

    assert getattr(reader.config, name) == OTHER_VALUES[name][0]
    with pytest.raises(SaveFailed, match="for reading"):
        setattr(reader.config, name, OTHER_VALUES[name][1])
