from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from composer import dist
from composer.devices import get_device
from composer.metrics.classification import MicroAccuracy
from composer.models import ComposerClassifier
from composer.parallel import prepare_fsdp_module
from composer.parallel.meta_init import Materializer
from tests.common import trainer_of
from tests.parallel.sharded import Blocks, assert_same, full_weights, result, trained

CPU = torch.device("cpu")


def _on_meta(make):
    with torch.device("meta"):
        return make()


def _given(model: nn.Module) -> nn.Module:
    Materializer(model, CPU).materialize(model.modules())
    return model


def test_values_are_initialized_as_usual():
    model = _given(_on_meta(lambda: nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.LayerNorm(64))))
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert model[0].weight.abs().max() <= 1 / 8  # as a linear layer's are
    assert model[0].weight.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.1)
    assert model[1].running_var.sum() == 64
    assert model[2].weight.sum() == 64


def test_initialized_tensors_keep_their_values():
    model = nn.Sequential(nn.Linear(2, 2), _on_meta(lambda: nn.Linear(2, 2)))
    before = model[0].weight.clone()
    assert torch.equal(_given(model)[0].weight, before)


def test_ties_and_frozen_weights_stay():
    model = _on_meta(lambda: nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad = False
    model = _given(model)
    assert model[0].weight is model[1].weight
    assert not model[0].weight.requires_grad


def test_composite_modules_initialize_their_children():
    model = _given(_on_meta(lambda: nn.MultiheadAttention(4, 2)))
    assert model.out_proj.bias.abs().sum() == 0
    assert model.in_proj_weight.abs().sum() > 0


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.free = nn.Parameter(torch.ones(2))

    def param_init_fn(self, module):
        for parameter in module.parameters(recurse=False):
            nn.init.constant_(parameter, 3.0)


def test_model_or_child_initializes_the_values():
    outer = nn.Module()
    outer.model = _on_meta(WithFunction)
    for parameter in _given(outer).parameters():
        assert (parameter == 3).all()


def test_error_names_the_module_without_init_function():
    model = nn.Module()
    model.part = _on_meta(WithFunction)
    model.part.param_init_fn = None
    with pytest.raises(ValueError, match=r"part \(WithFunction\) has weights on the meta device"):
        _given(model)


# ------------------------------------------------------------------------------------------- distributed


def _deferred(kind: str):
    """Weights that the first process makes, or that all do: each from its own seed."""
    rank = dist.get_global_rank()
    torch.manual_seed(rank)
    on_meta = {"all": True, "others": rank > 0}[kind]
    model = _on_meta(Blocks) if on_meta else Blocks()
    optimizer = torch.optim.AdamW(model.parameters())
    mine = None if on_meta else full_weights(model)
    prepare_fsdp_module(model, optimizer, {}, device=get_device("cpu"))
    assert isinstance(model.first.weight, DTensor)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    return mine, full_weights(model)


def test_all_ranks_get_the_same_values(two_ranks):
    (_, one), (_, other) = two_ranks.run(_deferred, "all")
    assert_same(one, other, atol=0)
    assert one["blocks.0.up.weight"].std() > 0.1
    assert not torch.equal(one["blocks.0.up.weight"], one["blocks.1.up.weight"])


def test_other_ranks_receive_values_of_rank_zero(two_ranks):
    (made, one), (_, other) = two_ranks.run(_deferred, "others")
    assert_same(one, made, atol=0)
    assert_same(other, made, atol=0)


def _rank_zero_has_none():
    model = Blocks() if dist.get_global_rank() else _on_meta(Blocks)
    with pytest.raises(ValueError, match="on the meta device on rank 0"):
        prepare_fsdp_module(model, None, {}, device=get_device("cpu"))


def test_rank_zero_must_have_what_others_have(two_ranks):
    two_ranks.run(_rank_zero_has_none)


def _from_meta(config):
    return full_weights(trained(config, lambda: _on_meta(Blocks)).state.model)


def _from_rank_zero():
    return result({"fsdp": {"sync_module_states": True}}, make=Blocks if not dist.get_global_rank() else _meta_blocks)


def _meta_blocks():
    return _on_meta(Blocks)


def test_training(two_ranks):
    alone = result()
    for found in two_ranks.run(_from_rank_zero):
        assert_same(found, alone)
    one, other = two_ranks.run(_from_meta, {"fsdp": {"activation_checkpointing": True}})
    assert_same(one, other, atol=0)
    assert all(value.isfinite().all() for value in one.values())


def _classifier_from_meta() -> dict[str, float]:
    """A model whose metrics were made together with it."""
    model = _on_meta(lambda: ComposerClassifier(nn.Sequential(nn.Linear(4, 3)), num_classes=3))
    batches = [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))]
    trainer = trainer_of(model, batches, eval_dataloader=batches, parallelism_config={"fsdp": {}}, device="cpu")
    trainer.fit()
    return {name: float(value) for name, value in trainer.state.eval_metric_values.items()}


def test_metrics_of_a_model_on_meta_have_values(two_ranks):
    one, other = two_ranks.run(_classifier_from_meta)
    assert one == other
    assert {"MulticlassAccuracy", "CrossEntropy"} <= one.keys()
    assert all(map(math.isfinite, one.values()))


def test_unsharded_meta_model_is_rejected():
    model = _on_meta(lambda: ComposerClassifier(nn.Linear(4, 3), num_classes=3))
    with pytest.raises(ValueError, match=r"module\.weight is on the meta device.*outside of torch\.device\('meta'\)"):
        trainer_of(model)


def test_metric_on_meta_is_rejected():
    metric = _on_meta(lambda: MicroAccuracy(3))
    model = ComposerClassifier(nn.Linear(4, 3), train_metrics={"accuracy": metric}, val_metrics={})
    with pytest.raises(ValueError, match="metric 'accuracy' is on the meta device"):
        trainer_of(model)


def test_full_weights_are_not_kept():
    model = _on_meta(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    model[1].bias = model[0].bias
    materializer = Materializer(model, CPU)
    materializer.materialize([model[0]])
    weight = weakref.ref(model[0].weight)
    model[0].weight = None  # as when it is sharded
    assert weight() is None
    materializer.materialize([model[1]])
    assert model[1].bias is model[0].bias
