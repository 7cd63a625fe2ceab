"""Select the device of tests: ``pytest --device cuda`` runs them on a GPU; by default no GPU is visible.

Tests put models and batches that do not go through a `Trainer` where the run wants them with `place`. What differs from
a run on the CPU is then the place alone: the precision is float32 where a test asks for none, float32 is not shortened
to TensorFloat-32, and kernels are deterministic. Other precisions have tests of their own, in ``tests/gpu``.

All that is said here about which tests run on a device, and why others do not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from composer import devices, trees
from composer._lazy import MissingConditionalImportError
from composer.precision import Precision

CHOICES = ("cpu", "cuda", "pretend")

GROUPS: dict[str, tuple[str, ...]] = {
    "methods": ("algorithms/test_contract.py",),
    "callbacks": ("callbacks/test_contract.py",),
    "loggers": ("loggers/test_contract.py", "trainer/test_log_axis.py"),
    "optim": ("optim/test_decoupled.py", "optim/test_decoupled_adam.py", "optim/test_muon.py"),
    "checkpoint": (
        "checkpoint/test_save.py",
        "checkpoint/test_load.py",
        "trainer/test_resume.py",
        "trainer/test_copies.py",
    ),
    "trainer": (
        "trainer/test_fit.py",
        "trainer/test_evaluate.py",
        "trainer/test_predict.py",
        "trainer/test_microbatch.py",
        "trainer/test_event_order.py",
        "trainer/test_outputs.py",
        "trainer/test_progress.py",
        "trainer/test_batch_classes.py",
        "trainer/test_multi_rank_data.py",
    ),
    "gpu": ("gpu",),
}
"""Files and folders below ``tests`` whose tests hold on any device, by the names that ``make gpu`` gives them."""

NOT_THERE: dict[str, str] = {
    r"test_logs_exactly_the_declared_names\[MemoryMonitor\]": "the names of a GPU's figures are others",
    r"test_logs_exactly_the_declared_names\[SystemMetricsMonitor\]": "a GPU has figures of its own",
    r"test_batch_classes\.py::test_lists_of_samples_stay_lists": "the model makes its tensors on the host",
}
"""What of these holds on the CPU only: a pattern of the test's name, and why."""

NOT_PRETENDED: dict[str, str] = {
    r"test_contract\.py::test_runs_under_compile": "PyTorch compiles nothing under a mode of operators",
    r"test_contract.*\[LowPrecision|test_fit_takes_another_microbatch_size_and_prec|test_evaluation_mode_and_prec": (
        "autocast does nothing to tensors of it"
    ),
    r"test_losses_on_the_accelerator_are_those_on_the_cpu": "it trains on the CPU, too",
}
"""What of these the pretended device cannot show."""

NOTICES = (
    "Synchronization debug mode is a prototype",  # each process says it once
    "Attempting to run cuBLAS, but there was no current CUDA context",  # in the thread of the first backward pass
    "TensorFloat32 tensor cores for float32 matrix multiplication available",  # the compiler; it is off on purpose
    "Online softmax is disabled on the fly",  # the compiler
    "The CUDA Graph is empty",  # a first graph of a model that has nothing to record yet
    ".*does not have a deterministic implementation",  # such a kernel is compared within a tolerance
    ".*[Aa]ttention defaults to a non-deterministic algorithm",  # the same of the backward pass of attention
    "Unable to hit fast path of CUDAGraphs because of pending, uninvoked backwards",  # the compiler, of an evaluation
)
"""How warnings of PyTorch begin that only come on a GPU, and say nothing about the program."""

# fmt: off
OPTIONAL = frozenset((
    "accelerate", "adlfs", "alembic", "bitsandbytes", "catalogue", "comet_ml", "datasets", "deepspeed", "fasteners",
    "flask", "flask_cors", "gcsfs", "huggingface_hub", "isal", "jsonargparse", "libcloud", "lightning", "lm_eval",
    "matplotlib", "mlflow", "mlxtend", "moto", "nbclient", "ocifs", "onnx", "onnxruntime", "onnxscript", "paramiko",
    "peft", "PIL", "psutil", "pycocotools", "pynvml", "pytorch_lightning", "s3fs", "safetensors", "schedulefree",
    "sklearn", "slack_sdk", "snappy", "sqlalchemy", "streaming", "tensorboard", "timm", "torchao", "torchdata",
    "torchvision", "trackio", "transformer_engine", "transformers", "wandb", "webdataset", "yaml", "zstd",
))
# fmt: on
"""What a machine with a GPU may lack; without any other module a test fails, and where the package is there, too."""

Value = TypeVar("Value")
_chosen = torch.device("cpu")


def device() -> torch.device:
    """Where this run wants tensors."""
    return _chosen


def place(value: Value) -> Value:
    """Put a model or a batch where this run wants it; on the CPU it is there."""
    if _chosen.type == "cpu":
        return value
    return value.to(_chosen) if isinstance(value, torch.nn.Module) else trees.map_tensors(_moved, value)


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_chosen)


def placed(make: Callable[..., Value]) -> Callable[..., Value]:
    """Let a function return what it makes where this run wants it."""
    return lambda *args, **kwargs: place(make(*args, **kwargs))


def autocast_type() -> str:
    """The device type for autocast; the fake accelerator computes on the CPU."""
    return "cuda" if _chosen.type == "cuda" else "cpu"


def choose(name: str) -> None:
    """Set the device of this process, before anything asks PyTorch for one.

    Raises:
        pytest.UsageError: There is no GPU.
    """
    global _chosen
    if name == "cpu":
        # The suite says the same on a machine with a GPU as on one without; processes that tests start see none either.
        for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            os.environ[variable] = ""
    elif name == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if not torch.cuda.is_available():
            raise pytest.UsageError("--device cuda: PyTorch sees no GPU here.")
        _chosen = torch.device("cuda", 0)
        devices.DeviceGPU.__init__.__kwdefaults__["allow_tf32"] = False
        devices.DeviceGPU(0)
        # Where there is no such kernel the other one runs.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
        _plain_precision()
    else:
        from tests.accelerator import DEVICE

        _chosen = DEVICE
        _plain_precision()


def _plain_precision() -> None:
    """Let the precision be float32 where none is asked for, as on the CPU."""
    from composer.parallel import strategy

    strategy.default_precision = lambda device: Precision.FP32


def select(items: list[pytest.Item], name: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return which tests run and which do not; some of those that run are marked to be skipped, with the reason."""
    if name == "cpu":
        _skip(items, "gpu", "needs an accelerator: --device cuda")
        return items, []
    chosen, others = [], []
    for item in items:
        (chosen if _is_wanted(item, name) else others).append(item)
    reasons = NOT_THERE | (NOT_PRETENDED if name == "pretend" else {})
    for item in chosen:
        why = next((why for pattern, why in reasons.items() if re.search(pattern, item.nodeid)), None)
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))
    return chosen, others


def _is_wanted(item: pytest.Item, name: str) -> bool:
    if item.get_closest_marker("gpu") is not None:
        return name == "cuda"
    return _is_in_groups(item.path)


def is_foreign(path: Path, name: str) -> bool:
    """Whether a file has no test for a device other than the CPU."""
    if name == "cpu" or not path.name.startswith("test_") or path.suffix != ".py":
        return False
    return not _is_in_groups(path) and (name == "pretend" or "mark.gpu" not in path.read_text())


def _is_in_groups(path: Path) -> bool:
    return any(path.is_relative_to(each) for each in paths(GROUPS))


def paths(groups: Iterable[str]) -> list[Path]:
    """The files and folders of groups."""
    here = Path(__file__).parent
    return [here / name for group in groups for name in GROUPS[group]]


def _skip(items: list[pytest.Item], marker: str, why: str) -> None:
    for item in items:
        if item.get_closest_marker(marker) is not None:
            item.add_marker(pytest.mark.skip(reason=why))


def missing(error: BaseException) -> str | None:
    """Say which package an error says is not installed, if it is such an error and none of our own."""
    while isinstance(error, pytest.Collector.CollectError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, MissingConditionalImportError):
        return str(error)
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    # A part that an installed package does not have is no package that is missing.
    if package not in OPTIONAL or _is_installed(package):
        return None
    return f"not installed: {error.name}"


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a test has put a module without a spec in its place
        return False


def around() -> contextlib.AbstractContextManager[Any]:
    """A context for each test."""
    if _chosen.type in ("cpu", "cuda"):
        return contextlib.nullcontext()
    from tests.accelerator import FakeAccelerator

    return FakeAccelerator()
