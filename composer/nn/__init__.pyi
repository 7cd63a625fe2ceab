"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.nn.alibi import NoPositions, NoRotation, add_alibi, alibi_bias, alibi_slopes
from composer.nn.blurpool import BlurConv2d, BlurMaxPool2d, BlurPool2d, blur_2d, blurmax_pool2d
from composer.nn.factorized import FactorizedConv2d, FactorizedLinear
from composer.nn.gated_linear import GatedLinear
from composer.nn.ghost_batchnorm import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from composer.nn.gyro_dropout import GyroDropoutLayer
from composer.nn.low_precision_norm import LPGroupNorm, LPLayerNorm, LPRMSNorm
from composer.nn.low_rank import LowRankSolution, factorize_conv2d, factorize_matrix
from composer.nn.squeeze_excite import SqueezeExcite2d, SqueezeExciteConv2d
from composer.nn.stochastic_depth import StochasticBlock

__all__ = [
    "BlurConv2d",
    "BlurMaxPool2d",
    "BlurPool2d",
    "FactorizedConv2d",
    "FactorizedLinear",
    "GatedLinear",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "GyroDropoutLayer",
    "LPGroupNorm",
    "LPLayerNorm",
    "LPRMSNorm",
    "LowRankSolution",
    "NoPositions",
    "NoRotation",
    "SqueezeExcite2d",
    "SqueezeExciteConv2d",
    "StochasticBlock",
    "add_alibi",
    "alibi_bias",
    "alibi_slopes",
    "blur_2d",
    "blurmax_pool2d",
    "factorize_conv2d",
    "factorize_matrix",
]
