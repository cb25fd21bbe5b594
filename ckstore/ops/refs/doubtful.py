"""Entries in ``refs/`` that leave unknown which checkpoint they protect. Source: docs/format/v1.md, "Tags"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import DamagedBlob
from ckstore.model.checkpoint.tag import parse_tag
from ckstore.model.document import shown
from ckstore.model.names import is_tag

if TYPE_CHECKING:
    from ckstore.objects.layout import Layout


def doubtful_tags(layout: Layout) -> dict[str, str]:
    """Return the entries of ``refs/`` whose checkpoint is unknown -> what is wrong with each."""
    texts = layout.tag_texts()
    doubtful = {name: problem for name, text in sorted(texts.items()) if (problem := _doubt(layout, name, text))}
    if not doubtful:
        return doubtful
    now = layout.tag_texts()  # of a tag that was removed since, the checkpoint may be gone as well
    return {name: problem for name, problem in doubtful.items() if name in now and now[name] == texts[name]}


def _doubt(layout: Layout, name: str, text: str | None) -> str:
    if not is_tag(name):
        return f"refs/ has {shown(name)}, which is not a name of a tag"
    if text is None:
        return f"refs/{name} is not a tag: wanted a symlink to a checkpoint"
    target = parse_tag(text)
    if target is None:
        return f"the tag {name} is damaged: refs/{name} must lead to one checkpoint, got {shown(text)}"
    if not target.twice and layout.inode(target.run, target.step) is None:
        return f"the tag {name} names {target.run}@{target.step}, which is not there, and may be damaged"
    return ""


def check_tags(layout: Layout) -> None:
    """Raise if it is unknown which checkpoint a tag protects."""
    for name, problem in doubtful_tags(layout).items():
        raise damaged_tag(name, problem)


def damaged_tag(name: str, problem: str) -> DamagedBlob:
    """Return the error for an entry of ``refs/`` whose checkpoint is unknown."""
    hint = f"nothing is deleted while it is unknown what this tag protects; {way_out(name)}"
    return DamagedBlob(problem, hint=hint)


def way_out(name: str) -> str:
    """Return in words what to do about such an entry."""
    if not is_tag(name):
        return f"`ckstore tag -d {shown(name)}` removes it"
    return f"`ckstore tag {name} REF` points it to a checkpoint again, `ckstore tag -d {name}` removes it"
