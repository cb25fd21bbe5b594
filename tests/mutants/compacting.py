"""Mutants of a compaction: what it lets go before it is sure, and what no reader could decode."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, law

_COMPACT = "tests/ops/compact/test_compact.py"
_FORMS = "tests/ops/compact/test_forms.py"
_REPAIR = "tests/ops/compact/test_repair.py"

COMPACTING = [
    Mutant(
        "after a directory that may not be durable nothing more is compacted or written",
        "compacting-after-a-failed-fsync",
        "_Compaction._publish",
        "            reclaim.abandon(self._context, staging, error)\n",
        "            reclaim.discard(self._context, staging, error)\n",
        f"{_COMPACT}::test_after_a_directory_that_could_not_be_made_durable_nothing_more_is_written",
        "DID NOT RAISE",
    ),
    Mutant(
        "an encoded form is read from the disk before the plain bytes go",
        "encoded-form-from-memory",
        "stage",
        "    back = direct.read_range(staging.path_of(digest), 0, len(data) + 1)\n",
        "    back = bytearray(data)\n",
        f"{_COMPACT}::test_what_the_disk_does_not_give_back_is_not_relied_on",
        "assert",
    ),
    Mutant(
        "an encoded form is decoded and compared before the plain bytes go",
        "encoded-form-not-compared",
        "stage",
        "    if algorithm_of(blob.digest).digest(plain) != blob.digest:\n",
        "    if not plain:\n",
        f"{_COMPACT}::test_what_decodes_to_other_bytes_is_not_relied_on",
        "assert",
    ),
    Mutant(
        "nothing is encoded from bytes that are not what their digest says",
        "encoded-from-rot",
        "BlobSource.read",
        "        if found != digest:\n",
        "        if not found:\n",
        f"{_COMPACT}::test_nothing_is_encoded_against_a_damaged_base",
        "assert",
    ),
    Mutant(
        "no blob is decoded with itself",
        "encoded-in-a-loop",
        "Forms.allows",
        "digest in path or any",
        "any",
        f"{_FORMS}::test_a_blob_is_not_decoded_with_itself",
        "assert",
    ),
    Mutant(
        "a path has eight encoded blobs at most",
        "path-of-any-depth",
        "Forms.allows",
        "depth <= PATH_MOST and path_bytes",
        "path_bytes",
        f"{_FORMS}::test_a_path_has_eight_encoded_blobs_at_most",
        "assert",
    ),
    Mutant(
        "a path has twice the plain bytes at most",
        "path-of-any-bytes",
        "Forms.allows",
        " and path_bytes <= PATH_TIMES * plain_bytes",
        "",
        f"{_FORMS}::test_a_path_has_twice_the_plain_bytes_at_most",
        "assert",
    ),
    Mutant(
        "the directory of a checkpoint has every file that it is decoded with",
        "base-not-linked",
        "Forms.encoding",
        "        path = self.path(sizes)\n",
        "        path = {digest: self._encoded.get(digest) for digest in sizes}\n",
        f"{_FORMS}::test_a_directory_has_every_file_of_a_path",
        "assert",
    ),
    Mutant(
        "a repair makes the name of a plain blob durable before a document has it",
        "plain-form-not-synced",
        "plain_form._put_plain",
        "    files.sync_directory(path / BLOBS)\n",
        "",
        law("repair_across_forms"),
        "N1 (",
    ),
    Mutant(
        "what a document names no more goes by way of trash",
        "leftovers-unlinked",
        "Staging.put_away",
        "        links.rename(name, self._temporary())\n",
        "        links.unlink(name)\n",
        law("repair_across_forms"),
        "T1 (",
    ),
    Mutant(
        "what a document names no more stays while a process may decode with it",
        "leftovers-of-a-reader",
        "plain_form.put_leftovers_away",
        "        lock = locks.try_exclusive(path)\n",
        "        lock = locks.lock_shared(path)\n",
        f"{_REPAIR}::test_what_a_reader_may_be_decoding_with_stays_until_the_next_repair",
        "assert",
    ),
    Mutant(
        "a repair says which checkpoints it passed over",
        "held-not-said",
        "Verification._survey",
        "(done.held if done else {})",
        "{}",
        f"{_REPAIR}::test_a_repair_says_which_checkpoint_it_passed_over_since_another_process_has_it",
        "assert",
    ),
]
