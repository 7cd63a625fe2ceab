"""Vision transformer (ViT) image classifiers, built with timm.

Paper: An Image is Worth 16x16 Words, Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from composer._lazy import import_extra
from composer._numbers import in_unit_interval, whole_number
from composer._text import one_of
from composer.models._builder_classes import init_from_builder
from composer.models.classifier import ComposerClassifier
from composer.models.initializers import Initializer, initialize

__all__ = ["ViTSmallPatch16", "composer_vit", "vit_small_patch16"]

# Width, depth and number of heads; MLP ratio 4. Tiny and small are those of Touvron et al.
_SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
_NAMES = {f"vit_{size}_patch{patch}": (patch, *shape) for size, shape in _SIZES.items() for patch in (8, 16, 32)}


def composer_vit(
    model_name: str = "vit_small_patch16",
    num_classes: int = 1000,
    image_size: int = 224,
    channels: int = 3,
    dropout: float = 0.0,
    embedding_dropout: float = 0.0,
    initializers: Iterable[Initializer | str] | Initializer | str | None = None,
) -> ComposerClassifier:
    """Build a vision transformer as a classifier of batches (images, targets), images (B, channels, size, size).

    The network is timm's ``VisionTransformer``, with a class token and learned position embeddings. The metrics are the
    accuracy, and in evaluation also the cross entropy.

    Args:
        model_name: ``"vit_{size}_patch{patch}"``, with size tiny, small, base or large, and patch size 8, 16 or 32.
        num_classes: C.
        image_size: Height and width of the images in pixels, a multiple of the patch size.
        channels: Channels of the images.
        dropout: Probability of dropout in the MLP, projection and attention layers.
        embedding_dropout: Probability of dropout after the position embeddings are added.
        initializers: Initializers to apply in order.

    Raises:
        ValueError: A name is unknown, the patches do not tile the image, a probability is not in [0, 1], or there is
            no class or channel.
        MissingConditionalImportError: timm is not installed.

    >>> model = composer_vit("vit_tiny_patch16", num_classes=10, image_size=32)
    >>> model((torch.zeros(2, 3, 32, 32), torch.tensor([1, 7]))).shape
    torch.Size([2, 10])

    Papers: https://arxiv.org/abs/2010.11929, https://arxiv.org/abs/2012.12877 (small and tiny, Touvron et al. 2020)
    """
    patch, width, depth, heads = _NAMES[one_of("model_name", model_name, _NAMES)]
    image_size = whole_number("image_size", image_size)
    if image_size < patch or image_size % patch:
        raise ValueError(
            f"image_size must be a multiple of the patch size, {patch} in {model_name}, but got {image_size!r}."
        )
    dropout = in_unit_interval("dropout", dropout)
    transformers: Any = import_extra("timm.models.vision_transformer", "vision", "composer_vit")
    network = transformers.VisionTransformer(
        img_size=image_size,
        patch_size=patch,
        in_chans=whole_number("channels", channels, minimum=1),
        num_classes=whole_number("num_classes", num_classes, minimum=1),
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        pos_drop_rate=in_unit_interval("embedding_dropout", embedding_dropout),
        proj_drop_rate=dropout,
        attn_drop_rate=dropout,
    )
    initialize(network, initializers)
    return ComposerClassifier(network, num_classes=num_classes)


def vit_small_patch16(
    num_classes: int = 1000,
    image_size: int = 224,
    channels: int = 3,
    dropout: float = 0.0,
    embedding_dropout: float = 0.0,
) -> ComposerClassifier:
    """Build the small vision transformer with patches of 16 x 16 pixels, see :func:`composer_vit`.

    Args:
        num_classes: C.
        image_size: Height and width of the images in pixels, a multiple of 16.
        channels: Channels of the images.
        dropout: Probability of dropout in the MLP, projection and attention layers.
        embedding_dropout: Probability of dropout after the position embeddings are added.

    Raises:
        ValueError: The patches do not tile the image, a probability is not in [0, 1], or there is no class or channel.
        MissingConditionalImportError: timm is not installed.

    >>> vit_small_patch16(num_classes=10, image_size=32).num_classes
    10
    """
    return composer_vit("vit_small_patch16", num_classes, image_size, channels, dropout, embedding_dropout)


class ViTSmallPatch16(ComposerClassifier):
    """:func:`vit_small_patch16` as a class, for subclassing and ``isinstance``."""

    __init__ = init_from_builder(vit_small_patch16)
