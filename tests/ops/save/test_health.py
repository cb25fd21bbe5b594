"""A checkpoint says what is not finite in it; an unhealthy one is marked, passed over, and displaces no healthy one."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ckstore import Best, CkstoreWarning, NoSuchRef, Ranks, RetentionPolicy, Store
from ckstore.codecs.nonfinite import FORMS
from ckstore.model.manifest.health import Health
from tests.support.catalog_rows import change
from tests.support.plans import plan_of
from tests.support.stores import check_store

MIB = 2**20
CHUNK = 300_000  # elements of four bytes: more than a chunk of the store
BAD = [math.nan, math.inf, -math.inf]
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]


def health_of(store: Store, ref: Any = "latest") -> Health:
    with store.open_checkpoint(ref) as checkpoint:
        found = checkpoint.health
    assert found is not None
    return found


def counts(store: Store, ref: Any = "latest") -> dict[str, tuple[int, int]]:
    return {one.name: (one.nan, one.inf) for one in health_of(store, ref).nonfinite}


def weights(seed: int, size: int = 1000) -> Any:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def broken(seed: int, value: float = math.nan, size: int = 1000) -> Any:
    made = weights(seed, size)
    made[7] = value
    return made


def diverged(store: Store, healthy: int = 3, unhealthy: int = 3, **how: Any) -> None:
    """Save so many healthy checkpoints, then so many with a NaN."""
    for step in range(1, healthy + unhealthy + 1):
        metrics = {"loss": 1.0 / step, "late": float(step)}
        store.save({"w": broken(step) if step > healthy else weights(step)}, step=step, metrics=metrics, **how)


# ------------------------------------------------------------------------------------------ what is counted


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_counts_are_those_of_torch(store: Store, dtype: Any, large: bool) -> None:
    store.config.health_share = 1
    size = CHUNK * 4 if large else 100
    values = torch.ones(size, dtype=torch.float64)
    values[torch.arange(3)] = torch.tensor(BAD, dtype=torch.float64)
    values[-1] = math.nan
    tensor = values.to(dtype)
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    wide = real.to(torch.float64)

    store.save({"fine": torch.ones(size).to(dtype), "w": tensor})

    assert counts(store) == {"w": (int(wide.isnan().sum()), int(wide.isinf().sum()))}


@pytest.mark.property
@given(
    sizes=st.lists(st.sampled_from([1, 3, 1000, CHUNK]), min_size=1, max_size=3),
    data=st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_whatever_lies_where_is_counted_again_and_again_and_comes_back_from_the_directories(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    store = Store.init(tmp_path_factory.mktemp("law") / "store", chunk_bytes=MIB)
    store.config.health_share = 1
    state = {str(i): weights(i, size) for i, size in enumerate(sizes)}
    for step in range(3):
        for tensor in state.values():
            at = data.draw(st.integers(-len(tensor), len(tensor) - 1))
            tensor[at] = data.draw(st.sampled_from([*BAD, 1.0, 2.0]))
        info = store.save(state, step=step)
        wanted = {name: (int(t.isnan().sum()), int(t.isinf().sum())) for name, t in state.items()}

        assert counts(store) == {name: n for name, n in wanted.items() if any(n)}
        assert info == store.info(step)

    listed = store.checkpoints()
    os.unlink(store.path / "catalog.db")
    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog"):
        again = Store.open(store.path)
    assert again.checkpoints() == listed
    check_store(store.path)


def test_numpy_arrays_count_and_integers_numbers_and_text_do_not(store: Store) -> None:
    array = np.array([1.0, np.nan], np.float32)
    bits = np.full(1000, -1, np.int32)  # as floating point numbers all of them would be NaN

    store.save({"a": array, "bits": bits, "nan": math.nan, "losses": [math.inf] * 1000, "raw": b"\xff" * 1000})

    assert counts(store) == {"a": (1, 0)}


def test_a_strided_view_counts_its_own_elements_and_tied_tensors_count_once(store: Store) -> None:
    whole = torch.ones(40, 40)
    whole[0, 1] = math.nan
    tied = broken(1)

    store.save({"column": whole[:, :1], "tied": [tied, tied]})

    assert counts(store) == {"tied[0]": (1, 0)}


@pytest.mark.parametrize("at", [0, 5_000_001, 8 * MIB - 1])
def test_a_large_tensor_is_checked_in_part_and_counted_completely_once_a_value_is_found(store: Store, at: int) -> None:
    size = 32 * MIB // 4
    one = torch.zeros(size)
    one[at] = math.inf
    with Store.init(store.path.parent / "large") as large:
        large.save({"w": torch.full((size,), math.nan)}, step=0, run="diverged")
        large.save({"w": torch.zeros(size)}, step=0)
        for step in range(1, 19):  # each save checks another sixteenth
            one[at ^ 1] = step
            large.save({"w": one}, step=step)
        found = [counts(large, f"main@{step}") for step in range(1, 19)]

        assert counts(large, "diverged@0") == {"w": (size, 0)}
    first = found.index({"w": (0, 1)})
    assert first < 16
    assert found == [{}] * first + [{"w": (0, 1)}] * (18 - first)


def test_files_that_are_committed_count(store: Store, tmp_path: Path) -> None:
    save_file({"w": broken(1), "x": weights(2)}, tmp_path / "model.safetensors")

    info = store.commit(tmp_path / "model.safetensors", step=1)

    assert "w has 1 NaN value" in info.unhealthy


# --------------------------------------------------------------------------------------- what is unhealthy


def test_a_mask_of_infinite_values_is_healthy_and_more_of_them_are_not(store: Store) -> None:
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1) > 0, -math.inf)
    mask_of = {"mask": mask, "best": torch.tensor(math.inf)}
    first = store.save({**mask_of, "w": weights(1)}, step=1)
    later = store.save({**mask_of, "w": weights(2)}, step=2)
    overflown = weights(3)
    overflown[0] = math.inf
    sick = [store.save({**mask_of, "w": overflown}, step=step) for step in (3, 4)]
    again = store.save({**mask_of, "w": weights(5)}, step=5)

    assert [first.unhealthy, later.unhealthy, again.unhealthy] == ["", "", ""]
    assert [info.unhealthy for info in sick] == ["w has 1 infinite value"] * 2
    assert counts(store, 1) == {"mask": (0, 28), "best": (0, 1)}


def test_an_infinite_value_that_one_process_saved_is_not_usual_to_the_next(store: Store) -> None:
    store.save({"w": weights(1)}, step=1)
    store.save({"w": broken(2, math.inf)}, step=2)

    again = Store.open(store.path)
    again.load("latest")
    info = again.save({"w": broken(2, math.inf), "n": 3}, step=3)

    assert info.unhealthy == "w has 1 infinite value"
    assert info.warnings == ()  # it was said of its parent


def test_nan_in_the_first_save_is_unhealthy(store: Store) -> None:
    assert store.save({"w": broken(1)}).unhealthy == "w has 1 NaN value"


def test_the_first_unhealthy_save_is_a_warning_and_the_next_ones_have_no_warning(store: Store) -> None:
    said = [
        store.save({"w": broken(step) if step in (2, 3, 5) else weights(step)}, step=step).warnings for step in range(6)
    ]

    assert [len(one) for one in said] == [0, 0, 1, 0, 0, 1]
    assert said[2] == ("main@2 is unhealthy: w has 1 NaN value. latest-healthy names the newest healthy one",)


def test_what_was_counted_before_is_not_read_for_it_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"w": broken(1), "large": broken(2, size=3 * CHUNK), "n": 0}
    store.save(state, step=1)

    def refuse(*_: object) -> Any:
        raise AssertionError

    monkeypatch.setattr("ckstore.codecs.nonfinite.FloatForm._suspects", refuse)
    store.save({**state, "n": 2}, step=2)

    assert counts(store, 2) == counts(store, 1) == {"w": (1, 0), "large": (1, 0)}


def test_switched_off_nothing_is_looked_at_and_nothing_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise AssertionError

    monkeypatch.setattr("ckstore.codecs.nonfinite.FloatForm._suspects", refuse)
    store.config.health_share = 0

    info = store.save({"w": broken(1)})

    assert info.unhealthy == ""
    with store.open_checkpoint() as checkpoint:
        assert checkpoint.health is None


def test_equal_content_has_an_equal_digest_with_and_without_health(store: Store) -> None:
    first = store.save({"w": broken(1)}, step=1)
    store.config.health_share = 0

    assert store.save({"w": broken(1)}, step=2).content == first.content
    assert store.save({"w": broken(1)}, step=1).id == first.id


@pytest.mark.parametrize("share", [-0.1, 1.5, True, "all"])
def test_a_share_outside_its_range_is_refused(store: Store, share: Any) -> None:
    with pytest.raises(ValueError, match="health_share must be a number from 0 to 1"):
        store.config.health_share = share


# ------------------------------------------------------------------------------------------- what stands still


def test_a_part_that_stopped_to_change_is_a_warning_at_the_second_save_in_a_row_and_not_again(store: Store) -> None:
    base = weights(0)
    found = []
    for step in range(6):
        model, optimizer = {"w": weights(min(step, 2))}, {"m": weights(100 + step), "step": torch.tensor(step)}
        found.append(store.save({"base": base, "model": model, "optimizer": optimizer}, step=step))

    assert [info.unchanged for info in found] == [(), (), (), (), ("model",), ("model",)]
    assert [len(info.warnings) for info in found] == [0, 0, 0, 0, 1, 0]
    assert (
        found[4].warnings[0].startswith("main@4 has the same model as the 2 checkpoints before it, although the step")
    )
    assert [info.unhealthy for info in found] == [""] * 6


def test_where_nothing_changes_at_all_the_second_save_says_so_even_of_a_new_process(store: Store) -> None:
    state = {"model": weights(1), "epoch": 0}
    store.save(state, step=1)
    store.save(state, step=2)
    again = Store.open(store.path)
    again.load("latest")

    assert len(again.save(state, step=3).warnings) == 1
    assert again.info(3).unchanged == ("",)


def test_the_same_step_again_and_integers_that_stay_count_for_nothing(store: Store) -> None:
    for step, epoch in ((1, 1), (1, 2), (1, 3)):
        info = store.save({"w": weights(1), "epoch": epoch}, step=step, if_exists="replace")
        assert (info.warnings, info.unchanged) == ((), ())
    for step in range(2, 6):
        assert store.save({"w": weights(step), "ids": torch.arange(9)}, step=step).unchanged == ()


# -------------------------------------------------------------------------------------------- other acts


def test_latest_healthy_is_the_newest_that_is_healthy_and_whole(store: Store) -> None:
    diverged(store)

    assert store.info("latest").step == store.info("latest-valid").step == 6
    assert store.info("latest-healthy").step == 3
    assert bool(torch.isfinite(store.load("main@latest-healthy")["w"]).all())
    target = {"w": torch.zeros(1000)}
    store.load_into(target, "latest-healthy")
    assert torch.equal(target["w"], weights(3))

    blob = next(iter((store.path / "checkpoints" / "main" / store.info(3).key.directory / "blobs").iterdir()))
    os.chmod(blob, 0o600)
    blob.write_bytes(b"\0" * blob.stat().st_size)
    with pytest.warns(UserWarning, match="latest-healthy is main@2"):
        assert torch.equal(store.load("latest-healthy")["w"], weights(2))
    store.save({"w": weights(3)}, step=3, if_exists="replace")  # heals it
    assert store.info("latest-healthy").step == 3


def test_where_no_checkpoint_is_healthy_latest_healthy_says_so(store: Store) -> None:
    with pytest.raises(NoSuchRef, match="no checkpoints"):
        store.info("latest-healthy")
    diverged(store, healthy=0)

    with pytest.raises(NoSuchRef, match=r"every checkpoint is skipped, such as main@3 .unhealthy, since w has 1 NaN"):
        store.info("latest-healthy")
    with pytest.raises(NoSuchRef, match="with a number for the metric loss is unhealthy, such as main@3"):
        store.info("best:loss")


def test_a_row_of_the_catalog_alone_makes_no_checkpoint_unhealthy(store: Store) -> None:
    diverged(store, healthy=2, unhealthy=1)
    change(store.path, "checkpoints", "health", '["made up"]', where="step = 2", forged=True)
    change(store.path, "checkpoints", "health", "", where="step = 3", forged=True)

    with pytest.warns(CkstoreWarning, match="the catalog and the manifest disagree"):
        assert Store.open(store.path).info("latest-healthy").step == 2


def test_the_best_is_healthy_whatever_the_metric_says(store: Store) -> None:
    diverged(store)

    assert store.info("best:loss").step == 3  # 4 to 6 have smaller ones
    assert store.info("best:late:max").step == 3


def test_a_policy_leaves_healthy_checkpoints_where_unhealthy_ones_follow(store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=2, keep_best=Best("loss", n=1))
    diverged(store, unhealthy=6)

    assert [info.step for info in store.checkpoints()] == [2, 3, 8, 9]
    assert store.info("latest-healthy").step == 3


def test_with_keep_every_a_long_row_of_unhealthy_saves_leaves_the_healthy_ones(store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=2, keep_every=10)
    diverged(store, healthy=3, unhealthy=15)

    assert [info.step for info in store.checkpoints()] == [2, 3, 10, 17, 18]


def test_a_plan_drops_no_healthy_one_when_the_one_that_it_keeps_has_gone(store: Store) -> None:
    diverged(store)
    plan = plan_of(store, RetentionPolicy(keep_last=1))
    assert [entry.step for entry in plan.dropped] == [1, 2, 4, 5]
    store.delete(3)

    report = store.prune(plan)

    assert [info.step for info in report.dropped] == [4, 5]
    assert [info.step for info in store.checkpoints()] == [1, 2, 6]


def test_ranks_count_together_and_each_its_own(store: Store) -> None:
    for step in (1, 2, 3):
        found: list[Any] = []

        def save(rank: int, step: int = step, found: list[Any] = found) -> None:
            state = {"w": broken(rank, size=2 * CHUNK) if (rank, step) == (1, 2) else weights(10 * step + rank)}
            with Store.open(store.path) as own:
                found.append(own.save(state, step, ranks=Ranks(rank, 2, f"try-{step}", timeout_s=60)))

        threads = [threading.Thread(target=save, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 2
        assert all(("1 NaN value" in info.unhealthy) == (step == 2) for info in found)

    assert store.info("latest-healthy").step == 3
    assert list(counts(store, 2).values()) == [(1, 0)]


def test_a_storage_that_ends_within_a_number_is_looked_at_up_to_there() -> None:
    data = memoryview(np.array([1.0, np.nan], dtype="<f4").tobytes() + b"abc")

    assert FORMS["float32"].has_nonfinite(data)
    assert FORMS["float32"].count(data).nan == 1
    assert not FORMS["float64"].has_nonfinite(data[-7:])
    assert not FORMS["float64"].has_nonfinite(data[:0])
