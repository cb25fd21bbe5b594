"""Mutants of loads into modules whose parts load in a way of their own."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SINCE = "tests/integrations/test_dcp_since.py"
_PARTS = "tests/tensors/targets/test_own_loaders.py"
_REPORTED = "tests/ops/read/test_own_loaders.py::test_what_parts_report_is_a_difference_and_all_parts_are_as_they_were"

LOADING = [
    Mutant(
        "missing and unexpected keys that a part reports are differences",
        "reports-of-parts-ignored",
        "Attempt.run",
        "self._report(missing, unexpected)",
        "self._report([], [])",
        _REPORTED,
        "DID NOT RAISE",
    ),
    Mutant(
        "if a part's report refuses a load, all parts are restored",
        "refused-parts-stay-loaded",
        "_load_into_open",
        "        plan.undo()\n",
        "        pass\n",
        _REPORTED,
        "assert",
    ),
    Mutant(
        "if a part raises, all parts loaded before are restored",
        "parts-before-stay-loaded",
        "IntoPlan.attempt",
        "            self.undo()\n",
        "            pass\n",
        f"{_PARTS}::test_if_one_part_refuses_all_that_were_loaded_before_are_put_back",
        "assert",
    ),
    Mutant(
        "values of tensors are also restored",
        "values-stay-loaded",
        "_Value.put_back",
        "            tensor.copy_(data)\n",
        "            pass\n",
        f"{_PARTS}::test_a_snapshot_puts_back_values_shapes_attributes_and_extra_state",
        "assert",
    ),
    Mutant(
        "a tensor whose parts are not loaded stays unchanged",
        "weight-without-its-quantization",
        "_Module.compare",
        " and key not in lost",
        "",
        f"{_PARTS}::test_parts_of_a_quantized_weight_are_named_and_the_weight_is_left_alone",
        "assert",
    ),
    Mutant(
        "extra state of any shape is passed to `set_extra_state`",
        "extra-state-compared",
        "_loads_its_own",
        "    if has_extra_state(part) or not all(plain):\n",
        "    if not all(plain):\n",
        "tests/ops/read/test_own_loaders.py::test_every_kind_that_torch_loads_is_loaded[scales]",
        "_extra_state",
    ),
    Mutant(
        "a weight quantized with another context is not filled",
        "quantized-otherwise-filled",
        "_unlike",
        "    if walk.refused or own != found:\n",
        "    if walk.refused:\n",
        "tests/tensors/targets/test_into_parts.py::test_a_module_that_is_quantized_otherwise_is_not_touched",
        "StopIteration",
    ),
    Mutant(
        "the state of an object is not computed only for a comparison",
        "target-asked-for-its-state",
        "_TargetWalk._stateful",
        "        make = self.comparison.new(node)\n",
        "        make = self.comparison.new(node)\n        target.state_dict()\n",
        "tests/tensors/targets/test_into.py::test_an_object_is_handed_its_value_and_asked_for_nothing",
        "only a save asks for a state",
    ),
    Mutant(
        "pieces of tiles are held only if the tiling is equal",
        "held-in-another-tiling",
        "_pairs",
        " or before.storages[old_storage].tiling != after.storages[storage].tiling",
        "",
        f"{_SINCE}::test_equal_pieces_at_other_places_are_read",
        "AssertionError",
    ),
    Mutant(
        "after damage, ranks read all pieces of the earlier checkpoint",
        "held-after-damage",
        "load",
        "since=None if begun else since",
        "since=since",
        f"{_SINCE}::test_after_damage_nothing_counts_as_held",
        "assert",
    ),
    Mutant(
        "what a reader knows of its tensors is for one load",
        "held-by-the-next-load",
        "CkstoreReader.read_data",
        "before, self._before = self._before, None",
        "before = self._before",
        f"{_SINCE}::test_since_is_for_one_load_of_a_reader",
        "assert",
    ),
    Mutant(
        "ranks know which tensors their last load has read",
        "held-without-a-load",
        "_read",
        "TargetContent(manifest, None, None, names)",
        "TargetContent(manifest, None, None, None)",
        f"{_SINCE}::test_values_that_did_not_fit_before_are_read",
        "assert",
    ),
    Mutant(
        "of converted values, a block is read as a whole",
        "held-in-a-converted-block",
        "_read_tensor",
        "held = frozenset()",
        "pass",
        f"{_SINCE}::test_a_converted_block_is_read_as_a_whole",
        "AssertionError",
    ),
]
