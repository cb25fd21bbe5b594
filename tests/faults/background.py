"""A save in the background whose saver runs under the fault library: the whole process, from its first call on.

The trainer is the test itself, without the library. Only the savers of one save are hit, or only the first of them;
what its result says is then looked at in the store, in which the next save has to work.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ckstore import Store
from ckstore.errors import CkstoreError, CkstoreWarning, UnknownOutcome
from ckstore.fs import holders
from tests.faults.checker import check_store
from tests.faults.journal import Journal, read_journal
from tests.faults.restore import copy_prepared
from tests.faults.scenarios import RUN, SCENARIOS
from tests.faults.shim import Fault, environment
from tests.faults.states import state
from tests.saver.conftest import DEADLINE_S, wait_for
from tests.support.own_processes import own_processes


@dataclass(frozen=True)
class Prepared:
    """A store with one checkpoint, of which each case has a copy."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Prepared:
        """Make it in an empty folder."""
        with Journal(folder / "journal") as journal:
            SCENARIOS["deduplicated_save"].prepare(folder / "store", journal)
        return cls(folder)


def case(prepared: Prepared, fault: Fault, *, both: bool) -> dict[str, Any]:
    """Save in the background; return what happened, as the fork server does.

    Args:
        prepared: The store.
        fault: What is to go wrong.
        both: Also in the saver that takes the place of the first.
    """
    folder = Path(tempfile.mkdtemp(prefix="background-", dir=prepared.folder.parent))
    copy_prepared(prepared.folder, folder)
    path, log = folder / "store", folder / "calls"
    with warnings.catch_warnings(), patch.object(holders, "_pids", lambda: own_processes(os.getpid())):
        warnings.simplefilter("ignore", CkstoreWarning)  # of the place, and of what a fault left
        with Journal(folder / "journal") as journal:
            error, wrong = _saved(path, journal, environment(fault, path, log), both=both)
        wrong += check_store(path, read_journal(folder / "journal"))
    calls = log.read_text().splitlines() if log.exists() else []
    hit = sum(line.endswith(" *") for line in calls)
    told = "" if error is None else f"{type(error).__name__}: {error}"
    killed = hit > 0 and fault.mode.startswith("kill")
    answer = {"violations": wrong, "hits": hit, "error": told, "ended": "signal 9" if killed else "well"}
    if wrong:
        return answer | {"kept": str(folder), "calls": calls[-20:]}
    shutil.rmtree(folder)
    return answer | ({"calls": calls} if fault.mode == "count" else {})


def _saved(
    path: Path, journal: Journal, harmful: dict[str, str], *, both: bool
) -> tuple[CkstoreError | None, list[str]]:
    """Save the second step beside harm, and the third without; return the error of the second, and what is wrong."""
    with Store.open(path) as store:
        client = store.background._client()
        with patch.dict(os.environ, harmful):
            store.background.prewarm()
            error = _second(store, journal) if both else None
        if not both:
            error = _second(store, journal)
        store.close()
        wait_for(lambda: client.pid() is None, "the savers that were hit have ended")
        wrong = []
        journal.begin((RUN, 3), "first")
        try:
            store.save_async(state("first"), step=3, run=RUN).result(DEADLINE_S)
            journal.done((RUN, 3), "first")
        except CkstoreError as later:
            journal.failed(unknown=True)
            wrong.append(f"the next save failed: {type(later).__name__}: {later}")
        store.close()
        wait_for(lambda: client.pid() is None, "the saver has ended")
    return error, wrong


def _second(store: Store, journal: Journal) -> CkstoreError | None:
    journal.begin((RUN, 2), "second")
    error = store.save_async(state("second"), step=2, run=RUN).exception(DEADLINE_S)
    if error is None:
        journal.done((RUN, 2), "second")
    else:
        journal.failed(unknown=isinstance(error, UnknownOutcome) or "may or may not" in str(error))
    return error
