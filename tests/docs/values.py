"""Write the generated parts of docs/reference/state.md: ``python -m tests.docs.values``.

They are the advice in the error for each refused value, and the types of tensors. This module also returns the names
that the first column must have. It runs the examples of the page to collect the advice. The code blocks of the page
save and load the same examples.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ckstore.errors import CannotStore
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.python_values import FACTORIES
from ckstore.tensors import state_capture as capturing
from ckstore.tensors.plain_values import PLAIN
from tests.support.docblocks import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "state.md"
_SHOWN = {"NoneType": "None", "PosixPath": "Path"}
_TYPES = "Tensors may have these types: "


def type_names() -> set[str]:
    """Return the names of all Python types whose values the code stores by their exact type."""
    kinds = {*capturing._SCALARS, str, bytes, list, *capturing._CONTAINERS, *PLAIN, bytearray}
    return {_SHOWN.get(kind.__name__, kind.__name__) for kind in kinds}


def factory_names() -> set[str]:
    """Return the names of all types that a defaultdict may use to make its values."""
    return set(FACTORIES)


def rewritten(text: str) -> str:
    """Return the page with the advice and the types of tensors from the current code."""
    head, stored, rest = text.partition("## Values that are refused")
    refused, title, after = rest.partition("## Not preserved")
    advice = dict(_advice(text, refused))
    refused = re.sub(
        r"^(\| .* \| `(.*)` \| ).* \|$", lambda row: f"{row[1]}{advice[row[2]]} |", refused, flags=re.MULTILINE
    )
    types = f"{_TYPES}{', '.join(f'`{name}`' for name in sorted(TORCH_ITEMSIZE, key=_by_kind_and_size))}.\n"
    head = re.sub(rf"^{_TYPES}(?:.+\n)+", types, head, flags=re.MULTILINE)
    return f"{head}{stored}{refused}{title}{after}"


def _by_kind_and_size(name: str) -> tuple[str, int, str]:
    found = re.fullmatch(r"([a-z]+)(\d*)(.*)", name)
    assert found is not None
    return found[1], int(found[2] or 0), found[3]


def _advice(text: str, refused: str) -> Iterator[tuple[str, str]]:
    """Yield each refused example with the advice in its error."""
    kept, raised = (block.text for block in blocks(text) if block.language == "python")
    names: dict[str, Any] = {}
    for part in (kept.partition("ckstore.add_safe_globals")[0], raised.partition("refused = [")[0]):
        exec(part, names)  # noqa: S102 - our own page
    for example in re.findall(r"^\| .* \| `(.*)` \| .* \|$", refused, re.MULTILINE):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's, of layouts that it calls beta
            value = eval(example, names)  # noqa: S307 - the same
        try:
            capturing.capture(value)
        except CannotStore as error:
            yield example, error.hint.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
