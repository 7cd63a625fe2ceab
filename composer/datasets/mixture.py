"""Mixture: a dataloader that draws batches from several sources by weight, resumable at any position on any ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer import dist
from composer._numbers import whole_number
from composer._text import one_of, plural
from composer.core.data_sharding import DataShard
from composer.core.data_spec import DataSpec
from composer.core.random_order import mix_seed
from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp
from composer.core.types import Batch
from composer.core.user_counts import as_tokens
from composer.datasets._mixture_arguments import STRATEGIES, Weight, epoch_batches, expected_batches, named_pairs
from composer.datasets._mixture_sources import Source, make_source
from composer.datasets._mixture_tally import Tally
from composer.datasets._mixture_weights import MixtureWeights, choose
from composer.dist.collectives import communicates
from composer.optim.schedule_times import Horizon

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Mixture"]


class Mixture:
    """Yield batches of several loaders, each with a share of the samples or tokens given by its weight.

    Each step draws one batch of one source, the same on all ranks. So the loss of the step is the exact loss of that
    source, batches keep their shapes, and each source keeps its collate function, workers and batch size. Which source
    is next is random, but not independent: a source that is ahead of its weight waits. With batches of equal size, the
    share of a source is never above its weight by a full batch, where independent draws are off by the square root of
    the number of batches.

    Under the :class:`.Trainer`, the log has ``loss/train/<source>`` for the steps of that source, and
    ``samples/<source>`` and ``tokens/<source>``, the numbers before the step on all ranks. They come from values that
    the step computes anyway: nothing is synchronized with the device.

    A source that ends starts again, with the order of its next epoch. Batches of a map-style dataset and of a
    :class:`.TensorLoader` are always full: where an epoch ends, the batch continues with the next one, regardless of
    ``drop_last``. The order of each source depends on the seed and its name, so it is independent of other sources.

    The state is a few numbers for each source: iteration resumes at any batch, bit for bit, without reading earlier
    samples of map-style data and on any number of ranks. Other sources resume as in the ``Trainer``: by their
    ``state_dict``, or by reading again, on the same number of ranks. Weights may differ on resume: those of the resumed
    mixture apply from there. Sources are recognized by their names: new ones start at their beginning.

    Args:
        sources: Pairs ``(loader, weight)``, or a mapping from names to such pairs. A loader is anything that can be
            iterated in every epoch, such as a ``DataLoader``. Weights are 0 or greater and relative: 7 and 3 are 0.7
            and 0.3. Each is a number, a schedule from ``composer.optim``, or a function of the :class:`.Timestamp`.
        by: Whether weights are shares of ``"samples"`` or of ``"tokens"``. Tokens are counted as in training time: by
            :class:`.DataSpec`, the elements of ``"input_ids"`` by default.
        seed: Seed of the choice of sources and of their orders, from 0; the same on all ranks. A loader whose sampler
            has a generator uses the seed of that, as without a mixture.
        milestones: Pairs of a time and the weights of sources by name from then on, in order; other sources keep
            theirs. Times may have any unit: ``[("0.8dur", {"code": 0.5, "web": 0.5})]``.
        epoch_length: Number of batches in an epoch of the mixture, also as ``"1000ba"``; None if it ends with sources.
        stopping_strategy: Without ``epoch_length``, an epoch of the mixture ends once ``"first_exhausted"`` (default)
            the first source, or ``"all_exhausted"`` all sources with a weight, have yielded as many samples as their
            epoch has. With constant weights by samples, and data of known sizes, the number of batches is computed in
            advance; otherwise the mixture has no length.
        names: Names of the sources, for the log; ``source_0``, ``source_1``, ... by default.
        num_replicas: Number of ranks that shard the data; None for the world size. With ``by="tokens"``, they must be
            the ranks of the process group, which add up their tokens.
        rank: Index of this rank among them; None for the global rank.

    Attributes:
        source: Name of the source of the last batch, or None.
        epoch: The current epoch of the mixture or, between epochs, the next; from 0.

    Raises:
        TypeError: A source is not a loader, or a weight not a number, schedule or function.
        ValueError: A source is empty or can be read only once, a weight is negative or not finite, all are 0 (also
            from a milestone on), names are not unique or unknown, or the epoch would never end.

    >>> words, numbers = torch.arange(100), torch.arange(1000, 1100)
    >>> loaders = [torch.utils.data.DataLoader(data, batch_size=2) for data in (words, numbers)]
    >>> mixture = Mixture(
    ...     [(loaders[0], 0.75), (loaders[1], 0.25)], names=["words", "numbers"], epoch_length=4
    ... )
    >>> [batch.tolist() for batch in mixture]
    [[0, 1], [1000, 1001], [2, 3], [4, 5]]
    >>> mixture.samples
    {'words': 6, 'numbers': 2}
    """

    __state_has_end__ = True  # in that of the source that ended; fetching ahead would be before the step counts

    def __init__(
        self,
        sources: Sequence[tuple[Any, Weight]] | Mapping[str, tuple[Any, Weight]],
        *,
        by: str = "samples",
        seed: int = 0,
        milestones: Sequence[tuple[str | Time, Mapping[str, float]]] = (),
        epoch_length: int | str | Time | None = None,
        stopping_strategy: str | None = None,
        names: Sequence[str] | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        pairs = named_pairs(sources, names)
        self.by, self.seed = one_of("by", by, ("samples", "tokens")), whole_number("seed", seed)
        size = dist.get_world_size() if num_replicas is None else whole_number("num_replicas", num_replicas, minimum=1)
        self.num_replicas = size
        self.rank = whole_number("rank", dist.get_global_rank() if rank is None else rank)
        if not 0 <= self.rank < size:
            raise ValueError(f"rank must be from 0 to {size - 1} (num_replicas - 1), but got {self.rank}.")
        self._weights = MixtureWeights({name: weight for name, (_, weight) in pairs.items()}, milestones)
        self._sources: dict[str, Source] = {
            name: make_source(
                name, loader, mix_seed(self.seed, int.from_bytes(name.encode(), "big")), DataShard(self.rank, size)
            )
            for name, (loader, _) in pairs.items()
        }
        self.__loaders__ = [loader for loader, _ in pairs.values()]  # each has a position that is part of this one
        self._batch_sizes = {getattr(loader, "batch_size", None) for loader, _ in pairs.values()}
        self._steps, self.stopping_strategy = self._end_of_epoch(epoch_length, stopping_strategy)
        self._spec = DataSpec(None)
        self._followed: State | None = None
        self._horizon: Horizon | None = None  # that of a run that evaluates this
        self._is_iterating = self._is_loaded = self._is_agreed = False
        self._reset()

    @property
    def shards_data(self) -> bool:
        """Whether the state is the same on all ranks and fits any number of ranks, as with map-style data."""
        return not any(source.is_per_rank for source in self._sources.values())

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a batch of this rank, or None if sources differ."""
        return next(iter(self._batch_sizes)) if len(self._batch_sizes) == 1 else None

    @property
    def names(self) -> list[str]:
        """The names of the sources."""
        return list(self._sources)

    @property
    def samples(self) -> dict[str, int]:
        """Number of samples from each source in the steps done so far, on all ranks."""
        return self._tally.samples_at(self._now)

    @property
    def tokens(self) -> dict[str, int]:
        """Number of tokens from each source in the steps done so far, on all ranks."""
        return self._tally.tokens_at(self._now)

    def __len__(self) -> int:
        """Number of batches in an epoch.

        Raises:
            TypeError: It is not known in advance.
        """
        if self._steps is None:
            raise TypeError(
                f"This mixture has no length: with stopping_strategy={self.stopping_strategy!r} it is known in advance "
                f"only for constant weights by samples, and sources of known length. Pass epoch_length."
            )
        return self._steps

    @property
    def steps_left(self) -> int | None:
        """Number of batches from the current position to the end of the epoch, or None if unknown."""
        return None if self._epoch_steps is None else max(0, self._epoch_steps - self._step)

    def __follow__(self, state: State, *, evaluates: bool = False) -> None:
        """Count time by a run in the next iteration; the ``Trainer`` calls this at the start of each epoch.

        Schedules and milestones then have the duration of the run, and samples and tokens are those that it counts.

        Args:
            state: The state of the run.
            evaluates: Whether the run evaluates this: it then has the duration of the run, but time of its own.

        Raises:
            ValueError: The ranks of the run are sharded in another way.
        """
        self._horizon = Horizon.of(state)
        if not evaluates and state.data_shard != DataShard(self.rank, self.num_replicas):
            raise ValueError(
                f"The Mixture has rank={self.rank} and num_replicas={self.num_replicas}, but the data of the run is "
                f"sharded with rank={state.data_shard.rank} and num_replicas={state.data_shard.size}. Pass these."
            )
        self._followed = None if evaluates else state

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins next: 0 returns all sources to their beginning, unless a state was just loaded.

        In any other epoch, each source continues where it is.

        Args:
            epoch: Index of the epoch, from 0.
        """
        if self._is_loaded and epoch == self.epoch:
            return
        if epoch == 0:
            self._reset()
        else:
            self._begin(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Start an epoch, at the loaded position if a state was loaded; an epoch that was left early is over."""
        if self._is_iterating:
            self._begin(self.epoch + 1)
        self._agree()
        followed, self._followed = self._followed, None
        return self._iterate(followed)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch. In distributed training, each rank has one."""
        samples = self.samples
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "step": self._step,
            "steps": self._epoch_steps,
            "length": self._steps,
            "drawn": self._drawn,
            "num_replicas": self.num_replicas,
            "clock": {unit: self._clock.count(TimeUnit(unit)) for unit in ("epoch", "batch", "sample", "token")},
            "tally": self._tally.state_dict(),
            "sources": {name: source.state_dict(samples[name]) for name, source in self._sources.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved position in the next iteration.

        Args:
            state: The result of :meth:`state_dict`. Weights may differ, and the world size if all sources have indices.
                A source that is not in it starts at its beginning, one that is only in it is dropped.

        Raises:
            ValueError: The seed differs, or a source of the same name has another number of samples.
        """
        if state["seed"] != self.seed:
            raise ValueError(
                f"The state is of a mixture with seed={state['seed']}, but this one has seed={self.seed}. Pass the "
                f"same seed: the order of the data depends on it."
            )
        if state["num_replicas"] != self.num_replicas and not self.shards_data:
            ranks = plural(state["num_replicas"], "rank")
            raise ValueError(
                f"The mixture was saved by {ranks}, but now has {plural(self.num_replicas, 'rank')}. Sources without "
                f"indices have separate data on each rank: resume with {ranks}."
            )
        self._reset()
        self._agree()
        for name, source in self._sources.items():
            if name in state["sources"]:
                source.load_state_dict(state["sources"][name])
        self._tally.load_state_dict(state["tally"])
        self._clock = Timestamp(**state["clock"])
        self.epoch, self._step, self._drawn = state["epoch"], state["step"], state["drawn"]
        self._epoch_steps = self._steps
        if self.stopping_strategy is not None and self._steps is not None:
            is_same = state["length"] == self._steps and state["num_replicas"] == self.num_replicas
            rest = self._steps_after(self.stopping_strategy, self._drawn)
            self._epoch_steps = state["steps"] if is_same or rest is None else self._step + rest
        self._is_loaded = True

    def __step_metrics__(self, losses: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what is logged with a training step.

        Args:
            losses: The losses of the step by name.

        Raises:
            ValueError: A loss has the name of a source.
        """
        tokens = self.tokens
        found: dict[str, Any] = {f"samples/{name}": count for name, count in self.samples.items()}
        if any(tokens.values()):
            found |= {f"tokens/{name}": count for name, count in tokens.items()}
        if self.source is not None and "loss/train/total" in losses:
            name = f"loss/train/{self.source}"
            if name in losses:
                raise ValueError(
                    f"The model has a loss {self.source!r}, which is also the name of a source of the mixture: both "
                    f"would be logged as {name!r}. Rename the source."
                )
            found[name] = losses["loss/train/total"]
        return found

    def _iterate(self, state: State | None) -> Iterator[Batch]:
        if self._state is not None:
            self._clock = self._state.timestamp
        self._is_iterating, self._is_loaded, self._state = True, False, state
        while not self._is_over():
            now, tally = self._now, self._tally
            tally.settle(now)
            weights = self._weights.at(now, state, self._steps, self._horizon)
            name = choose(weights, tally.credits, tally.mean, mix_seed(self.seed, tally.draws) / 2**63)
            drawn = self._draw(name, weights)
            if drawn is None:
                break
            tally.draw(name, weights, now)
            self.source, self._step = name, self._step + 1
            self._drawn += self._sources[name].per_step or 0
            if state is None:
                self._count(drawn[0], self._sources[name])
            else:
                self._clock = now
            yield drawn[0]
        self.source = None
        self._begin(self.epoch + 1)

    def _draw(self, name: str, weights: Mapping[str, float]) -> tuple[Batch] | None:
        """Return the next batch of a source; None if the epoch of the mixture ends with that of the source."""
        source, samples = self._sources[name], self._tally.samples[name]
        drawn = source.draw(samples)
        return source.draw(samples) if drawn is None and not self._is_over(weights) else drawn

    def _is_over(self, weights: Mapping[str, float] | None = None) -> bool:
        """Return whether the epoch of the mixture is over."""
        if self._epoch_steps is not None:
            return self._step >= self._epoch_steps
        ended = {name: source.passes() > 0 for name, source in self._sources.items()}
        if self.stopping_strategy == "first_exhausted" or not any(ended.values()):
            return any(ended.values())
        weights = weights or self._weights.at(self._now, self._state, self._steps, self._horizon)
        return all(ended[name] or not weights[name] for name in ended)

    @property
    def _now(self) -> Timestamp:
        """Progress of the run or, outside of one, of this mixture."""
        return self._clock if self._state is None else self._state.timestamp

    def _count(self, batch: Batch, source: Source) -> None:
        """Advance the clock by a batch, outside of a run."""
        counts = [self._spec.__num_samples__(batch), as_tokens(self._spec.__tokens__(batch))]
        if self.num_replicas > 1 and communicates():
            table = torch.tensor(counts)
            dist.all_reduce(table)
            counts = table.tolist()
        self._clock = self._clock.to_next_batch(source.per_step or counts[0], counts[1])
        self._tally.settle(self._clock)

    def _agree(self) -> None:
        """Agree with other ranks on the orders, here where all take part: later some may have no batch to draw."""
        if not self._is_agreed:
            for source in self._sources.values():
                source.agree()
            self._is_agreed = True

    def _begin(self, epoch: int) -> None:
        """Start an epoch, where the sources are."""
        if epoch == self.epoch + 1:
            self._clock = self._clock.to_next_epoch()
        self.epoch, self._step, self._drawn, self._epoch_steps = epoch, 0, 0, self._steps
        self._is_iterating = self._is_loaded = False
        for source in self._sources.values():
            source.mark()
        if not self.shards_data:
            self._tally.forget_credits()  # on ranks whose data ended earlier, they differ from those of the others

    def _reset(self) -> None:
        """Return to the beginning."""
        self.epoch, self._clock, self._tally = 0, Timestamp(), Tally(self.names, self.by)
        self._state: State | None = None
        self.source: str | None = None
        for source in self._sources.values():
            source.reset()
        self._begin(0)

    def _end_of_epoch(self, epoch_length: Any, strategy: str | None) -> tuple[int | None, str | None]:
        """Return the number of batches in an epoch, if it is known, and the stopping strategy, if one is used."""
        if epoch_length is not None:
            return epoch_batches(epoch_length, strategy), None
        strategy = one_of("stopping_strategy", strategy or STRATEGIES[0], STRATEGIES)
        # Of sources that are never drawn, neither the end nor its absence matters.
        drawn = self._weights.at(Timestamp()) if self._weights.are_constant else dict.fromkeys(self._sources, 1.0)
        used = {name: source for name, source in self._sources.items() if drawn[name]}
        endless = {name: source.never_ends for name, source in used.items() if source.never_ends}
        if len(endless) == len(used) or (endless and strategy == "all_exhausted"):
            name, why = next(iter(endless.items()))
            raise ValueError(
                f"An epoch of the mixture would never end: source {name!r} is infinite ({why}). Pass epoch_length, the "
                f"number of batches in an epoch."
            )
        return self._steps_after(strategy, 0), strategy

    def _steps_after(self, strategy: str, drawn: int) -> int | None:
        """Return the number of batches until the first or last source has yielded its samples, if it is known."""
        if self.by != "samples" or not self._weights.are_constant:
            return None
        weights = self._weights.at(Timestamp())
        per_step = {name: source.per_step for name, source in self._sources.items()}
        per_epoch = {name: source.per_epoch for name, source in self._sources.items()}
        return expected_batches(weights, per_step, per_epoch, strategy, drawn)
