"""What samples on ranks that have the same inputs: modules, the loss, algorithms and callbacks."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from composer import dist, rng, trees
from composer.core.event import Event
from composer.core.handler_owner import Handler, owned, owner_of
from composer.core.state import State
from composer.verification.code_facts import generators_of, samples, seeds_itself
from composer.verification.digests import digest
from composer.verification.objects import name_of

__all__ = ["Sampling", "sampled_alike", "share_batch"]

_OTHER_SEED = 2**31 - 19
# What a handler may change of a step, all of which belongs to the samples of the rank.
_PARTS = ("batch", "outputs", "loss")


def share_batch(state: State) -> None:
    """Give all ranks the batch of rank 0.

    Args:
        state: The state of the run.
    """
    shared = [trees.map_tensors(lambda tensor: tensor.cpu(), state.batch)]
    dist.broadcast_object_list(shared)
    state.batch = state.device.batch_to_device(shared[0])


class Sampling:
    """Finds out what each part of the program samples in the first step, for comparison with the other ranks.

    A module is copied before its first call, and the copy is called with inputs that are the same on all ranks. It
    samples if its outputs change when all random numbers come from another place of their sequence, and if those in
    evaluation are others.

    Args:
        suspects: Names that the code of each object uses, of :func:`~composer.verification.code_facts.suspects`.

    Attributes:
        found: Digests of the outputs of what samples, by the name of the object.
        changed: What handlers that may sample changed, by the name of their object: the digest before, and after.
        is_over: Whether the first step is over.
    """

    def __init__(self, suspects: Mapping[str, list[str]]) -> None:
        self.found: dict[str, str] = {}
        self.changed: dict[str, list[tuple[str, str]]] = {}
        self._names = {name for name, used in suspects.items() if samples(used)}
        self.is_over = False
        self._seen: set[str] = set()

    def watch(self, model: nn.Module) -> None:
        """Register hooks on the modules that may sample.

        Args:
            model: The model.
        """
        for name, module in model.named_modules():
            if f"module {name}" in self._names:
                module.register_forward_pre_hook(self._before(name), with_kwargs=True, prepend=True)

    def loss(self, state: State) -> None:
        """Find out whether the loss of the model samples.

        Args:
            state: The state of the run, after the loss.
        """
        if "module " in self._names and "the loss" not in self._seen:
            self._seen.add("the loss")
            outputs, batch = _fixed(state.outputs), state.batch
            self._compare("the loss", state.model, lambda model: model.loss(outputs, batch))

    def noting(self, handler: Handler, event: Event) -> Handler:
        """Return a handler that notes what it changes, if its object may sample.

        Args:
            handler: The handler.
            event: Its event.
        """
        owner = owner_of(handler)
        name = name_of(owner)
        if not {f"algorithm {name}", f"callback {name}"} & self._names:
            return handler

        def call(state: State, logger: Any) -> None:
            if self.is_over:
                handler(state, logger)
                return
            before, generators = _watched(state), digest(generators_of(owner))
            handler(state, logger)
            if digest(generators_of(owner)) == generators and not seeds_itself(owner, event.value):
                return
            for part, (value, shape) in _watched(state).items():
                if (value, shape) != before[part] and shape == before[part][1]:
                    self.changed.setdefault(name, []).append((f"{event.value} {part} {before[part][0]}", value))

        return owned(call, owner)

    def _before(self, name: str) -> Any:
        def compare(module: nn.Module, args: Any, kwargs: Any) -> None:
            if not module.training or name in self._seen:
                return
            self._seen.add(name)
            inputs = _fixed((args, kwargs))
            self._compare(name, module, lambda one: type(one).forward(one, *inputs[0], **inputs[1]))

        return compare

    def _compare(self, name: str, module: nn.Module, call: Callable[[Any], Any]) -> None:
        """Call copies of a module, with the random numbers of the run and with others, and in evaluation."""
        seen, self._seen = self._seen, _Everything()  # hooks of the copies
        try:
            with torch.no_grad(), rng.preserve_rng_state():
                one, other = copy.deepcopy(module), copy.deepcopy(module)
                outputs = digest(call(one))
            with torch.no_grad(), rng.preserve_rng_state():
                shifted = _shifted(other, lambda: digest(call(other)))
            with torch.no_grad(), rng.preserve_rng_state():
                evaluated = digest(call(one.eval()))
        except Exception:  # it cannot be copied, or has inputs of another kind: it is compared with nothing
            return
        finally:
            self._seen = seen
        if shifted != outputs != evaluated:
            self.found[name] = outputs


class _Everything(set[str]):
    """Has every name."""

    def __contains__(self, name: object) -> bool:
        return True


class _Shift(TorchDispatchMode):
    """Draws the random numbers of each operation twice, and uses the second ones."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if torch.Tag.nondeterministic_seeded in func.tags:
            func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _shifted(module: nn.Module, call: Callable[[], str]) -> str:
    """Return what a call returns with other random numbers of torch, and of the generators that modules have."""
    for generator in (each for part in module.modules() for each in generators_of(part)):
        if not isinstance(generator, torch.Generator):
            generator.random()
    with contextlib.ExitStack() as stack:
        for holder, name in ((np.random, "default_rng"), (np.random, "RandomState"), (random, "Random")):
            made = getattr(holder, name)(_OTHER_SEED)
            stack.enter_context(mock.patch.object(holder, name, lambda *_, made=made, **__: made))
        stack.enter_context(_Shift())
        return call()


def _fixed(inputs: Any) -> Any:
    """Return inputs whose floating-point tensors have values that depend on the shape only."""

    def values(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        made = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        return made.to(tensor.device, tensor.dtype)

    return trees.map_tensors(values, inputs)


def _watched(state: State) -> dict[str, tuple[str, str]]:
    """Return the digest of each part of a step that handlers may change, and that of its shapes."""
    values = {part: getattr(state, part) for part in _PARTS}
    shapes = {
        part: str([tuple(leaf.shape) for leaf in trees.leaves(value) if isinstance(leaf, Tensor)])
        for part, value in values.items()
    }
    return {part: (digest(value), shapes[part]) for part, value in values.items()}


def sampled_alike(ranks: list[dict[str, Any]]) -> str | None:
    """Return the first object that samples the same on all ranks, or None.

    Args:
        ranks: For each rank ``"found"`` and ``"changed"`` of :class:`Sampling`.

    >>> sampled_alike([{"found": {"drop": "0f"}, "changed": {}}, {"found": {"drop": "0f"}, "changed": {}}])
    'drop'
    """
    first, others = ranks[0], ranks[1:]
    for name, value in first["found"].items():
        if others and all(other["found"].get(name) == value for other in others):
            return name or "the model"
    for name, changes in first["changed"].items():
        if others and any(all(change in other["changed"].get(name, []) for other in others) for change in changes):
            return name
    return None
