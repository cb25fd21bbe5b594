"""What is dropped on one host is freed when the other does not use it any more, with caches and the grace."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.protocol.graces import GraceModel, GraceRules
from tests.protocol.test_one_blob import resolved
from tests.support.coverage import covered

pytestmark = pytest.mark.crash


def test_what_is_dropped_on_one_host_is_freed_when_the_other_has_let_go(capsys: pytest.CaptureFixture[str]) -> None:
    found = GraceModel(GraceRules()).explore()

    with capsys.disabled():
        print("\n" + covered("protocol model", "grace", violations=int(bool(found.problem)), states=found.states))
    assert not found.problem, str(found)
    assert found.states > 100
    assert [name for name in found.functions if not resolved(name)] == []


@pytest.mark.parametrize("lacking", [field.name for field in fields(GraceRules)])
def test_without_a_rule_bytes_are_freed_too_early_or_never(lacking: str) -> None:
    assert GraceModel(GraceRules().without(lacking)).explore().problem
