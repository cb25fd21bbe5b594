"""What a save has to say besides is in its `warnings`, and once in the log: few read a value that is returned."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckstore import Best, CkstoreWarning, RetentionPolicy, Store

KEPT = "has other content and was kept, so the state of this step is not saved"


def state(value: float) -> dict[str, object]:
    return {"x": np.full(100, value)}


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("in_background", [False, True])
def test_a_save_that_keeps_something_else_says_that_it_saved_nothing(
    in_background: bool, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2, 3):
        store.save(state(step), step=step)
    target = state(0)
    store.load_into(target, 1)

    def save(value: float, step: int) -> tuple[str, ...]:
        if in_background:
            return store.save_async(state(value), step=step, if_exists="keep").result(60).warnings
        return store.save(state(value), step=step, if_exists="keep").warnings

    said = save(20, 2)

    end = time.monotonic() + 60
    while not logged(caplog) and time.monotonic() < end:  # the thread of the saver logs it
        time.sleep(0.01)
    assert logged(caplog) == [*said]
    assert said[0].startswith("main@2 of ")
    assert said[0].endswith(KEPT)
    assert save(3, 3) == ()  # the same state again is saved already
    assert float(store.load(2)["x"][0]) == 2


def test_a_policy_that_cannot_be_judged_is_said_once_and_not_with_every_save(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.config.retention = RetentionPolicy(keep_last=1, keep_best=Best("val_los", "min"))

    infos = [store.save(state(step), step=step, metrics={"val_loss": 1 / (step + 1)}) for step in range(3)]

    [said] = logged(caplog)
    assert "val_los" in said
    assert "did you mean val_loss?" in said
    assert all(said in info.warnings for info in infos[1:])


@pytest.mark.parametrize("in_background", [False, True])
def test_a_save_that_names_no_run_warns_where_the_load_took_another(in_background: bool, tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store:
        store.save(state(1), step=1, run="gpt")
    target = state(0)

    with Store.open(tmp_path / "s") as unbound:
        unbound.load_into(target, "latest")
        with pytest.warns(
            CkstoreWarning,
            match=r"names no run, so it is saved to the run main, but .* belongs to the run gpt",
        ):
            (unbound.save_async if in_background else unbound.save)(state(2), step=2)
        unbound.save(state(3), step=3)


@pytest.mark.parametrize("run", [None, "main", "gpt"])
def test_a_run_that_is_named_or_continued_is_no_reason_for_a_warning(run: str | None, tmp_path: Path) -> None:
    with Store.init(tmp_path / "s", run=run) as store, warnings.catch_warnings():
        warnings.simplefilter("error", CkstoreWarning)
        store.save(state(1), step=1)
        store.load("latest")
        store.save(state(2), step=2)
        store.save(state(3), step=3, run="other")
        store.load("other@latest")
        store.save(state(4), step=4)


@pytest.mark.parametrize("look", [Store.latest, lambda store: store.info(1), lambda store: store.load("gpt@1")])
def test_a_look_that_loads_nothing_or_names_its_run_is_no_reason_for_a_warning(
    look: Callable[[Store], object], store: Store
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CkstoreWarning)
        store.save(state(1), step=1, run="gpt")
        look(store)
        store.save(state(2), step=2)


class Broken(logging.Handler):
    """The disk of the log is full."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(28, f"No space left on device for {record.getMessage()}")


@pytest.mark.parametrize("in_background", [False, True])
def test_a_log_that_cannot_be_written_fails_no_save(
    in_background: bool, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    store.save(state(1), step=1)
    broken = Broken()
    logging.getLogger("ckstore").addHandler(broken)
    try:
        for step in (1, 2):
            if in_background:
                store.save_async(state(2), step, if_exists="keep").result(60)
            else:
                store.save(state(2), step, if_exists="keep")
        store.close()
    finally:
        logging.getLogger("ckstore").removeHandler(broken)

    assert "No space left on device" in capfd.readouterr().err


def test_what_a_commit_says_of_its_files_is_logged(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no header")

    info = store.commit(tmp_path / "model.safetensors", step=1)

    assert logged(caplog) == [*info.warnings] != []


def test_a_fine_tune_that_names_the_run_of_its_base_is_no_reason_for_a_warning(tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store, warnings.catch_warnings():
        warnings.simplefilter("error", CkstoreWarning)
        store.save(state(1), step=1, run="base")
        store.load("base@latest")
        assert store.save(state(2), step=2).parent == store.info("base@1").id
