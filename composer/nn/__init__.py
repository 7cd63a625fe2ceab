"""Layers that the algorithms insert into models; each can also be used directly."""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "BlurConv2d": "composer.nn.blurpool",
        "BlurMaxPool2d": "composer.nn.blurpool",
        "BlurPool2d": "composer.nn.blurpool",
        "FactorizedConv2d": "composer.nn.factorized",
        "FactorizedLinear": "composer.nn.factorized",
        "GatedLinear": "composer.nn.gated_linear",
        "GhostBatchNorm1d": "composer.nn.ghost_batchnorm",
        "GhostBatchNorm2d": "composer.nn.ghost_batchnorm",
        "GhostBatchNorm3d": "composer.nn.ghost_batchnorm",
        "GyroDropoutLayer": "composer.nn.gyro_dropout",
        "LPGroupNorm": "composer.nn.low_precision_norm",
        "LPLayerNorm": "composer.nn.low_precision_norm",
        "LPRMSNorm": "composer.nn.low_precision_norm",
        "LowRankSolution": "composer.nn.low_rank",
        "NoPositions": "composer.nn.alibi",
        "NoRotation": "composer.nn.alibi",
        "SqueezeExcite2d": "composer.nn.squeeze_excite",
        "SqueezeExciteConv2d": "composer.nn.squeeze_excite",
        "StochasticBlock": "composer.nn.stochastic_depth",
        "add_alibi": "composer.nn.alibi",
        "alibi_bias": "composer.nn.alibi",
        "alibi_slopes": "composer.nn.alibi",
        "blur_2d": "composer.nn.blurpool",
        "blurmax_pool2d": "composer.nn.blurpool",
        "factorize_conv2d": "composer.nn.low_rank",
        "factorize_matrix": "composer.nn.low_rank",
    },
)
