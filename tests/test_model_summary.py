"""Parameter counts of models: shared, frozen, quantized, uninitialized, sharded, wrapped."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from composer.core.parameter_size import format_bytes, format_count, num_bytes, num_elements
from composer.model_summary import model_summary
from composer.models import ComposerClassifier
from tests.ranks import Ranks


class Net(nn.Module):
    """300 parameters: 8 * 16 + 16, and 16 * 9 + 9 + 3."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 9))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def test_counts_and_frozen_parameters() -> None:
    model = Net()
    model.body[0].requires_grad_(False)
    summary = model_summary(model)
    assert (summary.parameters, summary.trainable, summary.size) == (300, 156, 1200)
    assert summary.line() == "Net: 300 parameters (156 trainable), 1.2 kB"
    rows = {layer.name: (layer.type, layer.parameters, layer.trainable) for layer in summary.layers}
    assert rows == {
        "": ("Net", 300, 156),
        "body": ("Sequential", 297, 153),
        "body.0": ("Linear", 144, 0),
        "body.1": ("ReLU", 0, 0),
        "body.2": ("Linear", 153, 153),
    }


def test_the_depth() -> None:
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(1, 1))))
    assert [len(model_summary(model, depth).layers) for depth in (0, 1, 2, 3, None)] == [1, 2, 3, 4, 4]
    with pytest.raises(ValueError, match=r"depth must be 0 or more, or None for all levels, but got -1\."):
        model_summary(model, -1)
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, but got int"):
        model_summary(3)  # type: ignore[arg-type]


def test_shared_parameters_count_once() -> None:
    tied = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    tied[1].weight = tied[0].weight
    summary = model_summary(tied)
    assert (summary.parameters, summary.size, summary.shared) == (40, 160, 1)
    assert [layer.parameters for layer in summary.layers] == [40, 40, 40]
    assert "1 shared parameter, in the total once" in str(summary)
    layer = nn.Linear(4, 4)
    assert model_summary(nn.Sequential(layer, nn.ReLU(), layer)).parameters == 20


def test_uninitialized_and_meta_parameters() -> None:
    summary = model_summary(nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 2)))
    assert (summary.parameters, summary.uninitialized) == (12, 2)
    assert summary.line() == "Sequential: 12 parameters (all trainable), 48 B, and 2 uninitialized"
    with torch.device("meta"):
        assert model_summary(nn.Linear(4096, 4096)).parameters == 4096 * 4097
    assert model_summary(nn.ReLU()).line() == "ReLU: 0 parameters"


def test_quantized_parameters() -> None:
    class Packed(nn.Parameter):
        """As bitsandbytes has them: two elements in a byte."""

    weight = Packed(torch.zeros(32, dtype=torch.uint8), requires_grad=False)
    weight.quant_state = type("QuantState", (), {"shape": torch.Size([8, 8])})()
    assert (num_elements(weight), num_bytes(weight)) == (64, 32)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(64, 64)), {nn.Linear})
    summary = model_summary(quantized)
    assert (summary.parameters, summary.trainable) == (64 * 65, 0)
    assert summary.size == 64 * 64 + 4 * 64


def test_tensor_subclasses_count_their_components() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    weight = TwoTensor(torch.zeros(4, 4), torch.zeros(4, 4))
    assert (num_elements(weight), num_bytes(weight)) == (16, 128)


def test_deepspeed_leaves_empty_tensors() -> None:
    weight = nn.Parameter(torch.empty(0))

    class Partitioned(nn.Parameter):
        ds_numel = 77

    weight.__class__ = Partitioned
    assert (num_elements(weight), num_bytes(weight)) == (77, 308)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what peft imports
def test_lora_and_model_wrappers() -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(Net(), peft.LoraConfig(target_modules=["body.0"], r=2))
    summary = model_summary(adapted)
    assert (summary.name, summary.parameters, summary.trainable) == ("Net", 300 + 2 * (8 + 16), 2 * (8 + 16))
    assert model_summary(ComposerClassifier(Net(), num_classes=9)).name == "Net"
    assert model_summary(torch.compile(Net())).name == "Net"  # type: ignore[arg-type]


def sharded() -> tuple[str, str]:
    model = fully_shard(Net(), mesh=init_device_mesh("cpu", (2,)))
    assert model.scale.to_local().numel() < 3
    return model_summary(model).line(), model_summary(DistributedDataParallel(Net())).line()


def test_sharded_parameters_count_with_their_global_size(two_ranks: Ranks) -> None:
    line = "Net: 300 parameters (all trainable), 1.2 kB"
    assert two_ranks.run(sharded) == [(line, line)] * 2


def test_text_and_html_escape_and_align() -> None:
    model = nn.Module()
    model.add_module("<script>", nn.Linear(100, 100))
    model.add_module("short", nn.Linear(1, 1))
    summary = model_summary(model)
    html = summary._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    lines = str(summary).splitlines()[:4]
    ends = {
        line.index(number) + len(number)
        for line, number in zip(lines, ("parameters", "10,102", "10,100", "2"), strict=True)
    }
    assert len(ends) == 1


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.0K"), (999_949, "999.9K"), (999_951, "1.0M"), (7 * 10**12, "7.0T")],
)
def test_counts_as_text(number: int, shown: str) -> None:
    assert format_count(number) == shown
    assert format_bytes(999_951) == "1.0 MB"
