"""Mutants that believe the catalog where the directories decide (rule D)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROWS = "tests/ops/index/test_rows_decide_nothing.py"
_ORDER = "tests/ops/save/test_out_of_order.py"
_WRONG = "tests/ops/index/test_wrong_rows.py"

_LONG = "tests/ops/refs/test_long_runs.py"
_TAGS = "tests/ops/refs/test_doubtful_tags.py"

DECIDING = [
    Mutant(
        "the two names of a checkpoint in a tag agree",
        "tags-by-their-first-name",
        "_TEXT_TWICE",
        r"/\.\./\1/([^/]+)/\.\./\2\Z",
        r"/\.\./[^/]+/([^/]+)/\.\./[^/]+\Z",
        "tests/model/checkpoint/test_tag.py::test_no_flipped_bit_makes_a_tag_name_another_checkpoint",
        "assert",
    ),
    Mutant(
        "while a tag cannot be read nothing is planned to be dropped",
        "doubtful-tags-planned-over",
        "_history",
        "    check_tags(context.layout)\n",
        "",
        f"{_TAGS}::test_while_a_tag_cannot_be_read_nothing_is_dropped",
        "DID NOT RAISE",
    ),
    Mutant(
        "while a tag cannot be read nothing is dropped",
        "doubtful-tags-dropped-over",
        "check_unprotected",
        "    check_tags(context.layout)\n",
        "",
        f"{_TAGS}::test_while_a_tag_cannot_be_read_nothing_is_dropped",
        "DID NOT RAISE",
    ),
    Mutant(
        "a tag that names once a checkpoint that is not there is doubtful",
        "dangling-tags-believed",
        "_doubt",
        "    if not target.twice and layout",
        "    if target is None and layout",
        f"{_TAGS}::test_while_a_tag_cannot_be_read_nothing_is_dropped",
        "DID NOT RAISE",
    ),
    Mutant(
        "what is dropped, and what outranks it, is read from the manifests",
        "rows-drop",
        "_plan",
        "            if sure:\n                facts = _read(context, facts)\n",
        "",
        f"{_ROWS}::test_retention_keeps_the_best_whatever_the_metrics_of_a_row_are",
        "assert",
    ),
    Mutant(
        "what the catalog proposes as the newest is looked at",
        "proposals-believed",
        "propose",
        "    if any(published[place] != stamp for place, stamp in found.newest.stamps.items()):\n",
        "    if found is None:\n",
        f"{_LONG}::test_a_newest_whose_manifest_was_changed_is_looked_at",
        "assert",
    ),
    Mutant(
        "in a long run a name that the catalog does not know is looked at",
        "unknown-names-left-out",
        "Catalog",
        "for step in map(step_of, names) if step is not None)",
        "for step in map(step_of, names) if step is None)",
        f"{_LONG}::test_what_is_there_is_said_at_once",
        "assert",
    ),
    Mutant(
        "a plan that believed the catalog drops nothing",
        "shown-plans-applied",
        "carry_out",
        "    if to_do.shown_only:  # rule D: what drops a checkpoint was read from its manifest\n",
        "    if to_do.now is None:\n",
        f"{_LONG}::test_a_plan_that_is_only_shown_is_not_applied",
        "DID NOT RAISE",
    ),
    Mutant(
        "what has no readable manifest is kept",
        "unreadable-dropped",
        "retain._read",
        "        return replace(candidate, damage=error.message, doubt=",
        "        return replace(candidate, damage=error.message, in_use=False and ",
        f"{_ROWS}::test_what_has_no_readable_manifest_is_not_dropped",
        "assert",
    ),
    Mutant(
        "checksum of a row",
        "rows-without-checksum",
        "IS_RIGHT",
        'IS_RIGHT = f"(checksum IS {CHECKSUM})"\n',
        'IS_RIGHT = "(1)"\n',
        f"{_WRONG}::test_opening_says_which_rows_it_wrote_again",
        "DID NOT WARN",
    ),
    Mutant(
        "inode and times of the manifest that a row was made from",
        "rows-by-inode-of-the-directory",
        "queries.infos",
        "if published.get((row[1], row[2])) == stamp]",
        "if (there := published.get((row[1], row[2]))) and there.dir_inode == stamp.dir_inode]",
        f"{_WRONG}::test_a_directory_that_was_replaced_by_hand_is_seen_at_once",
        "assert",
    ),
    Mutant(
        "the manifest of the newest, and the one written last, are read",
        "newest-by-rows",
        "newest",
        "        suspects = {info.name: info for info in (*found, *last)}\n",
        "        suspects: dict[str, CheckpointInfo] = {}\n",
        f"{_ORDER}::test_whatever_number_a_row_has_the_manifest_counts",
        "assert",
    ),
    Mutant(
        "a sequence number comes after those of the manifests",
        "sequence-by-rows",
        "greatest",
        "            suspects = {by_order[-1], by_time[-1]} - self._checked\n",
        "            suspects: set[Place] = set()\n",
        f"{_ORDER}::test_the_next_number_comes_after_those_of_the_manifests",
        "assert",
    ),
    Mutant(
        "a sequence number far beyond the others does not count",
        "any-sequence-counts",
        "greatest_in_order",
        "        if sequence - last > WIDEST_GAP:\n            break\n",
        "",
        f"{_ORDER}::test_a_number_far_beyond_all_others_is_not_the_newest_and_no_save_comes_after_it",
        "assert",
    ),
    Mutant(
        "a piece that the catalog names is looked at",
        "pieces-believed",
        "_pieces_are_there",
        "        if len(found) != place.length or context.algorithm.digest(found) != digest:\n",
        "        if not found.contiguous:\n",
        f"{_ROWS}::test_what_is_saved_is_loaded_whatever_the_index_says_of_pieces",
        "DamagedBlob",
    ),
    Mutant(
        "a piece lies inside its blob",
        "pieces-from-the-end",
        "_may_be_there",
        "    return place.length == nbytes and place.offset >= 0 and place.offset + nbytes <= place.blob_nbytes\n",
        "    return True\n",
        f"{_ROWS}::test_a_place_counted_from_the_end_is_not_used",
        "offset",
    ),
]
