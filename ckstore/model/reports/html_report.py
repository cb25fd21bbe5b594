"""A page of HTML as a value, which a notebook shows."""

from __future__ import annotations

import html
from dataclasses import dataclass

from ckstore.model.brief import brief


@brief()
@dataclass(frozen=True, slots=True)
class HtmlReport:
    """A page about a store, complete in itself.

    Attributes:
        html: The whole page.
    """

    html: str

    def __str__(self) -> str:
        return f"a page of {len(self.html)} characters"

    def _repr_html_(self) -> str:
        """Return it in a frame: its styles must not change the notebook around it."""
        page = html.escape(self.html)
        return f'<iframe title="ckstore report" style="width:100%;height:640px;border:0" srcdoc="{page}"></iframe>'
