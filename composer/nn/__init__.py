"""Modules that the methods put into models; each also works on its own."""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "BlurConv2d": "composer.nn.blurpool",
        "BlurMaxPool2d": "composer.nn.blurpool",
        "BlurPool2d": "composer.nn.blurpool",
        "blur_2d": "composer.nn.blurpool",
        "blurmax_pool2d": "composer.nn.blurpool",
    },
)
