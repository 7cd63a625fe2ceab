"""The methods as variants: each algorithm with its usual arguments, alternatives, and what it requires of a program.

A new algorithm gets a row here, in addition to its three files; a test fails without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from composer.exploration.program_facts import ProgramFacts

__all__ = ["METHODS", "MethodRow"]


@dataclass(frozen=True)
class MethodRow:
    """How an algorithm is tried.

    Args:
        calls: Calls that create it: the usual one, and alternatives of its main argument. Placeholders are
            ``{sequence_length}``, ``{block}``, ``{low}``, ``{high}``, ``{half_life}`` and ``{window}``.
        missing: Returns why it does not apply to a program; empty if it may. What it says itself when it is created or
            in the first steps need not be repeated.
        late: See :class:`.Variant`.
        speed_only: See :class:`.Variant`.
        excluded: Why it is never tried; empty if it is.

    >>> METHODS["EMA"].late
    True
    """

    calls: tuple[str, ...]
    missing: Callable[[ProgramFacts], str] = lambda facts: ""
    late: bool = False
    speed_only: bool = False
    excluded: str = ""


def _convolutions(facts: ProgramFacts) -> str:
    return "" if facts.has_convolutions else "the model has no 2-D convolution"


def _images(facts: ProgramFacts) -> str:
    if facts.inputs != "images":
        return "the inputs are not images of shape (B, C, H, W)"
    return _pairs(facts)


def _pairs(facts: ProgramFacts) -> str:
    if facts.has_keys:
        return "the batch is a mapping; add it with input_key and target_key, or the names of its entries"
    return ""


def _mixed(facts: ProgramFacts) -> str:
    return _pairs(facts) or _classes(facts) or ("" if facts.inputs != "tokens" else "the inputs are tokens")


def _mixed_images(facts: ProgramFacts) -> str:
    return _images(facts) or _classes(facts)


def _classes(facts: ProgramFacts) -> str:
    return _pairs(facts) or ("" if facts.labels == "classes" else "the labels are not classes of shape (B,)")


def _tokens(facts: ProgramFacts) -> str:
    return "" if facts.inputs == "tokens" else "the inputs are not tokens of shape (B, T)"


def _sequences(facts: ProgramFacts) -> str:
    if not _tokens(facts) and not facts.has_keys:
        return "the batch is not a mapping with input_ids"
    return _tokens(facts)


def _blocks(facts: ProgramFacts) -> str:
    return "" if facts.block else "the model repeats no block"


METHODS = MappingProxyType(
    {
        "Alibi": MethodRow(
            ("Alibi(max_sequence_length={sequence_length}, train_sequence_length_scaling=1.0)",), _sequences
        ),
        "AugMix": MethodRow(
            (
                "AugMix(on_device=True, value_range=({low}, {high}))",
                "AugMix(severity=1, on_device=True, value_range=({low}, {high}))",
            ),
            _images,
        ),
        "BatchSizeWarmup": MethodRow(
            (
                "BatchSizeWarmup(end=2, duration='0.5dur')",
                "BatchSizeWarmup(end=4, duration='0.5dur', lr_scaling='sqrt')",
            ),
            late=True,
        ),
        "BlurPool": MethodRow(("BlurPool()", "BlurPool(blur_first=False)"), _convolutions),
        "ChannelsLast": MethodRow(("ChannelsLast()",), _convolutions, speed_only=True),
        "ColOut": MethodRow(("ColOut()", "ColOut(p_row=0.05, p_col=0.05)"), _images),
        "CutMix": MethodRow(("CutMix()", "CutMix(alpha=0.2)"), _mixed_images),
        "CutOut": MethodRow(("CutOut()", "CutOut(length=0.25)"), _images),
        "DiLoCo": MethodRow(
            ("DiLoCo()",), excluded="it saves communication, and does not reach a target in fewer steps"
        ),
        "EMA": MethodRow(("EMA(half_life='{half_life}ba', update_interval='1ba')",), late=True),
        "Factorize": MethodRow(("Factorize()", "Factorize(min_channels=64, min_features=64, latent_features=0.25)")),
        "GatedLinearUnits": MethodRow(("GatedLinearUnits()",)),
        "GhostBatchNorm": MethodRow(("GhostBatchNorm()", "GhostBatchNorm(ghost_batch_size=16)")),
        "GradientClipping": MethodRow(
            (
                "GradientClipping('norm', 1.0)",
                "GradientClipping('norm', 0.1)",
                "GradientClipping('adaptive', 0.01)",
            )
        ),
        "GyroDropout": MethodRow(("GyroDropout()",)),
        "LabelSmoothing": MethodRow(("LabelSmoothing(0.1)", "LabelSmoothing(0.05)"), _classes),
        "LayerFreezing": MethodRow(("LayerFreezing()", "LayerFreezing(freeze_start=0.3)"), late=True),
        "LocalSGD": MethodRow(
            ("LocalSGD()",), excluded="it saves communication, and does not reach a target in fewer steps"
        ),
        "LowPrecisionGroupNorm": MethodRow(("LowPrecisionGroupNorm()",), speed_only=True),
        "LowPrecisionLayerNorm": MethodRow(("LowPrecisionLayerNorm()",), speed_only=True),
        "MixUp": MethodRow(("MixUp(0.2)", "MixUp(0.05)", "MixUp(1.0)"), _mixed),
        "NEFTune": MethodRow(("NEFTune(5.0)", "NEFTune(1.0)"), _tokens),
        "NoOpModel": MethodRow(("NoOpModel()",), excluded="it replaces the model, to measure the loop"),
        "PatchDropout": MethodRow(("PatchDropout(0.5)", "PatchDropout(0.25)"), _images),
        "PostHocEMA": MethodRow(
            ("PostHocEMA()",),
            excluded="it changes neither training nor its evaluations, but what is made of a run later",
        ),
        "ProgressiveResizing": MethodRow(
            ("ProgressiveResizing()", "ProgressiveResizing(mode='crop', initial_scale=0.72, delay_fraction=0.0)"),
            _images,
        ),
        "RandAugment": MethodRow(
            (
                "RandAugment(on_device=True, value_range=({low}, {high}))",
                "RandAugment(severity=4, depth=1, on_device=True, value_range=({low}, {high}))",
            ),
            _images,
        ),
        "SAM": MethodRow(("SAM(0.05)", "SAM(0.05, interval=10)", "SAM(0.2)")),
        "ScheduleFree": MethodRow(("ScheduleFree()",)),
        "SelectiveBackprop": MethodRow(
            ("SelectiveBackprop()", "SelectiveBackprop(start=0.0, end=0.9, interrupt=0)"), _classes
        ),
        "SeqLengthWarmup": MethodRow(
            (
                "SeqLengthWarmup(max_seq_length={sequence_length})",
                "SeqLengthWarmup(max_seq_length={sequence_length}, truncate=False)",
            ),
            _sequences,
        ),
        "SpikeSkip": MethodRow(("SpikeSkip()", "SpikeSkip(num_std=3.0)")),
        "SqueezeExcite": MethodRow(
            ("SqueezeExcite()", "SqueezeExcite(latent_channels=0.25, min_channels=32)"), _convolutions
        ),
        "StochasticDepth": MethodRow(
            ("StochasticDepth('{block}', drop_rate=0.1)", "StochasticDepth('{block}', 'sample', drop_rate=0.1)"),
            _blocks,
        ),
        "SWA": MethodRow(("SWA(update_interval='{window}ba')",), late=True),
        "WeightStandardization": MethodRow(("WeightStandardization()",), _convolutions),
        "ZClip": MethodRow(("ZClip()", "ZClip(z_threshold=1.5)")),
    }
)
