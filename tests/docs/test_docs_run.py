"""Every command and example of the documentation runs as written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.coverage import sample_seed
from tests.support.docblocks import BlockError, blocks, commands, run_page, runnable, same_output
from tests.support.requirements import representatives

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "tests" / "support" / "docblocks.py"
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) if path.exists()
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


RUN = [page for page in PAGES if runnable(text_of(page))]
LONG = "docs/tutorial.md"
"""A third of what all pages take, for four trainings; README.md has the same story. One commit in three runs it."""
TURN = sample_seed() or 0


def of_this_commit(page: str) -> bool:
    """Whether `make test` runs a page: README and the reference always, half of the others for each commit."""
    if page == LONG:
        return TURN % 3 == 0
    return page.startswith(("README", "docs/reference")) or RUN.index(page) % 2 == TURN % 2


@pytest.mark.slow
@pytest.mark.parametrize("page", representatives(RUN, *filter(of_this_commit, RUN)))
def test_every_block_of_a_page_runs(page: str, tmp_path: Path, warm: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(warm), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }
    done = subprocess.run(
        [warm / "python", RUNNER, ROOT / page],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        cwd=folder,
        env=environment,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_a_block_that_is_not_run_says_why(page: str) -> None:
    silent = [block.line for block in blocks(text_of(page)) if block.directives.get("no-run") == ""]

    assert silent == []


PAGE = """\
Text.

```python
x = 1
```

<!-- no-run: needs a cluster -->

```console
$ sbatch train.sh
```

1. In a list:

   ```console
   $ echo one \\
       two
   one two
   $ cat <<END
   > three
   > END
   three
   ```

<!-- no-run: about the text, not about the block -->
Text.

```python
assert x == 1
```
"""


def test_blocks_are_found_with_their_place_and_what_is_said_about_them() -> None:
    found = blocks(PAGE)

    assert [(block.language, block.line) for block in found] == [
        ("python", 4),
        ("console", 10),
        ("console", 16),
        ("python", 29),
    ]
    assert found[1].directives == {"no-run": "needs a cluster"}
    assert [block.line for block in runnable(PAGE)] == [4, 16, 29]


def test_commands_are_told_from_their_output() -> None:
    found = commands(blocks(PAGE)[2].text)

    assert [command.output for command in found] == ["one two", "three"]
    assert found[0].text == "echo one \\\n    two"
    assert found[1].text == "cat <<END\nthree\nEND"


def test_the_blocks_of_a_page_share_what_a_reader_would_share(tmp_path: Path) -> None:
    page = PAGE + "```bash\nmkdir a\ncd a\nexport WHO='you and me'\n```\n"
    page += "```console\n$ basename $PWD; echo $WHO\na\nyou and me\n```\n"

    assert run_page("page.md", page, tmp_path) == 5


@pytest.mark.parametrize(
    "page,said",
    [
        ("\n```python\n1 / 0\n```\n", "page.md:3: ZeroDivisionError"),
        ("```console\n$ false\n```\n", "page.md:2: exit status 1 instead of 0: false"),
        ("```bash\nfalse\ntrue\n```\n", "exit status 1 instead of 0"),
        ("```console\n$ echo no\nyes\n```\n", "the page shows\nyes\n--- it printed\nno"),
        ("<!-- exit: 4 -->\n```console\n$ true\n```\n", "exit status 0 instead of 4"),
    ],
)
def test_a_block_that_does_something_else_is_found(page: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BlockError) as excinfo:
        run_page("page.md", page, tmp_path)

    assert said in str(excinfo.value)


def test_what_is_said_about_a_block_is_done(tmp_path: Path) -> None:
    page = "<!-- exit: 4 -->\n```console\n$ (exit 4)\n```\n"
    page += "<!-- no-compare: a dice -->\n```console\n$ echo no\nyes\n```\n"

    assert run_page("page.md", page, tmp_path) == 2


@pytest.mark.parametrize(
    "shown,printed,same",
    [
        ("saved step 20", "saved step 300\n", True),
        ("12.5 MiB  3f2a9c10", "1 KiB 00b1c2d3e4", True),
        ("first\n...\nlast", "first\n1\n2\nlast\n", True),
        ("saved", "lost", False),
        ("decade", "facade", False),  # hexadecimal digits only, and still words
        ("first\n...\nlast", "first\n1\n2\n", False),
    ],
)
def test_values_are_not_compared_but_words_are(shown: str, printed: str, same: bool) -> None:
    assert same_output(shown, printed) is same
