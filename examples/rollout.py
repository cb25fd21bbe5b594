"""Send weights to rollout workers: `rollout.py trainer STORE URL STEPS`, and `rollout.py worker URL STEPS`.

The trainer trains a bfloat16 model with reinforcement learning, and pushes it to a bucket after each step. A step
changes about one weight in a hundred. Each worker is a separate process and applies the difference to its weights.
"""

import sys
from pathlib import Path

import torch
import xxhash
from safetensors.torch import save_file

from ckstore import RetentionPolicy, Store


def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)])


def digest(weights):
    hasher = xxhash.xxh3_64()
    for name in sorted(weights):
        hasher.update(weights[name].view(torch.int16).numpy())
    return hasher.hexdigest()


def improve(model, optimizer):
    states, rewards = torch.randn(16, 1024), torch.randn(16, 1)
    loss = -(rewards * model(states)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(folder, url, steps):
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    store = Store.open_or_init(folder, run="policy")
    store.config.retention = RetentionPolicy(keep_last=3)
    store.config.push_deltas = True  # the bucket stores each step as a difference to the previous one
    store.remotes.add("bucket", url)
    for _ in range(20):  # the first steps of AdamW change more weights than later ones
        improve(model, optimizer)
    for step in range(steps):
        improve(model, optimizer)
        weights = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
        info = store.save(weights, step=step)
        sent = store.push(info, "bucket").moved_bytes
        # For comparison, write the file that a trainer without a store would send.
        save_file(weights, f"{folder}.safetensors")
        file_bytes = Path(f"{folder}.safetensors").stat().st_size
        print(f"step {step} {digest(weights)}: {sent} bytes sent, {file_bytes} as a safetensors file", flush=True)


def work(url, steps):
    weights = {name: value.to(torch.bfloat16) for name, value in new_model().state_dict().items()}
    report = None
    with Store.open(url) as store:
        for info in store.follow("policy", poll_s=0.2, timeout_s=120):
            # Load into the memory from which the engine generates. All data that is read is verified.
            report = store.load_into(weights, info, since=report)
            print(f"step {info.step} {digest(weights)}: {report.received_bytes} bytes received", flush=True)
            if info.step == steps - 1:
                break


torch.set_num_threads(1)
if sys.argv[1] == "trainer":
    train(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    work(sys.argv[2], int(sys.argv[3]))
