"""``ckstore config`` shows and changes what a store does by itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ckstore import Best, Budget, RetentionPolicy, Store
from tests.cli.conftest import Run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Store.init(tmp_path / "s").close()
    return tmp_path / "s"


def test_a_new_store_does_nothing_by_itself(run: Run, path: Path) -> None:
    said = run("config", "--store", path)

    assert said.stdout.splitlines() == [
        "retention  off: checkpoints are kept until they are deleted",
        "budget  off: checkpoints may fill the disk",
        "make-room  off: a save that does not fit fails",
        "read-back  off",
        "recheck  --share 0.005",
        "retry  --count 2",
        "failures  off: a failed save ends the training",
        "health  --share 0.0625",
        "undo  off: dropped checkpoints are freed at once",
        "grace  --time 1h",
        "evaluation  --time 1h",
        "shared  detected from the filesystem",
        "threads  default for the machine",
        "mirror  off: checkpoints are not copied to a remote",
        "keep-local  off: all data remains local",
        "keep-remote  off: the mirror keeps all checkpoints",
        "cache  a tenth of the disk",
        "push-deltas  off",
        "compact  off: only ckstore compact compacts",
    ]
    assert json.loads(run("config", "--json", "--store", path).stdout) == {
        "v": 1,
        "retention": None,
        "budget": None,
        "make_room": None,
        "read_back": False,
        "recheck_share": 0.005,
        "save_retries": 2,
        "on_failed_save": "raise",
        "health_share": 0.0625,
        "undo_by_hand_s": 0,
        "undo_by_rule_s": 0,
        "grace_s": 3600,
        "evaluation_patience_s": 3600,
        "shared": None,
        "threads": None,
        "mirror": None,
        "mirror_age_s": 600,
        "mirror_bytes_s": None,
        "mirror_keep": 3,
        "keep_local": None,
        "keep_remote": None,
        "cache_bytes": None,
        "push_deltas": False,
        "compact_after": None,
        "compact_share": 0.1,
        "compact_keep": 3,
        "retention_by_run": {},
        "wait_for_space_s": 0,
        "failed_saves_most": 3,
    }


def test_each_setting_is_kept_in_the_store_and_taken_back(run: Run, path: Path) -> None:
    rules = ["--keep-last", "3", "--keep-best", "acc/top:max:2", "--keep-within", "36h"]
    run("config", "retention", *rules, "--store", path)
    run("config", "make-room", "--keep-every", "1000", "--store", path)
    run("config", "read-back", "--on", "--store", path)
    run("config", "push-deltas", "--on", "--store", path)
    run("config", "grace", "--time", "90m", "--store", path)
    run("config", "evaluation", "--time", "2h", "--store", path)
    run("config", "shared", "--on", "--store", path)
    run("config", "threads", "--count", "8", "--store", path)
    run("config", "recheck", "--share", "0.25", "--store", path)
    run("config", "retry", "--count", "5", "--time", "10m", "--store", path)
    run("config", "failures", "--on", "--count", "9", "--store", path)
    run("config", "health", "--share", "1", "--store", path)
    said = run("config", "--store", path)

    assert said.stdout.splitlines() == [
        "retention  --keep-last 3 --keep-best acc/top:max:2 --keep-within 36h",
        "budget  off: checkpoints may fill the disk",
        "make-room  --keep-every 1000",
        "read-back  on",
        "recheck  --share 0.25",
        "retry  --count 5 --time 10m",
        "failures  on --count 9",
        "health  --share 1",
        "undo  off: dropped checkpoints are freed at once",
        "grace  --time 90m",
        "evaluation  --time 2h",
        "shared  on: other hosts use the store",
        "threads  8",
        "mirror  off: checkpoints are not copied to a remote",
        "keep-local  off: all data remains local",
        "keep-remote  off: the mirror keeps all checkpoints",
        "cache  a tenth of the disk",
        "push-deltas  on",
        "compact  off: only ckstore compact compacts",
    ]
    with Store.open(path) as store:
        kept = RetentionPolicy(keep_last=3, keep_best=Best("acc/top", "max", 2), keep_within="36h")
        assert (store.config.retention, store.config.make_room) == (kept, RetentionPolicy(keep_every=1000))
        assert store.config.read_back
        assert store.config.push_deltas
        assert store.config.threads == 8
        assert (store.config.recheck_share, store.config.grace_s, store.config.shared) == (0.25, 5400, True)
        assert store.config.evaluation_patience_s == 7200
        assert (store.config.save_retries, store.config.wait_for_space_s) == (5, 600)
        assert (store.config.on_failed_save, store.config.failed_saves_most) == ("warn", 9)
    for setting in (
        "retry",
        "failures",
        "retention",
        "make-room",
        "read-back",
        "recheck",
        "health",
        "grace",
        "evaluation",
        "shared",
        "push-deltas",
    ):
        run("config", setting, "--off", "--store", path)
    with Store.open(path) as store:
        assert (store.config.retention, store.config.make_room, store.config.read_back, store.config.recheck_share) == (
            None,
            None,
            False,
            0,
        )
        assert (store.config.grace_s, store.config.evaluation_patience_s, store.config.shared) == (0, 0, False)
        assert (store.config.save_retries, store.config.wait_for_space_s, store.config.on_failed_save) == (
            0,
            0,
            "raise",
        )
        assert store.config.health_share == 0
    for setting in ("shared", "threads"):
        run("config", setting, "--auto", "--store", path)
    run("config", "recheck", "--on", "--store", path)
    run("config", "health", "--on", "--store", path)
    run("config", "grace", "--on", "--store", path)
    run("config", "evaluation", "--on", "--store", path)
    with Store.open(path) as store:
        assert (store.config.recheck_share, store.config.grace_s, store.config.shared) == (0.005, 3600, None)
        assert store.config.evaluation_patience_s == 3600
        assert store.config.threads is None
        assert store.config.health_share == 0.0625


@pytest.mark.parametrize(
    "words, says",
    [
        (["--keep-last", "3"], "no SETTING was given"),
        (["--on"], "no SETTING was given"),
        (["retention", "--on"], "retention needs rules, or --off"),
        (["make-room", "--keep-last", "3", "--off"], "make-room needs rules, or --off"),
        (["read-back", "--on", "--keep-last", "3"], "read-back needs either --on or --off"),
        (["recheck", "--on", "--share", "0.5"], "recheck needs --on, --off or --share"),
        (["health", "--on", "--share", "0.5"], "health needs --on, --off or --share"),
        (["recheck", "--share", "2"], "share must be a number from 0 to 1, got 2.0"),
        (["recheck", "--share", "nan"], "share must be a number from 0 to 1, got nan"),
        (["read-back", "--on", "--share", "0.5"], "read-back has no --share"),
        (["--share", "0.5"], "no SETTING was given"),
        (["--time", "1h"], "no SETTING was given"),
        (["retry", "--on"], "retry needs --count, --time or --off"),
        (["retry", "--off", "--count", "3"], "retry needs --count, --time or --off"),
        (["retry", "--count", "3", "--share", "0.5"], "retry has no rules and no --share"),
        (["retry", "--time", "90d"], "wait_for_space_s must be seconds from 0 to 30 days"),
        (["failures", "--count", "3"], "failures needs --on, optionally with --count, or --off"),
        (["failures", "--off", "--count", "3"], "failures needs --on, optionally with --count, or --off"),
        (["failures", "--on", "--count", "0"], "failed_saves_most must be a whole number from 1 to 10000"),
        (["recheck", "--on", "--time", "1h"], "recheck has no --time"),
        (["grace", "--off", "--time", "1h"], "grace needs --on, --off or --time"),
        (["grace", "--time", "soon"], "--time: wanted"),
        (["grace", "--time", "400d"], "grace_s must be seconds from 0 to a year"),
        (["shared", "--on", "--auto"], "shared needs --on, --off or --auto"),
        (["shared", "--keep-last", "3", "--on"], "shared has no rules"),
        (["grace", "--auto"], "only shared, threads and cache have --auto"),
        (["threads", "--count", "x"], "'--count': wanted a whole number of at least 0, got 'x'"),
        (["recheck", "--share", "x"], "'--share': wanted a number of at least 0, got 'x'"),
        (["threads", "--on", "--count", "3"], "threads needs --count or --auto"),
        (["threads", "--count", "0"], "threads must be a whole number from 1 to 256"),
        (["grace", "--count", "3"], "only threads has a --count"),
        (["compact", "--on"], "compact needs options, or --off"),
        (["compact", "--time", "soon"], "compact_after must be a duration such as '12h', or seconds, got"),
        (["compact", "--share", "0"], "compact_share must be a number from 0.001 to 1"),
        (["compact", "--keep-last", "3", "--share", "0.5"], "compact has no rules"),
        (["colour", "--on"], "compact or push-deltas, got 'colour'"),
        (["retension"], "got 'retension', did you mean retention?"),
        (["read_back", "--on"], "got 'read_back', did you mean read-back?"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(run: Run, path: Path, words: list[str], says: str) -> None:
    said = run("config", *words, "--store", path)

    assert (said.exit_code, says in said.stderr) == (2, True), said.stderr
    assert not (path / "config.json").exists()


def test_a_run_has_a_policy_of_its_own_and_the_store_a_budget(run: Run, path: Path) -> None:
    run("config", "retention", "--run", "sweep-*", "--keep-last", "1", "--store", path)
    run("config", "retention", "--run", "gpt", "--keep-daily", "7", "--max-bytes", "1GB", "--store", path)
    said = run("config", "budget", "--max-bytes", "2TB", "--low-bytes", "1.8TB", "--store", path)

    assert said.stdout == "budget  --max-bytes 2TB --low-bytes 1.8TB\n"
    assert run("config", "retention", "--store", path).stdout.splitlines() == [
        "retention  off: checkpoints are kept until they are deleted",
        "retention  --run gpt --keep-daily 7 --max-bytes 1GB",
        "retention  --run sweep-* --keep-last 1",
    ]
    assert Store.open(path).config.budget == Budget("2TB", "1.8TB")
    run("config", "retention", "--run", "gpt", "--off", "--store", path)
    run("config", "budget", "--off", "--store", path)
    assert list(Store.open(path).config.retention_by_run) == ["sweep-*"]
    assert Store.open(path).config.budget is None
    for wrong in (["make-room", "--run", "a"], ["budget", "--on"], ["budget", "--max-bytes", "1G", "--keep-last", "2"]):
        assert run("config", *wrong, "--store", path).exit_code == 2


@pytest.mark.parametrize(
    "setting, keys",
    [
        ("retention", ["retention", "retention_by_run"]),
        ("budget", ["budget"]),
        ("make-room", ["make_room"]),
        ("read-back", ["read_back"]),
        ("recheck", ["recheck_share"]),
        ("retry", ["save_retries", "wait_for_space_s"]),
        ("failures", ["on_failed_save", "failed_saves_most"]),
        ("health", ["health_share"]),
        ("undo", ["undo_by_hand_s", "undo_by_rule_s"]),
        ("grace", ["grace_s"]),
        ("shared", ["shared"]),
        ("threads", ["threads"]),
        ("mirror", ["mirror", "mirror_age_s", "mirror_bytes_s", "mirror_keep"]),
        ("keep-local", ["keep_local"]),
        ("keep-remote", ["keep_remote"]),
        ("cache", ["cache_bytes"]),
        ("push-deltas", ["push_deltas"]),
        ("compact", ["compact_after", "compact_share", "compact_keep"]),
    ],
)
def test_a_setting_alone_is_shown_and_not_changed(run: Run, path: Path, setting: str, keys: list[str]) -> None:
    shown = run("config", setting, "--store", path)
    whole = json.loads(run("config", "--json", "--store", path).stdout)

    assert shown.exit_code == 0, shown.stderr
    assert [line.split("  ")[0] for line in shown.stdout.splitlines()] == [setting]
    assert shown.stdout.strip() in run("config", "--store", path).stdout.splitlines()
    assert json.loads(run("config", setting, "--json", "--store", path).stdout) == {
        key: whole[key] for key in ("v", *keys)
    }
    assert not (path / "config.json").exists()


def test_a_change_shows_that_setting_alone_as_it_can_be_given_again(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        store.config.compact_after = 5400
    for words, said in (
        (["budget", "--max-bytes", "2T"], "budget  --max-bytes 2TiB"),
        (["cache", "--max-bytes", "1000001"], "cache  --max-bytes 1000001B"),
        (["retention", "--keep-last", "3", "--max-bytes", "1.5GiB"], "retention  --keep-last 3 --max-bytes 1.5GiB"),
        (["compact", "--count", "2"], "compact  --time 90m --share 0.1 --count 2"),
    ):
        assert run("config", *words, "--store", path).stdout == f"{said}\n"
        setting, *options = said.split()
        assert run("config", setting, *options, "--store", path).stdout == f"{said}\n"
    assert list(json.loads(run("config", "read-back", "--on", "--json", "--store", path).stdout)) == ["v", "read_back"]


def test_what_is_dropped_waits_where_undo_is_on(run: Run, path: Path) -> None:
    said = run("config", "undo", "--on", "--store", path)
    assert "undo  --time 1d, but 1h for checkpoints that rules drop" in said.stdout
    with Store.open(path) as store:
        store.save({"w": list(range(9))}, step=1)
        store.save({"w": list(range(8))}, step=2)

    run("delete", "1", "--store", path)
    listed = json.loads(run("undo", "--json", "--store", path).stdout)
    assert (listed["run"], listed["step"]) == ("main", 1)
    assert run("undo", "--last", "--store", path).stdout == "restored main@1\n"
    assert run("undo", "--last", "--store", path).exit_code == 4
    run("delete", "2", "--store", path)
    assert "main@2" in run("undo", "--store", path).stdout
    assert run("gc", "--now", "--store", path).exit_code == 0
    assert "no dropped checkpoint can be restored" in run("undo", "--store", path).stderr
    assert "off" in run("config", "undo", "--off", "--store", path).stdout
    assert run("undo", "1", "--last", "--store", path).exit_code == 2


def test_the_mirror_is_named_bounded_and_turned_off(run: Run, path: Path, tmp_path: Path) -> None:
    run("remote", "add", "cold", tmp_path / "m", "--store", path)
    run("config", "mirror", "cold", "--time", "5m", "--bwlimit", "1MiB", "--count", "2", "--store", path)
    said = run("config", "--store", path).stdout.splitlines()
    assert "mirror  cold --time 5m --count 2 --bwlimit 1MiB" in said
    assert "the mirror cold has every checkpoint" in run("savers", "--store", path).stderr
    for wrong in (["mirror", "--on"], ["mirror", "cold", "--off"], ["threads", "cold"], ["mirror", "hot"]):
        assert run("config", *wrong, "--store", path).exit_code == 2
    run("config", "mirror", "--off", "--store", path)
    assert Store.open(path).config.mirror is None


def test_a_mistaken_prune_is_undone_a_run_at_a_time(run: Run, path: Path) -> None:
    run("config", "undo", "--on", "--store", path)
    with Store.open(path) as store:
        for step in (1, 2, 3):
            store.save({"w": list(range(step, step + 99))}, step=step, run="pruned")
    asked = ("prune", "--keep-last", "1", "--run", "pruned", "--store", path)

    assert "could restore them for 24 hours" in run(*asked, "--dry-run").stderr
    assert "nothing is unused" not in run(*asked).stdout
    back = run("undo", "--run", "pruned", "--store", path).stdout

    assert back == "restored pruned@2\nrestored pruned@1\n"
    assert run("undo", "--run", "pruned", "--store", path).exit_code == 4
    assert run("undo", "--run", "pruned", "--last", "--store", path).exit_code == 2


def test_undo_says_what_the_rules_would_drop_again(run: Run, path: Path) -> None:
    run("config", "undo", "--on", "--store", path)
    with Store.open(path) as store:
        for step in (1, 2, 3):
            store.save({"w": list(range(step, step + 99))}, step=step, run="pruned")
    run("config", "retention", "--run", "pruned", "--keep-last", "2", "--store", path)
    run("delete", "pruned@1", "--store", path)
    run("delete", "pruned@2", "--store", path)

    said = run("undo", "--all", "--store", path)

    assert said.stdout == "restored pruned@2\nrestored pruned@1\n"
    assert said.stderr == (
        "warning: the rules of ckstore config drop pruned@1 after the next save; ckstore pin keeps it\n"
    )


def test_all_comes_back_and_what_was_saved_again_is_superseded(run: Run, path: Path) -> None:
    run("config", "undo", "--on", "--store", path)
    with Store.open(path) as store:
        for name in ("a", "b"):
            store.save({"w": list(range(99))}, step=1, run=name)
            store.delete(f"{name}@1")
        store.save({"w": 3}, step=1, run="b")
        store.delete("b@1")
        newest = store.save({"w": 2}, step=1, run="b")

    done = run("undo", "--all", "--store", path)

    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2] == "restored a@1"
    assert all(re.fullmatch(r"restored b@1 \(\w{10}, superseded\)", line) for line in lines[:2])
    assert done.stderr.count("b@1 has a newer checkpoint") == 2
    with Store.open(path) as store:
        assert store.info("b@1").id == newest.id
        assert [info.superseded for info in store.checkpoints("b", superseded=True)] == [True, True, False]
    assert run("undo", "--all", "--run", "a", "--store", path).exit_code == 2
    assert "no dropped checkpoint can be restored" in run("undo", "--all", "--store", path).stderr


def test_what_lacks_a_blob_is_listed_with_it_and_named_at_the_end(run: Run, path: Path) -> None:
    run("config", "undo", "--on", "--store", path)
    with Store.open(path) as store:
        for step in (1, 2):
            store.save({"w": bytes([step]) * 5_000}, step=step)
            store.delete(step)
    (blob,) = (path / "trash").glob("main@1.*/blobs/*")
    blob.unlink()

    listed = run("undo", "--store", path).stdout
    assert "PROBLEM" in listed
    assert f"blob {blob.name} is missing" in listed
    assert [json.loads(line)["problem"] for line in run("undo", "--json", "--store", path).stdout.splitlines()] == [
        "",
        f"blob {blob.name} is missing",
    ]
    done = run("undo", "--all", "--store", path)
    assert (done.exit_code, done.stdout) == (3, "restored main@2\n")
    assert "main@1 cannot be restored" in done.stderr
    assert "gc --now" in done.stderr
    assert "cannot be restored (ckstore undo gives the reason)" in run("gc", "--store", path).stdout
    run("gc", "--now", "--store", path)
    assert run("undo", "--store", path).stdout == ""


def test_compaction_by_itself_is_set_and_taken_back(run: Run, path: Path) -> None:
    said = run("config", "compact", "--time", "12h", "--share", "0.25", "--count", "2", "--store", path)

    assert said.stdout.splitlines()[-1] == "compact  --time 12h --share 0.25 --count 2"
    said = run("config", "compact", "--off", "--store", path)
    assert said.stdout.splitlines()[-1] == "compact  off: only ckstore compact compacts"
