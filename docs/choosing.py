"""Compare methods by domain: effect on speed, effect on accuracy, when to use, and measured step times."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from docs.figures import RESULTS, load_results
from docs.text import table

__all__ = ["CHOICES", "DOMAINS", "Choice", "with_choices"]

DOMAINS = {"vision": "Vision", "language": "Language", "any": "Any domain"}
"""The domains in the order of the pages, with their headings."""

_MARK = re.compile(r"^<!-- choose: (\w+) -->$", flags=re.MULTILINE)


_LOADING = "slower data loading (with `on_device=True`: none)"


class Choice(NamedTuple):
    """What a reader compares before opening the page of a method."""

    domain: str
    speed: str
    accuracy: str
    when: str


CHOICES: dict[str, Choice] = {
    # ---------------------------------------------------------------------------------------------- vision
    "AugMix": Choice("vision", _LOADING, "higher under noise, blur and weather", "robust classifiers"),
    "BlurPool": Choice("vision", "slightly slower steps", "higher", "CNNs with strided layers"),
    "ChannelsLast": Choice("vision", "faster steps", "unchanged", "CNNs, with any other method"),
    "ColOut": Choice("vision", "faster steps", "slightly lower, or higher in long runs", "large images"),
    "CutMix": Choice("vision", "unchanged", "higher in long runs", "classifiers that overfit"),
    "CutOut": Choice("vision", "unchanged", "higher in long runs", "small images"),
    "GhostBatchNorm": Choice("vision", "slightly slower steps", "higher", "large batches per device"),
    "LayerFreezing": Choice("vision", "faster late in the run", "slightly lower", "chains of layers, such as ResNets"),
    "LowPrecisionGroupNorm": Choice("vision", "faster steps on a GPU", "unchanged", "mixed precision, group norm"),
    "PatchDropout": Choice("vision", "faster steps", "slightly lower", "vision transformers, large images"),
    "ProgressiveResizing": Choice("vision", "faster early in the run", "about the same", "CNN classifiers"),
    "RandAugment": Choice("vision", _LOADING, "higher in long runs", "large models, many epochs"),
    "SqueezeExcite": Choice("vision", "slower steps", "higher", "CNNs that need accuracy more than speed"),
    "WeightStandardization": Choice("vision", "slightly slower steps", "higher", "group norm, or small batches"),
    # -------------------------------------------------------------------------------------------- language
    "Alibi": Choice("language", "faster steps (shorter sequences)", "higher", "transformers trained from scratch"),
    "GatedLinearUnits": Choice("language", "slower steps", "higher per step", "BERT, GPT-2, torch transformers"),
    "LowPrecisionLayerNorm": Choice("language", "faster steps on a GPU", "unchanged", "mixed precision, layer norm"),
    "NEFTune": Choice("language", "unchanged", "higher", "instruction fine-tuning on small datasets"),
    "SeqLengthWarmup": Choice("language", "faster early in the run", "unchanged, more stable", "unstable starts"),
    "SequencePacking": Choice("language", "faster (less padding)", "unchanged", "documents of different lengths"),
    # ------------------------------------------------------------------------------------------------- any
    "BatchSizeWarmup": Choice(
        "any", "fewer, larger steps", "unchanged", "several ranks, accelerators that small batches do not fill"
    ),
    "DiLoCo": Choice("any", "faster on slow networks", "slightly lower", "ranks or nodes with a slow connection"),
    "EMA": Choice("any", "slightly slower steps", "higher", "almost always"),
    "Factorize": Choice("any", "faster steps for wide layers", "lower", "wide layers, model compression"),
    "GradientClipping": Choice("any", "slightly slower steps", "more stable", "high learning rates, long sequences"),
    "GyroDropout": Choice("any", "unchanged", "higher", "models with dropout that overfit"),
    "LabelSmoothing": Choice("any", "unchanged", "higher", "overconfident classifiers"),
    "LocalSGD": Choice("any", "faster on slow networks", "slightly lower", "slow connections, as a baseline of DiLoCo"),
    "MixUp": Choice("any", "unchanged", "higher in long runs", "classifiers that overfit"),
    "NoOpModel": Choice("any", "no model computation", "none: nothing is trained", "finding a data bottleneck"),
    "PostHocEMA": Choice("any", "slightly slower steps", "higher", "choosing the averaging length after training"),
    "SAM": Choice("any", "slower: up to 2× per step", "higher", "small datasets, accuracy over speed"),
    "ScheduleFree": Choice("any", "unchanged", "like a tuned cosine schedule", "unknown training length"),
    "SelectiveBackprop": Choice("any", "faster late in the run", "slightly lower", "large datasets with easy samples"),
    "SpikeSkip": Choice("any", "slightly slower steps", "more stable", "long runs of large models"),
    "StochasticDepth": Choice("any", "faster steps (`block`)", "higher in long runs", "deep residual networks"),
    "SWA": Choice("any", "unchanged", "higher", "learning rates that stay high at the end"),
    "ZClip": Choice("any", "slightly slower steps", "more stable", "language model pretraining"),
}
"""Every public method; the tests check that none is missing."""


def with_choices(markdown: str, files: dict[str, str], folder: Path = RESULTS) -> str:
    """Return a page with each ``<!-- choose: domain -->`` replaced by the table of that domain.

    Args:
        markdown: The page. ``<!-- choose: steps -->`` is replaced by the measured step times.
        files: The page of each method, below ``methods``.
        folder: The folder of the result files.
    """

    def shown(found: re.Match[str]) -> str:
        return _step_times(folder) if found[1] == "steps" else _domain(found[1], files)

    return _MARK.sub(shown, markdown)


def _domain(domain: str, files: dict[str, str]) -> str:
    rows = [
        (f"[{name}](methods/{files[name]})", choice.speed, choice.accuracy, choice.when)
        for name, choice in CHOICES.items()
        if choice.domain == domain
    ]
    return table(["method", "speed", "accuracy", "use it for"], rows)


def _step_times(folder: Path) -> str:
    """The time of a step with each method that was measured on the same model and images as the step without one."""
    measured = {str(row[0]): row[1] for row in load_results("methods", folder).get("rows", [])}
    label = re.compile(r"step: ([\w ]+), ResNet-18, 8 x 3 x 96 x 96(?:, .*)?")
    found = {match[1]: time for name, time in measured.items() if (match := label.fullmatch(name))}
    plain = found.pop("no method", None)
    if plain is None:
        return "*Not measured yet. Run `make bench`.*"
    rows = [(name, f"{time:.0f}", f"{time / plain:.2f}×") for name, time in sorted(found.items(), key=lambda x: x[1])]
    return table(["method", "ms per step", "relative to no method"], [("no method", f"{plain:.0f}", "1.00×"), *rows])
