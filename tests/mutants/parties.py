"""Mutants where a process, a service or the kernel refuses or ends, and the other side has to say why or clean up."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ENDS, _AZURE = "tests/remote/test_mirror_ends.py", "tests/remote/test_azure_endpoint.py"
_CACHE, _TEMPORARY, _CROSSING = (
    "tests/remote/test_cache.py",
    "tests/remote/test_temporary.py",
    "tests/machines/test_crossing.py",
)
_KILLED = "tests/remote/test_killed_evict.py::test_a_gc_after_a_kill_anywhere_frees_what_is_free"

PARTIES = [
    Mutant(
        "SIGTERM ends the process that mirrors once everything is pushed",
        "sigterm-ignored-when-idle",
        "Ending.waiting",
        "            if self.is_asked:",
        "            if self.is_asked is None:",
        f"{_ENDS}::test_a_process_that_is_asked_to_end_in_the_middle_of_a_push_pushes_what_is_left",
        "assert",
    ),
    Mutant(
        "after SIGTERM a push has some seconds",
        "sigterm-waits-for-ever",
        "Ending._asked",
        "            signal.setitimer(signal.ITIMER_REAL, self._last_s)\n",
        "",
        f"{_ENDS}::test_a_push_that_does_not_end_is_left_after_some_seconds",
        "assert",
    ),
    Mutant(
        "the process that mirrors ends when it is refused for a day",
        "mirror-waits-for-ever",
        "mirror.serve",
        "        if time.monotonic() - done_at >= patience_s:\n",
        "        if time.monotonic() - done_at >= 2 * patience_s:\n",
        f"{_ENDS}::test_a_process_whose_mirror_refuses_for_long_ends_and_the_reason_stays",
        "assert",
    ),
    Mutant(
        "an explicit endpoint of Azure is asked, and no emulator",
        "azure-emulator",
        "_azure_config",
        '"use_emulator": "false"',
        '"use_emulator": "true"',
        f"{_AZURE}::test_requests_go_to_the_endpoint_that_was_given",
        "Regex pattern did not match",
    ),
    Mutant(
        "a full bucket is told from wrong credentials",
        "full-bucket-denied",
        "failures.translated",
        "code[1] in _FULL_CODES",
        "code[1] in ()",
        "tests/remote/test_engine.py::test_a_full_bucket_is_told_from_wrong_credentials",
        "RemoteDenied",
    ),
    Mutant(
        "fetched bytes are written without the mutex of the cache",
        "cache-written-under-lock",
        "Fetched.keep",
        "        with suppress(CkstoreError, OSError):\n",
        "        with suppress(CkstoreError, OSError), _mutex:\n",
        f"{_CACHE}::test_fetched_bytes_are_written_by_several_threads_at_once",
        "Broken",
    ),
    Mutant(
        "threads that write fetched bytes at once keep to the limit together",
        "cache-pending-uncounted",
        "Fetched._make_room",
        "        nbytes += self._pending_bytes\n",
        "",
        f"{_CACHE}::test_threads_that_write_at_once_keep_to_the_limit",
        "assert",
    ),
    Mutant(
        "the temporary clone of a killed process is removed",
        "temporary-clone-stays",
        "make_temporary",
        "    _sweep()\n",
        "",
        f"{_TEMPORARY}::test_what_a_killed_process_left_is_removed_and_that_of_a_living_one_stays",
        "assert",
    ),
    Mutant(
        "the temporary clone of a living process stays",
        "temporary-clone-swept",
        "temporary._sweep",
        "locks.try_exclusive(Path(path))",
        "locks.lock_shared(Path(path))",
        f"{_TEMPORARY}::test_what_a_killed_process_left_is_removed_and_that_of_a_living_one_stays",
        "assert",
    ),
    Mutant(
        "an error of a move between directories names overlayfs or project ids",
        "crossing-unnamed",
        "describe_os_error",
        "    if error.errno == errno.EXDEV:\n",
        "    if error.errno is None:\n",
        f"{_CROSSING}::test_retention_in_an_image_layer_drops_what_came_later_and_names_overlayfs",
        "assert",
    ),
    Mutant(
        "doctor names directories with different project ids",
        "projects-unseen",
        "check_links",
        "    if facts.projects:\n",
        "    if facts.links is None:\n",
        f"{_CROSSING}::test_a_save_into_a_run_with_a_project_of_its_own_names_the_projects",
        "assert",
    ),
    Mutant(
        "a catalog looks again at a checkpoint before its blobs go",
        "evict-touched-late",
        "evict._let_go",
        "        touch(lock)\n"
        "        # One rename: its directory has all of its blobs, or none and the word where they are.\n",
        "        # One rename: its directory has all of its blobs, or none and the word where they are.\n",
        f"{_KILLED}[_evict]",
        "assert",
    ),
    Mutant(
        "a catalog looks again at a checkpoint before it stops saying that its blobs are elsewhere",
        "restored-touched-late",
        "ops.save.restore_blobs.restore_blobs",
        "        touch(lock)\n        if is_local:\n",
        "        if is_local:\n",
        f"{_KILLED}[_pull]",
        "assert",
    ),
    Mutant(
        "names of blobs in an evicted checkpoint are inside the store",
        "evicted-names-outside",
        "_Names.__init__",
        "known.get(key) != stamp or peek.exists(layout.checkpoint(key) / ELSEWHERE)",
        "known.get(key) != stamp",
        f"{_KILLED}[_pull]",
        "LinkedBlob",
    ),
]
