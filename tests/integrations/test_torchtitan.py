"""torchtitan's checkpoint manager with a store, on several gloo ranks: `make torchtitan` installs torchtitan."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from tests.support.s3_server import BUCKET, KEY, SECRET, s3_service
from tests.support.stores import check_store

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CASE = Path(__file__).with_name("torchtitan_ranks.py")


@pytest.fixture(autouse=True)
def _torchtitan() -> None:
    if importlib.util.find_spec("torchtitan") is None:  # it needs 300 MB
        pytest.skip("needs torchtitan, which is no development package: make torchtitan")


def train(folder: Path, world: int, act: str, last: int, mode: str = "disabled") -> list[dict[str, Any]]:
    """Train until a step on some ranks; return the result of each rank that was not killed."""
    running = [
        subprocess.Popen(
            [sys.executable, str(CASE), str(folder), str(rank), str(world), act, mode, str(last)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in running]
    return [json.loads(output.splitlines()[-1]) for output in outputs if output.strip()]


def steps(folder: Path, name: str = "store") -> list[int | None]:
    store = Store.open(folder / name)
    store.gc()
    check_store(store.path)
    return [info.step for info in store.checkpoints("titan")]


def test_a_training_killed_in_a_save_is_resumed_by_fewer_and_as_many_ranks_bit_for_bit(tmp_path: Path) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    straight.mkdir()
    broken.mkdir()
    whole = train(straight, 4, "whole", 6)
    first = train(broken, 4, "first", 4)
    killed = train(broken, 4, "killed", 6)

    assert [result["error"].partition(":")[0] for result in killed] == ["RankFailed"] * 3
    assert steps(broken) == [2, 4]
    by_two = train(broken, 2, "two", 4)
    assert [result["resumed_from"] for result in by_two] == [4, 4]
    assert by_two[0]["digests"] == by_two[1]["digests"] == first[0]["digests"]
    by_four = train(broken, 4, "rest", 6)
    assert [result["resumed_from"] for result in by_four] == [4] * 4
    assert by_four[0]["digests"] == whole[0]["digests"]
    assert steps(straight) == steps(broken) == [2, 4, 6]


def test_background_saves_are_resumed_bit_for_bit(tmp_path: Path) -> None:
    saved = train(tmp_path, 2, "first", 4, "async")
    loaded = train(tmp_path, 2, "again", 4, "async")

    assert loaded[0]["resumed_from"] == 4
    assert loaded[0]["digests"] == saved[0]["digests"]
    assert steps(tmp_path) == [2, 4]


def test_an_earlier_step_is_loaded_by_its_number_and_a_part_without_the_excluded_values(tmp_path: Path) -> None:
    train(tmp_path, 2, "first", 4)

    assert train(tmp_path, 2, "second", 2)[0]["resumed_from"] == 2
    part = train(tmp_path, 2, "part", 4)[0]
    assert (part["resumed_from"], part["last_epoch"]) == (4, 0)
    misfit = train(tmp_path, 2, "misfit", 4)[0]["error"]
    assert misfit.startswith("DoesNotFit: ")
    assert "more.step" in misfit
    assert "exclude_from_loading" in misfit
    assert "strict" not in misfit


def test_steps_after_an_earlier_step_are_saved_again_and_resumed(tmp_path: Path) -> None:
    first = train(tmp_path, 2, "first", 4)[0]
    back = train(tmp_path, 2, "back", 4)[0]
    again = train(tmp_path, 2, "again", 4)[0]

    assert (back["resumed_from"], again["resumed_from"]) == (2, 4)
    assert first["digests"] != back["digests"] == again["digests"]
    assert steps(tmp_path) == [2, 4]


def test_as_many_checkpoints_are_kept_as_the_configuration_says(tmp_path: Path) -> None:
    train(tmp_path, 2, "prune", 6)

    assert steps(tmp_path) == [4, 6]


def test_without_a_checkpoint_in_the_store_the_folder_of_torchtitan_is_resumed(tmp_path: Path) -> None:
    of_folder = train(tmp_path, 2, "folder", 4)
    loaded = train(tmp_path, 2, "again", 6)

    assert loaded[0]["resumed_from"] == 4
    assert steps(tmp_path) == [6]
    straight = tmp_path / "straight"
    straight.mkdir()
    assert loaded[0]["digests"] == train(straight, 2, "whole", 6)[0]["digests"]
    assert loaded[0]["digests"] != of_folder[0]["digests"]


def test_other_nodes_with_their_own_stores_resume_from_the_mirror_and_each_store_is_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("MIRROR", f"s3://{BUCKET}/run")
    with s3_service() as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{service.port}")
        Store.open_or_init(tmp_path / "spare", mirror=f"s3://{BUCKET}/run")
        train(tmp_path, 2, "first", 4)
        shutil.rmtree(tmp_path / "node0")
        (tmp_path / "spare").rename(tmp_path / "node0")
        one_is_new = train(tmp_path, 2, "one-is-new", 4)
        shutil.rmtree(tmp_path / "node0")
        shutil.rmtree(tmp_path / "node1")
        all_are_new = train(tmp_path, 2, "all-are-new", 4)
        earlier = train(tmp_path, 2, "second", 2)
        pruned = train(tmp_path, 2, "all-prune", 6)

    assert [result["resumed_from"] for result in one_is_new + all_are_new] == [4] * 4
    assert [result["resumed_from"] for result in earlier + pruned] == [2, 2, 4, 4]
    assert steps(tmp_path, "node0") == steps(tmp_path, "node1") == [4, 6]


def test_a_configuration_without_a_store_is_refused(tmp_path: Path) -> None:
    code = f"""
        import torch
        from ckstore import BadInput
        from ckstore.integrations.torchtitan import CkstoreCheckpointManager
        config = CkstoreCheckpointManager.Config(enable=True, folder={str(tmp_path)!r})
        try:
            config.build(dataloader=None, model_parts=[torch.nn.Linear(1, 1)], optimizers=None, lr_schedulers=None,
                         states={{}}, sd_adapter=None)
        except BadInput as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True, timeout=120
    )

    assert "names no store" in done.stdout
