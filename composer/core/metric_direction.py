"""Determine whether higher or lower metric values are better, for early stopping, best checkpoint and plateaus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from composer._text import word_set

__all__ = ["larger_is_better", "require_direction"]


_LOWER: Final = word_set(
    "bce ce cer crossentropy deviance eer err error errors fid hammingdistance kldivergence loss losses mae mape "
    "miscoverage mse nll perplexity ppl rmse smape wer"
)
_HIGHER: Final = word_set(
    "acc accuracy auc auprc auroc averageprecision bleu dice exactmatch f1 f1score fbeta hitrate iou jaccard map "
    "matthewscorrcoef miou mrr ndcg precision psnr r2 recall rouge sensitivity specificity ssim"
)
# Words next to the measured quantity that do not change the direction.
_NEUTRAL: Final = word_set(
    "at avg average best coefficient ema epoch eval index k last macro mean metric micro rate score test top total "
    "train val valid validation value weighted"
)
# Words that may reverse the direction, as in "neg_mean_squared_error" and "1 - accuracy".
_CONTRARY: Final = word_set("anti complement inverse inverted minus neg negated negative no non not one")
_SUBTRACTED: Final = re.compile(r"\s*(1\s*)?-")  # "1-accuracy", "-loss"
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")
_LONGEST: Final = 3  # words in one term: "mIoU" splits into three


def larger_is_better(name: str, metric: Any = None) -> bool | None:
    """Return whether larger values of a metric are better, or None if neither the metric nor its name indicates so.

    The attribute ``higher_is_better`` of the metric decides; for a wrapper without it, that of the inner metric; for a
    collection, the value that all members share. Otherwise the name decides, and then the name of the metric's class,
    if its last word is a common one (loss, error, perplexity, cross entropy, ...; accuracy, F1, AUROC, IoU, ...). Only
    complete words are matched.

    Args:
        name: Name of the metric, such as "MulticlassAccuracy" or "eval/val_loss".
        metric: The metric, if there is one.

    >>> (
    ...     larger_is_better("CrossEntropy"),
    ...     larger_is_better("val/top5_accuracy"),
    ...     larger_is_better("loss_scale"),
    ... )
    (False, True, None)
    """
    if metric is not None:
        stated = _declared(metric)
        if stated is not None:
            return stated
    last = name.rpartition("/")[2]
    named = _by_name(last)
    # The label of the dataset is ignored. The class decides only if the name has no known word at all.
    return _by_name(type(metric).__name__) if named is None and metric is not None and not _known(last) else named


def require_direction(name: str, metric: Any, remedy: str, argument: str = "monitor") -> bool:
    """Return whether larger values of a metric are better.

    Args:
        name: Name of the metric.
        metric: The metric, or None.
        remedy: What to pass if the direction is unknown, such as "comp='less' or comp='greater'".
        argument: Name of the argument that names the metric, for the message.

    Raises:
        ValueError: Neither the metric nor its name indicates so.

    >>> require_direction("Spread", None, "mode='min' or mode='max'")
    Traceback (most recent call last):
    ...
    ValueError: monitor='Spread': neither the metric's higher_is_better nor its name indicates whether larger values ...
    """
    found = larger_is_better(name, metric)
    if found is None:
        raise ValueError(
            f"{argument}={name!r}: neither the metric's higher_is_better nor its name indicates whether larger values "
            f"are better. Pass {remedy}."
        )
    return found


def _declared(metric: Any) -> bool | None:
    """Return ``higher_is_better`` of a metric, or of the metrics that it contains."""
    stated = getattr(metric, "higher_is_better", None)
    if isinstance(stated, (bool, int)):
        return bool(stated)
    inner = list(metric.values()) if isinstance(metric, Mapping) else _members(metric)
    declared = {_declared(one) for one in inner}
    return declared.pop() if len(declared) == 1 else None


def _members(metric: Any) -> list[Any]:
    """Return the members of a metric collection, or the inner metric of a wrapper."""
    class_names = {cls.__name__ for cls in type(metric).__mro__}
    if "MetricCollection" in class_names:
        return list(metric.values())
    # Not wrappers that compute another quantity: a difference, a minimum, a spread.
    if class_names & {"Running", "MetricInputTransformer", "ClasswiseWrapper", "MultioutputWrapper"}:
        return [part for part in metric.children() if hasattr(part, "higher_is_better")][:1]
    return []


def _words(name: str) -> list[str]:
    """Split a name into words; a trailing number is part of the word in "F1" and a count in "loss2"."""
    found = [word.lower() for word in _WORD.findall(name)]
    return [word if word in _LOWER | _HIGHER else word.rstrip("0123456789") or word for word in found]


def _terms(words: list[str]) -> set[str]:
    """Return all sequences of adjacent words, joined."""
    ends = range(1, len(words) + 1)
    return {"".join(words[max(end - size, 0) : end]) for end in ends for size in range(1, _LONGEST + 1)}


def _known(name: str) -> bool:
    """Return whether a name contains a word with a known direction."""
    return bool(_terms(_words(name)) & (_LOWER | _HIGHER))


def _by_name(name: str) -> bool | None:
    words = _words(name)
    if _CONTRARY.intersection(words) or _SUBTRACTED.match(name):
        return None
    while words and (words[-1] in _NEUTRAL or words[-1].isdigit()):
        words.pop()
    last = {"".join(words[-size:]) for size in range(1, min(_LONGEST, len(words)) + 1)}
    lower, higher = bool(last & _LOWER), bool(last & _HIGHER)
    others = _terms(words)
    if lower and not others & _HIGHER:
        return False
    return True if higher and not others & _LOWER else None
