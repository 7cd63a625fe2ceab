"""Pictures of methods: augmented photographs, and curves of what changes over a training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from composer import functional
from composer.algorithms import ProgressiveResizing, SeqLengthWarmup
from composer.algorithms._power_averages import exponent_of
from composer.nn.alibi import alibi_bias
from docs.drawing import Line, draw_heat, draw_images, draw_lines, photos

__all__ = ["CAPTIONS", "method_pictures"]

_SHARES = [place / 200 for place in range(201)]

CAPTIONS: dict[str, str] = {
    "Alibi": "What the first of eight heads adds to the score of each query and key.",
    "AugMix": "A photograph, and three draws of `augmix_image(image, severity=3)`.",
    "ColOut": "A photograph, and `colout_batch` with 15 %, 30 % and 50 % of rows and columns left out.",
    "CutMix": "Two photographs, and `cutmix_batch` of them with boxes of 0.4 and 0.7 of the sides.",
    "CutOut": "A photograph, and three draws of `cutout_batch(image, length=0.5)`.",
    "EMA": "What each step of a training of 100 half-lives, of 20, and of 5 counts in the average at the end.",
    "LayerFreezing": "The share of the layers that is frozen.",
    "MixUp": "Two photographs, and `mixup_batch` of them with shares of 0.2 and 0.4.",
    "PatchDropout": "A photograph, and what is left of its patches at rates of 0.25, 0.5 and 0.75.",
    "PostHocEMA": "What each moment of a training counts in averages of several lengths, at its end.",
    "ProgressiveResizing": "The scale of the images, with the defaults and with those of the ResNet recipes.",
    "RandAugment": "A photograph, and three draws of `randaugment_image(image, severity=9, depth=2)`.",
    "SelectiveBackprop": "How likely an example is to be kept, by the rank of its loss; relative to the largest.",
    "SeqLengthWarmup": "The length of the sequences, with the defaults.",
    "StochasticDepth": "The probability that each of 16 blocks is left out, for `drop_rate=0.2`.",
    "ZClip": "The norm after clipping, for norms of mean 1 and deviation 0.1.",
}


def method_pictures() -> dict[str, bytes]:
    """Return the picture of each method that has a caption."""
    pictures: dict[str, bytes] = {}
    for name in CAPTIONS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            draw = _PHOTOGRAPHS.get(name)
            pictures[name] = draw(photos()) if draw is not None else _CURVES[name]()
    return pictures


def _draws(images: Tensor, edit: Callable[[Tensor], Tensor]) -> bytes:
    one = images[1:]
    return draw_images([one[0], *(edit(one)[0] for _ in range(3))], ["given", "one draw", "another", "a third"])


def _colout(images: Tensor) -> bytes:
    one, shares = images[1:], (0.15, 0.3, 0.5)
    made = [functional.colout_batch(one, share, share)[0] for share in shares]
    return draw_images([one[0], *made], ["given", *(f"{share:g}" for share in shares)])


def _cutmix(images: Tensor) -> bytes:
    lengths, swap = (0.4, 0.7), torch.tensor([1, 0])
    made = [functional.cutmix_batch(images, torch.arange(2), length, indices=swap)[0][1] for length in lengths]
    return draw_images([*images, *made], ["one", "other", *(f"length {length}" for length in lengths)])


def _mixup(images: Tensor) -> bytes:
    shares, swap = (0.2, 0.4), torch.tensor([1, 0])
    made = [functional.mixup_batch(images.float(), torch.arange(2), share, indices=swap)[0][1] for share in shares]
    mixed = [image.round().to(torch.uint8) for image in made]
    return draw_images([*images, *mixed], ["one", "other", *(f"share {share}" for share in shares)])


def _patch_dropout(images: Tensor) -> bytes:
    image, rates = images[1], (0.25, 0.5, 0.75)
    places = torch.arange(64).view(1, 64, 1).float()
    made: list[Tensor] = []
    for rate in rates:
        kept = functional.drop_patches(places, rate, num_prefix_tokens=0).flatten().long()
        mask = torch.zeros(64).index_fill(0, kept, 1.0).view(8, 8)
        mask = mask.repeat_interleave(16, 0).repeat_interleave(16, 1).bool()
        made.append(torch.where(mask, image, torch.tensor(255, dtype=torch.uint8)))
    return draw_images([image, *made], ["given", *(f"rate {rate:g}" for rate in rates)])


_PHOTOGRAPHS: dict[str, Callable[[Tensor], bytes]] = {
    "AugMix": lambda images: _draws(images, lambda one: functional.augmix_image(one, severity=3)),
    "ColOut": _colout,
    "CutMix": _cutmix,
    "CutOut": lambda images: _draws(images, lambda one: functional.cutout_batch(one, length=0.5)),
    "MixUp": _mixup,
    "PatchDropout": _patch_dropout,
    "RandAugment": lambda images: _draws(images, lambda one: functional.randaugment_image(one, severity=9, depth=2)),
}


def _alibi() -> bytes:
    places = torch.arange(32)
    return draw_heat(alibi_bias(8, places, places, torch.float32)[0], "key", "query")


def _ema() -> bytes:
    lines = [
        Line(f"half-life 1/{number} of the training", _SHARES, [2 ** (-number * (1 - share)) for share in _SHARES])
        for number in (100, 20, 5)
    ]
    return draw_lines(lines, "share of training", "weight, relative to the last")


def _post_hoc_ema() -> bytes:
    lines: list[Line] = []
    for length in (0.05, 0.1, 0.2):
        exponent = exponent_of(length)
        lines.append(Line(f"length {length:g}", _SHARES, [(exponent + 1) * share**exponent for share in _SHARES]))
    return draw_lines(lines, "share of training", "weight")


def _layer_freezing() -> bytes:
    lines: list[Line] = []
    for start, level in ((0.5, 1.0), (0.3, 0.5)):
        values = [max(level * (share - start) / (1 - start), 0.0) for share in _SHARES]
        lines.append(Line(f"freeze_start={start}, freeze_level={level}", _SHARES, values))
    return draw_lines(lines, "share of training", "share of layers")


def _progressive_resizing() -> bytes:
    settings = {"the defaults": ProgressiveResizing(), "mild": ProgressiveResizing("resize", 0.5, 0.2, 0.4)}
    settings["hot"] = ProgressiveResizing("resize", 0.6, 0.2, 0.2)
    lines = [Line(name, _SHARES, [method.scale_at(share) for share in _SHARES]) for name, method in settings.items()]
    return draw_lines(lines, "share of training", "scale")


def _selective_backprop() -> bytes:
    lines: list[Line] = []
    for keep in (0.25, 0.5, 0.75):
        lines.append(Line(f"keep={keep}", _SHARES, [share ** (1 / keep - 1) for share in _SHARES]))
    return draw_lines(lines, "rank of the loss, as a share of the batch", "chance to be kept")


def _seq_length_warmup() -> bytes:
    method = SeqLengthWarmup()
    values = [float(method.length_at(share)) for share in _SHARES]
    return draw_lines([Line("length", _SHARES, values)], "share of training", "tokens")


def _stochastic_depth() -> bytes:
    blocks = [float(block) for block in range(1, 17)]
    lines = [Line("linear", blocks, [0.2 * block / 16 for block in blocks]), Line("uniform", blocks, [0.2] * 16)]
    return draw_lines(lines, "block", "probability to be left out")


def _zclip() -> bytes:
    norms = [1 + place / 100 for place in range(101)]
    lines: list[Line] = []
    for threshold in (1.5, 2.5, 4.0):
        scores = [(norm - 1) / 0.1 for norm in norms]
        clipped = [
            1 + 0.1 * threshold**2 / score if score > threshold else norm
            for norm, score in zip(norms, scores, strict=True)
        ]
        lines.append(Line(f"z_threshold={threshold}", norms, clipped))
    return draw_lines(lines, "norm of the gradient", "norm after clipping")


_CURVES: dict[str, Callable[[], bytes]] = {
    "Alibi": _alibi,
    "EMA": _ema,
    "LayerFreezing": _layer_freezing,
    "PostHocEMA": _post_hoc_ema,
    "ProgressiveResizing": _progressive_resizing,
    "SelectiveBackprop": _selective_backprop,
    "SeqLengthWarmup": _seq_length_warmup,
    "StochasticDepth": _stochastic_depth,
    "ZClip": _zclip,
}
