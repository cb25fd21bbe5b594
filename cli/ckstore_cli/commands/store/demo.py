"""``ckstore demo``: show a crash and a resume with a small training."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ckstore.errors import MissingExtra
from ckstore_cli._frame import UserPath


@click.command()
@click.option(
    "--directory",
    type=UserPath(path_type=Path),
    help="New or empty directory for the store, which is kept. Default: a temporary directory.",
)
@click.option("--keep", is_flag=True, help="Keep the temporary directory.")
@click.option("--quick", is_flag=True, help="Train fewer steps.")
@click.pass_context
def demo(ctx: click.Context, /, **options: Any) -> None:
    """Train a small model, kill it during a save, resume it, and prove that nothing was lost.

    The demo trains a small GPT on the source code of Python's standard library,
    kills it with kill -9 while it saves, and resumes it from the store. The resumed
    weights are then equal, bit for bit, to those of a run without interruption. The
    demo also drops old checkpoints while a process still reads one. It requires
    torch.

    \b
    Example:
      ckstore demo
      ckstore demo --quick --directory /data/demo

    \b
    Exit status:
      0  done, and the weights are equal
      1  failed, or torch is not installed
      2  wrong usage
    """
    for package in ("torch", "numpy"):
        if find_spec(package) is None:
            msg = f"the demo needs {package}, which is not installed"
            raise MissingExtra(msg, hint="pip install 'ckstore[torch]'")
    from ckstore_cli.demo.story import run_demo

    ctx.exit(run_demo(**options))
