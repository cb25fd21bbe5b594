"""Mutants that let one member of a group decide about the checkpoints of another one."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RULES = "tests/ops/free/test_members_rules.py"
_OFFERED = (
    "tests/ops/test_group.py::test_damage_that_one_member_finds_in_a_blob_of_the_other_is_not_offered_to_saves_again"
)

MEMBERS = [
    Mutant(
        "du reports the owners of the files on the disk",
        "du-without-users",
        "report.usage.usage_of",
        "        by_user[file.uid] += file.nbytes\n",
        "        by_user[0] += file.nbytes\n",
        "tests/ops/report/test_usage.py::test_du_says_whose_the_files_on_the_disk_are",
        "assert",
    ),
    Mutant(
        "a base that another user saved is stored once for all runs of a user",
        "base-once-a-run",
        "Staging._saved_by_us",
        "            self._saved += [path for run in latest for path in self._saved_in(run, 1)]\n",
        "",
        "tests/ops/test_group.py::test_a_base_that_another_member_saved_is_stored_once_for_all_runs_of_a_member",
        "assert",
    ),
    Mutant(
        "a file in quarantine is not linked to its canonical name again",
        "quarantined-offered-again",
        "heal._link",
        "        if dirfd_stat.exists(_aside(layout, copy.name, status)):  # damaged, in whatever checkpoint it is\n"
        "            return False\n",
        "",
        f"{_OFFERED}[owner first-umask 077]",
        "store.verify(",
    ),
    Mutant(
        "a process that blocks gc by a shared lock is not reported as a gc",
        "reader-called-gc",
        "gc._kept_out",
        "    if found and all(one.is_shared for one in found):\n",
        "    if found is None:\n",
        "tests/ops/free/test_lock_holders.py::test_a_gc_that_is_kept_out_names_the_process",
        "Regex pattern did not match",
    ),
    Mutant(
        "a timeout of a lock names its holder",
        "lock-holder-unnamed",
        "locks._wait_for",
        'named_holders(os.fstat(fd)) if pause_s > _POLL_FIRST_S else ""',
        '""',
        "tests/ops/free/test_lock_holders.py::test_a_setting_names_the_process_that_has_the_store_locked",
        "Regex pattern did not match",
    ),
    Mutant(
        "saves of other users do not apply the rule of a member",
        "rule-by-anyone",
        "rule_scopes",
        '"own" if author == own else "none"',
        '"own"',
        f"{_RULES}::test_the_saves_of_other_users_do_not_carry_out_the_rule_of_a_member",
        "assert",
    ),
    Mutant(
        "the rule of a member applies to the checkpoints of that member",
        "rule-for-all",
        "retain._is_own",
        "found.st_uid == dirfd_stat.current_user()",
        "found.st_uid >= 0",
        f"{_RULES}::test_a_budget_of_a_member_counts_and_drops_what_that_member_saved",
        "assert",
    ),
    Mutant(
        "under the sticky bit the owner of config.json set its rules",
        "sticky-believes-file",
        "rule_scopes",
        "    if root.st_mode & stat.S_ISVTX:\n",
        "    if root.st_mode < 0:\n",
        f"{_RULES}::test_under_the_sticky_bit_the_owner_of_the_file_set_the_rule_whatever_it_says",
        "assert",
    ),
    Mutant(
        "the author of a rule is recorded with it",
        "rule-without-author",
        "_note_author",
        "            authors[name] = uid\n",
        "            pass\n",
        f"{_RULES}::test_the_saves_of_other_users_do_not_carry_out_the_rule_of_a_member",
        "assert",
    ),
    Mutant(
        "gc --now ends the undo only of the member's own checkpoints",
        "purge-of-all",
        "may_purge",
        "    return found is not None and dirfd_stat.current_user() in (0, found.st_uid)\n",
        "    return found is not None\n",
        f"{_RULES}::test_gc_now_of_a_member_ends_the_undo_of_that_member_alone",
        "assert",
    ),
    Mutant(
        "gc --now keeps superseded checkpoints of other users for their window",
        "purge-of-superseded",
        "superseded_checkpoints._is_over",
        "purge and trash.may_purge(path)",
        "purge",
        f"{_RULES}::test_gc_now_of_a_member_leaves_superseded_checkpoints_of_other_members",
        "assert",
    ),
    Mutant(
        "blobs that another member pulled back are not reported as linked outside the store",
        "pulled-back-by-another",
        "gc_plan.linked_outside",
        " - {digest for digests in inside.values() for digest in digests}",
        "",
        "tests/ops/test_group.py::test_blobs_that_another_member_pulled_back_do_not_count_as_linked_outside"
        "[owner first-umask 077]",
        "assert",
    ),
    Mutant(
        "a budget counts equal blobs of several users as often as they are stored",
        "budget-by-digest",
        "retain._blobs",
        """{f"{status.st_dev}:{status.st_ino}": status.st_size for _, status in found}""",
        "{name: status.st_size for name, status in found}",
        f"{_RULES}::test_a_budget_counts_each_file_of_equal_content",
        "assert",
    ),
    Mutant(
        "gc passes over a directory that a save of another member has not opened to the group",
        "closed-staging-stops-gc",
        "_Names._loose",
        "            with suppress(PermissionError):\n",
        "            if True:\n",
        "tests/ops/test_group.py::"
        "test_a_save_that_died_before_it_opened_its_directory_to_the_group_stops_no_gc[owner first-umask 077]",
        "gc stopped: Permission denied",
    ),
    Mutant(
        "the budget of a member is exceeded only by that member's data",
        "budget-of-others",
        "make_room._used_bytes",
        "own_only=own_only)",
        "own_only=False)",
        f"{_RULES}::test_the_budget_of_a_member_drops_nothing_while_only_others_exceed_it",
        "assert",
    ),
]
