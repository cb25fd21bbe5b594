"""The tracing script finds what an act enters, and nothing of what it does not."""

from __future__ import annotations

from tests.tools.entered import HERE, in_process


def test_the_files_that_a_load_enters_are_counted_and_the_verifier_is_not_among_them() -> None:
    head, *files = in_process("load", HERE, "--list").splitlines()

    names = {line.strip() for line in files}
    assert head.startswith(f"load: {len(names)} files, ")
    assert {"store.py", "ops/refs/find.py", "ops/read/load.py", "objects/checkpoints.py"} <= names
    assert not names & {"ops/refs/latest_valid.py", "ops/check/verifier.py", "ops/save/save.py"}
