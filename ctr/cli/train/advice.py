"""What to do about a model that is worse than always predicting the base rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctr.metrics import MetricSummary

_RANKS_FROM = 0.6  # AUC
_OFF_BY = 1.25


def advice(training: MetricSummary, holdout: MetricSummary, pos_weight: float = 1.0) -> str | None:
    """What is wrong and the remedy, by ranking and calibration; None for a model that beats the base rate."""
    if not holdout.normalized_entropy > 1:
        return None
    rates = (
        f"{training.base_rate:.2%} of the training rows are clicks, {holdout.base_rate:.2%} of the hold-out"
    )
    rates_differ = _differ(training.base_rate, holdout.base_rate)
    if not holdout.auc >= _RANKS_FROM:  # nor if it is not a number
        text = "the model ranks no better than chance on the hold-out: are the rows sorted, so that the "
        text += f"training part is unlike it ({rates})? " if rates_differ else "training part is unlike it? "
        return text + "`ctr features build --shuffle 0` mixes them"
    if not _differ(holdout.calibration, 1):
        return (
            f"the model ranks well on the hold-out (AUC {holdout.auc:.3f}), but its predictions are too "
            "extreme: train with fewer --epochs, a lower --alpha, or a higher --l2"
        )
    text = (
        f"the model ranks well on the hold-out (AUC {holdout.auc:.3f}), but predicts "
        f"{holdout.calibration:.2f} times its click rate: "
    )
    if _differ(pos_weight, 1):
        return text + (
            f"--pos-weight {pos_weight:g} makes its odds about so many times what they should be; "
            "--calibrate brings the probabilities back"
        )
    if rates_differ:
        return text + (
            f"{rates}. If negatives were down-sampled, give those that were kept a larger weight (`weight` "
            "in the spec); if the click rate has changed, train on newer rows"
        )
    return text + "its weights have not arrived yet; train with a higher --alpha, or more --epochs"


def _differ(one: float, other: float) -> bool:
    return max(one, other) > _OFF_BY * min(one, other)
