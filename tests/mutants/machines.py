"""Mutants that take other users, limits of memory or quotas for what they are not."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_USERS = "tests/machines/test_other_users.py"
_CLOSED = f"{_USERS}::test_a_checkpoint_that_is_closed_to_a_user_stops_no_other_one"

MACHINES = [
    Mutant(
        "what root makes in a store belongs to the owner of the directory",
        "root-keeps-its-files",
        "give_to_owner_of",
        "        os.fchown(fd, owner.st_uid, owner.st_gid)\n",
        "        pass\n",
        f"{_USERS}::test_all_that_root_makes_in_a_users_store_is_the_users",
        "assert",
    ),
    Mutant(
        "a checkpoint that is closed to a user is passed over where many are listed",
        "closed-stops-a-list",
        "Held.look_into",
        "                    except PermissionError:\n                        continue\n",
        "",
        f"{_CLOSED}[checkpoint]",
        "Permission denied",
    ),
    Mutant(
        "a run that is closed to a user is passed over",
        "closed-run-stops-a-list",
        "Layout._of_run",
        "        except PermissionError:\n",
        "        except FileExistsError:\n",
        f"{_CLOSED}[run]",
        "Permission denied",
    ),
    Mutant(
        "a checkpoint that is closed to a user is not taken for a damaged one that a save may replace",
        "closed-replaced",
        "_existing_to_keep",
        "    if found.is_closed:\n",
        "    if found.is_closed and not found.problem:\n",
        f"{_CLOSED}[manifest]",
        "assert",
    ),
]
