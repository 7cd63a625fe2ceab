"""Average tensors over replicas in a background thread, while training continues: overlapped communication.

The collectives have gloo process groups of their own, so that they never interleave with those of training, and run on
the CPU. Tensors of a GPU are copied there and back on a side stream.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

import torch
from torch import Tensor

from composer.algorithms._pseudo_gradients import average_over_replicas
from composer.core.replicas import Replicas
from composer.devices import SIDE_STREAMS
from composer.dist.group_exit import release_at_exit
from composer.dist.hang_report import InCollective
from composer.dist.simulation import is_simulated
from composer.parallel.replicas import destroy_groups, with_new_groups

__all__ = ["BackgroundAverages", "PendingAverage", "side_stream"]

_NOTE = (
    "This happened in the exchange between the replicas that overlaps with training (overlap). The replicas cannot "
    "continue from here: restart all ranks from the last checkpoint."
)


class PendingAverage:
    """Tensors that are being averaged over the replicas; :meth:`wait` before they are used.

    Args:
        outer: Differences of parameters, for the outer step.
        rest: Differences of other tensors, which are not compressed.
        counts: Integers, which are not averaged.
    """

    # No __dict__, which those who copy and restore a run would follow to tensors that another thread writes.
    __slots__ = ("_counts", "_done", "_outer", "_rest")

    def __init__(self, outer: dict[str, Tensor], rest: dict[str, Tensor], counts: dict[str, Tensor]) -> None:
        self._outer, self._rest, self._counts = outer, rest, counts
        self._done: Future[None] = Future()

    @classmethod
    def completed(cls, saved: Mapping[str, Mapping[str, Tensor]]) -> PendingAverage:
        """Return the averages of a checkpoint, which have arrived.

        Args:
            saved: A result of :meth:`state_dict`.
        """
        copies = ({name: one.clone() for name, one in saved[part].items()} for part in ("outer", "rest", "counts"))
        pending = cls(*copies)
        pending._done.set_result(None)
        return pending

    def wait(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Wait for the averages; return them and the integers. They must not be written.

        Raises:
            Exception: What ended the exchange.
        """
        with InCollective():
            error = self._done.exception()
        if error is not None:
            if _NOTE not in getattr(error, "__notes__", ()):
                error.add_note(_NOTE)
            raise error
        return self._outer, self._rest, self._counts

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Wait for the averages, and return what :meth:`completed` takes."""
        return dict(zip(("outer", "rest", "counts"), map(dict, self.wait()), strict=True))

    def run(self, replicas: Replicas, compression: str | None, stream: Any, previous: Future[None] | None) -> None:
        """Compute the averages, in place; an exception is kept for :meth:`wait`.

        Args:
            replicas: The replicas, with groups that no other thread uses.
            compression: The dtype in which ``outer`` is sent, or None.
            stream: The CUDA stream for the copies to the CPU and back; None if there is none.
            previous: Another average over the same groups, which must be complete first.
        """
        try:
            if previous is not None:
                wait([previous])
            with torch.no_grad(), contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                _average_on_cpu(list(self._outer.values()), replicas, compression)
                _average_on_cpu(list(self._rest.values()), replicas, None)
            if stream is not None:
                stream.synchronize()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    @property
    def done(self) -> Future[None]:
        """Completes with the averages."""
        return self._done


def side_stream(device: torch.device) -> Any:
    """Return a new CUDA stream that waits for what the current one has computed; None on other devices.

    Args:
        device: The device.
    """
    if device.type not in SIDE_STREAMS:
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def _average_on_cpu(tensors: list[Tensor], replicas: Replicas, compression: str | None) -> None:
    """Average tensors in place, by way of the CPU."""
    staged = [one.cpu() for one in tensors]
    average_over_replicas(staged, replicas, compression)
    for one, average in zip(tensors, staged, strict=True):
        if one is not average:
            one.copy_(average)


class BackgroundAverages:
    """Computes averages over the replicas in the background, one after another.

    All ranks must create it together, and start the same averages in the same order.

    Args:
        replicas: The replicas of the run.
    """

    __slots__ = ("__weakref__", "_last", "_replicas")

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = with_new_groups(replicas)
        self._last: Future[None] | None = None
        release_at_exit(self._release)

    def start(self, pending: PendingAverage, compression: str | None, device: torch.device) -> None:
        """Start to compute averages.

        Args:
            pending: The tensors.
            compression: The dtype in which those of the outer step are sent, or None.
            device: The device of the tensors.
        """
        if self._replicas.count == 1:
            pending.done.set_result(None)
            return
        arguments = (self._replicas, compression, side_stream(device), self._last)
        self._last = pending.done
        if is_simulated():  # collectives return at once
            pending.run(*arguments)
            return
        # A daemon: at exit after an error, it may wait for ranks that never come.
        threading.Thread(target=pending.run, args=arguments, name="replica-average", daemon=True).start()

    def close(self) -> None:
        """Wait for the last average, and destroy the process groups; all ranks call this."""
        if self._last is not None:
            wait([self._last])
        destroy_groups(self._replicas)

    def _release(self) -> None:
        self._replicas.group = self._replicas.first_ranks = None
