"""Each law of the trace is broken by what it forbids, and by nothing in a protocol that keeps it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.laws import LAWS, Laws
from tests.faults.replay import Replay
from tests.faults.straced import Call, Moment, moments
from tests.faults.weakfs import Directory, Node, Tree

BLOB = "xxh3-0123456789abcdef0123456789abcdef"
FOLDERS = ("", "/checkpoints", "/checkpoints/main", "/staging", "/trash", "/refs", "/pins", "/blobs", "/blobs/ab")

MAKE = [f"mkdir {folder}" for folder in FOLDERS] + ["sync //"] + [f"sync {folder}" for folder in FOLDERS]

SAVE = f"""
mkdir /staging/x
lock 3 /staging/x LOCK_SH
mkdir /staging/x/blobs
create 4 /staging/x/blobs/{BLOB}
write 4
describe 4
fsync 4
link /staging/x/blobs/{BLOB} /blobs/ab/{BLOB}
create 5 /staging/x/manifest.json
write 5
fsync 5
sync /staging/x/blobs
sync /staging/x
rename /staging/x /checkpoints/main/1.0123456789
sync /checkpoints/main
sync /checkpoints
sync /staging
durable /checkpoints/main/1.0123456789
""".strip().splitlines()

TAG = """
lock 6 /checkpoints/main/1.0123456789 LOCK_SH
sync /checkpoints/main
sync /checkpoints
sync /staging
symlink ../checkpoints/main/1.0123456789 /refs/.best.new
rename /refs/.best.new /refs/best
sync /refs
durable /refs/best
durable /checkpoints/main/1.0123456789
unlink /refs/best
sync /refs
gone /refs/best
""".strip().splitlines()

ANNOTATE = """
lock 6 /checkpoints/main/1.0123456789 LOCK_SH
lock 7  LOCK_EX
create 8 /checkpoints/main/1.0123456789/.annotations.json.new
write 8
fsync 8
rename /checkpoints/main/1.0123456789/.annotations.json.new /checkpoints/main/1.0123456789/annotations.json
sync /checkpoints/main/1.0123456789
""".strip().splitlines()

DROP = """
sync /checkpoints/main
sync /checkpoints
sync /staging
lock 6 /checkpoints/main/1.0123456789 LOCK_EX
rename /checkpoints/main/1.0123456789 /trash/main@1.0123456789.0
sync /trash
sync /checkpoints/main
gone /checkpoints/main/1.0123456789
""".strip().splitlines()

COLLECT = f"""
lock 7 /trash LOCK_EX
sync /trash
sync /checkpoints/main
sync /staging
lock 8 /trash/main@1.0123456789.0 LOCK_EX
unlink /trash/main@1.0123456789.0/blobs/{BLOB}
unlink /trash/main@1.0123456789.0/manifest.json
rename /blobs/ab/{BLOB} /trash/{BLOB}.0
sync /trash
lease 9 /trash/{BLOB}.0
unlink /trash/{BLOB}.0
""".strip().splitlines()

FORGET = (
    """
lock 6 /checkpoints/main/1.0123456789 LOCK_SH
link /blobs/ab/{BLOB} /staging/new-0
rename /staging/new-0 /checkpoints/main/1.0123456789/blobs/{BLOB}
sync /checkpoints/main/1.0123456789/blobs
unlink /checkpoints/main/1.0123456789/damaged.json
sync /checkpoints/main/1.0123456789
""".strip()
    .replace("{BLOB}", BLOB)
    .splitlines()
)

_OTHER = BLOB.replace("0", "1")
_AWAY = f"rename /checkpoints/main/1.0123456789/blobs/{BLOB} /staging/z/new-0"
REWRITE = f"""
mkdir /staging/z
lock 6 /checkpoints/main/1.0123456789 LOCK_SH
create 4 /staging/z/{_OTHER}
write 4
describe 4
fsync 4
link /staging/z/{_OTHER} /checkpoints/main/1.0123456789/blobs/{_OTHER}
sync /checkpoints/main/1.0123456789/blobs
create 5 /checkpoints/main/1.0123456789/.manifest-new
write 5
fsync 5
rename /checkpoints/main/1.0123456789/.manifest-new /checkpoints/main/1.0123456789/manifest.json
sync /checkpoints/main/1.0123456789
{_AWAY}
""".strip().splitlines()
"""A repair gives a checkpoint another document, and one blob for another."""

EXPORT = """
mkdir //place
mkdir //place/.out.new
create 4 //place/.out.new/file
write 4
fsync 4
sync //place/.out.new
rename //place/.out.new //place/out
sync //place
durable //place/out
""".strip().splitlines()


def call(name: str, *arguments: str, result: int = 0) -> Call:
    return Call(name, arguments, result)


def full(path: str) -> str:
    return '"' + (f"/root{path[1:]}" if path.startswith("//") else f"/root/store{path}").rstrip("/") + '"'


def told(line: str) -> Iterator[Moment]:
    """What a line of a script stands for."""
    what, *words = line.split(" ")
    if what in ("mkdir", "unlink", "rename", "link"):
        yield Moment(call(what, *map(full, words)))
    elif what == "symlink":
        yield Moment(call(what, f'"{words[0]}"', full(words[1])))
    elif what in ("sync", "lock", "lease"):
        fd, path = (words[0], words[1]) if what != "sync" else ("99", words[0])
        yield Moment(call("openat", "AT_FDCWD", full(path), "O_RDONLY", result=int(fd)))
        rest = {
            "sync": ("fsync", "99"),
            "lock": ("flock", fd, words[-1]),
            "lease": ("fcntl", fd, "F_SETLEASE", "F_WRLCK"),
        }
        yield Moment(call(*rest[what]))
        if what == "sync":
            yield Moment(call("close", "99"))
    elif what == "create":
        yield Moment(
            call("openat", "AT_FDCWD", full(words[1]), "O_WRONLY|O_CREAT|O_EXCL", "0444", result=int(words[0]))
        )
    elif what in ("write", "fsync", "describe", "unlock"):
        name = {"describe": "fchmod", "unlock": "close"}.get(what, what)
        yield Moment(call(name, words[0]))
    elif what == "failing":
        yield Moment(None, mark={"failed_sync": int(words[0])})
    else:
        yield Moment(None, mark={what: [full(words[0]).strip('"').removeprefix("/root/")]})


def broken(*scripts: list[str], before: int = 1, strangers: bool = False) -> set[str]:
    """Return the laws that are broken by the last scripts; the first `before` make the store as they find it."""
    tree = Tree("/root")
    laws = Laws(tree, strangers=strangers)
    replay = Replay(tree, laws)
    for number, script in enumerate(scripts):
        replay.begin_process("act" if number >= before else "prepare")
        replay.run(moment for line in script for moment in told(line))
    return {line.split(" ", 1)[0] for line in laws.broken}


def without(script: list[str], *lines: str) -> list[str]:
    assert set(lines) <= set(script)
    return [line for line in script if line not in lines]


def instead(script: list[str], line: str, *others: str) -> list[str]:
    at = script.index(line)
    return [*script[:at], *others, *script[at + 1 :]]


@pytest.mark.parametrize("strangers", [False, True])
def test_protocols_that_keep_every_law_break_none(strangers: bool) -> None:
    assert broken(MAKE, SAVE, strangers=strangers) == set()
    for act in (TAG, ANNOTATE, DROP):
        assert broken(MAKE, SAVE, act, before=2, strangers=strangers) == set()
    assert broken(MAKE, SAVE, DROP, COLLECT, before=3, strangers=strangers) == set()
    assert broken(MAKE, EXPORT, strangers=strangers) == set()


SAVES = [
    (without(SAVE, "fsync 4"), {"D1", "D3", "N1"}),
    (instead(SAVE, "fsync 4", f"sync /staging/x/blobs/{BLOB}"), {"D1", "N1"}),
    (without(SAVE, "fsync 5"), {"N1"}),
    ([*SAVE[:6], "failing 4", *SAVE[6:]], {"D2", "D1", "N1"}),
    (instead(without(SAVE, "describe 4"), "fsync 4", "fsync 4", "describe 4"), {"D3"}),
    (without(SAVE, "sync /staging/x/blobs"), {"N1"}),
    (without(SAVE, "sync /staging/x"), {"N1"}),
    (without(SAVE, "sync /checkpoints/main"), {"N2", "N4"}),
    (without(SAVE, "sync /staging"), {"N3"}),
    (
        instead(without(SAVE, "sync /staging"), "sync /checkpoints/main", "sync /staging", "sync /checkpoints/main"),
        {"N4"},
    ),
    (instead(SAVE, "lock 3 /staging/x LOCK_SH"), {"L2"}),
    ([*SAVE, f"unlink /blobs/ab/{BLOB}"], {"T1"}),
    (instead(SAVE, f"link /staging/x/blobs/{BLOB} /blobs/ab/{BLOB}", f"create 6 /blobs/ab/{BLOB}"), {"D1"}),
    (without(SAVE, "sync /checkpoints"), {"N2"}),
]


@pytest.mark.parametrize("script,laws", SAVES, ids=range(len(SAVES)))
def test_a_save_without_a_step_breaks_a_law(script: list[str], laws: set[str]) -> None:
    # The last needs a run whose name no process has made durable.
    assert broken(MAKE, script, strangers=script is SAVES[-1][0]) == laws


@pytest.mark.parametrize(
    "script,laws",
    [
        (without(TAG, "lock 6 /checkpoints/main/1.0123456789 LOCK_SH"), {"L2"}),
        (instead(TAG, "sync /refs", "sync /pins"), {"N2"}),
        (TAG[:-2] + TAG[-1:], {"N2"}),
        (without(TAG, "sync /checkpoints/main"), {"N2"}),
        (without(TAG, "sync /staging"), {"N3"}),
        (without(ANNOTATE, "lock 6 /checkpoints/main/1.0123456789 LOCK_SH"), {"L2"}),
        (without(ANNOTATE, "lock 7  LOCK_EX"), {"L3"}),
        (without(ANNOTATE, "fsync 8"), {"D1", "N1"}),
        (without(DROP, "lock 6 /checkpoints/main/1.0123456789 LOCK_EX"), {"L1"}),
        (
            instead(
                DROP, "lock 6 /checkpoints/main/1.0123456789 LOCK_EX", "lock 6 /checkpoints/main/1.0123456789 LOCK_SH"
            ),
            {"L1"},
        ),
        (without(DROP, "sync /trash"), {"N4"}),
        (DROP[:-2] + DROP[-1:], {"N2"}),
    ],
)
def test_an_act_on_a_checkpoint_without_a_step_breaks_a_law(script: list[str], laws: set[str]) -> None:
    assert broken(MAKE, SAVE, script, before=2, strangers=True) == laws


def test_a_drop_before_the_kept_checkpoints_are_durable_breaks_a_law() -> None:
    second = [line.replace("/x", "/y").replace("main/1", "main/2") for line in SAVE if not line.startswith("link")]

    assert broken(MAKE, SAVE, second, DROP, before=3, strangers=True) == set()
    assert broken(MAKE, SAVE, second, DROP[1:], before=3, strangers=True) == {"R1"}
    assert broken(MAKE, SAVE, second, without(DROP, "sync /staging"), before=3, strangers=True) == {"R1"}


@pytest.mark.parametrize(
    "script,laws",
    [
        (without(COLLECT, "lock 7 /trash LOCK_EX"), {"L1"}),
        (without(COLLECT, "lock 8 /trash/main@1.0123456789.0 LOCK_EX"), {"L1"}),
        (without(COLLECT, "sync /trash"), {"T2"}),
        (without(COLLECT, "sync /checkpoints/main"), {"N1"}),
        (COLLECT[:8] + COLLECT[9:], {"T2"}),
        (without(COLLECT, f"lease 9 /trash/{BLOB}.0"), {"K1"}),
    ],
)
def test_a_collector_that_leaves_out_a_step_breaks_a_law(script: list[str], laws: set[str]) -> None:
    assert broken(MAKE, SAVE, DROP, script, before=3, strangers=True) == laws


@pytest.mark.parametrize(
    "script,laws",
    [
        (without(EXPORT, "fsync 4"), {"N1", "N2"}),
        (without(EXPORT, "sync //place/.out.new"), {"N1", "N2"}),
        (without(EXPORT, "sync //place"), {"N2"}),
    ],
)
def test_an_export_without_an_fsync_breaks_a_law(script: list[str], laws: set[str]) -> None:
    assert broken(MAKE, script) == laws


def test_a_mark_that_goes_before_what_heals_is_durable_breaks_a_law() -> None:
    mark = [line.replace("annotations", "damaged") for line in ANNOTATE]
    another = [f"unlink /blobs/ab/{BLOB}", *(line.replace("/staging/x/", "/staging/") for line in SAVE[3:8])]
    another[1] = f"create 4 /staging/{BLOB}"
    another[-1] = f"link /staging/{BLOB} /blobs/ab/{BLOB}"

    assert broken(MAKE, SAVE, mark, another, FORGET, before=4) == set()
    assert broken(
        MAKE, SAVE, mark, another, without(FORGET, "sync /checkpoints/main/1.0123456789/blobs"), before=4
    ) == {"H1"}


@pytest.mark.parametrize(
    "script,laws",
    [
        (REWRITE, set()),
        (without(REWRITE, "sync /checkpoints/main/1.0123456789/blobs"), {"N1"}),
        (without(REWRITE, "sync /checkpoints/main/1.0123456789"), {"N1"}),
        (without(REWRITE, "fsync 5"), {"D1", "N1"}),
        ([REWRITE[0], _AWAY, *without(REWRITE[1:], _AWAY)], {"N1"}),
        (instead(REWRITE, _AWAY, f"unlink /checkpoints/main/1.0123456789/blobs/{BLOB}"), {"T1"}),
    ],
)
def test_another_document_of_a_checkpoint_that_comes_too_early_breaks_a_law(script: list[str], laws: set[str]) -> None:
    assert broken(MAKE, SAVE, script, before=2) == laws


def test_every_law_can_be_broken() -> None:
    seen = set().union(*(laws for _, laws in SAVES), {"R1", "L1", "L3", "T2", "K1", "H1"})

    assert seen == LAWS.keys()


@given(st.lists(st.sampled_from(["a", "b", "", "sync"]), max_size=12))
def test_a_name_gives_after_a_power_cut_what_it_gave_since_its_last_fsync(steps: list[str]) -> None:
    """``a``, ``b``: the name gives that file; empty: it is gone."""
    directory = Directory("directory", 0, "")
    nodes = {name: Node("file", number, "") for number, name in enumerate("ab", 1)}
    since: list[Node | None] = [None]
    for step in steps:
        if step == "sync":
            directory.end_sync(directory.begin_sync())
            since = since[-1:]
        else:
            directory.put("name", nodes.get(step))
            since.append(nodes.get(step))

    assert directory.survivors("name") == list(dict.fromkeys(since))
    assert directory.is_certain("name") == (len(set(since)) == 1)


def test_an_fsync_covers_what_was_there_when_it_began() -> None:
    directory, node = Directory("directory", 0, ""), Node("file", 1, "")
    covered = directory.begin_sync()
    directory.put("late", node)
    directory.end_sync(covered)

    assert directory.survivors("late") == [None, node]


def test_calls_of_two_threads_that_overlap_begin_and_end_where_they_did() -> None:
    lines = [
        "7 fsync(5 <unfinished ...>",
        '8 link("/a", "/b") = 0',
        "--- SIGCHLD {si_signo=SIGCHLD} ---",
        "7 <... fsync resumed>)              = -1 EIO (Input/output error)",
        '8 access("/ckstore-trace/{\\"durable\\": [\\"a\\"]}", F_OK) = -1 ENOENT (No such file or directory)',
        '8 openat(AT_FDCWD, "/caf\\303\\251", O_RDONLY|O_CLOEXEC) = 3',
        "8 fsync(3) = 0 (INJECTED)",
        '8 access("/ckstore-trace/{}", F_OK <unfinished ...>',
        "8 <... access resumed>) = -1 ENOENT (No such file or directory)",
        "8 close(3 <unfinished ...>",
        "7 +++ exited with 0 +++",
    ]

    found = list(moments(iter(lines)))

    sync = Call("fsync", ("5",), -1, "EIO")
    assert found[0] == Moment(sync, begins=True, ends=False)
    assert found[1] == Moment(Call("link", ('"/a"', '"/b"'), 0))
    assert found[2] == Moment(sync, begins=False, ends=True)
    assert found[3].mark == {"durable": ["a"]}
    assert found[4].call is not None
    assert found[4].call.text(1) == "/café"
    assert found[5] == Moment(Call("fsync", ("3",), 0))
    assert found[6].mark == {}
    assert len(found) == 7


def test_a_line_that_strace_does_not_write_is_refused() -> None:
    with pytest.raises(ValueError, match="not understood: what is this"):
        list(moments(iter(["7 what is this"])))
