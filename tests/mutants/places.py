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
        "        if device is None or os.fstat(below).st_dev == device:\n",
        "        if device is None or os.fstat(below).st_dev:\n",
        "tests/fs/test_inside.py::test_a_directory_of_another_filesystem_is_not_entered[unlink]",
        "DID NOT RAISE",
    ),
    Mutant(
        "a folder that is imported is read where its names are regular files only",
        "latest-followed",
        "history._named_latest",
        "        if not stat.S_ISREG(about.st_mode):\n",
        "        if not about.st_mode:\n",
        "tests/training/test_history.py::test_a_latest_that_is_no_small_file_is_left_alone_and_named[pipe]",
        "AssertionError",
    ),
    Mutant(
        "a log of a Trainer is read only if it is a file in the checkpoint",
        "log-followed",
        "history._metrics",
        ' and entry.kind == "file")',
        ")",
        "tests/training/test_history.py::test_a_log_that_is_a_symlink_gives_no_metrics_and_is_kept_as_a_symlink",
        "StateChanged",
    ),
    Mutant(
        "only what a stopped deletion left is deleted",
        "foreign-link-deleted",
        "history._delete",
        "        elif stat.S_ISREG(mode):\n",
        "        elif mode:\n",
        "tests/training/test_history.py::test_only_what_a_stopped_deletion_left_is_deleted",
        "AssertionError",
    ),
    Mutant(
        "in a folder of another program mounted filesystems are walked into",
        "foreign-mount-refused",
        "tree.foreign",
        "return Inside(os.path.abspath(path), is_foreign=True)",
        "return Inside(os.path.abspath(path))",
        "tests/fs/test_tree.py::test_a_folder_of_another_program_may_have_filesystems_mounted_in_it",
        "NotInStore",
    ),
    Mutant(
        "a number in a document has a greatest length",
        "long-numbers-read",
        "is_big_decimal",
        "len(text) > MAX_NUMBER_DIGITS + 1 or ",
        "",
        "tests/model/manifest/test_nodes.py::test_a_number_of_millions_of_digits_is_refused_at_once",
        "assert not True",
    ),
    Mutant(
        "a state larger than the caller allows is refused before memory is taken",
        "bound-ignored",
        "check_bound",
        "if max_bytes is not None and nbytes > max_bytes:",
        "if max_bytes == -1:",
        "tests/ops/read/test_claims.py::"
        "test_a_small_checkpoint_that_names_one_blob_many_times_is_refused_beyond_what_the_caller_allows",
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
    Mutant(
        "no read by the caller of an open checkpoint takes more than it allows",
        "tensor-unbounded",
        "OpenCheckpoint._read",
        "self._max_bytes, less)",
        "None, less)",
        "tests/ops/read/test_claims.py::"
        "test_no_tensor_slice_or_load_of_an_open_checkpoint_takes_more_than_the_caller_allows",
        "DID NOT RAISE",
    ),
    Mutant(
        "a file in a foreign folder that names the newest is read by its descriptor, and only if it is a small file",
        "latest-followed",
        "_named_latest",
        """\
        if not stat.S_ISREG(about.st_mode):
            skipped[name] = f"{kind_of(about.st_mode)} instead of a file"
            continue
        with _reading(base / name):
            try:
                text = files.read_file(base / name, most_bytes=_LATEST_MOST_BYTES).decode(errors="replace").strip()
""",
        """\
        with _reading(base / name):
            try:
                text = (base / name).path.read_text().strip()
""",
        "tests/training/test_history.py::test_a_latest_that_is_no_small_file_is_left_alone_and_named[symlink]",
        "cannot be read: Is a directory",
    ),
    Mutant(
        "the log of a trainer is read if it is a file, not a symlink",
        "log-followed",
        "history._metrics",
        """\
    if state.kind != "file" or state.nbytes > _STATE_MOST_BYTES:
        why = f"a {state.kind}" if state.kind != "file" else f"larger than {size_text(_STATE_MOST_BYTES)}"
        warn(f"{source.path.name} comes in without metrics: its {_STATE} is {why}, kept as it is and not read")
        return {}
    with _reading(state.where):
        content = state.content()
""",
        """\
    with _reading(state.where):
        content = state.where.path.read_bytes()
""",
        "tests/training/test_history.py::test_a_log_that_is_a_symlink_gives_no_metrics_and_is_kept_as_a_symlink",
        "DID NOT WARN",
    ),
    Mutant(
        "a transaction of fsspec in which everything was removed again makes no checkpoint",
        "empty-transaction-committed",
        "CheckpointTransaction.complete",
        "                if not staging.has_files():  # all that was written was removed again\n",
        "                if False:\n",
        "tests/integrations/test_fsspec.py::test_a_transaction_in_which_all_was_removed_again_makes_no_checkpoint",
        "Error",
    ),
]
