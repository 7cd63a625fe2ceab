"""Models changed by algorithms, and types of models: each export computes what the model does, for any batch size."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer import ComposerModel, functional
from composer.export import export_for_inference
from tests.common import classifier, labeled_data, trainer_of
from tests.export.reading import load_program, load_script, run_onnx


def convolutions() -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.GroupNorm(2, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(32, 16),
        nn.LayerNorm(16),
        nn.Linear(16, 3),
    )
    net(torch.randn(8, 3, 16, 16))
    return net


def optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


SURGERY: dict[str, Callable[[nn.Module], Any]] = {
    "blurpool": lambda net: functional.apply_blurpool(net, min_channels=0),
    "factorize": lambda net: functional.apply_factorization(
        net, min_channels=4, latent_channels=4, min_features=4, latent_features=4
    ),
    "squeeze_excite": lambda net: functional.apply_squeeze_excite(net, min_channels=4),
    "ghost_batchnorm": lambda net: functional.apply_ghost_batchnorm(net, ghost_batch_size=4),
    "gyro_dropout": lambda net: functional.apply_gyro_dropout(net, 10, 4, p=0.5, sigma=4, tau=2),
    "weight_standardization": lambda net: functional.apply_weight_standardization(net),
    "low_precision_layernorm": lambda net: functional.apply_low_precision_layernorm(net, None, optimizer(net)),
    "low_precision_groupnorm": lambda net: functional.apply_low_precision_groupnorm(net, None, optimizer(net)),
    "channels_last": lambda net: functional.apply_channels_last(net),
}  # fmt: skip


# Where a model has a GroupNorm, torch warns that its input check becomes a constant of the trace.
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("methods", "form"),
    [
        *(([method], form) for method in SURGERY for form in ("torchscript", "torch_export")),
        # Its graph is that of torch.export: what remains is whether there is an operator for everything in it.
        (list(SURGERY), "onnx"),
    ],
)
def test_replaced_layers(methods: list[str], form: str, tmp_path: Path) -> None:
    changed = convolutions()
    for method in methods:
        made = SURGERY[method](changed)
        changed = made if isinstance(made, nn.Module) else changed
    changed(torch.randn(8, 3, 16, 16))  # in training, as it is before an export
    path, x = tmp_path / "net", torch.randn(5, 3, 16, 16)
    export_for_inference(changed, form, str(path), sample_input=x[:2])
    expected = copy.deepcopy(changed).eval()(x)
    if form == "onnx":
        found = run_onnx(path, {"input": x})["output"]
    else:
        found = (load_script if form == "torchscript" else load_program)(path)(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@dataclass
class Outputs:
    """As models of transformers return."""

    logits: Tensor
    hidden: Tensor


torch.export.register_dataclass(Outputs, serialized_type_name="tests.Outputs")


class Words(ComposerModel):
    """Takes batches of dicts by name, and knows how many labels there are only in training."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, batch: dict[str, Tensor]) -> Outputs:
        mask = batch["attention_mask"].unsqueeze(-1)
        hidden = (self.embed(batch["input_ids"]) * mask).sum(1) / mask.sum(1)
        return Outputs(self.head(hidden), hidden)

    def loss(self, outputs: Outputs, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(outputs.logits, batch["labels"])


def words(rows: int, length: int) -> dict[str, Tensor]:
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[:, length // 2 :] = torch.arange(rows).unsqueeze(1) % 2
    labels = torch.arange(rows) % 3
    return {"input_ids": torch.randint(20, (rows, length)), "attention_mask": mask, "labels": labels}


def test_batches_of_dicts_in_a_run(tmp_path: Path) -> None:
    model = Words()
    trainer = trainer_of(model, [words(4, 6)] * 2)
    trainer.fit()
    model.eval()
    batch = words(7, 6)
    expected = model(batch)
    trainer.export_for_inference("torch_export", str(tmp_path / "net.pt2"))
    found = load_program(tmp_path / "net.pt2")(batch)
    torch.testing.assert_close((found.logits, found.hidden), (expected.logits, expected.hidden))
    trainer.export_for_inference("onnx", str(tmp_path / "net.onnx"))
    tensors = run_onnx(tmp_path / "net.onnx", batch)
    torch.testing.assert_close(tensors, {"logits": expected.logits, "hidden": expected.hidden})


def test_dynamic_sequence_lengths(tmp_path: Path) -> None:
    sample = {name: tensor for name, tensor in words(4, 6).items() if name != "labels"}
    axes = {name: {0: "batch", 1: "length"} for name in sample}
    export_for_inference(Words(), "onnx", str(tmp_path / "net"), sample_input=sample, dynamic_axes=axes)
    model = Words()
    export_for_inference(model, "torch_export", str(tmp_path / "n.pt2"), sample_input=sample, dynamic_axes=axes)
    batch = {name: tensor for name, tensor in words(3, 11).items() if name != "labels"}
    torch.testing.assert_close(load_program(tmp_path / "n.pt2")(batch).logits, model(batch).logits)
    assert run_onnx(tmp_path / "net", batch)["logits"].shape == (3, 3)


def _exported(folder: str) -> tuple[bool, bool]:
    """Export the model of two ranks; whether the file is what the model does."""
    path = Path(folder, "net.pt2")
    trainer = trainer_of(classifier(), labeled_data())
    trainer.fit()
    trainer.export_for_inference("torch_export", str(path))
    torch.distributed.barrier()
    batch = labeled_data(1, 5, seed=7)[0]
    return path.exists(), torch.allclose(load_program(path)(batch), trainer.state.model(batch))


@pytest.mark.slow
def test_distributed_model(two_ranks, tmp_path: Path) -> None:
    assert two_ranks.run(_exported, str(tmp_path)) == [(True, True)] * 2
