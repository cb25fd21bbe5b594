"""What a store says about its checkpoints beside their states: tags, pins, what was added, the policy."""

from __future__ import annotations

import json

from ckstore import Store
from tests.faults.journal import Fact


def facts_of(store: Store) -> dict[Fact, str]:
    """Return all of it, each as a text."""
    found: dict[Fact, str] = {}
    for tag in store.tags():
        found["tag", tag.name] = f"{tag.run}@{tag.step}" + (" (dangling)" if tag.dangling else "")
    for pin in store.pins():
        place = f"{pin.run}@{pin.step}"
        found["pin", place] = " and ".join(filter(None, [found.get(("pin", place)), pin.reason]))
    for info in store.checkpoints():
        for name, value in info.metrics.items():
            found["metric", f"{info.name} {name}"] = repr(value)
    if store.config.retention is not None:
        found["retention", "policy"] = json.dumps(store.config.retention.to_json(), sort_keys=True)
    return found


def broken_facts(promised: dict[Fact, set[str | None]], found: dict[Fact, str]) -> list[str]:
    """Return which of the promised facts are not there, and which are there that no act promised."""
    wrong = []
    for fact in sorted(promised.keys() | found.keys()):
        options = promised.get(fact, {None})
        if found.get(fact) not in options:
            wrong.append(f"{' '.join(fact)} must be one of {sorted(map(str, options))}, found {found.get(fact)}")
    return wrong
