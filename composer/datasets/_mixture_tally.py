"""What each source of a mixture has contributed: samples, tokens, and how far it is behind its weight."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from composer.core.timestamp import Timestamp

__all__ = ["Tally"]

_log = logging.getLogger(__name__)


class Tally:
    """Counts the samples and tokens of each source over all ranks, from the progress of the run between two batches.

    The number of samples and tokens of a batch on all ranks is known after its step, so a batch is counted when the
    next one is drawn.

    Args:
        names: Names of the sources.
        by: What weights refer to, ``"samples"`` or ``"tokens"``.

    Attributes:
        draws: Number of batches.
        samples: Number of samples of each source.
        tokens: Number of tokens of each source.
        credits: What each source should have contributed minus what it did, in samples or tokens.

    >>> tally = Tally(["a", "b"], "samples")
    >>> tally.draw("a", {"a": 0.5, "b": 0.5}, Timestamp())
    >>> tally.settle(Timestamp(sample=8))
    >>> tally.samples, tally.credits, tally.mean
    ({'a': 8, 'b': 0}, {'a': -4.0, 'b': 4.0}, 8.0)
    """

    def __init__(self, names: list[str], by: str) -> None:
        self._by = by
        self.draws = 0
        self.samples = dict.fromkeys(names, 0)
        self.tokens = dict.fromkeys(names, 0)
        self.credits = dict.fromkeys(names, 0.0)
        # The source and weights of the last batch, and the progress before it.
        self._last: dict[str, Any] | None = None
        self._settled = 0
        self._amount = 0

    @property
    def mean(self) -> float:
        """Mean number of samples or tokens of a batch; 0 before the first was counted."""
        return self._amount / max(self._settled, 1)

    def draw(self, name: str, weights: Mapping[str, float], now: Timestamp) -> None:
        """Note that a batch was drawn.

        Args:
            name: Its source.
            weights: The weights of all sources.
            now: Progress before its step.
        """
        self.draws += 1
        self._last = {
            "source": name,
            "weights": dict(weights),
            "sample": now.sample.value,
            "token": now.token.value,
        }

    def samples_at(self, now: Timestamp) -> dict[str, int]:
        """Return the number of samples of each source, with the last batch if its step is done.

        Args:
            now: Current progress.
        """
        return self._with_last(self.samples, "sample", int(now.sample.value))

    def tokens_at(self, now: Timestamp) -> dict[str, int]:
        """Return the number of tokens of each source, with the last batch if its step is done.

        Args:
            now: Current progress.
        """
        return self._with_last(self.tokens, "token", int(now.token.value))

    def settle(self, now: Timestamp) -> None:
        """Count the last batch, if it is not counted yet.

        Args:
            now: Progress after its step.

        Raises:
            ValueError: Weights refer to tokens, and none are counted.
        """
        last, self._last = self._last, None
        if last is None:
            return
        # A run that starts over with a used mixture has less progress than before: the batch is then not counted.
        samples = max(0, int(now.sample.value) - last["sample"])
        tokens = max(0, int(now.token.value) - last["token"])
        name, amount = last["source"], samples if self._by == "samples" else tokens
        if name not in self.samples:  # no longer part of the mixture
            return
        self.samples[name] += samples
        self.tokens[name] += tokens
        self._settled += 1
        self._amount += amount
        if samples and not self._amount:
            raise ValueError(
                "by='tokens', but no tokens were counted in the first batch. Tokens are the elements of 'input_ids'; "
                "for other batches, use DataSpec(Mixture(...), get_num_tokens_in_batch=...), or by='samples'."
            )
        for other, weight in last["weights"].items():
            if other in self.credits:
                self.credits[other] += weight * amount
        self.credits[name] -= amount

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        last = self._last
        return {
            "draws": self.draws,
            "settled": self._settled,
            "amount": self._amount,
            "by": self._by,
            "last": None if last is None else {**last, "weights": dict(last["weights"])},
            "samples": dict(self.samples),
            "tokens": dict(self.tokens),
            "credits": dict(self.credits),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts of sources that exist; others start with nothing.

        Args:
            state: The result of :meth:`state_dict`.
        """
        self.draws, self._settled, self._amount = state["draws"], state["settled"], state["amount"]
        self._last = state["last"]
        for counts, saved in ((self.samples, state["samples"]), (self.tokens, state["tokens"])):
            counts.update({name: saved.get(name, 0) for name in counts})
        self.credits.update({name: state["credits"].get(name, 0.0) for name in self.credits})
        if gone := state["samples"].keys() - self.samples.keys():
            _log.warning("The sources %s of the saved mixture are not in this one; they end here.", sorted(gone))
        if state["by"] != self._by:
            # Samples and tokens cannot be compared.
            self.forget_credits()
            self._settled = self._amount = 0
            self._last = None
        elif excess := math.fsum(self.credits.values()):
            for name in self.credits:
                self.credits[name] -= excess / len(self.credits)

    def _with_last(self, counts: dict[str, int], unit: str, now: int) -> dict[str, int]:
        last = self._last
        if last is None or last["source"] not in counts:
            return dict(counts)
        return {**counts, last["source"]: counts[last["source"]] + max(0, now - last[unit])}

    def forget_credits(self) -> None:
        """Start all sources level, where ranks may have counted differently."""
        self.credits = dict.fromkeys(self.credits, 0.0)
