"""What to do about a bottleneck, apart from the remedies that are tried."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["advise"]

_ADVICE = {
    "data": "Prepare what does not change once, outside of training; load in more workers; make {where} faster.",
    "host": "Let fewer and larger operators do the work: larger batches, no Python loops over samples or steps; "
    "see {where}.",
    "synchronization": "Keep the value on the device, and read it rarely: log it, or read it every 100 batches.",
    "communication": "Communicate less often (larger batches, gradient accumulation), and only what is needed.",
    "imbalance": "Give each rank the same work in each step: batches of the same cost, such as of the same length; see "
    "{where}.",
    "evaluation": "Evaluate less often or on fewer batches: eval_interval, eval_subset_num_batches.",
    "saving": "Save less often, or in the background: save_interval, save_async=True.",
    "logging": "Log less often and less: flush_interval of the logger, fewer metrics; {where} takes most.",
    "callback": "Let {where} act every 10 or 100 batches, or without loops over parameters in Python.",
    "method": "Let {where} work on whole batches rather than on single samples, or every few batches.",
    "metrics": "Compute metrics of training less often, or only in evaluation.",
    "schedules": "Compute the values of a schedule once and look them up, since each step has one; see {where}.",
    "optimizer": "Update all tensors at once: fused=True, foreach=True, or no Python loops over tensors; see {where}.",
}
# Clauses that a remedy has refuted if it was measured and does not pay.
_REMEDIES = {"load in more workers": "workers"}


def advise(cause: str, where: str = "", useless: Collection[str] = ()) -> str:
    """Return what to do about a bottleneck; empty if there is none.

    Args:
        cause: The cause, of :data:`.Cause`.
        where: The line of the user's code, callback, method or logger; empty if unknown.
        useless: Names of remedies that were measured and do not pay, such as "workers".

    >>> advise("data", useless=["workers"])
    'Prepare what does not change once, outside of training.'
    """
    clauses = _ADVICE.get(cause, "").removesuffix(".").split("; ")
    kept = [each for each in clauses if (where or "{where}" not in each) and _REMEDIES.get(each) not in useless]
    text = "; ".join(kept).format(where=where)
    return f"{text}." if text else ""
