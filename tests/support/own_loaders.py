"""Modules that save or load in ways of their own, each as some library has it, small."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper


class Scales(nn.Module):
    """Extra state that is a tensor of bytes, which grows from nothing: the fp8 scales of Transformer Engine."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2, 2))
        self.meta: Any = None

    def get_extra_state(self) -> torch.Tensor:
        return torch.frombuffer(bytearray(pickle.dumps(self.meta)), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.meta = pickle.loads(state.numpy().tobytes())

    def change(self) -> None:
        self.meta = {"scale": torch.rand(1).tolist() * int(torch.randint(1, 4, ()))}


class Wary(Scales):
    """Refuses extra state, after it took its parameters."""

    def set_extra_state(self, state: torch.Tensor) -> None:
        super().set_extra_state(state)
        raise ValueError("these scales are of another machine")


class History(nn.Module):
    """A buffer that takes the size of what it loads: a queue, a cache."""

    past: Any

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2))
        self.register_buffer("past", torch.zeros(0))

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        past = state.get(f"{prefix}past")
        self.past = torch.zeros_like(past) if past is not None else self.past
        super()._load_from_state_dict(state, prefix, *args)

    def change(self) -> None:
        self.past = torch.rand(int(torch.randint(0, 5, ())))


class Fused(nn.Module):
    """A hook joins two weights of an old checkpoint into one."""

    def __init__(self, *, old: bool = False) -> None:
        super().__init__()
        if old:
            self.q, self.k = nn.Parameter(torch.rand(1, 2)), nn.Parameter(torch.rand(1, 2))
            return
        self.qk = nn.Parameter(torch.rand(2, 2))
        self.register_load_state_dict_pre_hook(self._join)  # type: ignore[no-untyped-call]

    @staticmethod
    def _join(module: nn.Module, state: Any, prefix: str, *_: Any) -> None:
        if f"{prefix}q" in state:
            state[f"{prefix}qk"] = torch.cat([state.pop(f"{prefix}q"), state.pop(f"{prefix}k")])


class Average(nn.Module):
    """A hook loads the mean of what was there and what is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2))
        self.register_load_state_dict_pre_hook(self._mean)  # type: ignore[no-untyped-call]

    @staticmethod
    def _mean(module: Any, state: Any, prefix: str, *_: Any) -> None:
        if f"{prefix}weight" in state:
            state[f"{prefix}weight"] = (state[f"{prefix}weight"] + module.weight.detach()) / 2


class Derived(nn.Module):
    """A hook computes something of what was loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.loads = 0
        self.sum: Any = None
        self.register_load_state_dict_post_hook(self._compute)  # type: ignore[no-untyped-call]

    @staticmethod
    def _compute(module: Any, keys: Any) -> None:
        module.sum = module.inner.weight.detach().sum().item()
        module.loads += 1

    def get_extra_state(self) -> Any:
        return {"loads": self.loads, "sum": self.sum}

    def set_extra_state(self, state: Any) -> None:
        self.loads = dict(state)["loads"]


class Forgiving(nn.Module):
    """A hook says that nothing is missing."""

    def __init__(self, *, small: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2))
        if not small:
            self.more = nn.Parameter(torch.rand(2))
        self.register_load_state_dict_post_hook(lambda _, keys: keys.missing_keys.clear())  # type: ignore[no-untyped-call]


class Quantized(nn.Module):
    """Adds to its state how its weight is quantized, and does not load that: the 4-bit layers of bitsandbytes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))
        self.scale = float(torch.rand(()))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight.absmax"] = torch.tensor([self.scale])
        destination[f"{prefix}weight.quant_state"] = torch.tensor(list(str(self.scale).encode()), dtype=torch.uint8)


class Packed(nn.Module):
    """Has no parameters; saves and loads what it keeps by itself, in one tensor more: the quantized layers of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = torch.rand(2), float(torch.rand(()))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}packed"] = self.packed

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        if f"{prefix}packed" in state:
            self.packed = state.pop(f"{prefix}packed")
        else:
            args[2].append(f"{prefix}packed")
        super()._load_from_state_dict(state, prefix, *args)


class Adding(nn.Module):
    """A hook adds a tensor that nothing loads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2))
        self.register_state_dict_post_hook(self._add)  # type: ignore[no-untyped-call]

    @staticmethod
    def _add(module: Any, state: Any, prefix: str, _: Any) -> None:
        state[f"{prefix}added"] = module.weight.detach() * 2


class Leaving(nn.Module):
    """A hook leaves a parameter out of the state, as where only adapters are saved."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Parameter(torch.rand(2)), nn.Parameter(torch.rand(2))
        self.register_state_dict_post_hook(self._leave_out)  # type: ignore[no-untyped-call]

    @staticmethod
    def _leave_out(module: Any, state: Any, prefix: str, _: Any) -> None:
        del state[f"{prefix}base"]


class Translating(nn.Module):
    """Has a `load_state_dict` of its own, which takes other names; torch calls it at the top alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2))

    def state_dict(self, *args: Any, **how: Any) -> Any:
        return OrderedDict((f"saved.{key}", value) for key, value in super().state_dict(*args, **how).items())

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:  # type: ignore[override]
        own = {key.removeprefix("saved."): value for key, value in state_dict.items()}
        return super().load_state_dict(own, strict)


class Lora(nn.Module):
    """Loads its own scale after its parameters, of a state that has one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(2, 1)), nn.Parameter(torch.rand(1, 2))
        self.scale = torch.rand(1)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}scale"] = self.scale

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, *args)
        if f"{prefix}scale" in args[3]:
            self.scale.copy_(state[f"{prefix}scale"])
            args[3].remove(f"{prefix}scale")


def spectral() -> nn.Module:
    made: nn.Module = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
    return made


def weight_normed() -> nn.Module:
    made: nn.Module = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    return made


def checkpointed() -> nn.Module:
    wrapped: nn.Module = checkpoint_wrapper(nn.Linear(2, 2))
    return wrapped


def checkpointed_norm() -> nn.Module:
    wrapped: nn.Module = checkpoint_wrapper(nn.Sequential(nn.BatchNorm1d(2), Scales()))
    return wrapped


class OldNorm(nn.BatchNorm1d):
    """As it was before it counted its batches."""

    _version = 1

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}num_batches_tracked"]


KINDS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(2, 2),
    "wide": lambda: nn.Linear(3, 2),
    "norm": lambda: nn.BatchNorm1d(2),
    "old norm": lambda: OldNorm(2),
    "instance norm": lambda: nn.InstanceNorm1d(2, track_running_stats=True),
    "lstm": lambda: nn.LSTM(2, 2),
    "lazy": lambda: nn.LazyLinear(2),
    "spectral": spectral,
    "weight norm": weight_normed,
    "checkpointed": checkpointed,
    "checkpointed norm": checkpointed_norm,
    "average model": lambda: torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2)),
    "scales": Scales,
    "wary": Wary,
    "history": History,
    "fused": Fused,
    "not fused": lambda: Fused(old=True),
    "average": Average,
    "derived": Derived,
    "forgiving": Forgiving,
    "small": lambda: Forgiving(small=True),
    "quantized": Quantized,
    "packed": Packed,
    "adding": Adding,
    "leaving": Leaving,
    "translating": Translating,
    "lora": Lora,
    "nothing": nn.Module,
}
"""Name -> what makes one; some make what an older version of another one saved."""
