"""The real W&B, MLflow and Trackio, without a network: what the stand-ins of test_trackers.py take for granted."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.integrations.trackers import track
from tests.support.stores import check_store

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NAMES = ("wandb", "mlflow", "trackio")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) is None for name in NAMES):  # they need 300 MB
        pytest.skip("needs wandb, mlflow and trackio, which are no development packages: make trackers")
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(tmp_path),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }.items():
        monkeypatch.setenv(name, value)


def test_each_gets_each_checkpoint_as_a_reference_and_keeps_no_bytes(tmp_path: Path) -> None:
    wandb, mlflow, trackio = (importlib.import_module(name) for name in NAMES)
    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    store = Store.init(tmp_path / "store")
    tracking = track(store)
    of_wandb = wandb.init(project="p", name="sunny")
    of_mlflow = mlflow.start_run()
    of_trackio = trackio.init(project="p", name="r", embed=False)
    infos = [
        store.save({"w": np.zeros(100_000)}, step=1, metrics={"loss": float("nan")}),
        store.save_async({"w": np.ones(100_000)}, step=2, metrics={"loss": 0.5}).result(),
        store.save({"w": np.full(100_000, 2.0)}, step=1, if_exists="replace"),
    ]

    assert tracking.wait(300)
    assert not any("not logged" in warning for warning in store.warnings)
    assert infos[0].metadata["tracked_by"] == [
        {"kind": "wandb", "run": of_wandb.id, "project": "p", "name": "sunny"},
        {"kind": "mlflow", "run": of_mlflow.info.run_id, "project": "0", "name": of_mlflow.info.run_name},
        {"kind": "trackio", "run": of_trackio.id, "project": "p", "name": "r"},
    ]
    client = mlflow.MlflowClient()
    tags = client.get_run(of_mlflow.info.run_id).data.tags
    assert tags["ckstore.latest"] == f"main@1 {infos[2].id}"
    found = [Path(one.path).name for one in client.list_artifacts(of_mlflow.info.run_id, "ckstore/main")]
    assert sorted(found) == sorted(f"{info.step}.{info.id[5:17]}.json" for info in infos)
    artifact = trackio.use_artifact("ckstore-main:step-1")
    assert artifact.metadata["id"] == infos[2].id
    assert of_wandb.summary["ckstore"]["id"] == infos[2].id
    # W&B keeps references in its own file, until `wandb sync`.
    wandb.finish()
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert all(f"ckstore://{store.path}/main/{info.id}".encode() in kept.read_bytes() for info in infos)
    folders = (tmp_path / name for name in ("wandb", "mlflow", "trackio"))
    sizes = [path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert max(sizes) < 400_000  # a checkpoint has 800 kB
    mlflow.end_run()
    trackio.finish()
    check_store(store.path)


def test_a_fork_and_a_finished_run_of_wandb_are_refused_by_it_and_a_run_is_resumed(tmp_path: Path) -> None:
    wandb: Any = importlib.import_module("wandb")
    store = Store.init(tmp_path / "store")
    run = wandb.init(project="p")
    tracking = track(store, run)
    store.save({"w": np.zeros(9)}, step=1)
    assert tracking.wait(300)
    child = os.fork()
    if not child:
        info = store.save({"w": np.ones(9)}, step=2)
        os._exit(int("tracked_by" in info.metadata))
    assert os.waitpid(child, 0)[1] == 0
    wandb.finish()
    store.save({"w": np.ones(8)}, step=3)
    assert tracking.wait(300)
    assert [event.step for event in store.events() if event.event == "untracked"] == [3]
    again = wandb.init(project="p", id=run.id, resume="allow")
    track(store)
    info = store.save({"w": np.ones(7)}, step=4)
    assert tracking.wait(300)

    assert info.metadata["tracked_by"][0]["run"] == run.id
    assert again.summary["ckstore"]["step"] == 4
    wandb.finish()
    check_store(store.path)


def test_no_tracker_is_imported_by_the_integration() -> None:
    assert importlib.util.find_spec("ckstore.integrations.trackers") is not None
    code = "import sys, ckstore.integrations.trackers; print([name for name in sys.argv[1:] if name in sys.modules])"
    import subprocess

    done = subprocess.run([sys.executable, "-c", code, *NAMES], check=True, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout.replace("'", '"')) == []
