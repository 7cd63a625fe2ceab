"""Take the fingerprint of a run when training starts, before the first batch."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from composer.trainer.fingerprint.data import fingerprint_of_data
from composer.trainer.fingerprint.sampled import digest_tensors
from composer.trainer.fingerprint.sources import fingerprint_of_sources

if TYPE_CHECKING:
    from torch import nn

    from composer.trainer.run import Run

__all__ = ["fingerprint_of_weights", "names_of_weights", "note_start"]


def note_start(run: Run) -> None:
    """Note what training starts from in ``state.fingerprint``, which checkpoints contain; let a replay check it.

    - ``weights``: digests of the parameters and buffers, and the number of batches trained before;
    - ``data``: what :func:`.fingerprint_of_data` returns, and the number of batches trained before on other data;
    - ``sources``: what :func:`.fingerprint_of_sources` returns.

    Nothing is drawn from a random generator, and no sample is fetched. Each rank notes what it has itself; rank 0
    writes checkpoints. Later calls of ``fit`` note only what is new: other data, or a start from batch 0.

    Args:
        run: The run, at the start of ``fit``; what a checkpoint noted is in ``state.fingerprint``.
    """
    state = run.state
    saved = state.fingerprint or {}
    batch, spec = state.timestamp.batch.value, state.train_phase.loader
    found = dict(saved)
    if "weights" not in saved or batch == 0:
        found["weights"] = {"batch": batch, "digests": fingerprint_of_weights(state.model)}
    if run.noted_data is None or run.noted_data() is not spec:
        parts = fingerprint_of_data(spec)
        if "data" not in saved or batch == 0 or saved["data"]["parts"] != parts:
            found["data"] = {"batch": batch, "parts": parts}
        if run.noted_data is None or "sources" not in saved:
            found["sources"] = fingerprint_of_sources()
        run.noted_data = None if spec is None else weakref.ref(spec)
    state.fingerprint = found
    check, run.check_start = run.check_start, None
    if check is not None:
        check(found)


def fingerprint_of_weights(model: nn.Module) -> str:
    """Return the digests of the parameters and buffers of a model, one after the other, eight characters for each.

    Args:
        model: The model.

    >>> len(fingerprint_of_weights(torch.nn.Linear(2, 2)))
    16
    """
    return "".join(digest_tensors([*model.parameters(), *model.buffers()]))


def names_of_weights(model: nn.Module) -> list[str]:
    """Return the names of the parameters and buffers of a model in the order of :func:`fingerprint_of_weights`.

    Args:
        model: The model.

    >>> names_of_weights(torch.nn.Linear(2, 2))
    ['weight', 'bias']
    """
    named: list[tuple[str, Any]] = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, _ in named]
