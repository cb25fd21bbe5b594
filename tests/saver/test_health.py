"""A save in the background finds what a save in the foreground finds, in bytes that it copied or took over."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ckstore import Store
from tests.saver.conftest import DEADLINE_S
from tests.support.stores import check_store

SIZE = 3 * 2**18 + 5
"""Elements of four bytes: three chunks of 1 MiB, and some bytes."""


def state_of(number: int, *, sick: bool = False) -> dict[str, Any]:
    w, small = np.full(SIZE, number, np.float32), np.full(9, number, np.float32)
    if sick:
        w[-1] = small[3] = math.nan
    return {"frozen": {"w": np.full(SIZE, -math.inf, np.float32)}, "model": {"w": w, "small": small}, "n": number}


def counts(store: Store, step: int) -> dict[str, tuple[int, int]]:
    with store.open_checkpoint(step) as checkpoint:
        assert checkpoint.health is not None
        return {one.name: (one.nan, one.inf) for one in checkpoint.health.nonfinite}


def test_a_save_in_the_background_counts_what_is_new_and_keeps_what_it_took_over(store: Store) -> None:
    store.config.health_share = 1
    for number in range(4):
        info = store.save_async(state_of(number, sick=number == 2), step=number, unchanged="frozen").result(DEADLINE_S)

        assert bool(info.unhealthy) == (number == 2)
        assert info == store.info(number)
        sick = {"model.w": (1, 0), "model.small": (1, 0)} if number == 2 else {}
        assert counts(store, number) == {"frozen.w": (0, SIZE), **sick}
        assert len(info.warnings) == (number == 2)

    assert store.info("latest-healthy").step == 3
    check_store(store.path)


def test_a_saver_that_was_started_again_knows_what_the_one_before_has_counted(store: Store) -> None:
    store.save_async(state_of(1, sick=True), step=1).result(DEADLINE_S)
    store.close()

    with Store.open(store.path) as again:
        again.load("latest")
        info = again.save_async(state_of(2), step=2).result(DEADLINE_S)

        assert info.unhealthy == ""
        assert counts(again, 2) == {"frozen.w": (0, SIZE)}


def test_a_state_that_stands_still_is_a_warning_of_the_second_save_in_a_row(store: Store) -> None:
    said = [store.save_async(state_of(min(step, 1)), step=step).result(DEADLINE_S).warnings for step in range(5)]

    assert [len(one) for one in said] == [0, 0, 0, 1, 0]
    assert "the same frozen and model as the 2 checkpoints before it" in said[3][0]
