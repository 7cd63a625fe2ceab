"""Pictures of methods: augmented photographs, and curves of values that change during training."""

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

_FRACTIONS = [step / 200 for step in range(201)]

CAPTIONS: dict[str, str] = {
    "Alibi": "The bias that the first of eight heads adds to the attention score of each query and key.",
    "AugMix": "A photograph, and three samples of `augmix_image(image, severity=3)`.",
    "ColOut": "A photograph, and `colout_batch` with 15 %, 30 % and 50 % of rows and columns dropped.",
    "CutMix": "Two photographs, and `cutmix_batch` with boxes of 0.4 and 0.7 of the side length.",
    "CutOut": "A photograph, and three samples of `cutout_batch(image, length=0.5)`.",
    "EMA": "The weight of each step in the final average, for runs of 100, 20 and 5 half-lives.",
    "LayerFreezing": "The fraction of layers that is frozen.",
    "MixUp": "Two photographs, and `mixup_batch` with mixing coefficients of 0.2 and 0.4.",
    "PatchDropout": "A photograph, and the patches that remain at drop rates of 0.25, 0.5 and 0.75.",
    "PostHocEMA": "The weight of each step in the final average, for averages of several lengths.",
    "ProgressiveResizing": "The scale of the images, with the defaults and with the settings of the ResNet recipes.",
    "RandAugment": "A photograph, and three samples of `randaugment_image(image, severity=9, depth=2)`.",
    "SelectiveBackprop": "The probability that an example is kept, by the rank of its loss, relative to the largest.",
    "SeqLengthWarmup": "The length of the sequences, with the defaults.",
    "StochasticDepth": "The probability that each of 16 blocks is dropped, for `drop_rate=0.2`.",
    "ZClip": "The gradient norm after clipping, for norms with mean 1 and standard deviation 0.1.",
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


def _samples(images: Tensor, edit: Callable[[Tensor], Tensor]) -> bytes:
    one = images[1:]
    return draw_images([one[0], *(edit(one)[0] for _ in range(3))], ["original", "sample 1", "sample 2", "sample 3"])


def _colout(images: Tensor) -> bytes:
    one, fractions = images[1:], (0.15, 0.3, 0.5)
    made = [functional.colout_batch(one, fraction, fraction)[0] for fraction in fractions]
    return draw_images([one[0], *made], ["original", *(f"{fraction:g}" for fraction in fractions)])


def _cutmix(images: Tensor) -> bytes:
    lengths, swap = (0.4, 0.7), torch.tensor([1, 0])
    made = [functional.cutmix_batch(images, torch.arange(2), length, indices=swap)[0][1] for length in lengths]
    return draw_images([*images, *made], ["first", "second", *(f"length {length}" for length in lengths)])


def _mixup(images: Tensor) -> bytes:
    mixing, swap = (0.2, 0.4), torch.tensor([1, 0])
    made = [functional.mixup_batch(images.float(), torch.arange(2), value, indices=swap)[0][1] for value in mixing]
    mixed = [image.round().to(torch.uint8) for image in made]
    return draw_images([*images, *mixed], ["first", "second", *(f"mixing {value}" for value in mixing)])


def _patch_dropout(images: Tensor) -> bytes:
    image, rates = images[1], (0.25, 0.5, 0.75)
    patches = torch.arange(64).view(1, 64, 1).float()
    made: list[Tensor] = []
    for rate in rates:
        kept = functional.drop_patches(patches, rate, num_prefix_tokens=0).flatten().long()
        mask = torch.zeros(64).index_fill(0, kept, 1.0).view(8, 8)
        mask = mask.repeat_interleave(16, 0).repeat_interleave(16, 1).bool()
        made.append(torch.where(mask, image, torch.tensor(255, dtype=torch.uint8)))
    return draw_images([image, *made], ["original", *(f"rate {rate:g}" for rate in rates)])


_PHOTOGRAPHS: dict[str, Callable[[Tensor], bytes]] = {
    "AugMix": lambda images: _samples(images, lambda one: functional.augmix_image(one, severity=3)),
    "ColOut": _colout,
    "CutMix": _cutmix,
    "CutOut": lambda images: _samples(images, lambda one: functional.cutout_batch(one, length=0.5)),
    "MixUp": _mixup,
    "PatchDropout": _patch_dropout,
    "RandAugment": lambda images: _samples(images, lambda one: functional.randaugment_image(one, severity=9, depth=2)),
}


def _alibi() -> bytes:
    positions = torch.arange(32)
    return draw_heat(alibi_bias(8, positions, positions, torch.float32)[0], "key", "query")


def _ema() -> bytes:
    lines = [
        Line(
            f"half-life 1/{number} of the run", _FRACTIONS, [2 ** (-number * (1 - fraction)) for fraction in _FRACTIONS]
        )
        for number in (100, 20, 5)
    ]
    return draw_lines(lines, "fraction of training", "weight, relative to the last")


def _post_hoc_ema() -> bytes:
    lines: list[Line] = []
    for length in (0.05, 0.1, 0.2):
        exponent = exponent_of(length)
        lines.append(
            Line(f"length {length:g}", _FRACTIONS, [(exponent + 1) * fraction**exponent for fraction in _FRACTIONS])
        )
    return draw_lines(lines, "fraction of training", "weight")


def _layer_freezing() -> bytes:
    lines: list[Line] = []
    for start, level in ((0.5, 1.0), (0.3, 0.5)):
        values = [max(level * (fraction - start) / (1 - start), 0.0) for fraction in _FRACTIONS]
        lines.append(Line(f"freeze_start={start}, freeze_level={level}", _FRACTIONS, values))
    return draw_lines(lines, "fraction of training", "fraction of layers")


def _progressive_resizing() -> bytes:
    settings = {"defaults": ProgressiveResizing(), "mild": ProgressiveResizing("resize", 0.5, 0.2, 0.4)}
    settings["hot"] = ProgressiveResizing("resize", 0.6, 0.2, 0.2)
    lines = [
        Line(name, _FRACTIONS, [method.scale_at(fraction) for fraction in _FRACTIONS])
        for name, method in settings.items()
    ]
    return draw_lines(lines, "fraction of training", "scale")


def _selective_backprop() -> bytes:
    lines: list[Line] = []
    for keep in (0.25, 0.5, 0.75):
        lines.append(Line(f"keep={keep}", _FRACTIONS, [fraction ** (1 / keep - 1) for fraction in _FRACTIONS]))
    return draw_lines(lines, "rank of the loss, as a fraction of the batch", "relative probability")


def _seq_length_warmup() -> bytes:
    method = SeqLengthWarmup()
    values = [float(method.length_at(fraction)) for fraction in _FRACTIONS]
    return draw_lines([Line("length", _FRACTIONS, values)], "fraction of training", "tokens")


def _stochastic_depth() -> bytes:
    blocks = [float(block) for block in range(1, 17)]
    lines = [Line("linear", blocks, [0.2 * block / 16 for block in blocks]), Line("uniform", blocks, [0.2] * 16)]
    return draw_lines(lines, "block", "drop probability")


def _zclip() -> bytes:
    norms = [1 + step / 100 for step in range(101)]
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
