"""``ckstore demo``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ckstore.errors import CkstoreError
from ckstore_cli._frame import UserPath


@click.command()
@click.option(
    "--directory",
    type=UserPath(path_type=Path),
    help="Put the store here, in a new or empty directory, and keep it. Default: a temporary one.",
)
@click.option("--keep", is_flag=True, help="Keep the temporary directory too.")
@click.option("--quick", is_flag=True, help="Train fewer steps.")
@click.pass_context
def demo(ctx: click.Context, /, **options: Any) -> None:
    """Train, be killed in the middle of a save, resume, and prove that nothing was lost.

    A small GPT is trained on the text of Python's own standard library, killed
    with kill -9 while it saves, and resumed from the store; its weights then
    equal those of a run that was never stopped, bit for bit. Old checkpoints
    are dropped while a process still reads one. Needs torch.

    \b
    Example:
      ckstore demo
      ckstore demo --quick --directory /data/demo

    \b
    Exit status:
      0  done: the weights are the same
      1  failed, or torch is not installed
      2  wrong usage
    """
    for package in ("torch", "numpy"):
        if find_spec(package) is None:
            msg = f"the demo trains with torch, and the package {package} is not installed"
            raise CkstoreError(msg, hint="pip install 'ckstore[torch]'")
    from ckstore_cli.demo.story import run_demo

    ctx.exit(run_demo(**options))
