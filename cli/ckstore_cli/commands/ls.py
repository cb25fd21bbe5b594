"""``ckstore ls``: the tensors and other leaves of one checkpoint."""

from __future__ import annotations

import re
from collections import Counter

import click

from ckstore.errors import NoSuchRef
from ckstore.model.names import plain
from ckstore_cli._format import columns, printable, size_text
from ckstore_cli._frame import Frame, json_option, pass_frame, store_option
from ckstore_cli._refs import complete_ref


@click.command()
@click.argument("ref", shell_complete=complete_ref)
@click.argument("glob", required=False)
@store_option
@json_option
@pass_frame
def ls(frame: Frame, ref: str, glob: str | None) -> None:
    """List the tensors and other leaves of the checkpoint REF.

    With GLOB only those whose whole name fits: * stands for any characters, ?
    for one. Brackets stand for themselves, since names have them: layers[0].weight.
    Backslashes before dots in a key are shown only where a name would be ambiguous.

    \b
    Example:
      ckstore ls latest
      ckstore ls main@1200 'model.*.weight'

    \b
    Exit status:
      0  done
      2  wrong usage
      3  its manifest is damaged
      4  there is no such store or checkpoint, several fit, or no name fits GLOB
    """
    out = frame.output()
    with frame.reading() as store:
        info = store.info(ref)
        leaves = store.leaves(info)
    shown = [leaf for leaf in leaves if glob is None or fits(leaf.name, glob) or fits(plain(leaf.name), glob)]
    written = Counter(plain(leaf.name) for leaf in leaves)
    if glob is not None and not shown:
        raise NoSuchRef(
            f"no name of the {len(leaves)} leaves of {info.name} fits {glob!r}",
            hint=f"see them all: ckstore ls {info.name}",
        )
    if out.as_json:
        for leaf in shown:
            out.document(
                {
                    "name": leaf.name,
                    "kind": leaf.kind,
                    "dtype": leaf.dtype or None,
                    "shape": list(leaf.shape) if leaf.dtype else None,
                    "nbytes": leaf.nbytes,
                }
            )
        return
    rows = [("DTYPE", "SHAPE", "SIZE", "NAME")]
    rows.extend(
        (
            leaf.dtype or leaf.kind,
            f"[{', '.join(map(str, leaf.shape))}]" if leaf.dtype else "",
            size_text(leaf.nbytes),
            # The escapes keep {"a": {"b": t}} and {"a.b": t} apart; people want them only where both are there.
            printable(plain(leaf.name) if written[plain(leaf.name)] == 1 else leaf.name) or "(the state itself)",
        )
        for leaf in shown
    )
    head, *lines = columns(rows, "<<><")
    if shown:
        out.line(out.style(head, "dim"))
    for line in lines:
        out.line(line)
    if not leaves:
        out.note(f"{info.name} holds no tensors, arrays, bytes or strings kept as bytes")


def fits(name: str, glob: str) -> bool:
    """Whether the whole `name` fits `glob`, where only ``*`` and ``?`` are special."""
    pattern = re.escape(glob).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(pattern, name, re.DOTALL) is not None
