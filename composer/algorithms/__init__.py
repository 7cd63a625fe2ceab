"""The methods: each a class for the trainer and a function for loops of one's own, in a file of its name."""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        **dict.fromkeys(("BlurPool", "apply_blurpool"), "composer.algorithms.blurpool"),
        **dict.fromkeys(("ChannelsLast", "apply_channels_last"), "composer.algorithms.channels_last"),
        **dict.fromkeys(("EMA", "compute_ema"), "composer.algorithms.ema"),
        **dict.fromkeys(("LabelSmoothing", "smooth_labels"), "composer.algorithms.label_smoothing"),
        **dict.fromkeys(("MixUp", "mixup_batch"), "composer.algorithms.mixup"),
        **dict.fromkeys(("ProgressiveResizing", "resize_batch"), "composer.algorithms.progressive_resizing"),
    },
)
