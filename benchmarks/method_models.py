"""Models and images for timing the methods."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def images(size: int = 256, extent: int = 32) -> tuple[Tensor, Tensor]:
    """A batch of images and their classes."""
    torch.manual_seed(0)
    return torch.rand(size, 3, extent, extent), torch.randint(10, (size,))


def resnet(depth: int) -> nn.Module:
    """A residual network of torchvision."""
    from torchvision import models

    torch.manual_seed(0)
    return getattr(models, f"resnet{depth}")()


def bert() -> nn.Module:
    """A BERT of four layers."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=256,
    )
    return BertForMaskedLM(config)


def dropouts() -> nn.Module:
    """Three wide layers with dropout."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.5))))


def group_norms() -> nn.Module:
    """Twenty layers of group norm."""
    return nn.Sequential(*(nn.GroupNorm(4, 32) for _ in range(20)))


def with_gradients(model: nn.Module) -> nn.Module:
    """Give each weight a gradient of random numbers."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def photograph() -> Any:
    """An image of PIL, 224 x 224, smooth as photographs are."""
    from PIL import Image

    torch.manual_seed(0)
    pixels = F.interpolate(torch.rand(1, 3, 14, 14), size=(224, 224), mode="bicubic").clamp(0, 1)[0]
    return Image.fromarray((pixels.permute(1, 2, 0) * 255).to(torch.uint8).numpy())
