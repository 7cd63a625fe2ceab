"""Training with DeepSpeed (ZeRO): its engine holds the optimizer, shards the model, clips gradients and takes the step.

ZeRO shards over W ranks the optimizer states (stage 1), also the gradients (stage 2), also the weights (stage 3);
Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer import dist
from composer._lazy import import_extra
from composer.core.checkpoint_folders import CheckpointFolders
from composer.core.traits import traits_of
from composer.parallel import deepspeed_config as configuration
from composer.parallel.strategy import Strategy
from composer.precision import Precision, default_precision

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from composer.core.state import State
    from composer.devices import Device

__all__ = ["DeepSpeedStrategy"]

_DTYPES: Mapping[Precision, torch.dtype] = {
    Precision.AMP_BF16: torch.bfloat16,
    Precision.AMP_FP16: torch.float16,
}

# The engine saves each checkpoint in a subfolder, named by its tag; ours are separate folders.
_TAG = "."
_REMEDY = (
    "convert its weights to a file with the script zero_to_fp32.py in the folder, and start from them with "
    "load_path=FILE, load_weights_only=True."
)
_EXTRA = "deepspeed", "deepspeed_config"
# Stage 3 replaces this function globally. Saved here, before DeepSpeed is imported.
_LINEAR = torch.nn.functional.linear


class DeepSpeedStrategy(Strategy):
    """Trains with the DeepSpeed engine.

    The optimizer, schedulers and data come from the Trainer; the configuration sets the rest. Microbatches are those of
    the Trainer, with the same loss weights as without DeepSpeed, regardless of ``gradient_accumulation_steps``.

    With ``bf16`` or ``fp16``, weights and floating-point tensors of batches have that dtype, and the optimizer keeps
    float32 copies of the weights; with ``torch_autocast``, weights stay in float32.

    With stage 3, weights are sharded once the engine is created or a checkpoint is loaded, and stay sharded when the
    trainer is closed.

    Args:
        config: The DeepSpeed configuration, without the sections ``optimizer`` and ``scheduler``; entries that are
            missing or ``"auto"`` are derived from the Trainer.

    Raises:
        TypeError: ``config`` is not a dictionary.
        ValueError: ``config`` has sections for which the Trainer has arguments.

    >>> DeepSpeedStrategy({"zero_optimization": {"stage": 2}}).stage
    2
    """

    name = "deepspeed"
    has_own_optimizer_step = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = configuration.checked(config)
        self.stage = configuration.stage_of(self.config)
        # From stage 2 on, gradients are reduced with every microbatch.
        self.has_collectives_per_microbatch = self.stage >= 2
        self.shards_weights = self.stage == 3
        self.autocast_cache_enabled = not self.shards_weights
        self.autocasts = configuration.autocasts(self.config)
        # The engine holds the weights and the optimizer, so it saves and loads them.
        self.checkpoint_folders = CheckpointFolders(engine=self)
        self._single_microbatch = False
        self._precision = Precision.FP32
        self._engine: Any = None

    def resolve_precision(self, requested: Precision | None, device: Device) -> Precision:
        """Return the precision of the configuration or the argument, else the device's default.

        Args:
            requested: The argument, or None.
            device: The device of the model.

        Raises:
            ValueError: The two conflict, or the engine was already created for another precision.
        """
        if self._engine is not None and requested not in (None, self._precision):
            raise ValueError(
                f"precision={requested.value!r}, but the DeepSpeed engine was created for "
                f"{self._precision.value!r}. Pass the precision to the Trainer."
            )
        precision = configuration.precision_of(self.config, requested) or default_precision(device)
        self._precision = precision
        if not self.autocasts:
            self.batch_dtype = _DTYPES.get(precision)
        return precision

    def prepare(self, state: State) -> None:
        """Create the engine; weights are broadcast from rank 0.

        Args:
            state: The state of the run.

        Raises:
            ValueError: The configuration conflicts with the Trainer, or the run uses something that the engine does not
                support.
            MissingConditionalImportError: DeepSpeed is not installed.
        """
        deepspeed = _import_deepspeed(state.device)
        optimizer = _only_optimizer(state)
        if state.auto_microbatching:
            raise ValueError("device_train_microbatch_size='auto' is not supported with DeepSpeed; use a number.")
        _raise_if_unsupported_methods(state)
        loader = state.train_phase.loader
        config = configuration.completed(
            self.config,
            precision=self._precision,
            batch_size=None if loader is None else loader.__batch_size__,
            microbatch_size=state.microbatch_size,
            world_size=dist.get_world_size(),
            clipping=_take_over_clipping(state),
        )
        if state.microbatch_size is None and config["gradient_accumulation_steps"] > 1:
            state.microbatch_size = config["train_micro_batch_size_per_gpu"]
        with _environment(LOCAL_RANK=str(dist.get_local_rank())), _quiet():
            self._engine, *_ = deepspeed.initialize(
                _engine_args(state.device.torch_device), model=state.model, optimizer=optimizer, config=config
            )
        # It calls deprecated torch functions in every step.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        offload = config.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none") != "none"
        self._single_microbatch = offload and config["gradient_accumulation_steps"] == 1
        self._engine.set_gradient_accumulation_boundary(True)
        self.module = self._engine

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Set the engine's gradient accumulation boundary.

        Args:
            is_last: Whether it is the last microbatch of its batch.

        Raises:
            ValueError: The batch has several microbatches, but an offloading engine was created for one.
        """
        if self._single_microbatch and not is_last:
            raise ValueError(
                "The DeepSpeed engine was created for one microbatch per batch, on which its gradient offloading "
                "depends, but this batch has several. Set device_train_microbatch_size in the Trainer."
            )
        self._engine.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    def backward(self, loss: Tensor, *, create_graph: bool = False) -> None:
        """Run the backward pass of a microbatch with the engine, which scales the loss in fp16.

        Args:
            loss: A scalar, with its loss weight applied.
            create_graph: Must be false.
        """
        assert not create_graph
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self) -> None:
        """Clip the gradients and update the parameters, unless fp16 gradients overflowed."""
        self._engine.step()

    def description(self) -> dict[str, Any]:
        """Return the metadata of a checkpoint that :meth:`load` needs."""
        return {"name": "DeepSpeed", "stage": self.stage, "world_size": dist.get_world_size()}

    def weights(self) -> dict[str, Tensor]:
        """Return the full (unsharded) weights on rank 0, in the dtype in which the model computes.

        They are all-gathered one at a time, so that ranks other than rank 0 hold only one of them.
        """
        weights = dict(self._engine.module.state_dict(keep_vars=True))
        if self.stage < 3:
            return {name: value.detach() for name, value in weights.items()}
        zero: Any = import_extra("deepspeed.runtime.zero", *_EXTRA)
        gathered: dict[str, Tensor] = {}
        for name, value in weights.items():
            with zero.GatheredParameters([value]) if hasattr(value, "ds_id") else nullcontext():
                if dist.get_global_rank() == 0:
                    gathered[name] = value.detach().to("cpu", copy=True)
        return gathered

    def save(self, folder: Path) -> None:
        """Save a checkpoint with the engine; DeepSpeed's tools can read the folder.

        Args:
            folder: An existing folder.
        """
        with _quiet():
            self._engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False)
        if dist.get_global_rank() == 0:
            (folder / "latest").write_text(_TAG)

    def load(
        self,
        folder: Path,
        description: dict[str, Any],
        *,
        read: Callable[..., dict[str, Any]],
        weights_only: bool,
        strict: bool = True,
    ) -> None:
        """Load a checkpoint with the engine, without running pickled code.

        Args:
            folder: The folder with the files of all ranks.
            description: The metadata of the checkpoint, from :meth:`description`.
            read: Reads a file without running pickled code.
            weights_only: Whether to load the weights only, to start a new run.
            strict: Whether the parameter names must match exactly.

        Raises:
            ValueError: The checkpoint does not fit this run.
        """
        ours = self.description()
        # Without ZeRO all ranks have the same state.
        for name in ("stage", "world_size") if self.stage or description["stage"] else ():
            if ours[name] != description[name]:
                raise ValueError(
                    f"The DeepSpeed checkpoint was saved with {name}={description[name]}, but this run has "
                    f"{name}={ours[name]}; {_REMEDY}"
                )
        if weights_only and self.stage == 3:
            raise ValueError(f"DeepSpeed cannot load only the weights of a ZeRO stage 3 checkpoint; {_REMEDY}")
        self._engine.checkpoint_engine.load = partial(_read_without_code, read)
        with _quiet(), _explain_mismatched_names():
            self._engine.load_checkpoint(
                str(folder),
                tag=_TAG,
                load_module_strict=strict,
                load_module_only=weights_only,
                load_lr_scheduler_states=False,
            )

    def close(self) -> None:
        """Destroy the engine."""
        engine, self._engine, self.module = self._engine, None, None
        if engine is not None:
            engine.module_forward_pre_hook.remove()
            engine.module_forward_post_hook.remove()
            engine.destroy()
            torch.nn.functional.linear = _LINEAR


@contextlib.contextmanager
def _explain_mismatched_names() -> Generator[None]:
    """Add a remedy to errors about parameter names that do not match."""
    try:
        yield
    except RuntimeError as error:
        if "key(s) in state_dict" not in str(error):
            raise
        raise RuntimeError(
            f"The checkpoint is of another model: {error} Load it into the same model, or use load_weights_only=True "
            f"and load_strict_model_weights=False to load only the weights that both have."
        ) from error


def _read_without_code(read: Callable[..., dict[str, Any]], path: str, map_location: Any = None) -> dict[str, Any]:
    """Read a file for the engine, which would itself run any pickled code, as safely as other checkpoints are read."""
    scaler: Any = import_extra("deepspeed.runtime.fp16.loss_scaler", *_EXTRA)
    zero: Any = import_extra("deepspeed.runtime.zero.config", *_EXTRA)
    fragment: Any = import_extra("deepspeed.utils.tensor_fragment", *_EXTRA)
    # All classes that it writes, in addition to tensors and plain values; constructing them has no side effects.
    known = [scaler.DynamicLossScaler, scaler.LossScaler, zero.ZeroStageEnum, fragment.fragment_address]
    return read(path, "cpu" if map_location is None else map_location, known=known)


def _engine_args(device: torch.device) -> SimpleNamespace | None:
    """Return arguments that name the device; by default the engine uses, and makes current, that of the local rank."""
    return None if device.index is None else SimpleNamespace(device_rank=device.index)


def _import_deepspeed(device: Device) -> Any:
    """Import DeepSpeed, which selects the accelerator on import."""
    device_type = device.torch_device.type
    with _environment(DS_ACCELERATOR=device_type), _quiet():
        deepspeed: Any = import_extra("deepspeed", *_EXTRA)
    # CPU communication, used for inference only, for which it would run the C++ compiler for a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    found = deepspeed.get_accelerator().device_name()
    if found != device_type:
        raise ValueError(
            f"The training device is {device_type!r}, but DeepSpeed was imported for {found!r}. Use "
            f"Trainer(device={found!r}), or set the environment variable DS_ACCELERATOR={device_type} before DeepSpeed "
            f"is imported."
        )
    return deepspeed


@contextlib.contextmanager
def _environment(**defaults: str) -> Generator[None]:
    """Set environment variables that the user has not set, and remove them when the block ends."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Suppress warnings from DeepSpeed's dependencies, which users cannot act on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _only_optimizer(state: State) -> Optimizer:
    if len(state.optimizers) != 1:
        names = [type(optimizer).__name__ for optimizer in state.optimizers]
        raise ValueError(
            f"DeepSpeed supports one optimizer, but there are {len(names)}: {names}. Use one optimizer with several "
            f"parameter groups, or train with parallelism_config={{'fsdp': {{}}}} instead."
        )
    return state.optimizers[0]


def _raise_if_unsupported_methods(state: State) -> None:
    """Raise an error for methods that need gradients or weights of the model, which the engine keeps internally."""
    for method in (*state.algorithms, *state.callbacks):
        if conflict := traits_of(method).engine_conflict:
            raise ValueError(
                f"{type(method).__name__} does not work with DeepSpeed, whose engine manages gradients, weights and "
                f"the step internally: {conflict} Leave it out, or train with parallelism_config={{'fsdp': {{}}}}."
            )


def _take_over_clipping(state: State) -> float | None:
    """Return the threshold of GradientClipping, which the engine applies instead."""
    # By attribute name, since this package must not import algorithms.
    leaving = [leave for method in state.algorithms if (leave := getattr(method, "leave_to_engine", None)) is not None]
    if len(leaving) > 1:
        raise ValueError(
            "DeepSpeed clips by one norm, but GradientClipping is given more than once; leave one of them."
        )
    return leaving[0]() if leaving else None
