"""Mutants that follow a path, or a name, to where another user may have put something (rule N)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PLACES = [
    Mutant(
        "directories on the way are opened without following a symlink",
        "symlink-followed",
        "open_below",
        "how | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd",
        "how | os.O_DIRECTORY, dir_fd=fd",
        "tests/fs/test_inside.py::test_a_directory_swapped_for_a_symlink_is_not_followed",
        "DID NOT RAISE",
    ),
    Mutant(
        "the same, at every call of an act beside a neighbour",
        "symlink-followed-in-an-act",
        "open_below",
        "how | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd",
        "how | os.O_DIRECTORY, dir_fd=fd",
        "tests/faults/test_races.py::test_a_directory_that_is_swapped_at_any_call_leads_nowhere[gc]",
        "was touched",
    ),
    Mutant(
        "directories on the way are of the filesystem of the store",
        "mount-entered",
        "open_below",
        "        if os.fstat(below).st_dev == device:\n",
        "        if os.fstat(below).st_dev:\n",
        "tests/fs/test_inside.py::test_a_directory_of_another_filesystem_is_not_entered[unlink]",
        "DID NOT RAISE",
    ),
    Mutant(
        "a new directory gets its mode by a descriptor",
        "mode-given-by-path",
        "_give_owner_and_mode",
        "    made = open_directory(path, flags=os.O_NOFOLLOW)\n",
        "    made = open_directory(str(path))\n",
        "tests/fs/test_inside.py::test_the_mode_of_a_new_directory_is_not_given_to_what_was_put_in_its_place",
        "DID NOT RAISE",
    ),
    Mutant(
        "one component at a time",
        "two-components-at-once",
        "CheckpointDirectory._opened",
        "files.open_with_status(self.blobs.inside / digest)",
        'files.open_with_status(f"{BLOBS}/{digest}", dir_fd=self.lock.fd)',
        "tests/faults/test_paths.py::test_no_act_gives_the_kernel_a_path_below_the_root[load_marks]",
        "more than one component",
    ),
    Mutant(
        "what is nested deep in trash is moved up, not walked into",
        "deep-trash-left",
        "collector._contents",
        "            waiting.append(up)\n",
        "            pass\n",
        "tests/ops/test_deep.py::test_opening_and_gc_take_apart_what_is_nested_deep",
        "assert",
    ),
]
