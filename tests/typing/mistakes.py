"""Mistakes that a type checker must find, each with the rule that it finds it by."""

from __future__ import annotations

import torch

import composer.functional as cf
from composer import ComposerModel, Trainer
from composer.algorithms import MixUp
from composer.callbacks import (
    LRMonitr,  # reportAttributeAccessIssue
    SpeedMonitor,
)


def main(model: ComposerModel) -> None:
    Trainer(model=model, max_duration=1.5)  # reportArgumentType
    Trainer(model=model, algorithms=SpeedMonitor())  # reportArgumentType
    Trainer(model=model, max_duratoin="1ep")  # reportArgumentType
    Trainer()  # reportCallIssue
    MixUp(alpah=0.2)  # reportCallIssue
    MixUp(alpha="much")  # reportArgumentType
    cf.smooth_labels(torch.zeros(1), "target")  # reportArgumentType
    cf.smooth_label(torch.zeros(1))  # reportAttributeAccessIssue
    print(LRMonitr)
