"""The table of docs/reference/loading.md: differences between a checkpoint and a model, for torch and `load_into`.

`python -m tests.ops.read.load_differences` writes the page. `test_load_differences` runs each row and compares the page
with the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.own_loaders import Adding, Fused, History, Leaving, Quantized, Scales, Wary

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "loading.md"
State = dict[str, Any]
LOADED, REFUSED, CONVERTED, HALF, WRONG = "loaded", "refused", "converted silently", "refused, half loaded", "wrong"
OUTCOMES = (WRONG, HALF, CONVERTED, REFUSED, LOADED)
"""Worst first. `wrong`: accepted, but the model lacks values of the checkpoint, or cannot train."""


@dataclass(frozen=True)
class Row:
    """One difference: the saved state, the target of the load, and the outcomes."""

    what: str
    saved: Callable[[], State]
    target: Callable[[], State]
    torch: str
    ours: str
    how: dict[str, Any] = field(default_factory=dict)
    with_it: str = ""

    @property
    def name(self) -> str:
        return self.what.replace("`", "")


class Wrapper(nn.Module):
    """Holds another module under a name."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(name, module)


class Net(nn.Module):
    """An embedding, a layer and a head, which may be tied."""

    def __init__(self, words: int = 6, out: int = 2, *, tied: bool = False, more: int = 0, bias: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 3)
        self.layer = nn.Linear(3, 3, bias=bias)
        self.head = nn.Linear(3, words if tied else out, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        for i in range(more):
            self.add_module(f"more{i}", nn.Linear(3, 3))


def net(**how: Any) -> Callable[[], State]:
    return lambda: {"model": Net(**how)}


def wrapped(*names: str, block: str = "") -> Callable[[], State]:
    def make() -> State:
        module: nn.Module = Net()
        if block:
            assert isinstance(module, Net)
            module.layer = Wrapper(block, module.layer)  # type: ignore[assignment]
        for name in names:
            module = Wrapper(name, module)
        return {"model": module}

    return make


def with_tensor(name: str, tensor: Callable[[], torch.Tensor], *, buffer: bool = False) -> Callable[[], State]:
    def make() -> State:
        module = Net()
        if buffer:
            module.register_buffer(name, tensor())
        else:
            module.register_parameter(name, nn.Parameter(tensor()))
        return {"model": module}

    return make


def changed(make: Callable[[], State], change: Callable[[Any], object]) -> Callable[[], State]:
    def changed_one() -> State:
        state = make()
        made = change(state["model"])
        return {**state, "model": made} if made is not None else state

    return changed_one


def on_meta(make: Callable[[], State]) -> Callable[[], State]:
    def empty() -> State:
        with torch.device("meta"):
            return make()

    return empty


def trained(
    make: Callable[[], State], optimizer: Any = torch.optim.AdamW, *, steps: int = 1, split: bool = False
) -> Callable[[], State]:
    def run() -> State:
        state = make()
        parameters = list(state["model"].parameters())
        groups = [{"params": parameters[:1]}, {"params": parameters[1:]}] if split else parameters
        made = optimizer(groups, lr=0.5)
        for _ in range(steps):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 0.5)
            made.step()
        return {**state, "optimizer": made}

    return run


def flat(state: State) -> dict[str, Any]:
    return dict(state["model"].state_dict())


def as_plain(make: Callable[[], State], change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[], State]:
    """A checkpoint whose model is a plain dict of tensors."""
    return lambda: {"model": change(flat(make()))}


class Lora(nn.Module):
    """A layer with an adapter beside it, named as PEFT names them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(3, 1, bias=False)
        self.lora_B = nn.Linear(1, 3, bias=False)


def lora(module: Net) -> None:
    module.layer = Lora(module.layer)  # type: ignore[assignment]


def add_lora(module: Net) -> None:
    module.lora_A = nn.Parameter(torch.rand(3, 1))
    module.lora_B = nn.Parameter(torch.rand(1, 3))


def new_head(module: Net) -> None:
    module.classifier = module.head
    del module.head


def batchnorm() -> State:
    return {"model": nn.BatchNorm1d(3)}


def lazily(module: Net) -> None:
    module.layer = nn.LazyLinear(3)


def transposed(module: Net) -> None:
    module.head.weight = nn.Parameter(torch.rand(3, 2))


def untied_values(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "head.weight": torch.rand(6, 3)}


def partly_meta(module: Net) -> None:
    module.head.to("meta")


def expanded(module: Net) -> None:
    module.register_buffer("scale", torch.zeros(1).expand(4))


def beside(make: Callable[[], nn.Module]) -> Callable[[], State]:
    """A net with a part that saves or loads in a way of its own."""

    def made() -> State:
        module = Net()
        module.part = make()
        return {"model": module}

    return made


def scaled_by_2() -> nn.Module:
    part = Scales()
    part.meta = {"scale": [2.0] * 40}
    return part


MODULE = {"rename": {"module.": ""}}
CAST = {"cast": True}
ASSIGN = {"assign": True}
LAX = {"strict": False}


def scaled(dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    return lambda: torch.arange(3).to(dtype)


ROWS = (
    Row("nothing", net(), net(), LOADED, LOADED),
    Row("a layer was added", net(), net(more=1), HALF, REFUSED, LAX, "loaded, with the layer in `missing`"),
    Row("a layer was removed", net(more=1), net(), HALF, REFUSED, LAX, "loaded, with the layer in `unexpected`"),
    Row("a bias was dropped", net(), net(bias=False), HALF, REFUSED, LAX, LOADED),
    Row(
        "the head was renamed",
        net(),
        changed(net(), new_head),
        HALF,
        REFUSED,
        {"rename": {"head.": "classifier."}},
        LOADED,
    ),
    Row(
        "the head was replaced by one with 5 classes",
        net(),
        net(out=5),
        HALF,
        REFUSED,
        LAX,
        "loaded, with the head in `not_loaded`",
    ),
    Row(
        "the vocabulary grew",
        net(),
        net(words=8),
        HALF,
        REFUSED,
        LAX,
        "loaded, without the embedding ([copy the old rows](../how-to/load-into-a-model.md#a-vocabulary-that-grew))",
    ),
    Row(
        "the vocabulary grew, and the head is tied", net(tied=True), net(words=8, tied=True), HALF, REFUSED, LAX, LOADED
    ),
    Row("a weight is transposed", net(), changed(net(), transposed), HALF, REFUSED, LAX, LOADED),
    Row(
        "saved under `torch.compile`",
        wrapped("_orig_mod"),
        net(),
        REFUSED,
        REFUSED,
        {"rename": {"_orig_mod.": ""}},
        LOADED,
    ),
    Row(
        "loaded under `torch.compile`",
        net(),
        wrapped("_orig_mod"),
        REFUSED,
        REFUSED,
        {"rename": {"": "_orig_mod."}},
        LOADED,
    ),
    Row("saved under DDP", wrapped("module"), net(), REFUSED, REFUSED, MODULE, LOADED),
    Row(
        "saved under DDP and compile",
        wrapped("_orig_mod", "module"),
        net(),
        REFUSED,
        REFUSED,
        {"rename": {"module.": "", "_orig_mod.": ""}},
        LOADED,
    ),
    Row(
        "saved under compile, loaded under DDP",
        wrapped("_orig_mod"),
        wrapped("module"),
        REFUSED,
        REFUSED,
        {"rename": {"_orig_mod.": "module."}},
        LOADED,
    ),
    Row(
        "one block was compiled in the saved model",
        wrapped(block="_orig_mod"),
        net(),
        HALF,
        REFUSED,
        {"rename": {"._orig_mod.": "."}},
        LOADED,
    ),
    Row(
        "one block is compiled in the target",
        net(),
        wrapped(block="_orig_mod"),
        HALF,
        REFUSED,
        {"rename": {"layer.": "layer._orig_mod."}},
        LOADED,
    ),
    Row(
        "one block was saved with activation checkpointing",
        wrapped(block="_checkpoint_wrapped_module"),
        net(),
        HALF,
        REFUSED,
        {"rename": {"._checkpoint_wrapped_module.": "."}},
        LOADED,
    ),
    Row(
        "the model was saved as a part, `model.`, of another module",
        wrapped("model"),
        net(),
        REFUSED,
        REFUSED,
        {"rename": {"model.": ""}},
        LOADED,
    ),
    Row(
        "saved under a wrapper, loaded with `strict=False` in both",
        wrapped("module"),
        net(),
        WRONG,
        REFUSED,
        MODULE,
        LOADED,
    ),
    Row(
        "the checkpoint has float32, the model bfloat16",
        net(),
        changed(net(), lambda m: m.bfloat16()),
        CONVERTED,
        REFUSED,
        CAST,
        "loaded, with each name in `cast`",
    ),
    Row(
        "the checkpoint has bfloat16, the model float32",
        changed(net(), lambda m: m.bfloat16()),
        net(),
        CONVERTED,
        REFUSED,
        CAST,
        "loaded, with each name in `cast`",
    ),
    Row(
        "a buffer is float32 in the checkpoint, int64 in the model",
        with_tensor("n", scaled(torch.float32), buffer=True),
        with_tensor("n", scaled(torch.int64), buffer=True),
        CONVERTED,
        REFUSED,
        CAST,
        REFUSED,
    ),
    Row(
        "a buffer is int64 in the checkpoint, int32 in the model",
        with_tensor("n", scaled(torch.int64), buffer=True),
        with_tensor("n", scaled(torch.int32), buffer=True),
        CONVERTED,
        REFUSED,
        CAST,
        LOADED,
    ),
    Row(
        "the checkpoint has complex numbers, the model real ones",
        with_tensor("z", scaled(torch.complex64)),
        with_tensor("z", scaled(torch.float32)),
        CONVERTED,
        REFUSED,
        CAST,
        REFUSED,
    ),
    Row("the model is on the meta device", net(), on_meta(net()), WRONG, REFUSED, ASSIGN, LOADED),
    Row(
        "a part of the model is on the meta device", net(), changed(net(), partly_meta), WRONG, REFUSED, ASSIGN, LOADED
    ),
    Row(
        "a tied model is on the meta device",
        net(tied=True),
        on_meta(net(tied=True)),
        WRONG,
        REFUSED,
        ASSIGN,
        "loaded and tied",
    ),
    Row(
        "a bfloat16 model is on the meta device",
        net(),
        on_meta(changed(net(), lambda m: m.bfloat16())),
        WRONG,
        REFUSED,
        {"assign": True, "cast": True},
        LOADED,
    ),
    Row(
        "the model has one more buffer",
        net(),
        with_tensor("n", scaled(torch.int64), buffer=True),
        HALF,
        REFUSED,
        LAX,
        LOADED,
    ),
    Row(
        "the model has one buffer less",
        with_tensor("n", scaled(torch.int64), buffer=True),
        net(),
        HALF,
        REFUSED,
        LAX,
        LOADED,
    ),
    Row(
        "a buffer became a parameter",
        with_tensor("w", scaled(torch.float32), buffer=True),
        with_tensor("w", scaled(torch.float32)),
        LOADED,
        LOADED,
    ),
    Row(
        "a buffer of the model is expanded",
        with_tensor("scale", lambda: torch.ones(4), buffer=True),
        changed(net(), expanded),
        HALF,
        REFUSED,
        LAX,
        LOADED,
    ),
    Row("two weights are tied in the checkpoint and the model", net(tied=True), net(tied=True), LOADED, LOADED),
    Row(
        "two weights are tied in the model, and the checkpoint has one of them",
        as_plain(net(tied=True), lambda v: {k: t for k, t in v.items() if k != "head.weight"}),
        net(tied=True),
        HALF,
        LOADED,
    ),
    Row("two weights are tied only in the checkpoint", net(tied=True), net(out=6), LOADED, LOADED),
    Row(
        "two weights are tied in the model and differ in the checkpoint",
        as_plain(net(tied=True), untied_values),
        net(tied=True),
        WRONG,
        REFUSED,
        LAX,
        "loads the first weight, with the other in `not_loaded`",
    ),
    Row("the optimizer in the program has not stepped", trained(net()), trained(net(), steps=0), LOADED, LOADED),
    Row(
        "the optimizer has more groups",
        trained(net()),
        trained(net(), split=True),
        HALF,
        REFUSED,
        LAX,
        "loaded, without the optimizer",
    ),
    Row(
        "the optimizer has more parameters",
        trained(net()),
        trained(net(more=1)),
        HALF,
        REFUSED,
        LAX,
        "loaded, without the optimizer",
    ),
    Row(
        "the checkpoint has AdamW, the program SGD",
        trained(net()),
        trained(net(), torch.optim.SGD),
        WRONG,
        REFUSED,
        LAX,
        "loaded, without the optimizer",
    ),
    Row(
        "the optimizer has parameters of a head with 5 classes",
        lambda: {"optimizer": trained(net())()["optimizer"]},
        lambda: {"optimizer": trained(net(out=5))()["optimizer"]},
        WRONG,
        REFUSED,
        LAX,
        "loaded, without the state of the head",
    ),
    Row(
        "the optimizer's parameters are on the meta device",
        trained(net()),
        trained(on_meta(net()), steps=0),
        WRONG,
        REFUSED,
        ASSIGN,
        REFUSED,
    ),
    Row(
        "LoRA weights were added to a layer",
        net(),
        changed(net(), add_lora),
        HALF,
        REFUSED,
        LAX,
        "loaded, with the adapters in `missing`",
    ),
    Row(
        "PEFT added LoRA",
        net(),
        changed(net(), lora),
        HALF,
        REFUSED,
        {"rename": {"layer.": "layer.base_layer."}, "strict": False},
        "loaded, with the adapters in `missing`",
    ),
    Row(
        "LoRA of PEFT was removed",
        changed(net(), lora),
        net(),
        HALF,
        REFUSED,
        {"rename": {".base_layer.": "."}, "strict": False},
        "loaded, with the adapters in `unexpected`",
    ),
    Row("a layer of the model is lazy", net(), changed(net(), lazily), LOADED, LOADED),
    Row(
        "a `BatchNorm` was saved by torch before 0.4",
        as_plain(batchnorm, lambda v: {k: t for k, t in v.items() if "num" not in k}),
        batchnorm,
        LOADED,
        LOADED,
    ),
    Row(
        "extra state grew, such as the scales of Transformer Engine",
        beside(scaled_by_2),
        beside(Scales),
        LOADED,
        LOADED,
    ),
    Row("a buffer takes the size of the loaded tensor", beside(History), beside(History), LOADED, LOADED),
    Row(
        "a hook joins two weights of an old checkpoint", beside(lambda: Fused(old=True)), beside(Fused), LOADED, LOADED
    ),
    Row(
        "a weight has 4 bits and quantization data, as in bitsandbytes",
        beside(Quantized),
        beside(Quantized),
        HALF,
        REFUSED,
        LAX,
        "loaded, with the weight in `not_loaded` and its parts in `unexpected`",
    ),
    Row(
        "a hook adds a tensor to the state, and no hook loads it",
        beside(Adding),
        beside(Adding),
        HALF,
        REFUSED,
        LAX,
        "loaded, with the tensor in `unexpected`",
    ),
    Row(
        "a hook omits a weight from the state",
        beside(Leaving),
        beside(Leaving),
        HALF,
        REFUSED,
        LAX,
        "loaded, with the weight in `missing`",
    ),
    Row("a module refuses its extra state", beside(Wary), beside(Wary), HALF, REFUSED),
    Row(
        "the checkpoint has a dict in place of a tensor",
        as_plain(net(), lambda v: {**v, "head.weight": {"deep": 1}}),
        net(),
        HALF,
        REFUSED,
        LAX,
        LOADED,
    ),
)


def page() -> str:
    """Return the text of the page."""
    how = [_row(row) for row in ROWS]
    return "\n".join([HEAD, *how, "", FOOT])


def _row(row: Row) -> str:
    args = ", ".join(f"{name}={value!r}" for name, value in row.how.items()).replace("'", '"')
    args = f"`{args}`: {row.with_it}" if args else ""
    return f"| {row.what} | {row.torch} | {row.ours} | {args} |"


HEAD = """\
# Loads into models

This page lists differences between a checkpoint and the model that it is loaded into, with the outcome of each. The
column "torch" has the outcome of torch's `load_state_dict` on the model and the optimizer. The next two columns have
the outcomes of `load_into` without arguments, and of `load_into` with the argument that helps. Each row is a
test that runs all three loads.

| Outcome | Meaning |
| --- | --- |
| loaded | the model has the values of the checkpoint, bit for bit |
| refused | an error; **nothing was changed** |
| refused, half loaded | an error; a part of the model or the optimizer has new values |
| converted silently | values were rounded or cut off without an error or a warning |
| wrong | no error, but the model lacks the values of the checkpoint, or the next step of training fails |

In these rows, `load_into` never converts values silently, never leaves a half-loaded target and never has the outcome
"wrong". The two cases in which it can leave a half-loaded target are described
[below the table](#half-loaded-targets).

An optimizer keeps its parameters in a fixed order. If you create it from `named_parameters()`, it also has their
names. If both the checkpoint and the optimizer have names, `load_into` assigns the state of the optimizer by name and
refuses different names. Otherwise it assigns the state by position, as torch does. If two parameters of equal shape
have swapped positions, each of them then gets the moments of the other parameter, and ckstore cannot detect this.

| Difference | torch | `load_into` | `load_into(…, argument)` |
| --- | --- | --- | --- |"""

FOOT = """\
The checkpoint may be a file that a trainer wrote: `load_into(model, ref, file="pytorch_model.bin")`.
[A file as a state](../how-to/files.md#a-file-as-a-state) describes this.

## Half-loaded targets

`load_into` cannot check the state of an object that is not a module and has its own `load_state_dict`. If that method
raises an error, the parts that were loaded before this object keep their new values. A damaged blob has the same
effect, because the error is raised while the target is being filled.
[Load into a model](../how-to/load-into-a-model.md) explains the arguments.
"""

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
