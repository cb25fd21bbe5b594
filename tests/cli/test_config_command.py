"""``ckstore config`` shows and changes what a store does by itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ckstore import Best, Budget, RetentionPolicy, Store, StoreConfig
from ckstore.objects.layout import Layout
from ckstore.ops import config_file
from ckstore_cli.commands.store.config import SETTINGS
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
        "recheck-share  0.005",
        "save-retries  2",
        "wait-for-space  off: a save fails at once on a full disk",
        "on-failed-save  raise: a failed save ends the training",
        "failed-saves-most  3",
        "health-share  0.0625",
        "undo-by-hand  off: deleted checkpoints are freed at once",
        "undo-by-rule  off: checkpoints that rules drop or saves replace are freed at once",
        "grace  1h",
        "evaluation-patience  1h",
        "shared  auto: detected from the filesystem",
        "threads  auto: default for the machine",
        "mirror  off: checkpoints are not copied to a remote",
        "mirror-age  10m",
        "mirror-rate  off: no limit",
        "mirror-keep  3",
        "keep-local  off: all data remains local",
        "keep-remote  off: the mirror keeps all checkpoints",
        "cache  auto: a tenth of the disk",
        "push-deltas  off",
        "compact-after  off: only ckstore compact compacts",
        "compact-share  0.1",
        "compact-keep  3",
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


KEPT: dict[str, tuple[list[str], object, str]] = {
    "retention": (
        ["--keep-last", "3", "--keep-best", "acc/top:max:2", "--keep-within", "36h"],
        RetentionPolicy(keep_last=3, keep_best=Best("acc/top", "max", 2), keep_within="36h"),
        "--keep-last 3 --keep-best acc/top:max:2 --keep-within 36h",
    ),
    "budget": (["2T", "--low-bytes", "1.8TB"], Budget("2T", "1.8TB"), "2TiB --low-bytes 1.8TB"),
    "make-room": (["--keep-every", "1000"], RetentionPolicy(keep_every=1000), "--keep-every 1000"),
    "read-back": (["on"], True, "on"),
    "recheck-share": (["0.25"], 0.25, "0.25"),
    "save-retries": (["5"], 5, "5"),
    "wait-for-space": (["10m"], 600, "10m"),
    "on-failed-save": (["warn"], "warn", "warn: the training continues, up to failed-saves-most"),
    "failed-saves-most": (["9"], 9, "9"),
    "health-share": (["1"], 1, "1"),
    "undo-by-hand": (["7d"], 7 * 86400, "7d"),
    "undo-by-rule": (["90s"], 90, "90s"),
    "grace": (["90m"], 5400, "90m"),
    "evaluation-patience": (["2h"], 7200, "2h"),
    "shared": (["on"], True, "on: other hosts use the store"),
    "threads": (["8"], 8, "8"),
    "mirror": (["cold"], "cold", "cold"),
    "mirror-age": (["5m"], 300, "5m"),
    "mirror-rate": (["1000001"], 1000001, "1000001B"),
    "mirror-keep": (["2"], 2, "2"),
    "keep-local": (["--keep-last", "2"], RetentionPolicy(keep_last=2), "--keep-last 2"),
    "keep-remote": (["--keep-daily", "7"], RetentionPolicy(keep_daily=7), "--keep-daily 7"),
    "cache": (["100GB"], 100 * 10**9, "100GB"),
    "push-deltas": (["on"], True, "on"),
    "compact-after": (["12h"], "12h", "12h"),
    "compact-share": (["0.5"], 0.5, "0.5"),
    "compact-keep": (["4"], 4, "4"),
}
"""Key -> what sets it, the value in Python, and how it is shown."""


def test_every_attribute_of_the_settings_has_a_key_that_says_it() -> None:
    attributes = {name for name in vars(StoreConfig) if not name.startswith("_")}

    assert {one.attribute for one in SETTINGS.values()} | {"retention_by_run"} == attributes
    assert SETTINGS.keys() == KEPT.keys()
    unlike = {
        key: one.attribute for key, one in SETTINGS.items() if not one.attribute.startswith(key.replace("-", "_"))
    }
    assert unlike == {"mirror-rate": "mirror_bytes_s"}


@pytest.mark.parametrize("key", KEPT)
def test_a_value_is_kept_shown_as_it_can_be_given_and_unset(run: Run, path: Path, key: str, tmp_path: Path) -> None:
    run("remote", "add", "cold", tmp_path / "cold", "--store", path)
    words, value, shown = KEPT[key]
    attribute = SETTINGS[key].attribute
    with Store.open(path) as store:
        default = getattr(store.config, attribute)

    said = run("config", key, *words, "--store", path)
    assert (said.exit_code, said.stdout) == (0, f"{key}  {shown}\n"), said.stderr
    assert getattr(Store.open(path).config, attribute) == value
    assert run("config", key, "--store", path).stdout == said.stdout
    again, _, _ = shown.partition(":") if shown.split(":")[0] in SETTINGS[key].words else (shown, "", "")
    assert run("config", key, *again.split(), "--store", path).stdout == said.stdout
    assert run("config", "--unset", key, "--store", path).exit_code == 0
    assert getattr(Store.open(path).config, attribute) == default


@pytest.mark.parametrize("key, word", [(key, word) for key, setting in SETTINGS.items() for word in setting.words])
def test_a_word_stands_for_a_value(run: Run, path: Path, key: str, word: str) -> None:
    if key != "mirror":
        run("config", key, *KEPT[key][0], "--store", path)

    said = run("config", key, word, "--store", path)

    value, means = SETTINGS[key].words[word]
    assert said.stdout == f"{key}  {word}{f': {means}' if means else ''}\n", said.stderr
    assert getattr(Store.open(path).config, SETTINGS[key].attribute) == value


@pytest.mark.parametrize(
    "words, says",
    [
        (["--keep-last", "3"], "no KEY was given"),
        (["--unset"], "no KEY was given"),
        (["retention", "3"], "retention: wanted rules, or off, got '3'"),
        (["make-room", "--keep-last", "3", "off"], "make-room: give either a value, rules or --unset"),
        (["make-room", "--unset", "off"], "make-room: give either a value, rules or --unset"),
        (["make-room", "--run", "a", "--keep-last", "3"], "only retention has a --run"),
        (["retention", "--run", "a"], "the rules of the run a are missing"),
        (["read-back", "on", "--keep-last", "3"], "read-back has no rules"),
        (["read-back", "maybe"], "read-back: wanted on, or off, got 'maybe'"),
        (["read_back", "on"], "got 'read_back', did you mean read-back?"),
        (["budget", "--max-bytes", "2TB"], "budget has no rules"),
        (["budget", "2TB", "--keep-last", "3"], "budget has no rules but --low-bytes"),
        (["budget", "much"], "a size is a number and a unit such as 32MiB, 512KiB or 1GiB, got 'much'"),
        (["recheck-share", "2"], "share must be a number from 0 to 1, got 2.0"),
        (["recheck-share", "nan"], "share must be a number from 0 to 1, got nan"),
        (["recheck-share", "x"], "recheck-share: wanted a number, or off, got 'x'"),
        (["wait-for-space", "90d"], "wait_for_space_s must be seconds from 0 to 30 days"),
        (["on-failed-save", "ignore"], "on-failed-save: wanted raise, or warn, got 'ignore'"),
        (["failed-saves-most", "0"], "failed_saves_most must be a whole number from 1 to 10000"),
        (["grace", "soon"], "grace: wanted a time such as 90s, 30m, 2h or 7d, or off, got 'soon'"),
        (["grace", "400d"], "grace_s must be seconds from 0 to a year"),
        (["shared", "yes"], "shared: wanted auto, or on, or off, got 'yes'"),
        (["threads", "x"], "threads: wanted a whole number, or auto, got 'x'"),
        (["threads", "0"], "threads must be a whole number from 1 to 256"),
        (["mirror", "hot"], "the store has no remote 'hot'"),
        (["compact-after", "soon"], "compact_after must be a duration such as '12h', or seconds, got"),
        (["compact-share", "0"], "compact_share must be a number from 0.001 to 1"),
        (["colour", "on"], "compact-share or compact-keep, got 'colour'"),
        (["retension"], "got 'retension', did you mean retention?"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(run: Run, path: Path, words: list[str], says: str) -> None:
    said = run("config", *words, "--store", path)

    assert (said.exit_code, says in said.stderr) == (2, True), said.stderr
    assert not (path / "config.json").exists()


def test_a_run_has_a_policy_of_its_own(run: Run, path: Path) -> None:
    run("config", "retention", "--run", "sweep-*", "--keep-last", "1", "--store", path)
    run("config", "retention", "--run", "gpt", "--keep-daily", "7", "--max-bytes", "1GB", "--store", path)

    assert run("config", "retention", "--store", path).stdout.splitlines() == [
        "retention  off: checkpoints are kept until they are deleted",
        "retention  --run gpt --keep-daily 7 --max-bytes 1GB",
        "retention  --run sweep-* --keep-last 1",
    ]
    run("config", "retention", "off", "--run", "gpt", "--store", path)
    assert list(Store.open(path).config.retention_by_run) == ["sweep-*"]
    run("config", "retention", "--unset", "--run", "sweep-*", "--store", path)
    assert Store.open(path).config.retention_by_run == {}


@pytest.mark.parametrize("words", [["--unset"], ["--keep-last", "5"]])
def test_a_rule_of_one_run_keeps_the_rules_that_another_process_changes(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    with Store.open(path) as store:
        store.config.retention_by_run = {"old": RetentionPolicy(keep_last=1), "gpt": RetentionPolicy(keep_last=2)}
    edit = config_file.edit

    def after_another(layout: Layout, *arguments: Any) -> None:
        theirs = {"gpt": RetentionPolicy(keep_last=2), "new": RetentionPolicy(keep_last=3)}
        edit(layout, "retention_by_run", lambda _: {name: policy.to_json() for name, policy in theirs.items()})
        edit(layout, *arguments)

    monkeypatch.setattr(config_file, "edit", after_another)
    assert run("config", "retention", "--run", "gpt", *words, "--store", path).exit_code == 0

    kept = {name: policy.keep_last for name, policy in Store.open(path).config.retention_by_run.items()}
    assert kept == ({"new": 3} if words == ["--unset"] else {"new": 3, "gpt": 5})


@pytest.mark.parametrize("key", KEPT)
def test_a_setting_alone_is_shown_and_not_changed(run: Run, path: Path, key: str) -> None:
    shown = run("config", key, "--store", path)
    whole = json.loads(run("config", "--json", "--store", path).stdout)

    assert shown.exit_code == 0, shown.stderr
    assert [line.split("  ")[0] for line in shown.stdout.splitlines()] == [key]
    assert shown.stdout.strip() in run("config", "--store", path).stdout.splitlines()
    names = [SETTINGS[key].attribute] + ["retention_by_run"] * (key == "retention")
    assert json.loads(run("config", key, "--json", "--store", path).stdout) == {
        name: whole[name] for name in ("v", *names)
    }
    assert not (path / "config.json").exists()


@pytest.mark.parametrize("share", ["0.12345678", "0.1", "0.0000001", "0.30000000000000004", "1"])
def test_a_number_is_shown_as_it_can_be_entered_again(run: Run, path: Path, share: str) -> None:
    run("config", "recheck-share", share, "--store", path)
    run("config", "wait-for-space", f"{share}s", "--store", path)

    with Store.open(path) as store:
        before = (store.config.recheck_share, store.config.wait_for_space_s)
        shown = [run("config", key, "--store", path).stdout.split() for key in ("recheck-share", "wait-for-space")]
        assert shown[0] == ["recheck-share", share]
        for key, text in shown:
            assert run("config", key, text, "--store", path).exit_code == 0
        assert (store.config.recheck_share, store.config.wait_for_space_s) == before


def test_what_is_dropped_waits_where_undo_is_on(run: Run, path: Path) -> None:
    run("config", "undo-by-hand", "1d", "--store", path)
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
    assert "off" in run("config", "undo-by-hand", "off", "--store", path).stdout
    assert run("undo", "1", "--last", "--store", path).exit_code == 2


def test_the_mirror_is_named_and_turned_off(run: Run, path: Path, tmp_path: Path) -> None:
    run("remote", "add", "cold", tmp_path / "m", "--store", path)
    run("config", "mirror", "cold", "--store", path)
    assert "the mirror cold has every checkpoint" in run("savers", "--store", path).stderr
    run("config", "mirror", "off", "--store", path)
    assert Store.open(path).config.mirror is None


def test_a_mistaken_prune_is_undone_a_run_at_a_time(run: Run, path: Path) -> None:
    run("config", "undo-by-hand", "1d", "--store", path)
    with Store.open(path) as store:
        for step in (1, 2, 3):
            store.save({"w": list(range(step, step + 99))}, step=step, run="pruned")
    asked = ("prune", "--keep-last", "1", "--run", "pruned", "--store", path)

    assert "could restore them for 24 hours" in run(*asked, "--dry-run").stderr
    assert "no unused data" not in run(*asked).stdout
    back = run("undo", "--run", "pruned", "--store", path).stdout

    assert back == "restored pruned@2\nrestored pruned@1\n"
    assert run("undo", "--run", "pruned", "--store", path).exit_code == 4
    assert run("undo", "--run", "pruned", "--last", "--store", path).exit_code == 2


def test_undo_says_what_the_rules_would_drop_again(run: Run, path: Path) -> None:
    run("config", "undo-by-hand", "1d", "--store", path)
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
    run("config", "undo-by-hand", "1d", "--store", path)
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
    assert done.stderr.count("b@1 names a newer checkpoint") == 2
    with Store.open(path) as store:
        assert store.info("b@1").id == newest.id
        assert [info.superseded for info in store.checkpoints("b", superseded=True)] == [True, True, False]
    assert run("undo", "--all", "--run", "a", "--store", path).exit_code == 2
    assert "no dropped checkpoint can be restored" in run("undo", "--all", "--store", path).stderr


def test_what_lacks_a_blob_is_listed_with_it_and_named_at_the_end(run: Run, path: Path) -> None:
    run("config", "undo-by-hand", "1d", "--store", path)
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
