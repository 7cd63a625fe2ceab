"""Forms that MosaicML Composer does not have, each with its alternative in this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.method_models import images


@dataclass(frozen=True)
class Pair:
    """Two ways to the same end.

    Attributes:
        label: How the tables name the form.
        instead: The other way.
        number: How many images or documents one run works on.
        build: Returns the form and the other way, both called without arguments.
    """

    label: str
    instead: str
    number: int
    build: Callable[[], tuple[Callable[[], object], Callable[[], object]]]


NUMBER = 256


def _image_by_image(name: str, extent: int) -> Callable[[], tuple[Callable[[], object], Callable[[], object]]]:
    def build() -> tuple[Callable[[], object], Callable[[], object]]:
        from PIL import Image

        from composer import functional

        augment = getattr(functional, name)
        batch = (images(NUMBER, extent)[0] * 255).to(torch.uint8)
        pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in batch]
        return lambda: augment(batch), lambda: [augment(picture) for picture in pictures]

    return build


def _sample_by_sample(name: str, *arguments: Any) -> Callable[[], tuple[Callable[[], object], Callable[[], object]]]:
    def build() -> tuple[Callable[[], object], Callable[[], object]]:
        from composer import functional

        method = getattr(functional, name)
        x, y = images(NUMBER, 32)
        given = (x, y) if name in ("mixup_batch", "cutmix_batch") else (x,)
        order = torch.randperm(NUMBER).tolist()

        def one_by_one() -> object:
            if len(given) == 1:
                return torch.cat([method(x[i : i + 1], *arguments) for i in range(NUMBER)])
            # A sample with its partner, of which the first is kept.
            made = [method(x[[i, j]], y[[i, j]], indices=torch.tensor([1, 0]))[0][:1] for i, j in enumerate(order)]
            return torch.cat(made)

        return lambda: method(*given, *arguments, per_sample=True), one_by_one

    return build


def _packing() -> tuple[Callable[[], object], Callable[[], object]]:
    from composer import functional

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(16, 256, (NUMBER,), generator=generator).tolist()
    documents = [torch.randint(1000, (length,), generator=generator) for length in lengths]

    def pad() -> object:
        padded = nn.utils.rnn.pad_sequence(documents, batch_first=True)
        return padded, nn.utils.rnn.pad_sequence([torch.ones_like(d) for d in documents], batch_first=True)

    return lambda: functional.pack_sequences(documents, max_seq_length=256), pad


PAIRS = [
    *(
        Pair(f"{name}, a batch at once, {NUMBER} x 3 x {extent} x {extent}", "image by image, PIL", NUMBER, build)
        for name in ("randaugment_image", "augmix_image")
        for extent in (32, 96)
        for build in [_image_by_image(name, extent)]
    ),
    *(
        Pair(f"{name}, per_sample=True, {NUMBER} x 3 x 32 x 32", "sample by sample", NUMBER, _sample_by_sample(name))
        for name in ("mixup_batch", "cutmix_batch", "cutout_batch", "colout_batch")
    ),
    Pair(f"pack_sequences, {NUMBER} documents of 16 to 255 tokens", "padding them", NUMBER, _packing),
]
