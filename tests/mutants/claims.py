"""Guards of what a store let go of: who relies on bytes at a remote, and who may remove them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CLAIMS = "tests/remote/test_claims.py"

CLAIMS = [
    Mutant(
        "an eviction claims the checkpoint before it looks at the remote",
        "evict-unclaimed",
        "_OfObjects.claim",
        "        for_each(claim, wanted, threads=self._manner.threads, stopping=objects.close)\n",
        "",
        f"{_CLAIMS}::test_another_store_removes_nothing_that_one_relies_on[True]",
        "assert",
    ),
    Mutant(
        "after its claim an eviction looks for the mark of a removal",
        "evict-ignores-removal",
        "_OfObjects.lacks",
        "if objects.head(place.manifest) is None or objects.head(place.dropped) is not None:",
        "if False:",
        f"{_CLAIMS}::test_a_removal_beside_an_eviction_loses_nothing[claim]",
        "assert",
    ),
    Mutant(
        "a removal looks for claims after it wrote its mark",
        "removal-ignores-claims",
        "keep_remote.remove_there",
        "for place in {*places} - {claim.place for claim in claims}:",
        "for place in places:",
        f"{_CLAIMS}::test_a_removal_sees_a_claim_that_was_written_after_it_looked_first",
        "NoSuchRef",
    ),
    Mutant(
        "keep_remote does not choose what another store relies on",
        "plan-ignores-claims",
        "KeepRemote._candidates",
        'wanted_by=stays.get(place.id, "") or claimed.get(place, ""),',
        'wanted_by=stays.get(place.id, ""),',
        f"{_CLAIMS}::test_another_store_s_plan_says_who_relies_on_a_checkpoint",
        "assert",
    ),
    Mutant(
        "a claimed checkpoint exists, whatever mark is beside it",
        "claimed-is-removed",
        "ObjectSource.listed",
        "            dropped -= {claim.place for claim in claims_at(self._objects)}\n",
        "            pass\n",
        f"{_CLAIMS}::test_a_removal_sees_a_claim_that_was_written_after_it_looked_first",
        "Error",
    ),
    Mutant(
        "a claim names the blobs of a checkpoint whose manifest is gone",
        "claims-name-nothing",
        "Survey.named",
        "            found.update(() if said is None else said.blobs)\n",
        "            pass\n",
        f"{_CLAIMS}::test_a_claim_keeps_the_blobs_of_a_manifest_that_a_late_removal_hit",
        "Error",
    ),
    Mutant(
        "a claim stays while the checkpoint can be brought back",
        "claim-of-dropped-ends",
        "claims._is_needed",
        "(_listed(context, claim.place), _dropped(context, claim.place), _listed(context, claim.place))",
        "(_listed(context, claim.place), ())",
        f"{_CLAIMS}::test_what_can_be_brought_back_stays_there_until_it_cannot",
        "assert",
    ),
    Mutant(
        "a claim ends when the bytes are back",
        "claim-for-ever",
        "transfer.pull",
        "if work.brought_back and isinstance(there, Remote):",
        "if False:",
        f"{_CLAIMS}::test_a_claim_ends_when_the_bytes_are_back",
        "assert",
    ),
    Mutant(
        "a checkpoint that keeps its bytes says so, and has no claim",
        "claim-of-refused-stays",
        "evict._take_back",
        "    attest.end_claim(place_of(one.info), one.holder.claim)\n",
        "",
        f"{_CLAIMS}::test_an_eviction_that_the_remote_refuses_leaves_no_claim",
        "assert",
    ),
    Mutant(
        "a checkpoint that lacks bytes says where they are, whatever failed",
        "word-taken-back-too-late",
        "evict._take_back",
        "        if not here.issuperset(blob.digest for blob in one.blobs):\n            return\n",
        "",
        "tests/remote/test_evict.py::test_an_eviction_that_fails_at_any_step_leaves_a_checkpoint_that_reads[touch]",
        "MissingBlob",
    ),
]
