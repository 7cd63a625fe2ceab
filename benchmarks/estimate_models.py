"""Models whose memory is estimated and measured: perceptrons, convolutions, transformers, recurrent nets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.peak_memory import network

NUM_CLASSES = 100


class Attention(nn.Module):
    """Self-attention, by torch's kernel or spelled out."""

    def __init__(
        self, width: int, heads: int, *, fused: bool = True, causal: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.fused, self.causal, self.dropout = heads, fused, causal, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused:
            dropout = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout)
        else:
            scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
            if self.causal:
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            y = F.dropout(scores.softmax(-1), self.dropout, self.training) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class GELUBlock(nn.Module):
    """The block of GPT-2."""

    def __init__(self, width: int, heads: int, drop: float, **attention: Any) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads, **attention)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norms[0](x)))
        return x + self.dropout(self.feed_forward(self.norms[1](x)))


class SwiGLUBlock(nn.Module):
    """The block of Llama, without rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Transformer(nn.Module):
    """Tokens or patches to class scores."""

    def __init__(self, embed: nn.Module, length: int, width: int, blocks: list[nn.Module], recompute: bool) -> None:
        super().__init__()
        self.embed, self.blocks, self.recompute = embed, nn.ModuleList(blocks), recompute
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, NUM_CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x) + self.positions
        for block in self.blocks:
            y = checkpoint(block, y, use_reentrant=False) if self.recompute else block(y)
        return self.head(self.norm(y)).mean(1)


class TiedTransformer(Transformer):
    """Tokens to scores of tokens, by the weights of the embedding."""

    def __init__(self, embed: nn.Embedding, length: int, width: int, blocks: list[nn.Module]) -> None:
        super().__init__(embed, length, width, blocks, recompute=False)
        self.head = nn.Linear(width, embed.num_embeddings, bias=False)
        self.head.weight = embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :NUM_CLASSES]


class Patches(nn.Module):
    """Images to a sequence of patches."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, size, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x).flatten(2).transpose(1, 2)


class UNet(nn.Module):
    """Two levels down and up, with skip connections, then a mean over the pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_double(3, width), _double(width, 2 * width), _double(2 * width, 4 * width)])
        self.up = nn.ModuleList(nn.ConvTranspose2d(n * width, n * width // 2, 2, 2) for n in (4, 2))
        self.merge = nn.ModuleList([_double(4 * width, 2 * width), _double(2 * width, width)])
        self.head = nn.Conv2d(width, NUM_CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level in self.down:
            x = level(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, skips[1::-1], strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return self.head(x).mean((2, 3))


class Recurrent(nn.Module):
    """Tokens through an LSTM or GRU, and the last output to class scores."""

    def __init__(self, core: Callable[..., nn.Module], width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(2000, width)
        self.core = core(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(self.embed(x))[0][:, -1])


class PackedRecurrent(nn.Module):
    """Sequences of different lengths through a GRU, and the last state to class scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(2000, width)
        self.core = nn.GRU(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x[:, 0] % 32 + 16).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.core(packed)[1][-1])


class PaddedEncoder(nn.Module):
    """Tokens with padding through an encoder, which leaves the padding out in evaluation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(2000, width)
        self.core = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True), 2)
        self.head = nn.Linear(width, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(self.embed(x), src_key_padding_mask=x < 200).mean(1))


def _autoencoder() -> nn.Module:
    down = (nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU())
    up = (nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1))
    resize = (nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveMaxPool2d(4))
    return nn.Sequential(*down, *up, *resize, nn.Flatten(), nn.Linear(256, NUM_CLASSES))


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def _separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU6(),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


def _convnet() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, NUM_CLASSES))


def _mobile() -> nn.Module:
    stages = (_separable(32, 64, 1), _separable(64, 128, 2), _separable(128, 128, 1), _separable(128, 256, 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, NUM_CLASSES))
    return nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(), *stages, *head)


def _mlp() -> nn.Module:
    hidden = (nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.Tanh())
    return nn.Sequential(*hidden, nn.Dropout(0.1), nn.Linear(1024, NUM_CLASSES))


def _gpt(recompute: bool = False, **attention: Any) -> nn.Module:
    blocks: list[nn.Module] = [GELUBlock(256, 4, 0.1, **attention) for _ in range(4)]
    return Transformer(nn.Embedding(2000, 256), 128, 256, blocks, recompute)


def _tied() -> nn.Module:
    blocks: list[nn.Module] = [GELUBlock(256, 4, 0.1) for _ in range(4)]
    return TiedTransformer(nn.Embedding(2000, 256), 128, 256, blocks)


def _llama(recompute: bool = False) -> nn.Module:
    blocks: list[nn.Module] = [SwiGLUBlock(256, 4) for _ in range(4)]
    return Transformer(nn.Embedding(2000, 256), 128, 256, blocks, recompute)


def _vit() -> nn.Module:
    blocks: list[nn.Module] = [GELUBlock(192, 3, 0.1, causal=False) for _ in range(4)]
    return Transformer(Patches(192, 8), 64, 192, blocks, recompute=False)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return Transformer(nn.Embedding(2000, 256), 128, 256, [encoder], recompute=False)


def _bag() -> nn.Module:
    head = (nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, NUM_CLASSES))
    return nn.Sequential(nn.EmbeddingBag(20000, 256, mode="mean"), *head)


def _group_norms() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 48), (48, 96), (96, 96)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, NUM_CLASSES))


@dataclass(frozen=True)
class Model:
    """A model and what it takes.

    Attributes:
        build: Makes the model, which gives scores of ``NUM_CLASSES`` classes.
        sample: Makes an input, without the batch's dimension.
    """

    build: Callable[[], nn.Module]
    sample: Callable[[], Tensor]


def _features() -> Tensor:
    return torch.randn(256)


def _image(extent: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(3, extent, extent)


def _tokens(length: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(2000, (length,))


MODELS: dict[str, Model] = {
    "mlp": Model(_mlp, _features),
    "convnet": Model(_convnet, _image(32)),
    "resnet": Model(lambda: network(24, (1, 1, 1, 1), NUM_CLASSES), _image(32)),
    "mobile": Model(_mobile, _image(48)),
    "group-norms": Model(_group_norms, _image(32)),
    "unet": Model(lambda: UNet(16), _image(32)),
    "vit": Model(_vit, _image(64)),
    "gpt": Model(_gpt, _tokens(128)),
    "gpt-spelled-out": Model(lambda: _gpt(fused=False, dropout=0.1), _tokens(128)),
    "gpt-tied": Model(_tied, _tokens(128)),
    "gpt-recompute": Model(lambda: _gpt(recompute=True), _tokens(128)),
    "gpt-attention-dropout": Model(lambda: _gpt(dropout=0.1), _tokens(128)),
    "llama": Model(_llama, _tokens(128)),
    "llama-recompute": Model(lambda: _llama(recompute=True), _tokens(128)),
    "encoder": Model(_encoder, _tokens(128)),
    "lstm": Model(lambda: Recurrent(nn.LSTM, 256, 2), _tokens(64)),
    "gru": Model(lambda: Recurrent(nn.GRU, 256, 2), _tokens(64)),
    "packed-gru": Model(lambda: PackedRecurrent(128), _tokens(64)),
    "padded-encoder": Model(lambda: PaddedEncoder(192), _tokens(96)),
    "autoencoder": Model(_autoencoder, _image(32)),
    "convnet-float64": Model(lambda: _convnet().double(), lambda: torch.randn(3, 32, 32, dtype=torch.float64)),
    "bag": Model(_bag, _tokens(200)),
}
