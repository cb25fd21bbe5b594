"""Names of remotes lead to doubles in memory."""

import pytest

from ckstore.remote import reach
from tests.remote.double import REMOTES


@pytest.fixture(autouse=True)
def _doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    REMOTES.clear()
    monkeypatch.setattr(reach, "open_remote", lambda _context, name: REMOTES[name])
