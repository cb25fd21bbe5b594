"""Mutants of what makes a resume exact, or says that it is not."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LATE = "tests/training/test_loader_that_begins_late.py::test_a_loader_that_draws_when_it_begins_goes_on_exactly"
_GENERATORS = "tests/training/test_generators.py::"
_PLAIN = (
    "tests/training/test_exact_resume.py::test_a_plain_loader_goes_on_exactly_after_an_epoch_or_the_report_names_it"
)
_ELASTIC = "tests/training/test_elastic_sampler.py::test_"
_RANKS = (
    "tests/training/test_training.py::test_each_rank_gets_its_own_random_states_and_one_more_is_told_that_it_has_none"
)

TRAINING = [
    Mutant(
        "random states are set after the data loader has drawn for its iterator",
        "loader-draws-last",
        "set_place",
        "begin(loader)",
        "pass",
        f"{_LATE}[3]",
        "assert resumed == expected",
    ),
    Mutant(
        "random states are read after the data loader has drawn for its iterator",
        "loader-draws-after-the-capture",
        "training.capture.capture",
        "        begin(dataloader)\n",
        "        pass\n",
        f"{_LATE}[0]",
        "Error",
    ),
    Mutant(
        "the generators of a data loader get their states after it has drawn from them",
        "generators-of-the-loader-set-first",
        "set_place",
        "    set_generators({path: generators[path] for path in paths}, {path: states[path] for path in paths})\n",
        "    pass\n",
        f"{_LATE}[3]",
        "assert resumed == expected",
    ),
    Mutant(
        "a data loader whose workers go on draws no seed at the next epoch",
        "persistent-workers-begin-again",
        "set_place",
        "iter(loader)",
        "pass",
        f"{_PLAIN}[after an epoch-none-persistent-generator]",
        "assert is_same",
    ),
    Mutant(
        "a data loader without a place that was saved inside an epoch is named",
        "inside-an-epoch-not-named",
        "_batches_read",
        "for members in _iterators(sampler) if not _is_exhausted(members)",
        "for members in _iterators(sampler) if False",
        f"{_PLAIN}[inside an epoch-none-0-generator]",
        "assert",
    ),
    Mutant(
        "a data loader that was saved between two epochs is exact",
        "between-epochs-named",
        "_is_exhausted",
        'return not members.get("_task_info")',
        "return False",
        f"{_PLAIN}[after an epoch-none-persistent-generator]",
        "assert",
    ),
    Mutant(
        "workers that go on and draw random numbers are named",
        "workers-that-go-on-not-named",
        "losses",
        " and not _draws_nothing(loader.dataset)",
        " and False",
        f"{_PLAIN}[after an epoch-global-persistent-generator]",
        "assert",
    ),
    Mutant(
        "a part that has its generator in its own state sets it last",
        "generators-set-after-the-parts",
        "_restore_from",
        "    target |= {name: part for name, part in parts.items() if name not in apart}\n",
        "    target = {**parts, **target}\n",
        f"{_GENERATORS}test_a_part_with_its_generator_in_its_own_state_sets_it_as_it_needs_it",
        "assert",
    ),
    Mutant(
        "the generators of the process belong to no part",
        "generators-of-the-process-as-parts",
        "find_generators",
        "set(map(id, _global_generators()))",
        "set[int]()",
        f"{_GENERATORS}test_generators_of_the_process_are_no_generators_of_a_part",
        "assert",
    ),
    Mutant(
        "a generator takes no state of another kind",
        "state-of-another-kind-set",
        "set_generators",
        'saved["kind"] != kind',
        "False",
        f"{_GENERATORS}test_generators_that_differ_or_have_no_state_are_named",
        "Error",
    ),
    Mutant(
        "a generator that the checkpoint has no state of is named",
        "generator-without-a-state-not-named",
        "set_generators",
        'differing.append(f"the checkpoint has no state of {name}, which was left as it is")',
        "pass",
        f"{_GENERATORS}test_generators_that_differ_or_have_no_state_are_named",
        "assert",
    ),
    Mutant(
        "parts that were not searched whole for generators are named",
        "unsearched-parts-not-named",
        "training.capture.capture",
        "not is_whole",
        "False",
        f"{_GENERATORS}test_parts_of_too_many_objects_are_named_at_the_capture_and_in_the_report",
        "DID NOT WARN",
    ),
    Mutant(
        "each rank gets the generators of its own parts, and the place of its own data loader",
        "states-of-rank-0-for-all",
        "_restore_from",
        'rank if rank in record["ranks"] else 0',
        "0",
        _RANKS,
        "assert",
    ),
    Mutant(
        "a sampler goes on after the samples that all ranks have read",
        "place-of-one-rank",
        "ElasticSampler._samples",
        "self._done_count + world_size",
        "self._done_count + 1",
        f"{_ELASTIC}each_sample_is_given_once_on_any_numbers_of_ranks",
        "assert",
    ),
    Mutant(
        "all ranks have as many samples unless the caller wants each once",
        "ranks-with-other-numbers-of-samples",
        "ElasticSampler._share",
        "begin - (begin - count) // world_size * world_size",
        "count",
        f"{_ELASTIC}all_ranks_have_as_many_samples_if_those_that_are_left_are_repeated_or_dropped",
        "assert",
    ),
    Mutant(
        "the place of a sampler holds for one iterator",
        "place-for-every-epoch",
        "ElasticSampler.__iter__",
        "self._begin_at or 0, None",
        "self._begin_at or 0, self._begin_at",
        f"{_ELASTIC}a_place_holds_for_the_next_iterator_and_for_its_own_epoch",
        "assert",
    ),
    Mutant(
        "a data loader that cannot take its place is refused before anything is loaded",
        "place-of-other-workers-loaded",
        "_restore_from",
        "misfit and strict",
        "False",
        "tests/training/test_loader_that_begins_late.py::test_a_loader_of_other_workers_is_refused_before_anything_is_loaded",
        "DID NOT RAISE",
    ),
    Mutant(
        "a search for generators runs no code of what it inspects",
        "search-runs-code",
        "_attributes",
        'object.__getattribute__(value, "__dict__")',
        'getattr(value, "__dict__", {})',
        f"{_GENERATORS}test_a_search_runs_no_code_of_what_it_inspects",
        "RuntimeError",
    ),
    Mutant(
        "with accelerate a data loader without a place that was saved inside an epoch is named",
        "inside-an-epoch-of-accelerate-not-named",
        "integrations.accelerate",
        "not any(map(is_inside_epoch, loaders))",
        "True",
        "tests/integrations/test_accelerate.py::"
        "test_a_loader_that_keeps_no_place_is_named_at_the_first_save_inside_an_epoch_with_what_does",
        "DID NOT WARN",
    ),
    Mutant(
        "samples of an epoch that are read a second time are counted",
        "samples-read-again-not-counted",
        "reading",
        'not place["read"] or ',
        'True or not place["read"] or ',
        f"{_PLAIN}[inside an epoch-none-0-generator]",
        "read a second time",
    ),
]
