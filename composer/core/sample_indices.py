"""The indices in the dataset of the samples of a batch, computed from the position in the data."""

from __future__ import annotations

from typing import NamedTuple

from composer.core.epoch_iterator import EpochIterator
from composer.core.phase import Phase

__all__ = ["SampleIndices", "sample_indices"]


class SampleIndices(NamedTuple):
    """Indices of the samples of a batch, or why they are unknown.

    Attributes:
        indices: The indices in the dataset, in the order of the batch; None if unknown.
        reason: Why they are unknown; empty if they are known.

    >>> SampleIndices([3, 1]).indices
    [3, 1]
    """

    indices: list[int] | None
    reason: str = ""


def sample_indices(phase: Phase, *, iterates_custom: bool = False) -> SampleIndices:
    """Return the indices of the samples of the current training batch of this rank, as it was loaded.

    Valid from ``AFTER_DATALOADER`` until the next batch is fetched. Nothing is stored for it during training: the
    indices are computed from the seed, the epoch and the position.

    Args:
        phase: The training phase, ``state.train_phase``.
        iterates_custom: Whether a custom sampler may be iterated again to compute its order. If it has a state, such as
            a count of its epochs, this may change the data that follows.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from composer import Callback, Trainer
    >>> from composer.models import ComposerClassifier
    >>> class PrintIndices(Callback):
    ...     def after_dataloader(self, state, logger):
    ...         print(sample_indices(state.train_phase).indices)
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> data = DataLoader(TensorDataset(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])), batch_size=2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> arguments = {"optimizers": optimizer, "max_duration": "1ep", "callbacks": PrintIndices()}
    >>> with Trainer(model=model, train_dataloader=data, progress_bar=False, **arguments) as trainer:
    ...     trainer.fit()
    [0, 1]
    [2, 3]
    """
    iterator, iterators = phase.iterator, phase.epoch_iterators
    if phase.repeated is not None:
        return SampleIndices(None, "overfit_batches repeats batches, whose positions are not kept")
    if iterators is None or not isinstance(iterator, EpochIterator):
        return SampleIndices(None, "no training batch has been fetched")
    order = iterators.order
    if iterator.resume_by != "indices" or order is None:
        what = type(iterators.loader).__name__
        return SampleIndices(None, f"{what} is not a torch DataLoader over a dataset with indices")
    if order.custom_sampler is not None and not iterates_custom:
        return SampleIndices(None, f"the order of {order.custom_sampler} is known only by iterating it again")
    position = iterator.position_before(phase.num_fetched)
    if position is None:
        return SampleIndices([])  # this rank has no data left in this epoch, and other ranks have
    return SampleIndices(order.indices_at(int(phase.timestamp.epoch), position, phase.num_fetched))
