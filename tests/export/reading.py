"""Run exported models with the runtimes that the formats are for."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def load_script(path: Path | str) -> Any:
    """Load a TorchScript file; torch warns that the format is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(str(path))


def load_program(path: Path | str) -> nn.Module:
    """A file of torch.export."""
    return torch.export.load(str(path)).module()


def run_onnx(source: Path | bytes, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of an ONNX file by name; the inputs that it has must be those given."""
    import onnxruntime

    session = onnxruntime.InferenceSession(source if isinstance(source, bytes) else str(source))
    assert [each.name for each in session.get_inputs()] == list(inputs)
    names = [each.name for each in session.get_outputs()]
    values = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
    return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}
