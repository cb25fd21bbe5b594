"""Mutants that trust the file of the catalog: what lies beside it, its schema, the form of its values."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BESIDE = "tests/hostile/test_beside.py::test_a_set_that_ckstore_would_not_have_left_is_never_opened"

INDEX = [
    Mutant(
        "a journal that refers to another file is not opened",
        "super-journal-opened",
        "_names_another",
        "max(0, end - len(_MAGIC))) == _MAGIC",
        "max(0, end - len(_MAGIC))) == b''",
        _BESIDE,
        "AssertionError",
    ),
    Mutant(
        "a catalog with a second name is not opened",
        "linked-catalog-opened",
        "_why_strange_file",
        "    if found.st_nlink > 1:\n",
        "    if found.st_nlink > 2**31:\n",
        _BESIDE,
        "AssertionError",
    ),
    Mutant(
        "a catalog with another schema is not read",
        "any-schema-read",
        "check_header",
        "    if not is_schema_of(connection, VERSION):\n",
        "    if VERSION < 0:\n",
        "tests/hostile/test_schema.py::test_a_catalog_of_another_schema_is_not_read_and_rebuilt",
        "Error",
    ),
    Mutant(
        "only a digest becomes a path",
        "any-text-a-path",
        "fan_out",
        "    if not is_digest(digest):\n",
        "    if digest is None:\n",
        "tests/hostile/test_rows.py::test_only_a_digest_becomes_the_path_of_a_blob",
        "DID NOT RAISE",
    ),
    Mutant(
        "links of checkpoints that can be restored are not reported as the reason why a deletion frees nothing",
        "waiting-links-kept",
        "report.deletion.Preview",
        "                    found.other_links += 1\n",
        "                    pass\n",
        "tests/ops/report/test_deletion.py::test_the_bytes_that_a_deletion_frees_are_known_before_it",
        "assert",
    ),
    Mutant(
        "pack data of only the deleted checkpoint is distinguished from shared data",
        "packed-called-shared",
        "pack_uses.PackUses.packed_bytes",
        "                packed[group] += largest - second\n",
        "                packed[group] += 0 * (largest - second)\n",
        "tests/ops/report/test_deletion.py::test_shared_and_packed_and_linked_data_are_told_apart",
        "assert",
    ),
    Mutant(
        "a process with a reused PID is not reported as the saver of a checkpoint",
        "recycled-pid-named",
        "step_author._is_running",
        "        return is_older and",
        "        return True or is_older and",
        "tests/ops/save/test_step_exists.py::test_a_process_that_took_the_number_of_another_is_not_named",
        "assert",
    ),
    Mutant(
        "a PID of another host is not looked up locally",
        "pid-of-another-host",
        "step_author._saved",
        "    if not id or not context.view.sees_locks:\n",
        "    if not id:\n",
        "tests/ops/save/test_step_exists.py::test_none_is_named_where_the_journal_is_lost_or_of_several_hosts",
        "assert",
    ),
]
