"""DeepSpeed: its engine holds the optimizer, divides what ZeRO divides, and makes the step.

ZeRO divides among W processes the states of the optimizer (stage 1), the gradients too (2), the weights too (3);
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

# The engine keeps checkpoints in folders of a folder; ours are each by itself.
_HERE = "."
_REMEDY = (
    "make a file of its weights by the script zero_to_fp32.py that is in the folder, and begin with these: "
    "load_path=FILE, load_weights_only=True."
)
_EXTRA = "deepspeed", "deepspeed_config"
# Stage 3 puts a function of its own there, for all models of the process. Taken here, before DeepSpeed is imported.
_LINEAR = torch.nn.functional.linear


class DeepSpeedStrategy(Strategy):
    """Trains by the engine of DeepSpeed.

    The Trainer's arguments say what to train with; the configuration says how. Microbatches are those of the Trainer,
    weighted as without DeepSpeed, whatever ``gradient_accumulation_steps`` would make of them.

    With ``bf16`` or ``fp16`` the weights and the floating-point numbers of batches are in that format themselves,
    beside float32 copies of the weights in the optimizer; with ``torch_autocast`` weights stay in float32.

    With stage 3 the weights are divided from the first load of a checkpoint on, and stay so when the trainer is
    closed.

    Args:
        config: Of DeepSpeed, with all sections but ``optimizer`` and ``scheduler``; entries that are missing or
            ``"auto"`` follow from the Trainer.

    Raises:
        TypeError: It is no dictionary.
        ValueError: It has sections for which the Trainer has arguments.

    >>> DeepSpeedStrategy({"zero_optimization": {"stage": 2}}).stage
    2
    """

    name = "deepspeed"
    steps_itself = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = configuration.checked(config)
        self.stage = configuration.stage_of(self.config)
        # From stage 2 on gradients are sent with every microbatch.
        self.syncs_in_forward = self.stage >= 2
        self.shards_weights = self.stage == 3
        self.caches_casts = not self.shards_weights
        self.autocasts = configuration.autocasts(self.config)
        # It holds the weights and the optimizer, and so writes and reads them.
        self.checkpoint_folders = CheckpointFolders(engine=self)
        self._takes_one = False
        self._precision = Precision.FP32
        self._engine: Any = None

    def settle_precision(self, asked: Precision | None, device: Device) -> Precision:
        """Return the precision that the configuration and the argument agree on, else what the device does best.

        Args:
            asked: The argument, or None.
            device: Where the model is.

        Raises:
            ValueError: They do not agree, or the weights are in another format already.
        """
        if self._engine is not None and asked not in (None, self._precision):
            raise ValueError(
                f"precision={asked.value!r}, but DeepSpeed's engine was made for {self._precision.value!r}. Give the "
                f"precision to the Trainer."
            )
        precision = configuration.precision_of(self.config, asked) or default_precision(device)
        self._precision = precision
        if not self.autocasts:
            self.batch_dtype = _DTYPES.get(precision)
        return precision

    def prepare(self, state: State) -> None:
        """Make the engine; the weights of the first process become those of all.

        Args:
            state: The state of the run.

        Raises:
            ValueError: The configuration contradicts the Trainer, or there is something that the engine cannot have.
            MissingConditionalImportError: DeepSpeed is not installed.
        """
        deepspeed = _imported(state.device)
        optimizer = _only_optimizer(state)
        if state.auto_microbatching:
            raise ValueError("device_train_microbatch_size='auto' does not work with DeepSpeed; give a number.")
        _refuse_what_needs_its_own_step(state)
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
        # It calls what torch has new names for, in every step.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        offload = config.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none") != "none"
        self._takes_one = offload and config["gradient_accumulation_steps"] == 1
        self._engine.set_gradient_accumulation_boundary(True)
        self.module = self._engine

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Tell the engine whether the step comes after a microbatch.

        Args:
            is_last: Whether it is the last of its batch.

        Raises:
            ValueError: There are several, where the engine was told of one and has to know.
        """
        if self._takes_one and not is_last:
            raise ValueError(
                "DeepSpeed's engine was made for one microbatch a batch, by which it offloads gradients. Give the "
                "Trainer device_train_microbatch_size, if that is not to be so."
            )
        self._engine.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    def backward(self, loss: Tensor, *, create_graph: bool = False) -> None:
        """Add the gradients of a microbatch, by the engine, which scales them in float16.

        Args:
            loss: A scalar, weighted.
            create_graph: Must be false.
        """
        assert not create_graph
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self) -> None:
        """Clip the gradients and update the parameters, unless gradients in float16 overflowed."""
        self._engine.step()

    def description(self) -> dict[str, Any]:
        """Return what :meth:`load` has to know of a checkpoint that is saved now."""
        return {"name": "DeepSpeed", "stage": self.stage, "world_size": dist.get_world_size()}

    def weights(self) -> dict[str, Tensor]:
        """Return the whole weights in the first process, in the format in which the model computes.

        They come together one by one, so that no process but the first has more than one of them.
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
        """Have the engine write a checkpoint, which stands by itself: DeepSpeed's tools take the folder.

        Args:
            folder: Where to; it is there.
        """
        with _quiet():
            self._engine.save_checkpoint(str(folder), tag=_HERE, save_latest=False)
        if dist.get_global_rank() == 0:
            (folder / "latest").write_text(_HERE)

    def load(
        self,
        folder: Path,
        description: dict[str, Any],
        *,
        read: Callable[..., dict[str, Any]],
        weights_only: bool,
        strict: bool = True,
    ) -> None:
        """Have the engine read a checkpoint, without running code that may be in it.

        Args:
            folder: Has the files of all processes.
            description: Of the run that wrote it.
            read: Reads a file without running anything that it holds.
            weights_only: Whether to begin a new training with its weights.
            strict: Whether the names of the weights must be the same.

        Raises:
            ValueError: It does not fit this run.
        """
        ours = self.description()
        # Without ZeRO all processes have the same.
        for name in ("stage", "world_size") if self.stage or description["stage"] else ():
            if ours[name] != description[name]:
                raise ValueError(
                    f"DeepSpeed's checkpoint is of {name}={description[name]}, and this run has {name}={ours[name]}; "
                    f"{_REMEDY}"
                )
        if weights_only and self.stage == 3:
            raise ValueError(f"Of a checkpoint of stage 3 DeepSpeed's engine cannot load the weights alone; {_REMEDY}")
        self._engine.checkpoint_engine.load = partial(_read_without_code, read)
        with _quiet(), _told_of_names():
            self._engine.load_checkpoint(
                str(folder),
                tag=_HERE,
                load_module_strict=strict,
                load_module_only=weights_only,
                load_lr_scheduler_states=False,
            )

    def close(self) -> None:
        """Let go of the engine."""
        engine, self._engine, self.module = self._engine, None, None
        if engine is not None:
            engine.module_forward_pre_hook.remove()
            engine.module_forward_post_hook.remove()
            engine.destroy()
            torch.nn.functional.linear = _LINEAR


@contextlib.contextmanager
def _told_of_names() -> Generator[None]:
    """Say of names of weights that do not fit what can be done."""
    try:
        yield
    except RuntimeError as error:
        if "key(s) in state_dict" not in str(error):
            raise
        raise RuntimeError(
            f"The checkpoint is of another model: {error} Load into the same model, or give "
            f"load_weights_only=True and load_strict_model_weights=False to load the weights that both have."
        ) from error


def _read_without_code(read: Callable[..., dict[str, Any]], path: str, map_location: Any = None) -> dict[str, Any]:
    """Read a file of the engine's, which for itself would let the file run anything, as all checkpoints are read."""
    scaler: Any = import_extra("deepspeed.runtime.fp16.loss_scaler", *_EXTRA)
    zero: Any = import_extra("deepspeed.runtime.zero.config", *_EXTRA)
    fragment: Any = import_extra("deepspeed.utils.tensor_fragment", *_EXTRA)
    # All that it writes beside tensors and plain values; none does anything when it is made.
    known = [scaler.DynamicLossScaler, scaler.LossScaler, zero.ZeroStageEnum, fragment.fragment_address]
    return read(path, "cpu" if map_location is None else map_location, known=known)


def _engine_args(device: torch.device) -> SimpleNamespace | None:
    """Tell the engine which device it is; by default it takes that of the local rank, and makes it the current one."""
    return None if device.index is None else SimpleNamespace(device_rank=device.index)


def _imported(device: Device) -> Any:
    """DeepSpeed, which settles on the accelerator when it is imported."""
    kind = device.torch_device.type
    with _environment(DS_ACCELERATOR=kind), _quiet():
        deepspeed: Any = import_extra("deepspeed", *_EXTRA)
    # Communication on the host for inference only, for which it would have the C++ compiler run for a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    found = deepspeed.get_accelerator().device_name()
    if found != kind:
        raise ValueError(
            f"The model is to be trained on {kind!r}, but DeepSpeed was imported for {found!r}. Give the Trainer "
            f"device={found!r}, or set the environment variable DS_ACCELERATOR={kind} before DeepSpeed is imported."
        )
    return deepspeed


@contextlib.contextmanager
def _environment(**defaults: str) -> Generator[None]:
    """Environment variables where the user has set none; gone when the block ends."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without the warnings of what DeepSpeed imports, which neither the user nor we can heed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _only_optimizer(state: State) -> Optimizer:
    if len(state.optimizers) != 1:
        names = [type(optimizer).__name__ for optimizer in state.optimizers]
        raise ValueError(
            f"DeepSpeed's engine steps one optimizer, but there are {len(names)}: {names}. Give one, with a parameter "
            f"group for each kind of parameters, or train with parallelism_config={{'fsdp': {{}}}} instead."
        )
    return state.optimizers[0]


def _refuse_what_needs_its_own_step(state: State) -> None:
    """Gradients and the weights that the optimizer updates are the engine's own, not those of the model."""
    for method in (*state.algorithms, *state.callbacks):
        if conflict := traits_of(method).engine_conflict:
            raise ValueError(
                f"{type(method).__name__} does not work with DeepSpeed, whose engine keeps gradients, weights and step "
                f"to itself: {conflict} Leave it out, or train with parallelism_config={{'fsdp': {{}}}}."
            )


def _take_over_clipping(state: State) -> float | None:
    """The bound of GradientClipping, which the engine keeps in its place."""
    # By name: algorithms stand on a floor above.
    leaving = [leave for method in state.algorithms if (leave := getattr(method, "leave_to_engine", None)) is not None]
    if len(leaving) > 1:
        raise ValueError("DeepSpeed bounds one norm, but GradientClipping is given more than once.")
    return leaving[0]() if leaving else None
