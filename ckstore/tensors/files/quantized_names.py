"""Quantized tensors in a safetensors file, in the form of `torchao.prototype.safetensors` (torchao 0.18).

Each part is a tensor such as ``0._weight_qdata``, and the metadata has the class and context of each tensor as JSON.
This module does not import torchao. It lists the names of the classes that torchao can load.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import Manifest, Node
from ckstore.model.manifest.nodes import SPARSE_KINDS
from ckstore.model.names import plain
from ckstore.tensors.walks import leaf_numbers, parts_in

_TENSORS = {
    *("Float8Tensor", "Int4Tensor", "Int4TilePackedTo4dTensor", "IntxUnpackedToInt8Tensor", "Int8Tensor"),
    *("Int4PlainInt32Tensor", "MXTensor", "NVFP4Tensor"),
}
_IN_CONTEXTS = {
    *("Float8MMConfig", "QuantizeTensorToFloat8Kwargs", "QuantizeTensorToInt8Kwargs", "PerRow", "PerTensor"),
    *("KernelPreference", "MappingType", "QuantizeTensorToMXKwargs", "ScaleCalculationMode"),
    "QuantizeTensorToNVFP4Kwargs",
}
_PLAIN = json.dumps({"_type": "Tensor"})
_HINT = "export as torch or dcp, which keep it unchanged (format='torch'), or leave it out with select="


class QuantizedNames:
    """The names and metadata of the quantized tensors of a checkpoint."""

    def __init__(self, manifest: Manifest, keep: Callable[[str], bool] | None, naming: Callable[[str], str]) -> None:
        self.names: dict[int, str] = {}  # leaf number of each part of these tensors -> its name in the file
        # The metadata from which torchao builds these tensors. Empty if the checkpoint has no quantized tensors.
        self.metadata: dict[str, str] = {}
        self._leaves = manifest.leaves
        for path, node in parts_in(manifest.state):
            numbers = list(leaf_numbers(node))
            if node[2] not in SPARSE_KINDS and all(keep is None or keep(self._leaves[i].name) for i in numbers):
                self._take(naming(path), node)
        if not self.names:
            return
        for i, leaf in enumerate(manifest.leaves):
            # torchao splits each name at its last dot. A tensor without a dot in its name is not listed, so torchao
            # returns it among the remaining tensors.
            if (
                i not in self.names
                and leaf.kind in ("torch", "numpy")
                and (keep is None or keep(leaf.name))
                and "." in (name := naming(leaf.name))
            ):
                self.metadata[name] = _PLAIN
        self.metadata["tensor_names"] = json.dumps([*self.metadata])

    def _take(self, name: str, node: Node) -> None:
        module, dot, own = name.rpartition(".")
        package, kind = node[2].partition(".")[0], node[2].rpartition(".")[2]
        direct = all(item[0] == "leaf" for _, item in node[1])
        if package != "torchao" or kind not in _TENSORS or not direct:
            raise _refused(name, f"is a {node[2]}, which no loader of safetensors files can build")
        if not dot:
            raise _refused(name, f"is a {node[2]}, which torchao finds only by a name with a dot")
        try:
            context = _json_value(node[3][1][0])
        except ValueError as error:
            raise _refused(name, f"is a {node[2]} with {error}, which torchao's loader does not know") from error
        self.names.update((item[1], f"{module}._{own}_{key}") for key, item in node[1])
        keys = [key for key, _ in node[1]]
        self.metadata[name] = json.dumps({"_type": kind, "_data": context, "_tensor_data_names": keys})


def _refused(name: str, reason: str) -> BadInput:
    return BadInput(f"{plain(name) or 'the state itself'} {reason}", hint=_HINT)


def _json_value(node: Node) -> Any:
    """Return a value of a context in the form of torchao's encoder.

    Raises:
        ValueError: torchao's encoder has no form for the value. The message names the value.
    """
    if not isinstance(node, list):
        return node
    tag = node[0]
    if tag in ("list", "tuple"):
        return [_json_value(item) for item in node[1]]
    if tag == "torch.Size" or (tag == "float" and not isinstance(node[1], str)):
        return node[1]
    if tag == "dict" and all(isinstance(key, str) for key, _ in node[1]):
        return {key: _json_value(item) for key, item in node[1]}
    if tag == "torch.dtype":
        return {"_type": "torch.dtype", "_data": node[1]}
    kind = {"enum": 1, "object": 2}.get(tag)
    name = "" if kind is None else node[kind].rpartition(".")[2]
    if name not in _IN_CONTEXTS:
        raise ValueError(f"the {tag} {name}".rstrip())
    data = node[2] if tag == "enum" else {key: _json_value(item) for key, item in node[1]}
    return {"_type": name, "_data": data}
