"""What each method costs in a step of training on the device, over the same model without it."""

from __future__ import annotations

import functools
import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import environment
from benchmarks.contenders import make_loader
from benchmarks.environment import Worker
from benchmarks.gpu import gpt2, resnet
from benchmarks.gpu.contenders import Job, train_composer
from benchmarks.gpu.options import Options
from benchmarks.gpu.workloads import Workload, workload
from benchmarks.report import Report, spread

_RANGE = (-6.0, 6.0)  # of the values of the images
_MARGIN = 15.0  # seconds
_MOST_SECONDS = 230.0
_BATCH_SIZES = {"resnet50": 64, "gpt2": 8}

Variant = tuple[str, Callable[[nn.Module], object]]


def _group_norms(module: nn.Module) -> None:
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, nn.GroupNorm(math.gcd(8, child.num_features), child.num_features))


def _dropouts(module: nn.Module) -> None:
    for block in module.modules():
        if isinstance(block, gpt2.FeedForward):
            block.activation = nn.Sequential(block.activation, nn.Dropout(0.1))


VARIANTS: dict[str, Variant] = {
    "ResNet-50": ("resnet50", lambda module: None),
    "ResNet-50 with group norm": ("resnet50", _group_norms),
    "GPT-2": ("gpt2", lambda module: None),
    "GPT-2 with dropout": ("gpt2", _dropouts),
}
"""The models without a method: a workload, and how it is changed."""


def _methods() -> dict[str, tuple[str, Callable[[], Any]]]:
    """For each method the model that it is timed on, and how it is made: so that it acts in every step."""
    from composer import algorithms as a

    images, text = "ResNet-50", "GPT-2"
    return {
        "AugMix": (images, lambda: a.AugMix(on_device=True, value_range=_RANGE)),
        "BlurPool": (images, a.BlurPool),
        "ChannelsLast": (images, a.ChannelsLast),
        "ColOut": (images, a.ColOut),
        "CutMix": (images, a.CutMix),
        "CutOut": (images, a.CutOut),
        "EMA": (images, lambda: a.EMA("100ba", update_interval="1ba")),
        "Factorize": (images, a.Factorize),
        "GhostBatchNorm": (images, a.GhostBatchNorm),
        "GradientClipping": (images, lambda: a.GradientClipping("norm", 1.0)),
        "LabelSmoothing": (images, a.LabelSmoothing),
        "LayerFreezing": (images, lambda: a.LayerFreezing(0.0, 0.5, "1ba")),
        "MixUp": (images, a.MixUp),
        "PostHocEMA": (images, lambda: a.PostHocEMA(snapshot_interval="1ep")),
        "ProgressiveResizing": (images, lambda: a.ProgressiveResizing(delay_fraction=1.0, finetune_fraction=0.0)),
        "RandAugment": (images, lambda: a.RandAugment(on_device=True, value_range=_RANGE)),
        "SAM": (images, a.SAM),
        "SWA": (images, lambda: a.SWA("0dur", "1dur", "1ba")),
        "SelectiveBackprop": (images, lambda: a.SelectiveBackprop(0.0, 1.0, interrupt=0)),
        "SpikeSkip": (images, a.SpikeSkip),
        "SqueezeExcite": (images, a.SqueezeExcite),
        "StochasticDepth": (images, lambda: a.StochasticDepth(resnet.Bottleneck, "block", 0.2)),
        "WeightStandardization": (images, a.WeightStandardization),
        "ZClip": (images, lambda: a.ZClip(warmup_steps=1)),
        "LowPrecisionGroupNorm": ("ResNet-50 with group norm", a.LowPrecisionGroupNorm),
        "Alibi": (text, lambda: a.Alibi(gpt2.Shape().sequence, 1.0)),
        "GatedLinearUnits": (text, a.GatedLinearUnits),
        "LowPrecisionLayerNorm": (text, a.LowPrecisionLayerNorm),
        "NEFTune": (text, lambda: a.NEFTune(embedding="module.tokens")),
        "SeqLengthWarmup": (text, lambda: a.SeqLengthWarmup(1.0, 8, gpt2.Shape().sequence, 8)),
        "GyroDropout": ("GPT-2 with dropout", a.GyroDropout),
    }


NOT_TIMED = {
    "BatchSizeWarmup": "trains on more batches a step",
    "DiLoCo": "saves communication between ranks",
    "LocalSGD": "saves communication between ranks",
    "NoOpModel": "trains nothing",
    "PatchDropout": "is for vision transformers",
    "ScheduleFree": "needs an optimizer of the package schedulefree",
}
"""Methods that have no row, and why."""


class _AlibiAttention(nn.Module):
    """The attention of GPT-2 with a bias by distance."""

    def __init__(self, attention: gpt2.Attention) -> None:
        super().__init__()
        self.attention = attention
        self._bias: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        heads = self.attention.num_heads
        query, key, value = self.attention.project(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=self._mask(query))
        return self.attention.output(mixed.transpose(1, 2).flatten(2))

    def _mask(self, query: Tensor) -> Tensor:
        from composer.nn.alibi import alibi_bias

        size = query.shape[2]
        if self._bias is None or self._bias.shape[-1] != size:
            places = torch.arange(size, device=query.device)
            bias = alibi_bias(query.shape[1], places, places).masked_fill(places[:, None] < places, -torch.inf)
            self._bias = bias.to(query.dtype)
        return self._bias


@functools.cache
def _register() -> None:
    """Tell the methods that have to know of a model's parts."""
    from composer.algorithms.alibi import policy_registry
    from composer.algorithms.gated_linear_units import register_feed_forward
    from composer.functional import register_residual_block
    from composer.nn.alibi import NoPositions

    register_feed_forward(gpt2.FeedForward, linear="up", activation="activation")
    register_residual_block(
        resnet.Bottleneck,
        branch=lambda block, x: block.body(x),
        shortcut=lambda block, x: block.shortcut(x),
        activation=lambda block, x: x.relu(),  # not in place: x may be the input of the block
    )

    @policy_registry.register(gpt2.Attention)
    def _turn_to_distance(module: gpt2.Attention, module_index: int, max_sequence_length: int) -> nn.Module:
        return _AlibiAttention(module)

    @policy_registry.register(gpt2.Positions)
    def _drop_positions(module: nn.Module, module_index: int, max_sequence_length: int) -> nn.Module:
        return NoPositions()


@functools.cache
def _task(name: str, tiny: bool, device: str) -> tuple[Workload, list[Any]]:
    """A workload whose loss takes what methods make of targets, and two of its batches on the device."""
    from composer.loss import soft_cross_entropy

    work = workload(name, tiny, None if tiny else _BATCH_SIZES[name])
    batches = [
        {key: tensor.to(device) for key, tensor in batch.items()}
        if isinstance(batch, dict)
        else tuple(tensor.to(device) for tensor in batch)
        for batch in work.batches(2)
    ]
    if name == "resnet50":
        work = replace(work, loss_of=lambda logits, batch, **given: soft_cross_entropy(logits, batch[1], **given))
    return work, batches


def time_method(variant: str, method: str, tiny: bool, device: str) -> dict[str, float]:
    """Train a model for some steps; return seconds a step, and the peak of memory in bytes.

    Args:
        variant: Which of ``VARIANTS``.
        method: The method; "" for none.
        tiny: Whether the model is tiny.
        device: "cuda" or "cpu".
    """
    if device == "cpu":
        torch.set_num_threads(1)
    _register()
    name, change = VARIANTS[variant]
    work, batches = _task(name, tiny, device)
    with torch.device(device):
        module = work.module()
        change(module)
    marks: list[float] = []

    def mark() -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    steps, warmup = (2, 1) if tiny else (10, 5)
    loader = make_loader(batches, steps, warmup, mark, tail=2)
    if device == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
    train_composer(Job(work, module, loader, device, algorithms=[_methods()[method][1]()] if method else []))
    begin, end = marks
    peak = float(torch.cuda.max_memory_allocated()) if device == "cuda" else math.nan
    return {"seconds": (end - begin) / steps, "peak": peak}


def measure(options: Options) -> Report:
    """Time each method and the model without it, in turns.

    Args:
        options: Device, size, rounds and time.
    """
    end = time.monotonic() + min(options.seconds, _MOST_SECONDS) - _MARGIN
    cases = [(variant, "") for variant in VARIANTS] + [(on, method) for method, (on, _) in _methods().items()]
    cases.sort(key=lambda case: list(VARIANTS).index(case[0]))
    found: dict[tuple[str, str], list[dict[str, float]]] = {case: [] for case in cases}
    failed: dict[tuple[str, str], str] = {}
    rounds, longest = 0, 0.0
    while rounds < options.rounds and time.monotonic() + longest < end:
        begin = time.monotonic()
        _round(found, failed, options)
        rounds, longest = rounds + 1, time.monotonic() - begin
    return _report(found, failed, rounds, options)


def _round(
    found: dict[tuple[str, str], list[dict[str, float]]], failed: dict[tuple[str, str], str], options: Options
) -> None:
    """Add a measurement of each case; one that fails has spoiled its process for the others."""
    worker = Worker()
    try:
        for (variant, method), values in found.items():
            if (variant, method) in failed:
                continue
            arguments: dict[str, Any] = {"variant": variant, "method": method}
            try:
                target = "benchmarks.gpu.method_steps:time_method"
                values.append(worker.call(target, **arguments, tiny=options.tiny, device=options.device))
            except RuntimeError as error:
                failed[variant, method] = str(error).strip()[:1000]
                worker.__exit__()
                worker = Worker()
    finally:
        worker.__exit__()


def _report(
    found: dict[tuple[str, str], list[dict[str, float]]],
    failed: dict[tuple[str, str], str],
    rounds: int,
    options: Options,
) -> Report:
    rows: list[list[Any]] = []
    for (variant, method), values in found.items():
        if (variant, method) in failed:
            continue
        seconds = [value["seconds"] for value in values]
        base = [value["seconds"] for value in found[variant, ""]]
        # The model without it may itself have failed, and has fewer values then.
        over = statistics.median(one / other for one, other in zip(seconds, base, strict=False)) if base else math.nan
        rows.append(
            [
                f"{variant}: {method or 'no method'}",
                statistics.median(seconds) * 1e3,
                spread(seconds) * 1e3,
                over,
                max(value["peak"] for value in values) / 2**30,
            ]
        )
    sizes = "tiny models" if options.tiny else f"batches of {_BATCH_SIZES}"
    notes = [
        f"Trainer of composer, amp_bf16, in eager mode, device {options.device}, {sizes}, channels last for images; "
        f"{rounds} rounds of 10 steps after 5, every method in turn in one process a round. Medians and half the "
        "interquartile range; the ratio is the median of those of each round.",
        "Methods that change the sizes of batches or of the model do other work for it, so that some are below 1.",
        *(f"Not timed: {name}, which {why}." for name, why in NOT_TIMED.items()),
        *(f"{variant}, {method or 'no method'} failed: {why}" for (variant, method), why in failed.items()),
    ]
    samples = {f"{variant}: {method or 'no method'}": values for (variant, method), values in found.items()}
    why = "\n".join(f"{variant}, {method or 'no method'}: {why}" for (variant, method), why in failed.items())
    columns = ["milliseconds a step", "median", "spread", "times no method", "peak GiB"]
    machine = environment.describe(options.device)
    return Report("methods", "Cost of each method in a step", columns, rows, [], notes, samples, machine, why)
