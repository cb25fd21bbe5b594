"""The section on GPUs in docs/performance.md, and all tables, from the file that `tests/gpu/run.py` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench.report import number

_GOAL = 1.1
"""Of the copy to pinned memory: what a background save may hold the training up."""
_LOADS = {
    "ckstore_s": "ckstore",
    "ckstore_unverified_s": "ckstore, unverified",
    "ckstore_in_place_s": "ckstore, in place",
    "torch_load_s": "torch.load(map_location)",
    "safetensors_s": "safetensors",
}
_CALLS = {
    "after_call_s": ": the call, with `after=`",
    "unchanged_call_s": ": the call, unchanged",
    "first_call_s": ": the first call",
    "prewarmed_call_s": ": the first call, after `prewarm`",
    "durable_s": ": until durable",
}
_SHORT_CALLS = {
    "after_call_s": "…, with `after=`",
    "unchanged_call_s": "…, unchanged",
    "first_call_s": "…, the first",
    "prewarmed_call_s": "…, the first after `prewarm`",
}
_SAVES = {
    "ckstore_s": "`save`",
    "ckstore_unchanged_s": "`save`, unchanged",
    "ckstore_one_changed_s": "`save`, one element changed",
}
_THREADS = ("1", "2", "4", "8", "16", "chosen")
_BY_THREADS = {
    ("hash",): "*hash*",
    ("copy",): "*copy of memory*",
    ("places", "shm", "save"): "`save` to /dev/shm",
    ("places", "shm", "load"): "`load_into` from /dev/shm",
    ("places", "disk", "write"): "*direct write*",
    ("places", "disk", "read"): "*direct read*",
    ("places", "disk", "save"): "`save` to the disk",
    ("places", "disk", "load"): "`load_into` from the disk, cold",
}
"""In the case `cores`: where a row is, and its name."""
_ACTS = {
    "first_save": "first save",
    "unchanged_save": "save of the unchanged state",
    "unchanged_async_save": "the same in the background, the second time",
    "load": "load",
}


def section(found: Mapping[str, Any]) -> str:
    """Return the section for the page: the machine, the acts that a user waits for, and the cases that failed."""
    cases = found["cases"]
    parts = (_head(found), "\n".join(_short_rows(cases)), _problems(cases))
    return "\n\n".join(part for part in parts if part)


def tables(found: Mapping[str, Any]) -> str:
    """Return all tables of a run."""
    cases = found["cases"]
    rows = ["| Act | seconds | GB/s | |", "| --- | --- | --- | --- |", *_rows(cases)]
    parts = (_head(found), _details(found), "\n".join(rows), _crossed(cases), _by_threads(cases), _problems(cases))
    return "\n\n".join(part for part in parts if part)


def _head(found: Mapping[str, Any]) -> str:
    about = found["cases"]["about"]
    machine, card = about["machine"], about["card"]
    return (
        f"{found['date']}: {card['name']} ({card['memory_bytes'] / 2**30:.0f} GiB), {machine['cores']} cores, "
        f"CUDA {about['cuda']}, torch {about['versions'].get('torch', '?')}."
    )


def _details(found: Mapping[str, Any]) -> str:
    """Return the machine, all versions, and the outcomes of the tests."""
    about, outcomes = found["cases"]["about"], list(found["tests"].values())
    machine = about["machine"]
    counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)) or "none ended"
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{machine['cpu']}, Linux {machine['kernel']}, Python {machine['python']}, {versions}. "
        f"Tests of `tests/gpu`: {counts}."
    )


def _problems(cases: Mapping[str, Any]) -> str:
    """Return the cases that failed, and those that loaded other bytes than they saved."""
    failed = [
        f"- `{name}` failed: {case['error'].strip().splitlines()[-1]}"
        for name, case in cases.items()
        if "error" in case
    ]
    differs = [
        f"- `{name}`: **the loaded bytes differ from the saved ones**"
        for name, case in cases.items()
        if not case.get("same", True)
    ]
    return "\n".join([*failed, *differs])


def _short_rows(cases: Mapping[str, Any]) -> list[str]:
    """Return the rows of the page: the seconds of each act for the smaller and the larger state."""
    names = ("copies", "stall", "stall_large", "save", "load")
    copies, stall, large, save, load = (cases.get(name, {}) for name in names)
    sizes = [f"{case['bytes'] / 2**30:.3g} GiB, s" if "bytes" in case else "–" for case in (stall, large)]
    baseline = _per_byte(copies, "from_device_pinned_s")
    calls = [_seconds(case, "call_s") + _times(case, baseline) for case in (stall, large)]
    rows = [("call of `save_async`", *calls)]
    rows += [(words, _seconds(stall, key), _seconds(large, key)) for key, words in _SHORT_CALLS.items()]
    rows += [(_SAVES[key], _seconds(save, key), "") for key in ("ckstore_s", "ckstore_unchanged_s")]
    rows.append(("torch.save + fsync", _seconds(save, "torch_save_s"), ""))
    shown = {"ckstore_s", "torch_load_s", "safetensors_s"}
    rows += [(f"load: {words}", _seconds(load, key), "") for key, words in _LOADS.items() if key in shown]
    lines = [f"| {' | '.join(row)} |".replace("  ", " ") for row in rows if row[1] or row[2]]
    return [f"| Act | {' | '.join(sizes)} |", "|---|---|---|", *lines] if lines else []


def _seconds(case: Mapping[str, Any], key: str) -> str:
    return number(case[key]) if key in case else ""


def _times(case: Mapping[str, Any], baseline: float | None) -> str:
    """Return how many times as long as a pinned copy of the same bytes a call takes."""
    share = _per_byte(case, "call_s")
    if not baseline or share is None:
        return ""
    times = share / baseline
    return f" ({number(times)} × copy{'' if times <= _GOAL else f', wanted {_GOAL:g}'})"


def _rows(cases: Mapping[str, Any]) -> list[str]:
    names = ("copies", "stall", "stall_large", "save", "load", "fingerprints")
    copies, stall, large, save, load, prints = (cases.get(name, {}) for name in names)
    baseline = _per_byte(copies, "from_device_pinned_s")
    rows = []
    for way, words in (("from_device", "copy from the GPU"), ("to_device", "copy to the GPU")):
        rows += [_row(f"*{words}, {kind}*", copies, f"{way}_{kind}_s") for kind in ("pageable", "pinned")]
    for case, of in ((stall, ""), (large, f", {large.get('bytes', 0) / 2**30:.0f} GiB")):
        share = _per_byte(case, "call_s")
        ratio = None if not baseline or share is None else share / baseline
        reached = "" if ratio is None else f"{number(ratio)} × the pinned copy (wanted: at most {_GOAL:g})"
        rows.append(_row(f"`save_async`: the call{of}", case, "call_s", reached))
        rows += [_row(f"`save_async`{words}{of}", case, key) for key, words in _CALLS.items()]
    rows += [_row(words, save, key) for key, words in _SAVES.items()]
    rows.append(_row("fingerprints on the GPU, one kernel", prints, "kernel_s"))
    rows.append(_row("fingerprints on the GPU, operations of torch", prints, "torch_s"))
    rows.append(_row("torch.save + fsync", save, "torch_save_s"))
    rows += [_row(f"load to the GPU, warm: {words}", load, key) for key, words in _LOADS.items()]
    return [row for row in rows if row]


def _crossed(cases: Mapping[str, Any]) -> str:
    crossed = cases.get("crossed", {})
    if "bytes" not in crossed:
        return ""
    state_bytes = crossed["bytes"]
    parts = [
        f"{words} {crossed[act]['DtoH'] / state_bytes:.2f} from and {crossed[act]['HtoD'] / state_bytes:.2f} to the GPU"
        for act, words in _ACTS.items()
        if act in crossed
    ]
    return f"Bytes that crossed PCIe, as shares of the state: {'; '.join(parts)}." if parts else ""


def _by_threads(cases: Mapping[str, Any]) -> str:
    """Return the table of what a state in the processor's memory takes; empty where the run has no such case."""
    case = cases.get("cores", {})
    if "bytes" not in case:
        return ""
    rows = []
    for path, words in _BY_THREADS.items():
        found: Any = case
        for key in path:
            found = found.get(key, {})
        if found:
            cells = [number(found[threads] / 1e9) if threads in found else "" for threads in _THREADS]
            rows.append(f"| {words} | {' | '.join(cells)} |")
    head = " | ".join(_THREADS).replace("chosen", f"chosen ({case['chosen']})")
    nbytes = case["bytes"] / 2**30
    told = (
        f"A state of {nbytes:.1f} GiB in the processor's memory, {case['cores']} cores, GB/s by the number of threads:"
    )
    return "\n".join([told, "", f"| | {head} |", f"| --- {'| --- ' * len(_THREADS)}|", *rows])


def _row(words: str, case: Mapping[str, Any], key: str, also: str = "") -> str:
    per_byte = _per_byte(case, key)
    if per_byte is None:
        return ""
    return f"| {words} | {number(case[key])} | {number(1e-9 / per_byte)} | {also} |"


def _per_byte(case: Mapping[str, Any], key: str) -> float | None:
    return case[key] / case["bytes"] if key in case else None
