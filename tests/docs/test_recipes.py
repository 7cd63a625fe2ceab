"""The recipes of the documentation run, on data and models that take their place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from composer import Algorithm, Trainer
from composer.loss import binary_cross_entropy_with_logits
from composer.models import ComposerClassifier
from tests.algorithms.text import make_text_batches, make_text_model
from tests.docs.blocks import Block
from tests.nn.blocks import Bottleneck

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"

# What would take too long, and what it is replaced by.
SHORTER = {
    "36, [": "2, [",
    "135, [": "2, [",
    "270, [": "2, [",
    't_warmup="8ep"': 't_warmup="1ep"',
    "286720000sp": "80sp",
    '"100ba",\n    optimizers': '"20ba",\n    optimizers',
    '"150ba"': '"20ba"',
}


def recipes() -> dict[str, list[str]]:
    """The blocks of code under each heading."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        found[part.partition("\n")[0]] = re.findall(r"^```python\n(.*?)^```", part, flags=re.M | re.S)
    return found


RECIPES = recipes()


class Photographs(Dataset[Any]):
    """Like an ``ImageFolder``: images that the transform makes tensors."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        image = torch.full((3, 32, 32), 20 * index, dtype=torch.uint8)
        return self.transform(image), index % 4


class Normalize:
    """Bytes to numbers."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.float() / 128 - 1


def _resnet() -> ComposerClassifier:
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        nn.MaxPool2d(2),
        *(Bottleneck(16, 4, 16) for _ in range(2)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    return ComposerClassifier(module, num_classes=4, loss_fn=binary_cross_entropy_with_logits)


def _imagenet() -> dict[str, Any]:
    loaders = [DataLoader(Photographs(Normalize()), batch_size=4) for _ in range(2)]
    return {"make_model": _resnet, "train_dataloader": loaders[0], "eval_dataloader": loaders[1]}


def _bert() -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    ids = torch.randint(64, (4, 4, 16))
    labels = torch.where(torch.rand(ids.shape) < 0.3, ids, -100)
    rows = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    return {"config": config, "train_dataloader": [{k: v[n] for k, v in rows.items()} for n in range(4)]}


def _digits() -> dict[str, Any]:
    def make_model() -> ComposerClassifier:
        layers = (
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )
        return ComposerClassifier(nn.Sequential(*layers), num_classes=4)

    batches = [(torch.randn(6, 1, 28, 28), torch.randint(4, (6,))) for _ in range(4)]
    return {"make_model": make_model, "train_dataloader": batches, "eval_dataloader": batches}


def _language() -> dict[str, Any]:
    return {"make_model": make_text_model, "train_dataloader": make_text_batches(4, length=96)}


GIVEN = {
    "ResNet-50 on ImageNet": _imagenet,
    "BERT pretraining": _bert,
    "A small vision model": _digits,
    "A small language model": _language,
}


def test_every_recipe_is_run():
    assert set(RECIPES) == set(GIVEN)
    assert all(RECIPES.values())


def test_what_is_made_shorter_is_there():
    code = "".join(block for blocks in RECIPES.values() for block in blocks)
    assert {long for long in SHORTER if long not in code} == set()


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_runs(recipe, monkeypatch):
    made: list[Trainer] = []
    original = Trainer.__init__

    def quiet(self: Trainer, **arguments: Any) -> None:
        made.append(self)
        original(self, **{**arguments, "progress_bar": False})

    monkeypatch.setattr(Trainer, "__init__", quiet)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "recipe", **GIVEN[recipe]()}
    for block in RECIPES[recipe]:
        for long, short in SHORTER.items():
            block = block.replace(long, short)
        Block(PAGE.name, 1, block).run(names)
    assert made
    for trainer in made:
        assert trainer.state.timestamp.batch.value > 0
        assert torch.as_tensor(trainer.state.loss).isfinite()
        assert all(isinstance(one, Algorithm) for one in trainer.state.algorithms)
        trainer.close()
