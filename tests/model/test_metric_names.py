"""Whether the smallest or the greatest number of a metric is best, by its name."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.model.metric_names import LOSS_WORDS, OTHER_SENSE_WORDS, SCORE_WORDS, mode_by_name

MINIMISED = """
    loss train_loss val/loss eval_loss valid.loss train-loss valLoss MSELoss loss_step train_loss_epoch Loss/train
    loss:ce perplexity eval_ppl error_rate top1_error top5err wer test_CER mae val_RMSE NLL nll_loss fid
    losses/total loss2
"""
MAXIMISED = """
    acc accuracy eval_accuracy val/acc top-1-acc Top1Acc acc5 acc@1 f1 eval_f1 F1Score macro_F1 f1-score roc_auc AUC
    bleu BLEU4 sacrebleu rouge1 rougeLsum rewards/chosen episode_reward score eval_score map mAP mAP50 val_mAP_50_95
    IoU mIoU psnr r2 r2_score precision recall@10 ndcg@10
"""
UNDECIDED = """
    val metric quality lr grad_norm step loss_score score_loss accuracy_error dice_loss brier_score neg_loss -loss
    val/-loss 1-acc neg_mean_squared_error one_minus_acc loss_scale loss_std reward_variance accuracy_drop
    rewards/rejected
    lossless scored accurate mapping 12 ? _ точность éloss
"""


@pytest.mark.parametrize(
    "mode, names", [("min", MINIMISED), ("max", MAXIMISED), (None, UNDECIDED)], ids=["losses", "scores", "neither"]
)
def test_names_are_judged_by_their_words(mode: str | None, names: str) -> None:
    assert {name: mode_by_name(name) for name in names.split()} == dict.fromkeys(names.split(), mode)


PLAIN = {"min": sorted(LOSS_WORDS), "max": sorted(SCORE_WORDS)}
NEUTRAL = st.sampled_from(["train", "val", "eval", "epoch", "total", "top", "mean", "cifar", "x"])
STYLES: dict[str, Callable[[list[str]], str]] = {
    "lower": "_".join,
    "slash": "/".join,
    "dash": "-".join,
    "dot": ".".join,
    "upper": lambda words: "_".join(words).upper(),
    "camel": lambda words: "".join(word.capitalize() for word in words),
    "numbered": lambda words: "_".join(words) + "5",
}


@given(
    mode=st.sampled_from(["min", "max"]),
    data=st.data(),
    before=st.lists(NEUTRAL, max_size=2),
    behind=st.lists(NEUTRAL, max_size=2),
    style=st.sampled_from(sorted(STYLES)),
)
def test_a_plain_word_decides_in_every_style_and_beside_any_neutral_word(
    mode: str, data: st.DataObject, before: list[str], behind: list[str], style: str
) -> None:
    spell = STYLES[style]
    word = data.draw(st.sampled_from(PLAIN[mode]))

    assert mode_by_name(spell([*before, word, *behind])) == mode
    other = data.draw(st.sampled_from(PLAIN["max" if mode == "min" else "min"]))
    assert mode_by_name(spell([*before, word, *behind, other])) is None
    turning = data.draw(st.sampled_from(sorted(OTHER_SENSE_WORDS)))
    assert mode_by_name(spell([*before, turning, word, *behind])) is None


@given(name=st.text(min_size=1, max_size=30))
def test_a_name_without_a_known_word_is_not_judged(name: str) -> None:
    known = LOSS_WORDS | SCORE_WORDS
    if not any(word in re.sub(r"[^a-z0-9]", "", name.lower()) for word in known):
        assert mode_by_name(name) is None


def test_no_word_is_plain_in_two_ways() -> None:
    assert not LOSS_WORDS & SCORE_WORDS
    assert not OTHER_SENSE_WORDS & (LOSS_WORDS | SCORE_WORDS)
