"""Mutants that let a purge by age take what is in use, or that trust what a program wrote."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TESTS = "tests/purge/test_purge.py::"

PURGE = [
    Mutant(
        "a save renews the times of its blobs",
        "used-blobs-grow-old",
        "blobs.is_sound",
        "            blob_time.stamp(name, dir_fd=parent)\n",
        "            pass\n",
        f"{_TESTS}test_a_base_that_each_save_uses_outlives_any_purge[-mtime]",
        "missing",
    ),
    Mutant(
        "access times are also renewed",
        "access-times-grow-old",
        "_set",
        "    if _set_and_read(file, dir_fd, now_ns, fine_ns) != fine_ns:\n",
        "    if _set_and_read(file, dir_fd, now_ns - 10**16, fine_ns) != fine_ns:\n",
        f"{_TESTS}test_a_base_that_each_save_uses_outlives_any_purge[-atime]",
        "",
    ),
    Mutant(
        "times are renewed once a day",
        "times-renewed-by-every-save",
        "blobs.is_sound",
        "    if is_used and blob_time.is_due(status.st_mtime_ns):\n",
        "    if is_used:\n",
        f"{_TESTS}test_a_save_renews_times_at_most_once_a_day",
        "assert",
    ),
    Mutant(
        "a save renews the times of the store's own files",
        "own-files-grow-old",
        "renew_used",
        "        renewal.own_files(layout.root)\n",
        "        pass\n",
        f"{_TESTS}test_one_process_renews_the_stores_own_files_once_a_day",
        "",
    ),
    Mutant(
        "a save with existing content renews the times of that checkpoint",
        "existing-checkpoint-grows-old",
        "renew_used",
        "        renewal.checkpoint(layout.checkpoint(existing))\n",
        "        pass\n",
        f"{_TESTS}test_saving_the_same_step_again_renews_the_checkpoint_that_is_there",
        "assert",
    ),
    Mutant(
        "touch makes no blob trusted",
        "touched-blobs-trusted",
        "_Renewal._renew",
        "                elif blob_time.is_stamp(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime_ns):\n",
        "                elif True:\n",
        f"{_TESTS}test_touch_renews_old_checkpoints_and_leaves_suspect_blobs_suspect",
        "assert",
    ),
    Mutant(
        "a stamp is never earlier than the write",
        "stamps-in-the-past",
        "_set",
        "    fine_ns = now_ns + (digits.nanoseconds - now_ns) % _SECOND_NS\n",
        "    fine_ns = now_ns - (now_ns - digits.nanoseconds) % _SECOND_NS\n",
        f"{_TESTS}test_a_write_is_told_from_a_stamp_on_every_filesystem[memory]",
        "assert",
    ),
    Mutant(
        "stamps on filesystems with whole seconds",
        "whole-seconds-unstamped",
        "_is",
        "    return rest_ns == digits.nanoseconds or (rest_ns == 0 and seconds % _PERIOD_S == digits.seconds)\n",
        "    return rest_ns == digits.nanoseconds\n",
        f"{_TESTS}test_a_write_is_told_from_a_stamp_on_every_filesystem[ext4 with whole seconds]",
        "assert",
    ),
    Mutant(
        "touch reads the time of a blob again before it sets it",
        "times-of-the-listing-believed",
        "_Renewal._renew",
        "blob_time.is_stamp(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime_ns)",
        "blob_time.is_stamp(status.st_mtime_ns)",
        f"{_TESTS}test_a_write_after_touch_has_listed_a_checkpoint_is_not_hidden",
        "assert",
    ),
    Mutant(
        "doctor reports remotes in directories that are often purged",
        "remotes-purged-quietly",
        "remote_report.check_remote_ages",
        'one.get("kind") == "directory"',
        "False",
        "tests/ops/report/test_doctor.py::test_a_remote_in_a_directory_that_is_often_purged_is_named",
        "not enough values",
    ),
]
