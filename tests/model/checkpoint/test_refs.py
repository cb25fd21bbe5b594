"""A ref names one checkpoint, or an error says what there is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import AmbiguousRef, BadInput, CkstoreError, NoSuchRef
from ckstore.model.checkpoint.refs import Ref, newest_first, parse_ref, resolve
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey, check_tag


def info(run: str, step: int, sequence: int, digits: str = "") -> CheckpointInfo:
    manifest_id = f"xxh3-{digits or f'{hash((run, step)) % 16**32:x}':0<32}"
    return CheckpointInfo(
        id=manifest_id,
        run=run,
        step=step,
        sequence=sequence,
        created="2026-11-21T09:30:00.000000Z",
        logical_bytes=0,
        new_bytes=0,
        reused_bytes=0,
        leaf_count=0,
        content="",
    )


def _is_tag(text: str) -> bool:
    try:
        check_tag(text)
    except BadInput:
        return False
    return True


runs = st.sampled_from(["main", "a", "b.c-d", "100", "latest"])
tag_names = st.text("abxyz.-_019", min_size=1, max_size=5).filter(_is_tag)


@st.composite
def stores(draw: st.DrawFn) -> list[CheckpointInfo]:
    """Draw checkpoints in any order, with ids that often begin alike."""
    names = draw(st.lists(st.tuples(runs, st.integers(0, 9) | st.just(1000000)), min_size=1, max_size=8, unique=True))
    order = draw(st.permutations(range(1, len(names) + 1)))
    starts = st.sampled_from(["abcdef", "abcdef0", "1000000", "123456"])
    return [
        info(run, step, sequence, draw(starts) + f"{i:02x}")
        for i, ((run, step), sequence) in enumerate(zip(names, order, strict=True))
    ]


@given(store=stores())
def test_every_checkpoint_is_found_by_run_and_step_and_by_its_id(store: list[CheckpointInfo]) -> None:
    for checkpoint in store:
        for text in (checkpoint.name, checkpoint.id, f"{checkpoint.run}@{checkpoint.id}", checkpoint.id[5:].upper()):
            assert resolve(parse_ref(text), store, {}) is checkpoint


@given(store=stores(), at=st.integers(0, 7), tag=tag_names)
def test_a_tag_is_what_it_points_to(store: list[CheckpointInfo], at: int, tag: str) -> None:
    checkpoint = store[at % len(store)]
    tags = {tag: checkpoint.key}

    assert resolve(parse_ref(tag), store, tags) is checkpoint
    assert resolve(parse_ref(f"{checkpoint.run}@{tag}"), store, tags) is checkpoint


@given(store=stores())
def test_latest_is_the_last_commit_and_not_the_greatest_step(store: list[CheckpointInfo]) -> None:
    assert resolve(parse_ref("latest"), store, {}).sequence == max(c.sequence for c in store)
    for run in {c.run for c in store}:
        own = [c.sequence for c in store if c.run == run]
        found = resolve(parse_ref(f"{run}@latest"), store, {})
        assert (found.run, found.sequence) == (run, max(own))
        assert [c.sequence for c in newest_first(store, run)] == sorted(own, reverse=True)


@given(store=stores(), step=st.integers(0, 9) | st.just(1000000))
def test_a_bare_step_is_of_the_only_run_else_of_main(store: list[CheckpointInfo], step: int) -> None:
    names = {c.run for c in store}
    run = names.copy().pop() if len(names) == 1 else "main"
    expected = [c for c in store if (c.run, c.step) == (run, step)]
    try:
        found: object = resolve(parse_ref(str(step)), store, {})
    except AmbiguousRef as error:
        found = error
    except NoSuchRef:
        found = None

    if expected:
        assert found is expected[0]
    elif len(names) > 1 and "main" not in names and any(c.step == step for c in store):
        assert isinstance(found, AmbiguousRef)
    elif step < 100000:  # too few digits to be an id
        assert found is None
    elif isinstance(found, CheckpointInfo):
        assert found.id.startswith(f"xxh3-{step}")


@given(store=stores(), digits=st.sampled_from(["abcdef", "abcdef0", "ABCDEF00", "xxh3-abcdef", "123456", "fedcba"]))
def test_the_first_digits_of_an_id_name_one_or_are_refused(store: list[CheckpointInfo], digits: str) -> None:
    fitting = [c for c in store if c.id.startswith("xxh3-" + digits.lower().removeprefix("xxh3-"))]
    if len(fitting) == 1:
        assert resolve(parse_ref(digits), store, {}) is fitting[0]
        return
    with pytest.raises(AmbiguousRef if fitting else NoSuchRef) as caught:
        resolve(parse_ref(digits), store, {})

    if 0 < len(fitting) <= 4:
        assert all(c.name in str(caught.value) for c in fitting)


@given(text=st.text(max_size=12) | st.text("0123456789abcdef@-._latestvidmnxh", max_size=12), store=stores())
def test_any_text_is_a_checkpoint_or_a_typed_error(text: str, store: list[CheckpointInfo]) -> None:
    try:
        ref = parse_ref(text)
    except BadInput:
        return
    if "@" in text:
        assert ref.run == text.split("@", maxsplit=1)[0]
    assert str(ref).lower() == text.lower()
    try:
        found = resolve(ref, store, {})
    except CkstoreError:
        return
    assert ref.run in (None, found.run)


STORE = [info("exp", 100 * n, n + 1, f"{n}aaaaaa") for n in range(10)] + [info("other", 100, 11, "bbbbbb1")]
TAGS = {"best": STORE[3].key, "gone": CheckpointKey("exp", 350, "350.0123456789"), "baseline": STORE[10].key}


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "exp@340",
            r"^exp@340: there is no step 340 of the run 'exp', the nearest being exp@200, exp@300, exp@400, exp@500",
        ),
        ("xep@100", r"^xep@100: there is no run 'xep', only exp, other \(the run is the part before @"),
        ("bset", r"^bset: there is no tag 'bset', only best, baseline, gone \(the newest is other@100\)$"),
        ("exp", r"^exp is a run, not a tag \(write exp@latest or exp@STEP\)$"),
        ("lastest", r"^lastest: there is no tag 'lastest', .* \(did you mean latest\?\)$"),
        ("exp@latst", r"^exp@latst: there is no tag 'latst', .* \(did you mean exp@latest\?\)$"),
        ("exp@100-300", r"^exp@100-300: .* \(where several refs are allowed, a range is exp@100..300\)$"),
        ("gone", r"^gone: the tag 'gone' names exp@350, which is missing or incomplete"),
        ("other@best", r"^other@best: the tag 'best' names exp@300, which is in another run \(write best\)$"),
        (
            "other@300",
            r"^other@300: there is no step 300 of the run 'other', the nearest being other@100 \(write exp@300",
        ),
        ("ffffff", r"^ffffff: no id begins with these digits, the newest are bbbbbb1000 \(other@100\), .* and 7 more"),
        ("7777777", r"^7777777: there is no step 7777777, the nearest being exp@600, exp@700, exp@800, exp@900"),
    ],
)
def test_a_miss_says_what_there_is(text: str, message: str) -> None:
    with pytest.raises(NoSuchRef, match=message):
        resolve(parse_ref(text), STORE, TAGS)


def test_an_empty_store_and_a_store_without_tags_say_so() -> None:
    with pytest.raises(NoSuchRef, match=r"^latest: the store has no checkpoints"):
        resolve(parse_ref("latest"), [], {})
    with pytest.raises(NoSuchRef, match="there is no tag 'best', and no other tag exists"):
        resolve(parse_ref("best"), STORE, {})


def test_a_step_of_several_runs_lists_them() -> None:
    with pytest.raises(AmbiguousRef, match=r"it may be exp@100 or other@100 \(write exp@100\)$"):
        resolve(parse_ref("100"), STORE, TAGS)


def test_a_step_that_only_another_run_than_main_has_is_named_in_the_hint() -> None:
    store = [*STORE, info("main", 5, 12, "cccccc")]
    with pytest.raises(NoSuchRef, match=r"no step 300 of the run 'main', the nearest being main@5 \(write exp@300 for"):
        resolve(parse_ref("300"), store, TAGS)


def test_digits_are_a_step_first_and_an_id_then() -> None:
    by_id = info("main", 1, 1, "1234567")
    by_step = info("main", 123456, 2, "abcdefa")

    assert resolve(parse_ref("123456"), [by_id, by_step], {}) is by_step
    assert resolve(parse_ref("123456"), [by_id], {}) is by_id
    assert resolve(parse_ref("1234567"), [by_id, by_step], {}) is by_id
    assert parse_ref("0123456") == Ref(None, "id", "0123456")
    with pytest.raises(NoSuchRef):
        resolve(parse_ref("12345"), [by_id], {})


def test_a_step_is_its_newest_checkpoint_and_an_id_or_a_tag_also_names_a_superseded_one() -> None:
    old = replace(info("main", 5, 3, "aaaaaaa"), superseded=True)
    new, other = info("main", 5, 4, "bbbbbbb"), info("main", 4, 2, "ccccccc")
    compacted = replace(old, directory=f"{old.key.directory}.1")

    for store in ([old, new, other], [other, new, old], [compacted, new, other]):
        assert resolve(parse_ref("5"), store, {}) is new
        assert resolve(parse_ref("latest"), store, {}) is new
        assert resolve(parse_ref("aaaaaa"), store, {}).id == old.id
        assert resolve(parse_ref("best"), store, {"best": old.key}).id == old.id


def test_ids_of_several_checkpoints_are_listed_newest_first() -> None:
    store = [replace(c, id="xxh3-abcdef" + c.id[11:]) for c in STORE[:5]]
    with pytest.raises(
        AmbiguousRef,
        match=r"^abcdef: 5 ids begin with these digits, such as .*exp@400.*exp@100\) and 1 more \(give more",
    ):
        resolve(parse_ref("abcdef"), store, {})


def test_latest_valid_has_to_be_read() -> None:
    with pytest.raises(BadInput, match="newest_first"):
        resolve(parse_ref("latest-valid"), STORE, {})


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not a ref: ''"),
        ("@100", "a run name has"),
        ("a b@100", "a run name has"),
        ("..@100", "a run name has"),
        ("main@", "not a ref: 'main@'"),
        ("a@b@c", "got 'b@c'"),
        ("feature/x", "got 'feature/x'"),
        ("007", r"up to 2\^53 without leading zeros, .* \(write 7\)"),
        ("\u096f", "not a ref: "),
    ],
)
def test_other_text_is_not_a_ref(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        parse_ref(text)

    assert caught.value.hint


@pytest.mark.parametrize("value", [None, 100, b"latest"])
def test_what_is_not_text_is_not_a_ref(value: object) -> None:
    with pytest.raises(BadInput, match="a ref is a str, got "):
        parse_ref(value)  # type: ignore[arg-type]
