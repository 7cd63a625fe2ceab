"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.algorithms.alibi import Alibi, apply_alibi as apply_alibi
from composer.algorithms.augmix import AugMix, AugmentAndMixTransform, augmix_image as augmix_image
from composer.algorithms.batch_size_warmup import BatchSizeWarmup, grow_batches as grow_batches
from composer.algorithms.blurpool import BlurPool, apply_blurpool as apply_blurpool
from composer.algorithms.channels_last import ChannelsLast, apply_channels_last as apply_channels_last
from composer.algorithms.colout import ColOut, ColOutTransform, colout_batch as colout_batch
from composer.algorithms.cutmix import CutMix, cutmix_batch as cutmix_batch
from composer.algorithms.cutout import CutOut, cutout_batch as cutout_batch
from composer.algorithms.diloco import DiLoCo, apply_outer_step as apply_outer_step
from composer.algorithms.ema import EMA, compute_ema as compute_ema
from composer.algorithms.factorize import Factorize, apply_factorization as apply_factorization
from composer.algorithms.gated_linear_units import (
    GatedLinearUnits,
    apply_gated_linear_units as apply_gated_linear_units,
)
from composer.algorithms.ghost_batchnorm import GhostBatchNorm, apply_ghost_batchnorm as apply_ghost_batchnorm
from composer.algorithms.gradient_clipping import GradientClipping, apply_gradient_clipping as apply_gradient_clipping
from composer.algorithms.gyro_dropout import GyroDropout, apply_gyro_dropout as apply_gyro_dropout
from composer.algorithms.label_smoothing import LabelSmoothing, smooth_labels as smooth_labels
from composer.algorithms.layer_freezing import LayerFreezing, freeze_layers as freeze_layers
from composer.algorithms.local_sgd import LocalSGD, average_weights as average_weights
from composer.algorithms.low_precision_groupnorm import (
    LowPrecisionGroupNorm,
    apply_low_precision_groupnorm as apply_low_precision_groupnorm,
)
from composer.algorithms.low_precision_layernorm import (
    LowPrecisionLayerNorm,
    apply_low_precision_layernorm as apply_low_precision_layernorm,
)
from composer.algorithms.mixup import MixUp, mixup_batch as mixup_batch
from composer.algorithms.neftune import NEFTune, add_embedding_noise as add_embedding_noise
from composer.algorithms.no_op_model import NoOpModel
from composer.algorithms.patch_dropout import PatchDropout, drop_patches as drop_patches
from composer.algorithms.post_hoc_ema import (
    EMASnapshot,
    PostHocEMA,
    load_ema_snapshots as load_ema_snapshots,
    reconstruct_ema as reconstruct_ema,
)
from composer.algorithms.progressive_resizing import ProgressiveResizing, resize_batch as resize_batch
from composer.algorithms.randaugment import RandAugment, RandAugmentTransform, randaugment_image as randaugment_image
from composer.algorithms.sam import SAM
from composer.algorithms.schedule_free import ScheduleFree, use_averaged_weights as use_averaged_weights
from composer.algorithms.selective_backprop import (
    SelectiveBackprop,
    select_using_loss as select_using_loss,
    should_selective_backprop as should_selective_backprop,
)
from composer.algorithms.seq_length_warmup import (
    SeqLengthWarmup,
    set_batch_sequence_length as set_batch_sequence_length,
)
from composer.algorithms.sequence_packing import (
    SequencePacking,
    block_diagonal_mask as block_diagonal_mask,
    document_block_mask as document_block_mask,
    document_offsets as document_offsets,
    pack_sequences as pack_sequences,
)
from composer.algorithms.spike_skip import SpikeSkip, is_spike as is_spike
from composer.algorithms.squeeze_excite import (
    SqueezeExcite,
    SqueezeExcite2d,
    SqueezeExciteConv2d,
    apply_squeeze_excite as apply_squeeze_excite,
)
from composer.algorithms.stochastic_depth import (
    StochasticDepth,
    apply_stochastic_depth as apply_stochastic_depth,
    decide_blocks as decide_blocks,
    register_residual_block as register_residual_block,
)
from composer.algorithms.swa import SWA
from composer.algorithms.weight_standardization import (
    WeightStandardization,
    apply_weight_standardization as apply_weight_standardization,
)
from composer.algorithms.zclip import ZClip, apply_zclip as apply_zclip

__all__ = [
    "EMA",
    "SAM",
    "SWA",
    "Alibi",
    "AugMix",
    "AugmentAndMixTransform",
    "BatchSizeWarmup",
    "BlurPool",
    "ChannelsLast",
    "ColOut",
    "ColOutTransform",
    "CutMix",
    "CutOut",
    "DiLoCo",
    "EMASnapshot",
    "Factorize",
    "GatedLinearUnits",
    "GhostBatchNorm",
    "GradientClipping",
    "GyroDropout",
    "LabelSmoothing",
    "LayerFreezing",
    "LocalSGD",
    "LowPrecisionGroupNorm",
    "LowPrecisionLayerNorm",
    "MixUp",
    "NEFTune",
    "NoOpModel",
    "PatchDropout",
    "PostHocEMA",
    "ProgressiveResizing",
    "RandAugment",
    "RandAugmentTransform",
    "ScheduleFree",
    "SelectiveBackprop",
    "SeqLengthWarmup",
    "SequencePacking",
    "SpikeSkip",
    "SqueezeExcite",
    "SqueezeExcite2d",
    "SqueezeExciteConv2d",
    "StochasticDepth",
    "WeightStandardization",
    "ZClip",
]
