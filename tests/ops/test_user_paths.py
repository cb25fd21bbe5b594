"""``~`` is expanded wherever a path is given, to a function and to a command."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import numpy as np
import pytest
from click.testing import CliRunner

import ckstore
import ckstore.training
import ckstore_cli.demo.story
from ckstore import BadInput, Store, open_checkpoint, provisional
from ckstore.integrations.directories import checkout_to_resume, commit_directory
from ckstore.integrations.fsspec import CkstoreFileSystem
from ckstore.model.names import expanded
from ckstore.training import Conditions, check, import_history, provenance
from ckstore_cli.app import app
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.trees import look

TRIED_HERE = {
    "Store.__init__": {"path", "catalog_path"},
    "Store.init": {"path", "catalog_path"},
    "Store.open": {"path", "catalog_path"},
    "Store.open_or_init": {"path", "catalog_path", "mirror"},
    "Store.clone": {"path", "source"},
    "Store.metrics": {"path"},
    "Store.report": {"path"},
    "Remotes.add": {"target"},
    "Remotes.convert": {"directory"},
    "Store.write_metrics": {"path"},
    "Store.commit": {"paths"},
    "Store.checkout": {"destination"},
    "Store.export": {"destination", "add"},
    "Store.export_safetensors": {"destination"},
    "Store.publish": {"directory", "add"},
    "Store.verify": {"repair_from"},
    "Store.verify_export": {"export"},
    "open_checkpoint": {"path"},
    "import_history": {"folder"},
    "provenance": {"directory"},
    "check": {"directory"},
    "CkstoreFileSystem.__init__": {"staging"},
    "checkout_to_resume": {"folder"},
}
COMMANDS_TRIED = {
    "check-resume directory",
    "checkout dest",
    "clone path",
    "commit paths",
    "demo directory",
    "export add",
    "export destination",
    "publish add",
    "publish directory",
    "import-history folder",
    "init path",
    "metrics output",
    "report output",
    "verify export",
    "verify repair_from",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    assert not os.path.lexists("~")


def test_no_function_that_takes_a_path_is_left_out() -> None:
    public: dict[str, Any] = {
        name: getattr(module, name) for module in (ckstore, provisional) for name in module.__all__
    }
    public |= vars(importlib.import_module("ckstore.training"))
    public |= {"CkstoreFileSystem": CkstoreFileSystem, "checkout_to_resume": checkout_to_resume}
    functions: dict[str, Any] = {}
    for name, value in public.items():
        if inspect.isfunction(value):
            functions[name] = value
        elif inspect.isclass(value) and not issubclass(value, (str, BaseException)):
            members = inspect.getmembers(value, lambda one: inspect.isfunction(one) or inspect.ismethod(one))
            named = ((f"{name}.{method}", of) for method, of in members)
            functions |= {full: of for full, of in named if "._" not in full or full.endswith("__init__")}
    taking = {
        name: {one.name for one in inspect.signature(function).parameters.values() if "PathLike" in str(one.annotation)}
        for name, function in functions.items()
    }

    assert {name: paths for name, paths in taking.items() if paths} == TRIED_HERE


def test_a_store_and_all_that_goes_in_and_out_are_found_in_the_home(home: Path) -> None:
    (home / "files").mkdir()
    (home / "files" / "a").write_bytes(b"x")
    (home / "config.json").write_text("{}", encoding="utf-8")
    store = Store.init("~/store", catalog_path="~/catalog/c.db")
    store.save({"w": np.arange(3)}, 1)
    store.commit("~/files", 2)
    store.commit([Path("~/files/a")], 3)
    store.checkout(2, "~/out")
    store.export_safetensors(1, "~/exported", sums=True)
    store.export(1, "~/pretrained", format="pretrained", add=["~/config.json"])
    with store.publish(None, "~/published", ref="main@1", add=["~/config.json"], timeout_s=0) as versions:
        assert next(versions).path == home / "published" / "weight_v000001"
    store.verify(repair_from="~/files")
    assert Store.verify_export("~/exported").ok
    store.write_metrics("~/metrics.prom")
    store.metrics("~/store.prom")
    store.report("~/report.html")
    store.remotes.add("other", "~/other")
    store.push(1)
    Store.clone("~/other", "~/cloned").close()
    Store.open_or_init("~/mirrored", mirror="~/other").close()
    Store.init("~/source").close()
    with Store.clone("~/source", "~/of-a-store") as clone:
        clone.remotes.convert("origin", "new", "~/converted")

    assert (home / "catalog" / "c.db").is_file()
    assert look(home / "out") == look(home / "files")
    assert (home / "exported" / "model.safetensors").is_file()
    assert (home / "pretrained" / "config.json").is_file()
    assert (home / "metrics.prom").is_file()
    assert (home / "store.prom").is_file()
    assert [info.step for info in Store.open("~/cloned").checkpoints()] == [1]
    assert [info.step for info in Store.open("~/mirrored").checkpoints()] == [1]
    for path in ("~/store", Path("~/store"), home / "store"):
        assert Store.open(path, catalog_path="~/catalog/c.db").path == home / "store"
    assert Store.open_or_init("~/store", catalog_path="~/catalog/c.db").path == home / "store"
    directory = checkpoint_dir(home / "store", "main", 1).relative_to(home)
    with open_checkpoint(f"~/{directory}") as checkpoint:
        assert list(checkpoint["w"]) == [0, 1, 2]


def test_so_are_what_training_and_frameworks_bring(home: Path) -> None:
    (home / "out" / "checkpoint-5").mkdir(parents=True)
    (home / "out" / "checkpoint-5" / "a").write_bytes(b"x")
    subprocess.run(["git", "init", "-q", str(home / "code")], check=True)
    commit = ["git", "-C", str(home / "code"), "-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-q"]
    subprocess.run([*commit, "--allow-empty", "-m", "first"], check=True)
    store = Store.init("~/store")

    assert [info.step for info in import_history(store, "~/out").imported] == [5]
    assert provenance(directory="~/code")["provenance"]["git"] is not None
    commit_directory(store, home / "out" / "checkpoint-5", 6, None, metrics={}, conditions=Conditions())
    assert checkout_to_resume(store, None, 6, "~/resumed")[1] == home / "resumed" / ".ckstore-resume-6"
    filesystem = CkstoreFileSystem(staging="~/staging", skip_instance_cache=True)
    assert filesystem.staging == home / "staging"
    assert filesystem.ls("~/store/main/6", detail=False) == [f"{home}/store/main/6/a"]
    with pytest.raises(BadInput, match=re.escape(f"{home}/absent is not a directory")):
        check("train:make_loop", directory="~/absent")


def path_parameters(command: click.Command, name: str = "") -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter.type, click.Path) and parameter.name != "store":
            yield f"{name} {parameter.name}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from path_parameters(found, each)


def test_no_command_that_takes_a_path_is_left_out() -> None:
    assert set(path_parameters(app)) == COMMANDS_TRIED


def test_commands_find_their_paths_in_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell expands ``~`` itself, but not in ``--store=~/store``, in quotes, or in the environment of a service."""

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, words, env={"CKSTORE_PATH": "~/store"})
        assert done.exit_code == 0, done.output
        return done.stdout

    (home / "out" / "checkpoint-5").mkdir(parents=True)
    (home / "out" / "checkpoint-5" / "a").write_bytes(b"x" * 3000)
    (home / "config.json").write_text("{}", encoding="utf-8")
    run("init", "~/store")
    Store.open("~/store").save({"w": np.arange(3)}, 1)
    run("import-history", "~/out", "--run", "old")
    run("commit", "~/out/checkpoint-5", "--store=~/store")
    run("checkout", "main@5", "~/back")
    run("report", "--output=~/report.html")
    run("metrics", "--output=~/store.prom")
    run("clone", "~/store", "~/cloned")
    run("export", "main@1", "~/exported", "--format", "pretrained", "--add", "~/config.json")
    run("publish", "main", "~/published", "--ref", "main@1", "--add", "~/config.json", "--once")
    shutil.copytree(home / "out", home / "backup")
    for blob in directory_of(Store.open("~/store"), "main@5").glob("blobs/*"):
        flip(blob, 1000)
    repaired = json.loads(run("verify", "--repair", "--repair-from", "~/backup", "--json"))

    assert {"report.html", "store.prom", "cloned"} <= set(os.listdir(home))
    assert look(home / "back") == look(home / "out" / "checkpoint-5")
    assert (home / "exported" / "config.json").is_file()
    assert (home / "published" / "weight_v000001" / "config.json").is_file()
    assert repaired["repaired"]
    demo = Mock(return_value=0)
    monkeypatch.setattr(ckstore_cli.demo.story, "run_demo", demo)
    run("demo", "--directory", "~/demo")
    demo.assert_called_once_with(directory=home / "demo", keep=False, quick=False)
    (home / "checks").mkdir()
    checked = Mock(side_effect=BadInput("no loop"))
    monkeypatch.setattr(ckstore.training, "check", checked)
    CliRunner().invoke(app, ["check-resume", "train:make_loop", "--directory", "~/checks"])
    assert checked.call_args.kwargs["directory"] == home / "checks"


def test_the_home_of_a_user_who_is_unknown_is_a_name_like_others() -> None:
    assert expanded("~no-such-user-here/x") == Path("~no-such-user-here/x")
