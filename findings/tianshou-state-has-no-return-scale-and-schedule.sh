#!/bin/sh
# tianshou 2.0.1 with torch 2.13.0: after a load, an algorithm with `return_scaling=True` trains its critic on returns that are not scaled.
#
# `Algorithm.state_dict()` contains the networks and the optimizers. With `return_scaling=True`, A2C and PPO divide the returns by their running standard
# deviation, and multiply the values of the critic by it. These statistics are the plain attribute `ret_rms`, which no state contains. After a
# load the deviation is 1.0, so the critic, which has learned small values, gets the raw returns as targets, and its values count as raw ones. The positions
# of the learning rate schedules in `lr_schedulers` are not in the state either, so that a decay begins again. Both load without an error or a warning.
# `load_state_dict` also removes the optimizers from the dict that it is given, so a second load of the same dict ends in KeyError. Save `ret_rms`
# and the states of `lr_schedulers` in addition, as below.
#
# Guess: an algorithm that saves its optimizers with its networks continues exactly.
# Seen, 2026-11-30: A2C, saved after 4 of 8 updates. Without both options the losses are equal. With scaling, the next loss of the critic is
# 2211 instead of 3.5. With a linear decay, the rates of the last three updates are 0.0088, 0.0075 and 0.0063 instead of 0.0037, 0.0025 and 0.0013.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'tianshou==2.0.1'
cat > "$dir/try.py" <<'PY'
import copy
import io

import gymnasium
import numpy
import tianshou
import torch
from tianshou.algorithm import A2C
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, LRSchedulerFactoryLinear
from tianshou.data import Batch, ReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

UPDATES = 8


def algorithm(scaling, decay):
    torch.manual_seed(0)
    policy = ProbabilisticActorPolicy(
        actor=DiscreteActor(preprocess_net=Net(state_shape=(3,), hidden_sizes=(8,)), action_shape=2),
        dist_fn=torch.distributions.Categorical, action_space=gymnasium.spaces.Discrete(2), action_scaling=False, action_bound_method=None,
    )  # fmt: skip
    optimizer = AdamOptimizerFactory(lr=0.01)
    if decay:
        optimizer.with_lr_scheduler_factory(LRSchedulerFactoryLinear(UPDATES, 1, 1))
    critic = DiscreteCritic(preprocess_net=Net(state_shape=(3,), hidden_sizes=(8,)))
    return A2C(policy=policy, critic=critic, optim=optimizer, return_scaling=scaling)


def episodes(seed):
    """Four episodes of eight steps."""
    source, found = numpy.random.default_rng(seed), ReplayBuffer(32)
    for number in range(32):
        found.add(Batch(
            obs=source.normal(size=3).astype("float32"), act=int(source.integers(2)), rew=float(source.normal(10, 5)), terminated=number % 8 == 7,
            truncated=False, obs_next=source.normal(size=3).astype("float32"), info={},
        ))  # fmt: skip
    return found


def updates(trained, numbers):
    """The loss of the critic and the learning rate of each update."""
    found = []
    for number in numbers:
        numpy.random.seed(number)
        rate = trained.optim.state_dict()["param_groups"][0]["lr"]
        with policy_within_training_step(trained.policy):
            loss = trained.update(episodes(number), batch_size=None, repeat=1).vf_loss
        found.append((round(float(getattr(loss, "mean", loss)), 3), round(float(rate), 4)))
    return found


print("tianshou", tianshou.__version__, "torch", torch.__version__)
first, rest = range(UPDATES // 2), range(UPDATES // 2, UPDATES)
for scaling, decay in ((False, False), (True, False), (False, True)):
    whole = algorithm(scaling, decay)
    updates(whole, first)
    buffer = io.BytesIO()
    torch.save(whole.state_dict(), buffer)
    missing = copy.deepcopy((whole.ret_rms, [schedule.state_dict() for schedule in whole.lr_schedulers]))
    expected = updates(whole, rest)
    loaded, repaired = algorithm(scaling, decay), algorithm(scaling, decay)
    for each in (loaded, repaired):
        buffer.seek(0)
        state = torch.load(buffer, weights_only=False)  # the decayed rate is a number of NumPy
        each.load_state_dict(state)
    try:
        each.load_state_dict(state)
    except KeyError as error:
        print("second load of the same dict: KeyError", error)
    else:
        raise SystemExit("The dict can be loaded twice.")
    repaired.ret_rms = missing[0]
    for schedule, position in zip(repaired.lr_schedulers, missing[1], strict=True):
        schedule.load_state_dict(position)
    found, fixed = updates(loaded, rest), updates(repaired, rest)
    print(f"return_scaling={scaling}, decay={decay}: without a stop {expected}, loaded {found}, with the rest of the state {fixed}")
    assert fixed == expected and (found == expected) == (not scaling and not decay)
    if scaling:
        assert found[0][0] > 100 * expected[0][0]
    if decay:
        assert [rate for _, rate in found][1:] == [0.0088, 0.0075, 0.0063]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
