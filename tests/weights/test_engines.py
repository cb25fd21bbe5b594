"""The two examples: a program that drives SGLang engines, and an engine for vLLM, both against stand-ins.

The stand-in here has the calls that the documentation of SGLang's endpoints describes, and no model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import DamagedBlob, RetentionPolicy, Store
from tests.support.damage import flip
from tests.support.stores import check_store
from tests.weights.vllm_worker import Model, engine_of, vllm
from tests.weights.weight_engine import WeightEngine

_EXAMPLES = Path(__file__).parents[2] / "examples"


class ServedEngine:
    """The endpoints of an engine that are used; it refuses an order in which requests could see mixed weights."""

    def __init__(self, engine: WeightEngine) -> None:
        self.engine = engine
        self.calls: list[str] = []
        self.serving: dict[str, Any] = {}
        self.version = ""
        self._paused = False

    def answer(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks for."""
        self.calls.append(call)
        if call == "pull_weights":
            assert Path(body["local_checkpoint_dir"]).name == "local"
            self.engine.pull(Path(body["source_dir"]), body["target_version"])
        elif call == "update_weights_from_disk":
            assert self._paused, "the weights changed while requests ran"
            self.serving, self.version = self.engine.weights(), body["weight_version"]
        elif call in ("pause_generation", "continue_generation"):
            self._paused = call == "pause_generation"
        return {"success": True, "message": ""}


@contextmanager
def served(engine: ServedEngine) -> Iterator[str]:
    """Serve an engine; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, said = 200, b"{}"
            try:
                said = json.dumps(engine.answer(self.path[1:], body)).encode()
            except Exception as error:
                status, said = 400, json.dumps({"success": False, "message": repr(error)}).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_program_tells_engines_to_load_each_version(tmp_path: Path) -> None:
    base, shared = tmp_path / "base", tmp_path / "shared"
    base.mkdir()
    (base / "config.json").write_text("{}")
    weights = {"a.weight": torch.zeros(500, 40, dtype=torch.bfloat16), "b.weight": torch.ones(30)}
    with Store.init(tmp_path / "store") as store:
        store.save({"model": weights}, 1, "policy")
        engines = [ServedEngine(WeightEngine(tmp_path / f"{i}" / "local", base)) for i in range(2)]
        for engine in engines:
            engine.engine.local.parent.mkdir()
        with served(engines[0]) as one, served(engines[1]) as two:
            program = _EXAMPLES / "sglang_publish.py"
            words: list[str | Path] = [
                sys.executable,
                program,
                store.path,
                "policy",
                shared,
                base,
                tmp_path / "local",
                one,
                two,
            ]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                assert "engines serve version 1: policy@1" in process.stdout.readline()
                weights["a.weight"][7] = 3
                store.save({"model": weights}, 2, "policy")
                line = process.stdout.readline()
                process.terminate()
        assert "2 engines serve version 2: policy@2" in line
        assert "differences" in line
        for engine in engines:
            assert engine.version == "2"
            assert all(torch.equal(engine.serving[name], weights[name]) for name in weights)
            assert engine.calls[5:] == [
                "pull_weights", "pause_generation", "flush_cache", "update_weights_from_disk", "continue_generation",
            ]  # fmt: skip
        check_store(store.path)


@pytest.fixture(params=["in place", "layerwise", "converted"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An engine of the example in a worker of vLLM."""
    with vllm(), engine_of(Model(converts=request.param == "converted")) as engine:
        engine.is_in_place = request.param == "in place"
        yield engine


def begin(engine: Any, store: Store) -> None:
    words = {"store": str(store.path), "in_place": engine.is_in_place}
    engine.init_transfer_engine(engine.parse_init_info(words))


def test_an_engine_of_vllm_copies_what_changed(engine: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.config.retention = RetentionPolicy(keep_last=2)
    weights = {
        "q.weight": torch.randn(30, 20).bfloat16(),
        "k.weight": torch.randn(30, 20).bfloat16(),
        "norm.weight": torch.ones(20),
    }
    begin(engine, store)
    model: Model = engine.model

    store.save({"model": weights, "lr": 0.1}, 1, "policy")
    engine.update_weights({"ref": "policy@1", "load": True})
    assert model.serves(weights)
    model.copied.clear()
    for step in (2, 3):
        weights["k.weight"][step] += 1
        store.save({"model": weights, "lr": 0.1}, step, "policy")
        engine.update_weights({"ref": f"policy@{step}"})  # while it generates: the model keeps the former weights
        assert not model.copied
    with monkeypatch.context() as patch:
        patch.setattr(engine, "store", None)  # the pause is a copy, which reads nothing from the store
        engine.update_weights({"ref": "policy@3", "load": True})
    assert model.serves(weights)
    assert sorted(model.copied) == (["k.weight"] if engine.is_in_place else sorted(weights))
    model.copied.clear()
    engine.update_weights({"ref": "policy@3", "load": True})
    assert not model.copied  # nothing has changed

    # Behind by more than retention keeps: nothing tells what changed, so all is copied.
    for step in range(4, 8):
        weights["norm.weight"] += 1
        store.save({"model": weights, "lr": 0.1}, step, "policy")
    engine.update_weights({"ref": "policy@7", "load": True})
    assert model.serves(weights)
    # The trainer goes back: a step that is older is loaded like any other.
    store.delete("policy@7")
    weights["norm.weight"] -= 1
    engine.update_weights({"ref": "latest", "load": True})
    assert model.serves(weights)
    engine.shutdown()
    check_store(store.path)


def test_an_engine_of_vllm_reads_all_after_a_failed_load(engine: Any, tmp_path: Path) -> None:
    """A load that failed midway leaves weights of two steps in host memory, so nothing there counts as held."""
    store = Store.init(tmp_path / "damaged")
    weights = {"q.weight": torch.ones(30, 20), "k.weight": torch.ones(30, 20), "norm.weight": torch.ones(20)}
    first = {name: value.clone() for name, value in weights.items()}
    begin(engine, store)
    store.save({"model": weights}, 1, "policy")
    engine.update_weights({"ref": "policy@1", "load": True})
    before = {*store.path.glob("blobs/*/*")}
    weights["k.weight"] += 1
    weights["norm.weight"] += 1
    store.save({"model": weights}, 2, "policy")
    (pack,) = {*store.path.glob("blobs/*/*")} - before
    flip(pack, pack.stat().st_size - 1)
    with pytest.raises(DamagedBlob, match="norm"):
        engine.update_weights({"ref": "policy@2"})
    with pytest.raises(DamagedBlob, match="norm"):  # it does not count as read
        engine.update_weights({"ref": "policy@2", "load": True})
    assert torch.equal(engine.host["model"]["k.weight"], weights["k.weight"])
    assert engine.model.serves(first)

    store.save({"model": first, "more": 1}, 3, "policy")
    engine.update_weights({"ref": "policy@3", "load": True})
    assert all(torch.equal(engine.host["model"][name], value) for name, value in first.items())
    assert engine.model.serves(first)
    engine.shutdown()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store.init(tmp_path / "store") as store:
        yield store
