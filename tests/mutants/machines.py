"""Mutants that take other users, limits of memory or quotas for what they are not."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_USERS = "tests/machines/test_other_users.py"
_QUOTAS = "tests/machines/test_quotas.py"
_MEMORY = "tests/machines/test_memory_limits.py"
_CLOSED = f"{_USERS}::test_a_checkpoint_that_is_closed_to_a_user_stops_no_other_one"

MACHINES = [
    Mutant(
        "files that root makes in a store belong to the owner of the directory",
        "root-keeps-its-files",
        "give_to_owner_of",
        "        os.fchown(fd, owner.st_uid, owner.st_gid)\n",
        "        pass\n",
        f"{_USERS}::test_all_that_root_makes_in_a_users_store_is_the_users",
        "assert",
    ),
    Mutant(
        "lists skip checkpoints that the user may not read",
        "closed-stops-a-list",
        "OpenDir.look_into",
        "                    except PermissionError:\n                        continue\n",
        "",
        f"{_CLOSED}[checkpoint]",
        "Permission denied",
    ),
    Mutant(
        "runs that the user may not read are skipped",
        "closed-run-stops-a-list",
        "Layout.listed",
        "        except PermissionError:\n",
        "        except FileExistsError:\n",
        f"{_CLOSED}[run]",
        "Permission denied",
    ),
    Mutant(
        "a checkpoint that the user may not read is not replaced as damaged",
        "closed-replaced",
        "_sound_of_step",
        '        if looked.is_closed and rule != "replace":\n',
        "        if looked.is_closed and not looked.problem:\n",
        f"{_CLOSED}[manifest]",
        "assert",
    ),
    Mutant(
        "free space is tested by an allocation, since statfs shows no quota",
        "full-by-statfs-only",
        "reserve.is_full",
        "    return not files.has_room(layout.reserve, LEAST_BYTES)\n",
        "    return False\n",
        f"{_QUOTAS}::test_a_quota_that_statfs_does_not_show_is_lived_with[EDQUOT]",
        "is full",
    ),
    Mutant(
        "a failed save that cannot be renamed is moved to trash once the reserve is freed",
        "staging-left-by-quota",
        "reclaim._moved",
        "        if error.errno not in files.NO_SPACE:\n            raise\n        return None\n",
        "        raise\n",
        f"{_QUOTAS}::test_a_quota_of_btrfs_is_lived_with_where_a_rename_needs_space_too",
        "assert",
    ),
    Mutant(
        "an SQLite error on a full disk is reported as a full disk",
        "full-catalog-called-broken",
        "_translated",
        "        if code in _FULL and (code",
        "        if code not in _FULL and (code",
        f"{_QUOTAS}::test_an_error_of_sqlite_on_a_full_disk_is_said_as_that",
        "CatalogUnavailable",
    ),
    Mutant(
        "available memory is checked before a snapshot is made",
        "snapshot-unasked",
        "Snapshot.__init__",
        "        if found is not None and self.nbytes",
        "        if found is None and self.nbytes",
        f"{_MEMORY}::test_a_snapshot_that_does_not_fit_is_refused_before_a_page_is_touched",
        "memory was made",
    ),
    Mutant(
        "control groups of version 1 are also checked",
        "version-1-unasked",
        "memory._of_groups",
        "files, paths = _VERSION_1,",
        "files, paths = _VERSION_2,",
        f"{_MEMORY}::test_version_1_is_asked_as_version_2_is",
        "assert",
    ),
]
