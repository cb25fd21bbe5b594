"""Derive from the name of a metric whether its smallest or its greatest value is best."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import digits
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["min", "max"]


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOSS_WORDS = _words_of("""
    loss losses error errors err perplexity ppl nll bce mae mse rmse mape smape msle rmsle
    wer cer ter eer ece brier crps fid kid lpips
""")
SCORE_WORDS = _words_of("""
    score scores reward rewards acc accuracy accuracies precision recall f1 auc auroc auprc map iou miou dice
    bleu sacrebleu rouge meteor chrf psnr ssim ndcg mrr mcc r2
""")
# Each of these words, together with a word above, reverses the order or names another quantity, such as the negative of
# an error, the spread of a reward, the scale of a loss in mixed precision, or the reward of a rejected answer.
OTHER_SENSE_WORDS = _words_of("""
    neg negative minus inverse inv not no non without rejected std stddev stderr var variance gap diff difference
    delta drop change decrease increase reduction improvement scale weight threshold
""")
_KNOWN = LOSS_WORDS | SCORE_WORDS | OTHER_SENSE_WORDS

_SEPARATORS = re.compile(r"[\W_]+")
_CAMEL_CASE = re.compile(r"[A-Z]+[0-9]*(?![a-z])|[A-Z]?[a-z]+[0-9]*")
# This matches the minus of ``-loss`` and ``1-acc``, but not the hyphens of ``top-1-acc``.
_MINUS_SIGN = re.compile(r"(?:\A|[\s/(])1?\s*-")


def mode_by_name(metric: str) -> Mode | None:
    """Return ``min`` for a clear name of a loss, ``max`` for a clear name of a score, and None for any other name."""
    words = set(_words_in(metric))
    is_loss, is_score = not words.isdisjoint(LOSS_WORDS), not words.isdisjoint(SCORE_WORDS)
    # Do not guess for an ambiguous name, because retention drops the checkpoints that are not the best.
    if is_loss == is_score or not words.isdisjoint(OTHER_SENSE_WORDS) or _MINUS_SIGN.search(metric):
        return None
    return "min" if is_loss else "max"


def _words_in(metric: str) -> Iterator[str]:
    """Yield the known words of a name, in lower case."""
    for piece in _SEPARATORS.split(metric):
        # In another script, a part of a word may look like an English word.
        if not piece.isascii():
            continue
        if (whole := _known(piece)) is not None:  # before splitting, because mAP, IoU and F1 are single words
            yield whole
        else:
            yield from (word for part in _CAMEL_CASE.findall(piece) if (word := _known(part)) is not None)


def _known(text: str) -> str | None:
    """Return the known word equal to a text, with or without trailing digits as in ``acc5``, or None."""
    lower = text.lower()
    return next((word for word in (lower, lower.rstrip(digits)) if word in _KNOWN), None)
