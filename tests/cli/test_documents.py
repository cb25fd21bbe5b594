"""The JSON forms of the command line name types and attributes that exist."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

from ckstore_cli import _documents
from ckstore_cli._documents import to_json

ROOT = Path(__file__).parents[2]
MODULES = [
    *ROOT.glob("ckstore/model/**/*.py"),
    ROOT / "ckstore/remote/verification/remote_verify_report.py",
    ROOT / "cli/ckstore_cli/commands/look/ls.py",
]


def test_every_form_names_one_type_and_its_attributes() -> None:
    types: dict[str, type] = {}
    for path in MODULES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("cli.")
        module = importlib.import_module(name.removesuffix(".__init__"))
        types |= {name: one for name, one in vars(module).items() if isinstance(one, type)}
    missing = []
    for name, form in _documents._FORMS.items():
        for key in form.split():
            own, _, other = key.partition("=")
            first = (other or own).split(".")[0].split("?")[0].split(":")[0]
            missing += [f"{name}.{first}"] * (first not in dir(types[name]))
    assert missing == []


def test_numbers_that_json_lacks_are_strings() -> None:
    assert to_json({"a": math.nan, "b": (-math.inf, 2**53, 2**53 + 1, True)}) == {
        "a": "nan",
        "b": ["-inf", 2**53, str(2**53 + 1), True],
    }
