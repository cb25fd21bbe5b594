"""``diff du why verify doctor`` on real stores."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ckstore import Store
from ckstore.provisional import DoctorFinding, DoctorReport
from tests.cli.conftest import Run, on_terminal
from tests.cli.test_command_line_page import keys, section
from tests.containers.files import torch_file
from tests.support.damage import MIB, blobs_by_size, flip, two_part_state
from tests.support.look import directory_of
from tests.support.stores import disk_bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two checkpoints that share their large tensor."""
    path = tmp_path / "s"
    state = two_part_state(0)
    with Store.init(path) as store:
        store.save(state, step=1)
        state["small"] = {**state["small"], "layer3": state["small"]["layer3"] + 0.5, "new": np.zeros(4)}
        state["lr"] = 0.2
        store.save(state, step=2)
    return path


def document(text: str) -> dict[str, Any]:
    (line,) = text.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def cells(text: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def test_diff_lists_tensors_and_values_that_differ(run: Run, path: Path) -> None:
    shown = run("diff", "1", "2", "--store", path)

    assert shown.exit_code == 0, shown.stderr
    assert cells(shown.stdout) == [
        ["TYPE", "SIZE", "CHANGED", "NAME"],
        ["added", "<f8 [4]", "32 B", "small.new"],
        ["changed", "<f8 [300]", "2.3 KiB", "2.3 KiB", "small.layer3"],
        ["changed", "lr = 0.1 -> 0.2"],
        [""],
        ["from main@1 to main@2: tensors: 1 changed, 1 added, 10 unchanged, 2.3 KiB changed; other values: 1 changed"],
    ]


def test_diff_the_other_way_round_removes_what_was_added(run: Run, path: Path) -> None:
    assert ["removed", "<f8 [4]", "32 B", "small.new"] in cells(run("diff", "2", "1", "--store", path).stdout)


def test_diff_of_one_checkpoint_is_to_the_latest_of_its_own_run(run: Run, path: Path) -> None:
    Store.open(path).save({"other": np.zeros(3)}, 7, run="side")

    assert run("diff", "main@1", "--store", path).stdout == run("diff", "main@1", "main@2", "--store", path).stdout


@pytest.mark.parametrize("words", [["events", "--run", "mian"], ["compact", "--run", "mian"]])
def test_a_run_that_is_misspelt_is_refused_with_those_that_are_there(run: Run, path: Path, words: list[str]) -> None:
    shown = run(*words, "--store", path)

    assert shown.exit_code == 4
    assert "there is no run 'mian'" in shown.stderr
    assert "its runs: main" in shown.stderr


def test_diff_with_values_says_how_far_apart_they_are(run: Run, path: Path) -> None:
    found = document(run("diff", "1", "2", "--values", "--json", "--store", path).stdout)

    assert found["changed"][0]["largest_absolute"] == pytest.approx(0.5)
    assert document(run("diff", "1", "2", "--json", "--store", path).stdout)["changed"][0]["largest_absolute"] is None
    assert " 0.5 " in run("diff", "1", "2", "--values", "--store", path).stdout


def test_diff_in_a_terminal_leaves_out_the_middle_of_long_names(tmp_path: Path) -> None:
    names = [f"model.decoder.layers.{'x' * 40}.self_attn.{one}.weight" for one in ("q_proj", "k_proj")]
    with Store.init(tmp_path / "s") as store:
        for step in (1, 2):
            store.save({name: np.full(4, step) for name in names}, step=step)

    _, shown = on_terminal("diff", "1", "2", "--store", tmp_path / "s", columns=80, env={"NO_COLOR": "1"})

    rows = [line for line in shown.splitlines() if line.startswith("changed")]
    assert [len(row) for row in rows] == [80, 80]
    assert all("  model.dec" in row and "…" in row for row in rows)
    assert {row[-13:] for row in rows} == {"q_proj.weight", "k_proj.weight"}


def test_diff_of_a_file_and_of_two(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "s"
    for name, lr in {"a.pt": 0.1, "b.pt": 0.2}.items():
        (tmp_path / name).write_bytes(torch_file({"lr": lr, "w": torch.ones(2)}))
    with Store.init(path) as store:
        store.commit([tmp_path / "a.pt", tmp_path / "b.pt"], step=1)
        store.save({"lr": 0.2, "w": torch.ones(2)}, step=2)
    changed = "changed  lr = 0.1 -> 0.2"

    assert changed in run("diff", "1", "2", "--file", "a.pt", "--store", path).stdout
    assert changed in run("diff", "1", "1", "--file", "a.pt", "--file", "b.pt", "--store", path).stdout
    found = document(run("diff", "1", "2", "--file", "b.pt", "--store", path, "--json").stdout)
    assert (found["before"], found["after"], found["same_content"]) == ("b.pt of main@1", "main@2", True)
    too_many = run("diff", "1", "2", *["--file", "a.pt"] * 3, "--store", path)
    assert too_many.exit_code == 2
    assert "give one path, or one path of A and one path of B" in too_many.stderr
    missing = run("diff", "1", "2", "--file", "c.pt", "--store", path)
    assert missing.exit_code == 4
    assert "has no file 'c.pt'" in missing.stderr


def test_diff_of_the_same_says_so(run: Run, path: Path) -> None:
    assert run("diff", "1", "main@1", "--store", path).stdout == "main@1 and main@1 have the same content\n"


def test_diff_of_values_that_json_lacks(run: Run, tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store:
        store.save({"c": 1j, "inf": 1.0, "text": "a"}, step=1)
        store.save({"c": 2j, "inf": float("inf"), "text": "\x1b[2J"}, step=2)

    found = document(run("diff", "1", "2", "--json", "--store", tmp_path / "s").stdout)
    shown = run("diff", "1", "2", "--store", tmp_path / "s").stdout

    told = {one["name"]: (one["before"], one["after"]) for one in found["values"]}
    assert told == {"c": ("1j", "2j"), "inf": (1.0, "inf"), "text": ("a", "\x1b[2J")}
    assert "\x1b" not in shown


def test_du_adds_up_and_says_what_deleting_would_free(run: Run, path: Path) -> None:
    found = document(run("du", "--json", "--store", path).stdout)

    assert found["disk_bytes"] == disk_bytes(path)
    assert found["disk_bytes"] == found["alone_bytes"] + found["shared_bytes"] + found["unused_bytes"]
    before_bytes = disk_bytes(path)
    run("delete", "2", "--store", path)
    assert before_bytes - disk_bytes(path) == found["checkpoints"][1]["alone_bytes"]


def test_du_of_an_empty_store_is_no_error(run: Run, tmp_path: Path) -> None:
    Store.init(tmp_path / "s").close()

    assert run("du", "--store", tmp_path / "s").stdout == "0 B on the disk\n"


def test_du_shows_a_line_a_checkpoint(run: Run, path: Path) -> None:
    lines = cells(run("du", "--store", path).stdout)

    assert sorted(line[0] for line in lines[:4]) == ["CHECKPOINT", "TOTAL", "main@1", "main@2"]
    assert lines[0] == ["CHECKPOINT", "LOGICAL", "ALONE", "SHARED", "PACKED"]
    assert lines[1][3] == "1.0 MiB", "half of the 2 MiB that both hold"


def test_du_of_several_runs_has_a_line_a_run_and_totals(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        store.save({"only": np.arange(400_000)}, step=7, run="gpt")

    found = document(run("du", "--json", "--store", path).stdout)
    lines = cells(run("du", "--store", path).stdout)

    assert [line[0] for line in lines[:4]] == ["RUN", "gpt", "main", "TOTAL"]
    assert sum(one["logical_bytes"] for one in found["runs"]) == found["logical_bytes"]
    assert sum(one["alone_bytes"] + one["shared_bytes"] for one in found["runs"]) == found["disk_bytes"]
    one = document(run("du", "gpt", "--json", "--store", path).stdout)
    assert (one["run"], one["alone_bytes"], len(one["checkpoints"])) == ("gpt", 3_200_000, 1)
    assert document(run("du", "--run", "gpt", "--json", "--store", path).stdout) == one
    assert run("du", "gpt", "--run", "gpt", "--store", path).exit_code == 2
    assert run("du", "nope", "--store", path).exit_code == 4


def test_runs_show_their_sizes_on_request(run: Run, path: Path) -> None:
    plain = document(run("runs", "--json", "--store", path).stdout)
    sized = document(run("runs", "--sizes", "--json", "--store", path).stdout)

    assert "alone_bytes" not in plain
    assert sized["alone_bytes"] == document(run("du", "main", "--json", "--store", path).stdout)["alone_bytes"]
    assert cells(run("runs", "--sizes", "--store", path).stdout)[0][-3:] == ["LOGICAL", "ALONE", "SHARED"]


@pytest.mark.usefixtures("steady_clock")
def test_runs_are_listed_with_the_newest_first(run: Run, saved: Path, tmp_path: Path) -> None:
    Store.init(tmp_path / "empty").close()

    lines = cells(run("runs", "--store", saved).stdout)
    empty = run("runs", "--store", tmp_path / "empty")

    assert [line[:3] for line in lines] == [
        ["RUN", "CHECKPOINTS", "NEWEST"],
        ["main", "3", "150"],
        ["sweep-7", "2", "8"],
    ]
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "no checkpoint yet\n")
    first = json.loads(run("runs", "--json", "--store", saved).stdout.splitlines()[0])
    assert (first["run"], first["newest_step"], first["highest_step"]) == ("main", 150, 200)


def test_why_names_every_checkpoint_and_tensor(run: Run, path: Path) -> None:
    blob = blobs_by_size(Store.open(path), 1)[-1].name

    assert cells(run("why", blob, "--store", path).stdout) == [
        ["CHECKPOINT", "NAME"],
        ["main@1", "big"],
        ["main@2", "big"],
    ]
    digits = blob.partition("-")[2][:12]
    printed = [json.loads(line) for line in run("why", digits, "--json", "--store", path).stdout.splitlines()]
    assert (
        printed[1].pop("nbytes")
        == printed[1].pop("kept_bytes")
        == blobs_by_size(Store.open(path), 1)[-1].stat().st_size
    )
    id = printed[1].pop("id")
    assert id == Store.open(path).info(2).id
    assert printed[1] == {
        "v": 1,
        "run": "main",
        "step": 2,
        "names": ["big"],
        "remotes": [],
        "how": "plain",
        "superseded": False,
    }
    assert ["v", *keys(section("`ckstore why`"))] == list(printed[0])
    assert run("why", "0123456789abcdef", "--store", path).exit_code == 4
    assert run("why", "no digest", "--store", path).exit_code == 2


def test_verify_of_a_whole_store_finds_nothing(run: Run, path: Path) -> None:
    shown = run("verify", "--store", path)

    assert (shown.exit_code, shown.stderr) == (0, "")
    assert re.fullmatch(r"2 checkpoints, 2\.0 MiB read: no damage\n", shown.stdout)


def test_verify_names_damage_ends_with_3_and_remembers_it(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        store.save(two_part_state(5), step=3)
        flip(blobs_by_size(store, 3)[-1], keep_time=True)

    shown = run("verify", "--store", path)

    assert shown.exit_code == 3
    assert shown.stdout.startswith("damaged  main@3  big: ")
    assert shown.stdout.endswith("read: 1 with damage\n")
    told = run("verify", "3", "--json", "--store", path)
    assert told.exit_code == 3
    assert [(one["step"], one["names"]) for one in document(told.stdout)["damage"]] == [(3, ["big"])]
    assert run("verify", "1", "--store", path).exit_code == 0
    assert Store.open(path).latest(valid=False).step == 3  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match="main@3"):
        assert Store.open(path).info("latest-valid").step == 2


def test_a_warning_of_the_library_is_told_as_the_command_line_tells_it(run: Run, path: Path) -> None:
    with Store.open(path) as store:
        store.save(two_part_state(5), step=3)
        flip(blobs_by_size(store, 3)[-1], keep_time=True)
    run("verify", "--store", path)

    shown = run("show", "latest-valid", "--store", path)

    assert shown.exit_code == 0
    assert shown.stdout.startswith("checkpoint main@2\n")
    assert shown.stderr.startswith("warning: latest-valid is main@2, since newer checkpoints are damaged: main@3: ")
    assert shown.stderr.count("\n") == 1
    assert run("show", "latest-valid", "--json", "--store", path).stderr == ""


@pytest.mark.parametrize("part,read", [("5%", 0.05), ("0.05", 0.05), ("100%", 1.0), ("0.5%", 0.005)])
def test_a_sample_is_a_part(part: str, read: float, run: Run, path: Path) -> None:
    assert document(run("verify", "--sample", part, "--json", "--store", path).stdout)["sample"] == pytest.approx(read)


@pytest.mark.parametrize("part", ["0", "101%", "2", "-1%", "nan", "much", ""])
def test_a_sample_that_is_no_part_is_wrong_usage(part: str, run: Run, path: Path) -> None:
    assert run("verify", "--sample", part, "--store", path).exit_code == 2


def test_verify_repairs_from_a_copy_and_says_from_where(run: Run, path: Path, tmp_path: Path) -> None:
    with Store.open(path) as store:
        shutil.copytree(directory_of(store, 1), tmp_path / "backup")
        victim = blobs_by_size(store, 2)[-1]
        flip(victim, keep_time=True)

    shown = run("verify", "--repair", "--store", path)
    assert shown.exit_code == 3
    assert f"not repaired  {victim.name}  no intact copy exists\n" in shown.stdout
    assert f"moved aside: quarantine/{victim.name}" in shown.stdout
    assert "0 of 2 checkpoints intact, as far as they were read\n" in shown.stdout

    shown = run("verify", "--repair-from", tmp_path / "backup", "--store", path)

    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"repaired  {victim.name}  from {tmp_path / 'backup'}/")
    assert shown.stdout.endswith(": no damage\n")
    assert document(run("verify", "--json", "--store", path).stdout)["ok"] is True


def test_verify_reads_no_data_with_quick_and_stops_within_a_budget(run: Run, path: Path) -> None:
    assert run("verify", "--quick", "--store", path).stdout == "2 checkpoints, no data read: no damage\n"
    few = run("verify", "--budget", "0.000001s", "--rate", "1GB/s", "--store", path).stdout
    assert re.search(r"\d of \d blobs were never read by a verification\n.*then time was up\): no damage\n", few)

    told = document(run("verify", "--budget", "1h", "--json", "--store", path).stdout)

    assert (told["mode"], told["in_time"], told["unread_count"]) == ("sampled", True, 0)
    assert told["whole"] == ["main@1", "main@2"]


@pytest.mark.parametrize(
    "words",
    [
        ("--budget", "soon"),
        ("--budget", "0s"),
        ("--rate", "fast"),
        ("--rate", "0"),
        ("--quick", "--sample", "5%"),
        ("--repair-from", "nowhere"),
    ],
)
def test_what_verify_cannot_do_is_wrong_usage(words: tuple[str, ...], run: Run, path: Path) -> None:
    assert run("verify", *words, "--store", path).exit_code == 2


def test_verify_shows_progress_on_a_terminal_and_clears_it(path: Path) -> None:
    status, shown = on_terminal("verify", "--store", path)

    assert status == 0
    assert "verifying" in shown
    assert shown.split("\x1b[K")[-1] == "2 checkpoints, 2.0 MiB read: no damage\n"


def test_doctor_names_who_has_a_deleted_file_open(run: Run, path: Path) -> None:
    with tempfile.TemporaryFile(dir=path.parent) as file:
        file.write(b"x" * MIB)
        file.flush()
        inode = os.fstat(file.fileno()).st_ino
        found = [json.loads(line) for line in run("doctor", "--leaks", "--json", "--store", path).stdout.splitlines()]
        shown = run("doctor", "--leaks", "--store", path)

    mine = next(one for one in found if one["inode"] == inode)
    assert ["v", *keys(section("`ckstore doctor`").split("### Deleted files")[1])] == list(mine)
    assert mine["holders"][0]["pid"] == os.getpid()
    assert re.search(rf"^ *1\.0 MiB +{os.getpid()} +descriptor \d+ ", shown.stdout, re.MULTILINE)
    assert shown.exit_code == 0


def doctored(run: Run, path: Path, *findings: DoctorFinding) -> tuple[int, str, list[dict[str, Any]]]:
    """Return the exit status, the text and the documents of doctor; with `findings` those are what it finds."""
    with pytest.MonkeyPatch.context() as patch:
        if findings:
            patch.setattr(Store, "doctor", lambda _self: DoctorReport(findings))
        shown = run("doctor", "--store", path)
        listed = run("doctor", "--json", "--store", path)
    assert listed.exit_code == shown.exit_code
    return shown.exit_code, shown.stdout, [json.loads(line) for line in listed.stdout.splitlines()]


def test_doctor_says_of_each_thing_what_is_so_and_what_to_do(run: Run, path: Path) -> None:
    status, text, documents = doctored(run, path)

    assert ["v", *keys(section("`ckstore doctor`").split("### Deleted files")[0])] == list(documents[0])
    assert {document["what"] for document in documents} >= {"filesystem", "free space", "links", "leases", "SQLite"}
    for document in documents:
        assert re.search(rf"^{document['level']:<8} {re.escape(document['what'])}: ", text, re.MULTILINE)
        assert (f"do: {document['do']}\n" in text) == (document["level"] != "ok")
    assert status == any(document["level"] == "error" for document in documents)


@pytest.mark.parametrize("level,status", [("ok", 0), ("note", 0), ("warning", 0), ("error", 1)])
def test_doctor_exits_with_1_only_for_an_error(level: Any, status: int, run: Run, path: Path) -> None:
    made = DoctorFinding(level, "links", "x\x1b[2J", "" if level == "ok" else "mend it")

    exit_code, text, documents = doctored(run, path, DoctorFinding("ok", "pins", "none"), made)

    assert exit_code == status
    assert documents[1]["level"] == level
    assert f"{level:<8} links: x\\x1b[2J\n" in text


def test_doctor_wraps_on_a_terminal(path: Path) -> None:
    _, shown = on_terminal("doctor", "--store", path, columns=60)

    plain = [re.sub(r"\x1b\[\d+m", "", line) for line in shown.splitlines()]
    words = [line.split()[-1] for line in plain if line]
    assert all(len(line) <= 60 or len(word) > 40 for line, word in zip(filter(None, plain), words, strict=True))
    assert any(line.startswith(" " * 9) for line in plain)


def test_a_damaged_checkpoint_is_marked_wherever_it_is_listed(run: Run, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "marked")
    for step in (1, 2):
        store.save({"w": np.full(1000, step)}, step)
    flip(blobs_by_size(store, 2)[-1])

    said = run("verify", "--store", store.path)

    assert said.exit_code == 3
    assert "--repair" not in said.stdout
    assert [(info.step, info.damaged) for info in store.checkpoints()] == [(1, False), (2, True)]
    assert store.info(2).damaged
    lines = run("log", "--store", store.path).stdout.splitlines()
    assert ["DAMAGED" in line for line in lines] == [False, True, False]
    assert "DAMAGED" in run("log", "--oneline", "-n", "1", "--store", store.path).stdout
    assert "damaged    YES: ckstore verify main@2" in run("show", "2", "--store", store.path).stdout
    assert "YES" not in run("show", "1", "--store", store.path).stdout
    documents = [json.loads(line) for line in run("log", "--json", "--store", store.path).stdout.splitlines()]
    assert [document["damaged"] for document in documents] == [True, False]
    assert json.loads(run("show", "2", "--json", "--store", store.path).stdout)["damaged"] is True

    store.save({"w": np.full(1000, 2)}, 2)  # heals it
    assert not store.info(2).damaged


def test_verify_recommends_a_repair_where_it_would_heal(run: Run, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "healable")
    store.save({"w": np.full(1000, 1)}, 1)
    blobs_by_size(store, 1)[-1].unlink()

    said = run("verify", "--store", store.path)

    assert "the store has intact copies of 1 damaged blob: ckstore verify --repair heals them\n" in said.stdout
    assert "in no checkpoint" not in said.stdout
    assert run("verify", "--repair", "--store", store.path).exit_code == 0


def test_events_name_the_user_of_what_another_user_did(run: Run, path: Path) -> None:
    journal = path / "events.jsonl"
    first, *others = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([first.replace(f'"uid":{os.geteuid()}', '"uid":1001'), *others]))

    lines = run("events", "--store", path).stdout.splitlines()

    assert lines[0].endswith("  by uid 1001")
    assert not any("by uid" in line for line in lines[1:])
