"""Random seeds, and the random state of Python, NumPy and PyTorch: save, restore, deterministic mode."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

import torch

from composer import dist
from composer._generator_memory import GeneratorStates
from composer._numbers import as_integer
from composer._text import plural
from composer.warnings import ComposerWarning

__all__ = [
    "MAX_SEED",
    "RNGSnapshot",
    "configure_deterministic_mode",
    "get_local_rng_state",
    "get_random_seed",
    "get_rng_state",
    "get_torch_rng_states",
    "load_rng_state",
    "preserve_rng_state",
    "seed_all",
    "seed_context",
    "set_local_rng_state",
    "set_torch_rng_states",
]

MAX_SEED = 2**32 - 1
"""The largest seed, limited by NumPy's generator."""

_LEGACY_CUDA_STATE_BYTES = 816


def seed_all(seed: int) -> None:
    """Seed the random generators of Python, NumPy and PyTorch on all devices.

    Args:
        seed: From 0 to ``MAX_SEED``.

    Raises:
        TypeError: ``seed`` is not an integer.
        ValueError: ``seed`` is out of range.

    >>> seed_all(7)
    >>> first = torch.rand(1)
    >>> seed_all(7)
    >>> bool(torch.rand(1) == first)
    True
    """
    seed = _checked(seed)
    random.seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed)
    if torch.accelerator.current_accelerator() is None:
        # This build of torch is for CPUs; `torch.manual_seed` would keep a stack trace of each call for a GPU.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]


@contextmanager
def preserve_rng_state() -> Generator[None]:
    """Restore the state of all random generators after the body, also after an error.

    >>> seed_all(7)
    >>> with preserve_rng_state():
    ...     first = random.random()
    >>> random.random() == first
    True
    """
    python, torch_states = random.getstate(), get_torch_rng_states()
    numpy = _numpy()
    numpy_state = None if numpy is None else numpy.random.get_state()
    seed, was_used = torch.initial_seed(), _accelerator_in_use() is not None
    try:
        yield
    finally:
        random.setstate(python)
        if not was_used:
            _seed_accelerator(seed)
        set_torch_rng_states(torch_states)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


@contextmanager
def seed_context(seed: int) -> Generator[None]:
    """Seed all random generators for the body, and restore their state afterwards, also after an error.

    Args:
        seed: From 0 to ``MAX_SEED``.

    Raises:
        TypeError: ``seed`` is not an integer.
        ValueError: ``seed`` is out of range.

    >>> with seed_context(7):
    ...     first = random.random()
    >>> with seed_context(7):
    ...     random.random() == first
    True
    """
    seed = _checked(seed)
    with preserve_rng_state():
        seed_all(seed)
        yield


def get_rng_state() -> list[dict[str, Any]]:
    """Return the random state of each rank, for a checkpoint.

    Each is a dict with ``python``, ``numpy`` (if installed), ``torch`` and one entry named after the accelerator type
    (``cuda``, ...), for the current device. They contain only tensors, numbers and tuples, so that ``torch.load`` reads
    them with ``weights_only=True``. All ranks must call this.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.

    >>> len(get_rng_state()), "torch" in get_rng_state()[0]
    (1, True)
    """
    return dist.all_gather_object(get_local_rng_state())


def load_rng_state(rng_state_dicts: Sequence[Mapping[str, Any]]) -> None:
    """Restore the random state of this rank from a checkpoint.

    Args:
        rng_state_dicts: One dict for each rank, as from :func:`get_rng_state`. If the number of ranks differs, a
            warning is issued, and ranks without a dict keep their state.

    Raises:
        KeyError: The state for Python or PyTorch is missing.

    >>> state = get_rng_state()
    >>> first = random.random()
    >>> load_rng_state(state)
    >>> random.random() == first
    True
    """
    rank, world_size = dist.get_global_rank(), dist.get_world_size()
    if len(rng_state_dicts) != world_size:
        warnings.warn(
            f"The random state was saved with {plural(len(rng_state_dicts), 'rank')}, but there are now "
            f"{plural(world_size, 'rank')}: random numbers will differ from those of the saved run.",
            ComposerWarning,
            stacklevel=2,
        )
    if rank >= len(rng_state_dicts):
        return
    set_local_rng_state(rng_state_dicts[rank])


def get_local_rng_state() -> dict[str, Any]:
    """Return the random state of this process, one entry of :func:`get_rng_state`.

    >>> sorted(get_local_rng_state())[-2:]
    ['python', 'torch']
    """
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = _numpy()
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        # PyTorch cannot unpickle uint32 tensors everywhere, and rejects NumPy arrays with weights_only=True.
        state["numpy"] = (name, torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached))
    module = _accelerator_in_use()
    if module is not None:
        state[_accelerator_type()] = module.get_rng_state()
    return state


def set_local_rng_state(state: Mapping[str, Any]) -> None:
    """Set the random state of this process.

    Args:
        state: From :func:`get_local_rng_state`.

    Raises:
        KeyError: The state for Python or PyTorch is missing.

    >>> state = get_local_rng_state()
    >>> first = random.random()
    >>> set_local_rng_state(state)
    >>> random.random() == first
    True
    """
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["torch"].cpu())
    numpy = _numpy()
    if numpy is not None and "numpy" in state:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.asarray(keys, dtype=numpy.uint32), *rest))
    device_type = _accelerator_type()
    if device_type in state:
        _set_accelerator_state(state[device_type].cpu())


class RNGSnapshot:
    """The random state of this process at the time of creation, in a form that is fast to copy.

    It is kept as bytes and converted only by :meth:`restore`; for a checkpoint, use :func:`get_rng_state`.

    >>> snapshot = RNGSnapshot()
    >>> first = random.random(), torch.rand(1)
    >>> snapshot.restore()
    >>> (random.random(), torch.rand(1)) == first
    True
    """

    def __init__(self) -> None:
        self._states = GeneratorStates(_numpy())
        # Of the build of torch: without one, there is nothing to look for in each save.
        self._may_use_accelerator = torch.accelerator.current_accelerator() is not None
        self._accelerator: torch.Tensor | None = None
        if self._may_use_accelerator:
            self._save_accelerator()

    def save(self) -> None:
        """Copy the present state, in place of the earlier one."""
        self._states.save()
        if self._may_use_accelerator:
            self._save_accelerator()

    def _save_accelerator(self) -> None:
        module = _accelerator_in_use()
        self._accelerator = None if module is None else module.get_rng_state()

    def restore(self) -> None:
        """Restore the state; may be called more than once."""
        random.setstate(self._states.python())
        torch.set_rng_state(self._states.torch())
        numpy = _numpy()
        if numpy is not None:
            numpy.random.set_state(self._states.numpy())
        if self._accelerator is not None:
            _set_accelerator_state(self._accelerator)


def get_torch_rng_states() -> list[torch.Tensor]:
    """Return the states of PyTorch's generators: the CPU's, then those of all accelerator devices if in use.

    This does not synchronize with a device. All devices are included, since random layers sample on the device that
    computes, which need not be the one that stores the weights.

    >>> states = get_torch_rng_states()
    >>> first = torch.rand(1)
    >>> set_torch_rng_states(states)
    >>> bool(torch.rand(1) == first)
    True
    """
    return [torch.get_rng_state(), *_accelerator_states()]


def set_torch_rng_states(states: Sequence[torch.Tensor]) -> None:
    """Set the states of PyTorch's generators.

    Args:
        states: From :func:`get_torch_rng_states`.

    >>> set_torch_rng_states(get_torch_rng_states())
    """
    torch.set_rng_state(states[0])
    for index, state in enumerate(states[1:]):
        _set_accelerator_state(state, index)


def configure_deterministic_mode() -> None:
    """Make PyTorch bitwise deterministic across runs; a global setting, at some cost in speed.

    Operations without a deterministic implementation raise an error from now on. Call this before the first use of a
    GPU, since cuBLAS reads ``CUBLAS_WORKSPACE_CONFIG``, which this sets if unset, when it starts.

    >>> configure_deterministic_mode()
    >>> torch.are_deterministic_algorithms_enabled()
    True
    >>> torch.use_deterministic_algorithms(False)

    Paper: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def get_random_seed() -> int:
    """Return a different seed each time, without advancing a random generator.

    >>> 0 <= get_random_seed() <= MAX_SEED
    True
    """
    return int.from_bytes(os.urandom(4), "little")


def _checked(seed: int) -> int:
    """Return the seed, validated."""
    number = as_integer(seed)
    if number is None:
        raise TypeError(f"seed must be an integer, but got {seed!r} of type {type(seed).__name__}.")
    if not 0 <= number <= MAX_SEED:
        raise ValueError(f"seed must be from 0 to {MAX_SEED} (2**32 - 1), but got {number}.")
    return number


def _numpy() -> Any:
    """Return the NumPy module, or None if it is not installed."""
    try:
        import numpy
    except ModuleNotFoundError:
        return None
    return numpy


def _accelerator_type() -> str:
    """Return the type of the accelerator, or an empty string."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "" if accelerator is None else accelerator.type


def _accelerator_in_use() -> Any:
    """Return the torch module with the accelerator's generators, or None if this process has not used it.

    Getting the state of an unused accelerator would initialize it, which takes memory and seconds on every rank of a
    CPU run; until then its generators are only seeded.
    """
    module = _accelerator()
    return module if module is not None and getattr(module, "is_initialized", lambda: True)() else None


def _accelerator() -> Any:
    """Return the torch module with the accelerator's generators, or None if this process cannot use one."""
    device_type = _accelerator_type()
    if not device_type:
        return None
    module = cast("ModuleType", torch.get_device_module(device_type))
    # A forked loader worker cannot use the accelerator of its parent.
    if getattr(module, "_is_in_bad_fork", lambda: False)():
        return None
    return module if hasattr(module, "get_rng_state") else None


def _accelerator_states() -> list[torch.Tensor]:
    """Return the states of all devices of the accelerator's type, since seeding affects all of them."""
    module = _accelerator_in_use()
    if module is None:
        return []
    if hasattr(module, "get_rng_state_all"):
        return list(module.get_rng_state_all())
    return [module.get_rng_state()]


def _seed_accelerator(seed: int) -> None:
    """Seed the generators of the accelerator; an unused one applies the seed when it is initialized."""
    module = _accelerator()
    if module is not None and hasattr(module, "manual_seed_all"):
        module.manual_seed_all(seed)


def _set_accelerator_state(state: torch.Tensor, index: int | None = None) -> None:
    """Set the random state of one device; of the current one if no index is given."""
    module = _accelerator()
    if module is None:
        return
    if state.numel() == _LEGACY_CUDA_STATE_BYTES:
        # PyTorch once wrote 800 unused bytes before the seed and the offset.
        state = state[-16:]
    if index is None or not hasattr(module, "get_rng_state_all"):
        module.set_rng_state(state)
    else:
        module.set_rng_state(state, index)
