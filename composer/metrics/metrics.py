"""Older home of the metrics of classes and masks."""

from __future__ import annotations

from composer.metrics.classification import CrossEntropy
from composer.metrics.loss_metric import LossMetric
from composer.metrics.segmentation import Dice, MIoU

__all__ = ["CrossEntropy", "Dice", "LossMetric", "MIoU"]
