from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ckstore import Store
from ckstore_cli.commands.look.ls import fits
from tests.cli.conftest import Run
from tests.support.look import directory_of


def test_every_leaf_is_listed_with_dtype_shape_and_size(run: Run, saved: Path) -> None:
    shown = run("ls", "best", "--store", saved)

    assert shown.exit_code == 0, shown.stderr
    assert {tuple(re.split(r"  +", line)) for line in shown.stdout.splitlines()} == {
        ("DTYPE", "SHAPE", "SIZE", "NAME"),
        ("<f4", "[64, 256]", "64.0 KiB", "layers[0].weight"),
        ("<i4", "[3]", "12 B", "layers[0].a.b"),
        ("bytes", "4.9 KiB", "blob"),
    }


def test_json_is_a_document_a_leaf(run: Run, saved: Path) -> None:
    shown = run("ls", "best", "--json", "--store", saved)

    documents = {d["name"]: d for d in map(json.loads, shown.stdout.splitlines())}
    assert documents["layers[0].weight"] == {
        "v": 1,
        "name": "layers[0].weight",
        "kind": "numpy",
        "dtype": "<f4",
        "shape": [64, 256],
        "nbytes": 65536,
    }
    assert documents["blob"] == {
        "v": 1,
        "name": "blob",
        "kind": "bytes",
        "dtype": None,
        "shape": None,
        "nbytes": 5000,
    }


def test_a_glob_chooses_by_the_whole_name_and_brackets_are_no_wildcards(run: Run, saved: Path) -> None:
    chosen = run("ls", "best", "layers[0].w*", "--json", "--store", saved).stdout.splitlines()

    assert [json.loads(line)["name"] for line in chosen] == ["layers[0].weight"]


def test_the_name_of_a_part_lists_what_lies_below_it(run: Run, saved: Path) -> None:
    names = [json.loads(line)["name"] for line in run("ls", "best", "--json", "--store", saved).stdout.splitlines()]
    chosen = run("ls", "best", "layers", "--json", "--store", saved).stdout.splitlines()

    assert [json.loads(line)["name"] for line in chosen] == [name for name in names if name.startswith("layers[")]
    assert chosen
    assert run("ls", "best", "layer", "--store", saved).exit_code == 4


def test_a_glob_that_fits_nothing_is_an_error_with_the_next_step(run: Run, saved: Path) -> None:
    shown = run("ls", "best", "weight", "--store", saved)

    assert shown.exit_code == 4
    error = "error: no name in main@200 matches 'weight'\n"
    assert shown.stderr == f"{error}hint: to list all names: ckstore ls main@200\n"


def test_a_checkpoint_without_leaves_is_no_error(run: Run, saved: Path) -> None:
    shown = run("ls", "sweep-7@8", "--store", saved)

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "sweep-7@8 has no tensors" in shown.stderr


def test_a_scalar_has_an_empty_shape_and_names_cannot_move_the_cursor(run: Run, tmp_path: Path) -> None:
    import numpy as np

    with Store.init(tmp_path / "s") as store:
        store.save({"\x1b[2J\n": np.array(1.5)}, step=1)

    shown = run("ls", "1", "--store", tmp_path / "s").stdout
    assert len(shown.splitlines()) == 2
    assert re.fullmatch(r"<f8 +\[\] +8 B +\S*x1b\S+", shown.splitlines()[1])


def test_a_damaged_manifest_is_said_to_be_damaged(run: Run, tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store:
        store.save({"x": b"1"}, step=1)
        manifest = directory_of(store, 1) / "manifest.json"
    manifest.chmod(0o600)
    manifest.write_bytes(manifest.read_bytes().replace(b'"step":1', b'"step":2'))

    shown = run("ls", "1", "--store", tmp_path / "s")

    assert (shown.exit_code, shown.stdout) == (3, "")
    assert shown.stderr.startswith("error: ")


NAMES = st.text("ab.[]*?0\n\\", max_size=8)


@given(name=NAMES)
def test_a_name_without_stars_fits_itself_only(name: str) -> None:
    literal = name.replace("*", "").replace("?", "")

    assert fits(literal, literal)
    assert not fits(literal + "x", literal)
    assert fits(name, "*")
    assert fits(name, "?" * len(name))


@given(start=NAMES, middle=NAMES, end=NAMES)
def test_a_star_stands_for_anything(start: str, middle: str, end: str) -> None:
    start, end = (part.replace("*", "").replace("?", "") for part in (start, end))

    assert fits(start + middle + end, f"{start}*{end}")
    assert fits(start + "x" + end, f"{start}?{end}")
    assert not fits(start + end, f"{start}?{end}")
