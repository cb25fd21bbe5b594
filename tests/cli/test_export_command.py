from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from ckstore import Store
from tests.cli.conftest import Run, environment, on_terminal
from tests.support.damage import MIB, blobs_by_size, flip


def test_a_state_is_exported_and_what_is_not_a_tensor_is_listed(run: Run, saved: Path) -> None:
    shown = run("export", "best", "out", "--store", saved)

    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "in state.json, since safetensors cannot hold it: blob, lr",
        f"exported main@200 to out: 2 tensors, 2 files, {shown.stdout.split(', ')[-1].strip()}",
    ]
    assert set(load_file("out/model.safetensors")) == {"layers[0].weight", "layers[0].a.b"}
    assert json.loads(Path("out/state.json").read_bytes())["values"]["lr"] == 0.1


def test_json_lists_files_and_names(run: Run, saved: Path) -> None:
    shown = run("export", "best", "out", "--max-shard", "100B", "--json", "--store", saved)

    document = json.loads(shown.stdout)
    assert [file["name"] for file in document["files"]] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "state.json",
    ]
    assert document["state_names"] == ["blob", "lr"]
    assert document["destination"] == str(Path("out").absolute())
    assert document["nbytes"] == sum(path.stat().st_size for path in Path("out").iterdir())


def test_a_part_is_selected_and_its_prefix_stripped(run: Run, saved: Path) -> None:
    shown = run("export", "best", "out", "--select", "layers[0]", "--strip-prefix", "--store", saved)

    assert shown.exit_code == 0
    assert os.listdir("out") == ["model.safetensors"]
    assert set(load_file("out/model.safetensors")) == {"weight", "a.b"}


def test_a_directory_of_a_model_takes_what_is_added(run: Run, saved: Path) -> None:
    Path("config.json").write_text("{}", encoding="utf-8")
    words = ("export", "best", "out", "--format", "pretrained", "--select", "layers[0]", "--store", saved)

    without = run(*words)
    shown = run(*words, "--add", "config.json")

    assert without.exit_code == 2
    assert "hint: --add PATH copies it to the export" in without.stderr
    assert shown.exit_code == 0, shown.stderr
    assert sorted(os.listdir("out")) == ["config.json", "model.safetensors"]
    assert shown.stdout.startswith("exported main@200 to out: 2 tensors, 2 files")


def test_an_export_with_sums_is_verified_without_a_store(run: Run, saved: Path) -> None:
    run("export", "best", "out", "--sums", "--store", saved)
    run("export", "best", "plain", "--store", saved)
    nowhere = ("--store", "nowhere")

    whole = run("verify", "--export", "out", *nowhere)
    without = run("verify", "--export", "plain", *nowhere)
    both = run("verify", "best", "--export", "out", "--store", saved)
    flip(Path("out/model.safetensors"), at=Path("out/model.safetensors").stat().st_size - 1)
    damaged = run("verify", "--export", "out", *nowhere)
    document = json.loads(run("verify", "--export", "out", "--json", *nowhere).stdout)

    assert (whole.exit_code, without.exit_code, both.exit_code, damaged.exit_code) == (0, 2, 2, 3)
    assert whole.stdout.startswith("export of main@200 (xxh3-")
    assert whole.stdout.endswith("read: no damage\n")
    assert "hint: export it with --sums" in without.stderr
    assert damaged.stdout.startswith("damaged  model.safetensors  layers[0].")
    assert "1 file damaged" in damaged.stdout
    assert (document["ok"], document["checkpoint"]) == (False, "main@200")
    assert document["id"] in whole.stdout
    (finding,) = document["damage"]
    assert finding["file"] == "model.safetensors"
    assert finding["names"]


def test_wrong_usage_is_refused_with_what_to_do(run: Run, saved: Path) -> None:
    Path("full").mkdir()
    Path("full/x").touch()

    for words, status in [
        (("best", "out.safetensors"), 2),
        (("best", "full"), 2),
        (("best", "out", "--strip-prefix"), 2),
        (("best", "out", "--max-shard", "some"), 2),
        (("best", "out", "--select", "nothing"), 4),
        (("none", "out"), 4),
    ]:
        shown = run("export", *words, "--store", saved)

        assert shown.exit_code == status, shown.stderr
        assert shown.stderr.startswith("error: ")
        assert not Path("out").exists()


def test_damage_has_its_own_status(run: Run, tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save({"w": np.arange(MIB)})
        flip(blobs_by_size(store, 0)[-1], keep_time=True)

    shown = run("export", "latest", "out", "--store", tmp_path / "store")

    assert shown.exit_code == 3
    assert "w of main@0 is damaged" in shown.stderr
    assert not Path("out").exists()


def test_a_terminal_sees_how_far_it_is(saved: Path) -> None:
    status, shown = on_terminal("export", "best", "out", "--store", saved)

    assert status == 0
    assert "exporting  " in shown


def test_arrays_without_gaps_need_neither_torch_nor_numpy(saved: Path) -> None:
    code = (
        "import sys; from ckstore import Store; "
        "Store.open(sys.argv[1], readonly=True).export_safetensors('best', 'out'); "
        "print({'torch', 'numpy', 'safetensors'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, saved], env=environment(), capture_output=True, text=True, check=True
    )

    assert done.stdout == "set()\n"


def test_a_torch_file_is_exported(run: Run, tmp_path: Path) -> None:
    import torch

    store = Store.init(tmp_path / "torch.store")
    store.save({"w": torch.arange(6.0).reshape(2, 3), "array": np.arange(3)}, step=1)

    shown = run("export", "latest", "state.pt", "--format", "torch", "--store", store.path)

    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0
    assert lines[0].startswith("torch.load reads it only with weights_only=False, since it has: numpy")
    assert lines[1].startswith("exported main@1 to state.pt: 1 tensor, 1 file, ")
    assert torch.equal(torch.load("state.pt", weights_only=False)["w"], store.load(1)["w"])
    assert run("export", "latest", "state.pt", "--format", "torch", "--store", store.path).exit_code == 2


def test_a_statement_for_model_signing_is_written_with_the_sums(run: Run, saved: Path) -> None:
    shown = run("export", "best", "out", "--model-signing", "--store", saved)

    assert shown.exit_code == 0
    assert {"SHA256SUMS", "ckstore-export.json", "model.intoto.json"} <= {path.name for path in Path("out").iterdir()}
    assert run("verify", "--export", "out").exit_code == 0
