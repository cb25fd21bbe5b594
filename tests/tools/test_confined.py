"""Which identifiers name a capability, and that no further file outside its room names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.confined import CAPABILITIES, ROOT, by_file, identifiers, names_of, outside, table

REMOTES = CAPABILITIES[0]
ENCODED = CAPABILITIES[1]


def test_no_more_files_than_today_name_a_capability_outside_its_room() -> None:
    found = outside(ROOT)

    too_many = {
        capability.name: sorted(found[capability.name])
        for capability in CAPABILITIES
        if len(found[capability.name]) > capability.most
    }
    assert too_many == {}


@pytest.mark.parametrize(
    "source, names",
    [
        ("remote_names = NoSuchRemote()\n", {"remote_names": 1, "NoSuchRemote": 1}),
        ("a.remote = b.remote\n", {"remote": 2}),
        ("def f(mirrored): ...\n", {"mirrored": 1}),
        ("remotely = promote\n", {}),
        ('# remote\n"""A remote."""\nmessage = "no remote"\n', {}),
    ],
)
def test_only_identifiers_of_the_code_count_by_their_words(source: str, names: dict[str, int]) -> None:
    assert names_of(identifiers(source), REMOTES) == names


def test_the_encoding_of_text_is_no_encoded_piece() -> None:
    source = 'open(path, encoding="utf-8")\nread(\n    encoding=encoding,\n)\n'

    assert names_of(identifiers(source), ENCODED) == {"encoding": 2}


def test_files_in_the_room_may_name_it(tmp_path: Path) -> None:
    for file in ("remote/push.py", "ops/save.py", "fs/files.py"):
        (tmp_path / "ckstore" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ckstore" / file).write_text("remote = 1\n" if file != "fs/files.py" else "")

    found = outside(tmp_path)

    assert found["remotes"] == {"ops/save.py": {"remote": 1}}
    assert list(by_file(found)) == ["remotes                 1  ops/save.py: remote"]
    assert next(line for line in table(found) if line.startswith("remotes")).split()[1:] == [
        "1",
        str(REMOTES.most),
        "1",
        "1",
    ]
