"""Small stand-ins for W&B, MLflow and Trackio, which record calls and refuse the arguments that the real ones refuse.

`tests/integrations/test_real_trackers.py` tries the same calls on wandb 0.31, mlflow 3.17 and trackio 0.43.
"""

from __future__ import annotations

import contextvars
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

KINDS = ("wandb", "mlflow", "trackio")


class Artifact:
    """The artifacts of W&B and Trackio."""

    def __init__(self, name: str, *, metadata: dict[str, Any], **options: str) -> None:
        assert re.fullmatch(r"[a-zA-Z0-9_.-]{1,128}", name), name
        assert options == {"type": "checkpoint"}
        self.name, self.metadata = name, metadata
        self.references: list[tuple[str, str]] = []

    def add_reference(self, uri: str, name: str, checksum: bool) -> None:
        """Keep a reference."""
        assert not checksum  # with a checksum, the tracker would read the data
        self.references.append((uri, name))


class FileArtifact(Artifact):
    """The artifacts of Trackio, which takes URLs of few schemes, and lists a directory."""

    def add_reference(self, uri: str, name: str, checksum: bool) -> None:
        """Keep a reference to a file."""
        parts = urlsplit(uri)
        if parts.scheme not in {"file", "http", "https", "hf"}:
            raise ValueError(f"No reference handler for URI {uri!r}")
        assert Path(unquote(parts.path)).is_file()
        super().add_reference(uri, name, checksum)


class StandIn:
    """A tracker with one run, and what was logged to it.

    Attributes:
        logged: The record of each checkpoint, in order.
        urls: What the references are to, in order; none with MLflow.
        latest: What the run shows as the newest checkpoint.
        act: Called at each log, to fail or to wait.
    """

    def __init__(self, kind: str, run_id: str = "run-1") -> None:
        self.kind = kind
        self.logged: list[dict[str, Any]] = []
        self.urls: list[str] = []
        self.latest: Any = None
        self.act: Callable[[], object] = lambda: None
        self.pid = os.getpid()
        self.is_finished = False
        self.module = getattr(self, f"_{kind}")(run_id)

    def install(self, setitem: Callable[[Any, str, Any], None]) -> None:
        """Put the module in the place of the tracker."""
        setitem(sys.modules, self.kind, self.module)
        if self.kind == "trackio":
            setitem(sys.modules, "trackio.context_vars", self.module.context_vars)

    def finish(self) -> None:
        """End the run."""
        self.is_finished = True
        if self.kind == "wandb":
            self.module.run = None
        elif self.kind == "trackio":
            self.module.context_vars.current_run.set(None)
        else:
            self.module.active = {}

    def _check(self) -> None:
        self.act()
        if os.getpid() != self.pid:
            raise RuntimeError("This operation is not valid in a forked process")

    def _log_artifact(self, artifact: Artifact, aliases: list[str]) -> None:
        self._check()
        if self.is_finished and self.kind == "wandb":
            raise RuntimeError("Run (run-1) is finished. The call to `log_artifact` will be ignored")
        assert aliases == ["latest", f"step-{artifact.metadata['step']}"]
        ((url, _),) = artifact.references
        self.urls.append(url)
        self.logged.append(artifact.metadata)

    def _run_class(self) -> Any:
        return type("Run", (SimpleNamespace,), {"__module__": f"{self.kind}.sdk"})

    def _wandb(self, run_id: str) -> Any:
        module: Any = ModuleType("wandb")
        tracker = self

        class Summary(dict[str, Any]):
            def __setitem__(self, name: str, value: Any) -> None:
                tracker.latest = value["ref"]

        module.Artifact = Artifact
        module.run = self._run_class()(
            id=run_id, entity=None, project="p", name=None, url=None, disabled=False, summary=Summary(),
            log_artifact=self._log_artifact,
        )  # fmt: skip
        return module

    def _trackio(self, run_id: str) -> Any:
        module: Any = ModuleType("trackio")
        module.context_vars = ModuleType("trackio.context_vars")
        module.context_vars.current_run = contextvars.ContextVar("current_run", default=None)
        module.Artifact = FileArtifact
        run = self._run_class()(id=run_id, project="p", name="r", url=None, log_artifact=self._log_artifact)
        module.context_vars.current_run.set(run)
        return module

    def _mlflow(self, run_id: str) -> Any:
        module: Any = ModuleType("mlflow")
        tracker = self
        module.uri = "sqlite:///mlflow.db"
        run = self._run_class()(info=SimpleNamespace(run_id=run_id, run_name="silent-bear", experiment_id="7"))
        module.active = {threading.get_ident(): run}
        module.active_run = lambda: module.active.get(threading.get_ident())
        module.get_tracking_uri = lambda: module.uri

        class MlflowClient:
            def __init__(self, tracking_uri: str) -> None:
                assert tracking_uri == module.uri

            def log_dict(self, run_id: str, dictionary: dict[str, Any], artifact_file: str) -> None:
                tracker._check()
                assert re.fullmatch(r"ckstore/[^/]+/\d+\.[0-9a-f]{12}\.json", artifact_file)
                tracker.logged.append(dictionary)

            def set_tag(self, run_id: str, key: str, value: str) -> None:
                if key == "ckstore.latest":
                    tracker.latest = value.partition(" ")[0]

        module.MlflowClient = MlflowClient
        return module
