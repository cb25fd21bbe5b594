"""``prune`` and ``gc`` on stores of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore import Best, RetentionPolicy, Store
from ckstore.model.best import best_of
from ckstore.objects import store_locks
from ckstore.ops.free import gc
from ckstore.ops.free.retain import carry_out
from tests.cli.conftest import Run, on_terminal, process
from tests.support.damage import two_part_state
from tests.support.holding import holding
from tests.support.look import directory_of
from tests.support.plans import plan_of
from tests.support.stores import check_store, disk_bytes

MIB = 2**20
SAME_BY_NATURE = {"dry_run", "filesystem_freed_bytes", "catalog_bytes", "explanation"}
"""Keys of gc that say what only one of a dry run and a real one can say."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Six checkpoints; small tensors share packs, of which parts are dead when some are dropped."""
    path = tmp_path / "s"
    with Store.init(path) as store:
        state = two_part_state(0)
        for step in range(100, 700, 100):
            state["big"] = two_part_state(step)["big"]
            state["small"] = {**state["small"], f"layer{step // 100}": np.full(300, step)}
            store.save(state, step=step, metrics={"loss": abs(step - 300)}, tags=["paper"] if step == 100 else [])
    return path


def document(text: str) -> dict[str, Any]:
    (line,) = text.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def steps(path: Path) -> list[int]:
    return [info.step for info in Store.open(path, readonly=True).checkpoints()]


def test_prune_says_of_each_checkpoint_why_and_the_dry_run_prints_the_plan_that_the_real_run_executes(
    run: Run, path: Path
) -> None:
    words = ["prune", "--keep-last", "2", "--keep-best", "loss", "--keep-every", "400", "--store", path]

    dry, real = run(*words, "--dry-run"), run(*words)

    assert (dry.exit_code, real.exit_code) == (0, 0)
    rows = [re.split(r"  +", line) for line in real.stdout.splitlines()[:7]]
    assert [row[:2] for row in rows] == [
        ["CHECKPOINT", "PLAN"],
        ["main@100", "keep"],
        ["main@200", "drop"],
        ["main@300", "keep"],
        ["main@400", "keep"],
        ["main@500", "keep"],
        ["main@600", "keep"],
    ]
    assert rows[1][2] == "it has the tag paper"
    assert rows[2][2] == (
        "it is not among the 2 newest; its step is not a multiple of 400; it is not the best by loss (min)"
    )
    assert dry.stdout.splitlines()[:7] == real.stdout.splitlines()[:7]
    assert dry.stdout.splitlines()[7] == "would drop 1 of 6 checkpoints; nothing was changed"
    assert real.stdout.splitlines()[7] == "dropped 1 of 6 checkpoints"
    assert dry.stdout.splitlines()[8].startswith("would free ")
    assert real.stdout.splitlines()[8].startswith("freed ")
    assert steps(path) == [100, 300, 400, 500, 600]


def test_the_dry_run_of_prune_changes_nothing_and_its_json_is_that_of_the_real_run(run: Run, path: Path) -> None:
    words = ["prune", "--keep-last", "2", "--json", "--store", path]

    dry = document(run(*words, "--dry-run").stdout)
    assert steps(path) == [100, 200, 300, 400, 500, 600]
    real = document(run(*words).stdout)

    assert (dry["dry_run"], real["dry_run"]) == (True, False)
    assert {key: dry[key] for key in dry.keys() - SAME_BY_NATURE} == {
        key: real[key] for key in real.keys() - SAME_BY_NATURE
    }
    assert [entry["step"] for entry in real["checkpoints"] if entry["keep"]] == steps(path) == [100, 500, 600]


def test_on_a_terminal_the_reasons_are_wrapped_and_none_is_lost(run: Run, path: Path) -> None:
    words = ["prune", "--keep-last", "2", "--keep-best", "loss", "--dry-run", "--now", "--store", path]

    status, shown = on_terminal(*words, columns=60, env={"NO_COLOR": "1"})

    assert status == 0
    assert max(map(len, shown.splitlines())) <= 60
    assert shown.split() == run(*words).stdout.split()


def test_prune_without_a_rule_takes_the_policy_of_the_store(run: Run, path: Path) -> None:
    refused = run("prune", "--store", path)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "hint: give a rule: --keep-last" in refused.stderr

    Store.open(path).config.retention = RetentionPolicy(keep_last=1)
    assert run("prune", "--store", path).exit_code == 0
    assert steps(path) == [100, 600]


def test_prune_of_one_run_leaves_the_others_alone(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        for step in (1, 2):
            store.save({"x": step}, step=step, run="other")

    assert run("prune", "--keep-last", "1", "--run", "other", "--store", path).exit_code == 0

    assert steps(path) == [100, 200, 300, 400, 500, 600, 2]


def test_a_misspelt_metric_or_run_drops_nothing(run: Run, path: Path) -> None:
    before = steps(path)

    shown = run("prune", "--keep-best", "los:min", "--keep-last", "1", "--store", path)

    assert shown.exit_code == 2
    assert "no checkpoint has the metric los" in shown.stderr
    assert "did you mean loss?" in shown.stderr
    shown = run("prune", "--keep-last", "1", "--run", "mian", "--store", path)
    assert shown.exit_code == 4
    assert "there is no run 'mian'" in shown.stderr
    assert steps(path) == before


def test_a_metric_that_one_run_lacks_is_warned_of(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        store.save({"x": 1}, step=1, run="other")

    told = document(run("prune", "--keep-best", "loss", "--dry-run", "--json", "--store", path).stdout)

    assert len(told["warnings"]) == 1


METRICS = st.text("ab:/_1", min_size=1, max_size=8)


@given(metric=METRICS, mode=st.sampled_from(["min", "max"]), count=st.integers(1, 99))
def test_a_best_is_read_as_it_is_written(metric: str, mode: str, count: int) -> None:
    assert best_of(f"{metric}:{mode}:{count}") == Best(metric, mode, count)  # type: ignore[arg-type]
    assert best_of(f"{metric}:{mode}") == Best(metric, mode)  # type: ignore[arg-type]
    if ":" not in metric:
        assert best_of(f"{metric}/loss") == Best(f"{metric}/loss", "min")
        assert best_of(f"{metric}/acc") == Best(f"{metric}/acc", "max")


@pytest.mark.parametrize(
    "text",
    ["", ":min", "loss:", "loss:mni", "loss:3", "loss:max:x", "loss:max:0", "loss:max:1:2", "val", "val/loss_score"],
)
def test_a_best_that_cannot_be_read_is_wrong_usage(text: str, run: Run, path: Path) -> None:
    assert run("prune", "--keep-best", text, "--store", path).exit_code == 2
    assert len(steps(path)) == 6


def test_gc_frees_what_was_dropped_and_says_what_would_free_more(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        carry_out(store._context, plan_of(store, RetentionPolicy(keep_last=2)))
    before_bytes = disk_bytes(path)

    shown = run("gc", "--store", path)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("freed ")
    assert disk_bytes(path) < before_bytes - 4 * MIB
    again = run("gc", "--store", path)
    assert again.stdout.startswith("no unused data; deleting the oldest checkpoint main@500 would free ")
    check_store(path)


def test_the_dry_run_of_gc_reports_what_the_real_run_reports(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        blobs = sorted((directory_of(store, 200) / "blobs").iterdir(), key=lambda blob: blob.stat().st_size)
    words = ["gc", "--keep-last", "3", "--json", "--store", path]
    before_bytes = disk_bytes(path)

    with holding("mapped_shared", blobs[-1]):
        shown_dry, shown_real = run(*words, "--dry-run"), run(*words)
    dry, real = document(shown_dry.stdout), document(shown_real.stdout)

    assert shown_dry.exit_code == shown_real.exit_code == 0
    assert {key: dry[key] for key in dry.keys() - SAME_BY_NATURE} == {
        key: real[key] for key in real.keys() - SAME_BY_NATURE
    }
    assert real["held_bytes"] > 0
    assert real["freed_bytes"] == before_bytes - disk_bytes(path) > MIB
    assert steps(path) == [100, 400, 500, 600]


@pytest.mark.parametrize(
    "rule",
    [
        ["--keep-last", "2"],
        ["--keep-every", "200", "--run", "main"],
        ["--keep-best", "loss", "--keep-last", "1"],
        ["--keep-within", "7d", "--keep-every", "300"],
    ],
)
def test_gc_drops_by_every_rule_what_prune_would_drop(run: Run, path: Path, rule: list[str]) -> None:
    plan = document(run("prune", *rule, "--dry-run", "--json", "--store", path).stdout)

    done = document(run("gc", *rule, "--json", "--store", path).stdout)

    names = {"policy", "checkpoints", "skipped", "warnings"}
    assert {name: done[name] for name in names} == {name: plan[name] for name in names}
    assert steps(path) == [one["step"] for one in plan["checkpoints"] if one["keep"]] != []
    assert (done["freed_count"] > 0) == any(not one["keep"] for one in plan["checkpoints"])


@pytest.mark.parametrize("command", ["gc", "prune"])
@pytest.mark.parametrize("rule", [["--max-bytes", "5MB"], ["--keep-last", "2"]])
def test_a_dry_run_says_of_every_rule_whether_the_real_run_can_be_undone(
    run: Run, path: Path, command: str, rule: list[str]
) -> None:
    with Store.open(path) as store:
        store.config.undo_by_hand_s = 3600

    words = [command, *rule, "--store", path]
    assert "ckstore undo could restore them for 60 minutes" in run(*words, "--dry-run").stderr
    assert "undo" not in run(*words, "--dry-run", "--now").stderr

    run(*words)
    kept = steps(path)
    run("undo", "--all", "--store", path)
    assert kept != steps(path) == [100, 200, 300, 400, 500, 600]


def test_gc_of_a_run_without_a_rule_is_wrong_usage(run: Run, path: Path) -> None:
    shown = run("gc", "--run", "main", "--store", path)

    assert shown.exit_code == 2
    assert "there is no policy" in shown.stderr


def test_the_dry_run_of_gc_foresees_which_parts_of_packs_die(run: Run, path: Path) -> None:
    Store.open(path).untag("paper")  # or its pack would stay as it is
    words = ["gc", "--keep-last", "3", "--json", "--store", path]

    dry, real = document(run(*words, "--dry-run").stdout), document(run(*words).stdout)

    assert real["dead_pack_bytes"] > 0
    assert dry["dead_pack_bytes"] == real["dead_pack_bytes"]


def test_gc_names_who_holds_what_it_kept_and_frees_it_after_that(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        blob = max((directory_of(store, 200) / "blobs").iterdir(), key=lambda blob: blob.stat().st_size)
    with holding("read", blob) as holder:
        dry = run("gc", "--keep-last", "3", "--dry-run", "--store", path)
        real = run("gc", "--keep-last", "3", "--store", path)
        waiting = run("gc", "--store", path)

    assert (dry.exit_code, real.exit_code, waiting.exit_code) == (0, 0, 0)
    for shown in (dry, real, waiting):
        assert re.search(rf"^  {holder.pid} +2\.0 MiB +descriptor \d+ +\S*python", shown.stdout, re.MULTILINE)
        assert "that processes have open:" in shown.stdout
    assert run("gc", "--store", path).exit_code == 0
    check_store(path)


def test_gc_reports_names_outside_the_store(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        blob = max((directory_of(store, 200) / "blobs").iterdir(), key=lambda blob: blob.stat().st_size)
    (path.parent / "mine").hardlink_to(blob)

    shown = run("gc", "--keep-last", "3", "--store", path)

    assert shown.exit_code == 0
    assert f"2.0 MiB are not freed: {blob.name} has 1 name outside the store\n" in shown.stdout


def test_gc_that_leaves_what_is_open_has_done_its_work(path: Path) -> None:
    with Store.open(path) as store:
        blob = max((directory_of(store, 200) / "blobs").iterdir(), key=lambda blob: blob.stat().st_size)
    with holding("read", blob):
        assert process("gc", "--keep-last", "3", "--now", "--store", path).returncode == 0


@pytest.mark.parametrize("command", ["prune", "gc"])
def test_where_another_gc_is_running_the_status_is_5_unless_something_was_dropped(
    run: Run, path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "_START_TIMEOUT_S", 0.0)
    words = [command, "--keep-last", "2", "--store", path]
    layout = Store.open(path)._context.layout

    with store_locks.try_trash(layout) or pytest.fail("no lock"):
        done, again = run(*words), run(*words)

    assert done.exit_code == 0
    assert "their space is not free yet" in done.stderr
    assert again.exit_code == 5
    assert "another gc is running" in again.stderr
    for status, what in ((0, "if the space is not free yet"), (5, "another gc is running, and nothing was dropped")):
        assert re.search(rf"^ +{status}  .*{what}", run(command, "--help").stdout, re.MULTILINE | re.DOTALL)


def test_delete_says_why_nothing_was_freed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "packed"
    small = {f"t{i}": np.full(1000, i) for i in range(8)}
    with Store.init(path) as store:
        store.config.undo_by_hand_s = 3600
        store.save(small, step=1)
        store.save({"t0": small["t0"]}, step=2)
    packed = "54.7 KiB is in packs of small tensors that other checkpoints need"
    kept = f"7.8 KiB is also in other checkpoints, {packed}"

    assert f"this would free nothing: {kept}\n" in run("delete", "1", "--dry-run", "--store", path).stderr
    deleted = run("delete", "1", "--store", path).stderr
    assert f"this frees nothing: {kept}\n" in deleted
    assert "ckstore undo can restore this until " in deleted
    assert deleted.endswith(" UTC\n")
    last = run("delete", "2", "--store", path).stderr
    assert "this frees 62.5 KiB\n" in last
    assert "UTC; ckstore gc --now frees the space at once\n" in last
    freed = run("gc", "--now", "--store", path).stdout
    assert "62.5 KiB" in freed
    with Store.open(path) as store:
        store.save({"w": np.arange(100_000)}, step=3)
    assert "this frees 781.2 KiB\n" in run("delete", "3", "--now", "--store", path).stderr
