"""Table of the algorithm classes and functions and the modules that define them, for lazy imports."""

from __future__ import annotations

__all__ = ["MODULES"]

MODULES: dict[str, str] = {
    **dict.fromkeys(("Alibi", "apply_alibi"), "composer.algorithms.alibi"),
    **dict.fromkeys(("AugMix", "AugmentAndMixTransform", "augmix_image"), "composer.algorithms.augmix"),
    **dict.fromkeys(("BatchSizeWarmup", "grow_batches"), "composer.algorithms.batch_size_warmup"),
    **dict.fromkeys(("BlurPool", "apply_blurpool"), "composer.algorithms.blurpool"),
    **dict.fromkeys(("ChannelsLast", "apply_channels_last"), "composer.algorithms.channels_last"),
    **dict.fromkeys(("ColOut", "ColOutTransform", "colout_batch"), "composer.algorithms.colout"),
    **dict.fromkeys(("CutMix", "cutmix_batch"), "composer.algorithms.cutmix"),
    **dict.fromkeys(("CutOut", "cutout_batch"), "composer.algorithms.cutout"),
    **dict.fromkeys(("DiLoCo", "apply_outer_step"), "composer.algorithms.diloco"),
    **dict.fromkeys(("EMA", "compute_ema"), "composer.algorithms.ema"),
    **dict.fromkeys(("Factorize", "apply_factorization"), "composer.algorithms.factorize"),
    **dict.fromkeys(("GatedLinearUnits", "apply_gated_linear_units"), "composer.algorithms.gated_linear_units"),
    **dict.fromkeys(("GhostBatchNorm", "apply_ghost_batchnorm"), "composer.algorithms.ghost_batchnorm"),
    **dict.fromkeys(("GradientClipping", "apply_gradient_clipping"), "composer.algorithms.gradient_clipping"),
    **dict.fromkeys(("GyroDropout", "apply_gyro_dropout"), "composer.algorithms.gyro_dropout"),
    **dict.fromkeys(("LabelSmoothing", "smooth_labels"), "composer.algorithms.label_smoothing"),
    **dict.fromkeys(("LayerFreezing", "freeze_layers"), "composer.algorithms.layer_freezing"),
    **dict.fromkeys(("LocalSGD", "average_weights"), "composer.algorithms.local_sgd"),
    **dict.fromkeys(
        ("LowPrecisionGroupNorm", "apply_low_precision_groupnorm"), "composer.algorithms.low_precision_groupnorm"
    ),
    **dict.fromkeys(
        ("LowPrecisionLayerNorm", "apply_low_precision_layernorm"), "composer.algorithms.low_precision_layernorm"
    ),
    **dict.fromkeys(("MixUp", "mixup_batch"), "composer.algorithms.mixup"),
    **dict.fromkeys(("NEFTune", "add_embedding_noise"), "composer.algorithms.neftune"),
    **dict.fromkeys(("NoOpModel",), "composer.algorithms.no_op_model"),
    **dict.fromkeys(("PatchDropout", "drop_patches"), "composer.algorithms.patch_dropout"),
    **dict.fromkeys(
        ("EMASnapshot", "PostHocEMA", "load_ema_snapshots", "reconstruct_ema"), "composer.algorithms.post_hoc_ema"
    ),
    **dict.fromkeys(("ProgressiveResizing", "resize_batch"), "composer.algorithms.progressive_resizing"),
    **dict.fromkeys(("RandAugment", "RandAugmentTransform", "randaugment_image"), "composer.algorithms.randaugment"),
    **dict.fromkeys(("SAM",), "composer.algorithms.sam"),
    **dict.fromkeys(("ScheduleFree", "use_averaged_weights"), "composer.algorithms.schedule_free"),
    **dict.fromkeys(
        ("SelectiveBackprop", "select_using_loss", "should_selective_backprop"),
        "composer.algorithms.selective_backprop",
    ),
    **dict.fromkeys(("SeqLengthWarmup", "set_batch_sequence_length"), "composer.algorithms.seq_length_warmup"),
    **dict.fromkeys(
        ("SequencePacking", "block_diagonal_mask", "document_block_mask", "document_offsets", "pack_sequences"),
        "composer.algorithms.sequence_packing",
    ),
    **dict.fromkeys(("SpikeSkip", "is_spike"), "composer.algorithms.spike_skip"),
    **dict.fromkeys(
        ("SqueezeExcite", "SqueezeExcite2d", "SqueezeExciteConv2d", "apply_squeeze_excite"),
        "composer.algorithms.squeeze_excite",
    ),
    **dict.fromkeys(
        ("StochasticDepth", "apply_stochastic_depth", "decide_blocks", "register_residual_block"),
        "composer.algorithms.stochastic_depth",
    ),
    **dict.fromkeys(("SWA",), "composer.algorithms.swa"),
    **dict.fromkeys(
        ("WeightStandardization", "apply_weight_standardization"), "composer.algorithms.weight_standardization"
    ),
    **dict.fromkeys(("ZClip", "apply_zclip"), "composer.algorithms.zclip"),
}
