"""Classes and modules are named by nouns, each by one of its own, but for those in a list that only shrinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import names
from tests.tools.names import broken, is_no_noun, main


def test_no_name_breaks_the_rules_but_those_in_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    ["There", "Said", "Held", "Through", "beside", "Whole", "catch_up", "by_files", "saver_of", "Refused", "why"],
)
def test_what_is_no_noun_is_found(name: str) -> None:
    assert is_no_noun(name)


@pytest.mark.parametrize(
    "name", ["Staging", "committed_file", "StorePath", "Feed", "Listing", "EncodedBlob", "string", "lightning", "m0007"]
)
def test_nouns_are_left_alone_whatever_they_look_like(name: str) -> None:
    assert not is_no_noun(name)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of five modules."""
    monkeypatch.setattr(names, "ROOT", tmp_path)
    for file, text in {
        "ckstore/__init__.py": "",
        "ckstore/errors.py": "class SaveFailed(Exception): ...\n",
        "ckstore/fs/__init__.py": "",
        "ckstore/fs/taken.py": "class Dir: ...\n",
        "ckstore/model/pins.py": "class Pin: ...\nclass _Dir: ...\n",
        "ckstore/objects/pins.py": "from ckstore.model.pins import Pin\nclass Dir:\n    class Said: ...\n",
        "ckstore/ops/pins.py": "",
        "cli/ckstore_cli/commands/pins.py": "",
        "tests/tools/README": "",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def test_two_modules_of_one_name_mean_the_same_if_one_imports_the_other(project: Path) -> None:
    assert broken(project) == {
        "no noun: module ckstore/fs/taken.py",
        "no noun: class Said in ckstore/objects/pins.py",
        "class twice: Dir in ckstore/fs/taken.py, ckstore/objects/pins.py",
        "module twice: pins in ckstore/model/pins.py, ckstore/ops/pins.py",
    }


def test_the_baseline_only_shrinks(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--write"]) == 0
    assert main([]) == 0

    (project / "ckstore/fs/taken.py").write_text("class There: ...\n")
    assert main(["--write"]) == 0
    capsys.readouterr()
    assert main([]) == 1
    assert capsys.readouterr().out == "new: no noun: class There in ckstore/fs/taken.py\n"

    (project / "ckstore/fs/taken.py").unlink()
    assert main([]) == 1
    assert capsys.readouterr().out == "no more, run with --write: no noun: module ckstore/fs/taken.py\n"
