"""What tests/tools/odd-environments says is in force is: or its runs would prove nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ckstore import Store
from tests.support import read_only_views, stores

ODD = os.environ.get("CKSTORE_ODD", "")


def in_child(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def test_the_environment_is_as_odd_as_it_says(tmp_path: Path) -> None:
    match ODD:
        case "optimized":
            assert sys.flags.optimize == 1
            assert in_child("assert False; print(__debug__)") == "False"
        case "warnings":
            assert in_child("import sys; print(sys.warnoptions[0])") == "error"
        case "umask-000":
            assert current_umask() == 0
        case "umask-077":
            assert current_umask() == 0o077
        case "non-root":
            assert os.geteuid() != 0
        case "read-only":
            with Store.init(tmp_path / "store") as store:
                store.save({"a": 1}, step=1)
                before = read_only_views.views_made
                assert store.load() == {"a": 1}
                assert read_only_views.views_made == before + 1
            with read_only_views.read_only_view(tmp_path) as view:
                outside = view / "x"
                with pytest.raises(OSError, match="Read-only"):
                    outside.touch()
        case "clock":
            seen = [time.time() for _ in range(100)]
            assert seen != sorted(seen)
            assert max(seen) - min(seen) > 86400 * 3650
            assert in_child("import time; t = [time.time() for _ in range(100)]; print(t == sorted(t))") == "False"
        case _:
            assert ODD == ""
            assert sys.flags.optimize == 0


@pytest.mark.parametrize("where", ["here", "in a module of helpers"])
def test_an_assertion_that_does_not_hold_fails_the_test(where: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").touch()
    (tmp_path / "inner" / "b").hardlink_to(tmp_path / "a")

    def fail_here() -> None:
        assert sys.flags.optimize == -1

    def fail_in_a_helper() -> None:
        stores.check_links(tmp_path / "inner")  # a link that leads out of the store

    with pytest.raises(AssertionError):
        (fail_here if where == "here" else fail_in_a_helper)()
