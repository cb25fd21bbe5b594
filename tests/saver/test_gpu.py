"""A state on a GPU is copied to the memory of the saver bit for bit, and may change right after the call."""

from __future__ import annotations

import pytest

from ckstore import Store
from tests.saver.conftest import DEADLINE_S
from tests.support.requirements import require_cuda


@pytest.mark.gpu
def test_a_state_on_a_gpu_is_saved_as_it_was_at_the_call(store: Store) -> None:
    require_cuda()
    import torch

    generator = torch.Generator(device="cuda").manual_seed(7)
    wide = torch.randn(3_000_000, device="cuda", generator=generator)
    state = {"wide": wide, "half": wide[:1001].to(torch.bfloat16), "turned": wide[:3000].view(50, 60).t()}
    expected = {name: tensor.clone().cpu() for name, tensor in state.items()}

    pending = store.save_async(state, step=1)
    wide.fill_(-1)
    state["half"].fill_(-1)
    pending.result(DEADLINE_S)

    loaded = store.load(1)
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name
