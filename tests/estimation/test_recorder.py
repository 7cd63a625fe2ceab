"""The probe: evaluation, the last batch of the run, costs of a step, and CUDA semantics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import eval_frame
from torch.utils.data import DataLoader

from composer import Trainer
from composer.estimation.recorder import MemoryRecorder
from composer.models import ComposerClassifier
from composer.parallel import activation_checkpointing

SAMPLES = [(torch.ones(16), torch.tensor(0))] * 64


def estimate(tmp_path: Path, *, cuda: bool = False, **arguments: Any) -> dict[str, Any]:
    network = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.LayerNorm(64), nn.Linear(64, 4))
    model = ComposerClassifier(network, num_classes=4)
    probe = MemoryRecorder(tmp_path, 3, cuda=cuda)
    given = {
        "model": model,
        "train_dataloader": DataLoader(SAMPLES, 8),
        "optimizers": torch.optim.SGD(model.parameters(), 0.1),
        "max_duration": "100ba",
        "callbacks": [],
        "progress_bar": False,
        **arguments,
    }
    trainer = Trainer(**probe.init(given, {}))
    probe.fit(trainer, trainer.fit, {})
    assert trainer.state.timestamp.batch == 100  # the last step is that of the last batch
    return dict(probe.result())


def flops(found: dict[str, Any]) -> int:
    return sum(each * count for _, each, _, count in found["costs"])


def test_an_evaluation_follows_the_last_step(tmp_path: Path) -> None:
    trained = estimate(tmp_path)
    evaluated = estimate(tmp_path, eval_dataloader=DataLoader(SAMPLES, 64))
    assert trained["stage"] != "evaluation" and evaluated["stage"] == "evaluation"
    assert evaluated["peak"] > trained["peak"]
    assert flops(evaluated) == flops(trained)  # of a step alone


def test_the_costs_are_those_of_one_step(tmp_path: Path) -> None:
    layers = 2 * 8 * (16 * 64 + 64 * 4)
    # Forward, and the gradients of weights and inputs; the data needs none.
    assert flops(estimate(tmp_path)) == 3 * layers - 2 * 8 * 16 * 64


def test_a_gpu_reserves_segments(tmp_path: Path) -> None:
    found = estimate(tmp_path, cuda=True)
    # A segment of small blocks for the stream of the computation, and one for that on which batches are copied.
    assert found["reserved"] == found["reserved_expandable"] == found["limit"] == 2 * 2 * 2**20
    assert "limit" not in estimate(tmp_path)


def test_all_microbatches_count(tmp_path: Path) -> None:
    whole, split = (flops(estimate(tmp_path, device_train_microbatch_size=size)) for size in (None, 1))
    assert split == whole


def test_nothing_stays_changed(tmp_path: Path) -> None:
    host, stance = activation_checkpointing.HOST, eval_frame._stance.stance
    estimate(tmp_path, cuda=True)
    assert activation_checkpointing.HOST is host
    assert eval_frame._stance.stance == stance
    assert torch.nn.functional.dropout(torch.ones(8), 0.0).sum() == 8


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_on_cuda_masks_are_smaller_and_norms_larger(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without bfloat16, the workspace of the first product would be the peak, before there are masks.
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    cpu, cuda = (estimate(tmp_path, precision=precision, cuda=flag)["activations"] for flag in (False, True))
    dropout, norm = "module.1", "module.2"
    assert cuda[dropout] < cpu[dropout]
    if precision == "amp_bf16":
        assert cuda[norm] > cpu[norm]


def test_the_second_call_of_fit(tmp_path: Path) -> None:
    model = ComposerClassifier(nn.Linear(16, 4), num_classes=4)
    probe = MemoryRecorder(tmp_path, 3)
    loaders = [DataLoader(SAMPLES, size) for size in (16, 8)]
    trainer = Trainer(
        **probe.init(
            {
                "model": model,
                "optimizers": torch.optim.SGD(model.parameters(), 0.1),
                "callbacks": [],
                "progress_bar": False,
            },
            {},
        )
    )
    for loader in loaders:
        probe.fit(trainer, trainer.fit, {"train_dataloader": loader, "duration": "1ep"})
    found = dict(probe.result())
    assert flops(found) == 2 * 2 * 8 * 16 * 4  # forward, and the gradient of the weight


def test_quantized_optimizer_states_count_by_their_parts(tmp_path: Path) -> None:
    optim: Any = pytest.importorskip("torchao.optim")
    network = nn.Sequential(nn.Linear(16, 256), nn.Linear(256, 256), nn.Linear(256, 4))
    model = ComposerClassifier(network, num_classes=4)

    def state(optimizer: Any) -> int:
        with torch.compiler.set_stance("force_eager"):
            found = estimate(tmp_path, model=model, optimizers=optimizer)
        return found["roles"]["optimizer state"]

    # AdamW: two moments of float32. 8 bits for the codes, a float32 for each of the blocks of 256, a table of 256.
    layers = [parameter.numel() for parameter in model.parameters()]
    full = state(torch.optim.AdamW(model.parameters()))
    found = state(optim.AdamW8bit(model.parameters()))
    saved = sum(2 * (3 * size - 4 * size // 256 - 4 * 256) for size in layers if size >= 4096)
    assert saved > 0.9 * 2 * 3 * 256 * 256
    assert abs(full - found - saved) <= 64 * len(layers)  # the step counters, and the learning rate
