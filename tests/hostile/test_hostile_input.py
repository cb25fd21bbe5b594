"""Documents and names that were spoiled: one typed error, or read as what they are; the rest of the store loads.

``CKSTORE_CRASH=full`` tries 20,000, else a few hundred; the seed is printed.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.errors import CkstoreError, DamagedBlob
from ckstore.fs import files
from tests.faults.states import fingerprint
from tests.hostile.places import GOOD, make_store, state
from tests.hostile.victim import parser_cases, store_case, use
from tests.support.coverage import covered, lane_seed
from tests.support.look import directory_of
from tests.support.requirements import CRASH_FULL

pytestmark = [pytest.mark.crash]

PARSED = 19_000 if CRASH_FULL else 400
USED = 1_000 if CRASH_FULL else 4
_TOLD = 5


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something of everything."""
    path = tmp_path_factory.mktemp("hostile") / "store"
    make_store(path)
    return path


@pytest.mark.timeout(0)
def test_a_spoiled_document_is_refused_in_words_or_read_as_what_it_is(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = lane_seed()

    counts, wrong = parser_cases(template, tmp_path, range(seed, seed + PARSED))

    with capsys.disabled():
        print("\n" + covered("hostile input", "parsers", violations=len(wrong), seed=seed, inputs=PARSED, **counts))
    assert not wrong, "\n".join(wrong[:_TOLD])
    assert counts["refused"] + counts["read"] == PARSED
    assert min(counts.values()) > PARSED // 50, counts


@pytest.mark.timeout(0)
def test_a_store_with_a_spoiled_document_or_name_is_used_without_harm(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, good, wrong = lane_seed(), fingerprint(state(1)), list[str]()

    for number in range(USED):
        wrong += store_case(template, tmp_path / f"case-{number}", seed + number, good)

    with capsys.disabled():
        print("\n" + covered("hostile input", "stores", violations=len(wrong), seed=seed, inputs=USED))
    assert not wrong, "\n\n".join(wrong[:_TOLD])


@pytest.mark.filterwarnings("ignore:.* encoded, so they were decoded into memory:ckstore.CkstoreWarning")
def test_the_store_that_is_spoiled_is_a_good_one(template: Path, tmp_path: Path) -> None:
    assert use(template.parent, fingerprint(state(1))) == []
    with Store.open(template) as store:
        assert fingerprint(store.load(GOOD)) == fingerprint(state(1))


@pytest.mark.crossed
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "socket", "directory", "symlink"])
@pytest.mark.parametrize("name", ["manifest.json", "blob"])
def test_what_is_not_a_regular_file_is_told_and_not_waited_for(tmp_path: Path, kind: str, name: str) -> None:
    with Store.init(tmp_path / "store") as store:
        info = store.save(state(1), step=1)
        directory = directory_of(store, 1)
        path = directory / name if name != "blob" else next((directory / "blobs").iterdir())
        path.rename(tmp_path / "moved")
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(os.path.relpath(path))
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to(tmp_path / "moved")

        with pytest.raises(DamagedBlob, match="is not a regular file"):
            files.read_file(path, most_bytes=2**20)
        with pytest.raises(CkstoreError):
            store.load(info)
