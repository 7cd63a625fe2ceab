from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.algorithms import PatchDropout, drop_patches
from composer.core.model import ComposerModel
from composer.loss import soft_cross_entropy
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, weights
from tests.on_device import place


class PatchNet(ComposerModel):
    """A vision transformer as small as can be: 16 patches after a class token."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(2, 16, 4, stride=4)
        self.prefix = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 17, 16))
        self.tokens = nn.Identity()
        self.layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, batch):
        patches = self.patches(batch[0]).flatten(2).transpose(1, 2)
        x = torch.cat((self.prefix.expand(len(patches), -1, -1), patches), dim=1) + self.positions
        return self.head(self.layer(self.tokens(x))[:, 0])

    def loss(self, outputs, batch):
        return soft_cross_entropy(outputs, batch[1])


def make_patch_model():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return place(PatchNet())


def _by_hand(batches):
    model = make_patch_model()
    model.tokens.register_forward_hook(lambda module, args, output: drop_patches(output, 0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
    return weights(model)


CASE = Case(
    make=lambda: PatchDropout(0.5, module="tokens"),
    by_hand=_by_hand,
    neutral=lambda: PatchDropout(0.0, module="tokens"),
    model=make_patch_model,
    batches=make_batches,
)


@given(
    samples=st.integers(1, 4),
    prefix=st.integers(0, 3),
    patches=st.integers(1, 30),
    rate=st.floats(0, 0.99),
    seed=st.integers(0, 99),
)
def test_keeps_the_share_in_order_and_the_prefix(samples, prefix, patches, rate, seed):
    torch.manual_seed(seed)
    tokens = torch.arange(prefix + patches).float().view(1, -1, 1).expand(samples, -1, 2)
    kept = drop_patches(tokens, rate, prefix)
    assert kept.shape == (samples, prefix + max(1, round((1 - rate) * patches)), 2)
    assert torch.equal(kept[:, :prefix], tokens[:, :prefix])
    positions = kept[..., 0]
    assert (positions.diff(dim=1) > 0).all()
    assert (positions[:, prefix:] >= prefix).all()


def test_each_patch_is_as_likely_and_samples_differ():
    tokens = torch.arange(17).float().view(1, -1, 1).expand(4000, -1, 1)
    kept = drop_patches(tokens, 0.75)[:, 1:, 0]
    frequency = torch.bincount(kept.flatten().long(), minlength=17)[1:] / 4000
    torch.testing.assert_close(frequency, torch.full((16,), 0.25), atol=0.03, rtol=0)
    assert len(kept.unique(dim=0)) > 1000


def test_gradient_reaches_the_kept_only():
    tokens = torch.randn(3, 9, 4, requires_grad=True)
    drop_patches(tokens, 0.5).sum().backward()
    assert tokens.grad.sum((1, 2)).tolist() == [20.0] * 3
    assert set(tokens.grad.unique().tolist()) == {0.0, 1.0}


def test_wrong_arguments():
    for rate in (-0.1, 1.0, 1.5):
        with pytest.raises(ValueError, match="drop_rate"):
            PatchDropout(rate)
        with pytest.raises(ValueError, match="drop_rate"):
            drop_patches(torch.zeros(1, 5, 2), rate)
    with pytest.raises(ValueError, match="num_prefix_tokens"):
        PatchDropout(num_prefix_tokens=-1)
    with pytest.raises(ValueError, match="shape"):
        drop_patches(torch.zeros(1, 1, 2))
    with pytest.raises(ValueError, match="shape"):
        drop_patches(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="Did you mean 'tokens'"):
        loop.start(make_patch_model(), [PatchDropout(module="token")])


def test_evaluation_sees_all_and_the_model_is_left_as_it_was():
    model = make_patch_model()
    batch = make_batches(1)[0]
    engine = loop.start(model, [PatchDropout(0.75, module="tokens")])
    sizes = []
    model.layer.register_forward_pre_hook(lambda module, args: sizes.append(args[0].shape[1]))
    engine.run_event("fit_start")
    model.train()(batch)
    copy.deepcopy(model)(batch)
    model.eval()(batch)
    engine.run_event("fit_end")
    model.train()(batch)
    assert sizes == [5, 5, 17, 17]
    assert not model.tokens._forward_hooks


def test_known_models():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.0)

    class VisionTransformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()

    for model in (VisionTransformer(), nn.Sequential(VisionTransformer())):
        engine = loop.start(nn.Sequential(model, nn.Linear(1, 1)), [PatchDropout()])
        engine.run_event("fit_start")
        assert sum(len(module._forward_hooks) for module in model.modules() if isinstance(module, nn.Dropout)) == 1
    with pytest.warns(NoEffectWarning, match="no VisionTransformer"):
        loop.start(make_model(), [PatchDropout()])


def test_vision_transformer_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    model = transformers.ViTForImageClassification(config)
    sizes = []
    engine = loop.start(model, [PatchDropout(0.5)])
    engine.run_event("fit_start")
    model.vit.layernorm.register_forward_pre_hook(lambda module, args: sizes.append(args[0].shape[1]))
    model.train()(torch.randn(2, 3, 16, 16)).logits.sum().backward()
    model.eval()(torch.randn(2, 3, 16, 16))
    assert sizes == [9, 17]
