"""The commands in hints can be pasted into a shell, whatever the names of paths, runs and tags are."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from ckstore import NoSuchRemote, Protected, Store
from tests.cli.conftest import Run


def command_in(hint: str) -> list[str]:
    """Return the arguments of the command at the end of a hint."""
    return shlex.split(hint.rpartition("ckstore ")[2].rstrip(")"))


def test_a_path_with_spaces_is_quoted(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "my store"
    run("init", path)

    refused = run("init", path)
    assert refused.exit_code == 1
    assert run(*command_in(refused.stderr.strip())).exit_code == 0
    store = Store.open(path)
    store.save({"w": torch.ones(1)})
    with pytest.raises(NoSuchRemote) as caught:
        store.push(remote=str(tmp_path / "my remote"))
    assert command_in(caught.value.hint) == ["remote", "add", "NAME", str(tmp_path / "my remote")]


@pytest.mark.parametrize("name, tag", [("-gpt", "-best"), ("gpt", "best")])
def test_a_name_that_begins_with_a_dash_is_not_read_as_an_option(run: Run, tmp_path: Path, name: str, tag: str) -> None:
    store = Store.init(tmp_path / "store")
    info = store.save({"w": torch.ones(1)}, 1, name, tags=[tag])
    with pytest.raises(Protected, match="has the tag") as tagged:
        store.delete(info)
    assert run("--store", store.path, *command_in(str(tagged.value.command_hint))).exit_code == 0
    store.pin(info, "keep")
    with pytest.raises(Protected, match="is pinned") as pinned:
        store.delete(info)
    assert run("--store", store.path, *command_in(str(pinned.value.command_hint))).exit_code == 0
    store.delete(info)
