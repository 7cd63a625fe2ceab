"""Images a second of the augmentations that have a form for batches on the device, against their forms on the host."""

from __future__ import annotations

import inspect
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import environment
from benchmarks.gpu.options import Options
from benchmarks.method_models import images
from benchmarks.report import Report, spread

FORMS = {"RandAugment": "randaugment_image", "AugMix": "augmix_image"}
"""The functional form of each method that has an argument ``on_device``."""

DEVICE, HOST, PILLOW = "batch on the device", "batch on the host", "image by image, PIL"
_EXTENTS, _NUMBER = (32, 224), 256
_HOST_IMAGES = 32  # of a batch: more take as long each
_MOST_RUNS = 20


def methods_on_device() -> list[str]:
    """Return the names of the public methods that have an argument ``on_device``."""
    from composer import algorithms

    return [
        name
        for name in algorithms.__all__
        if isinstance(found := getattr(algorithms, name), type) and "on_device" in inspect.signature(found).parameters
    ]


def time_forms(name: str, extent: int, number: int, rounds: int, device: str) -> dict[str, list[float]]:
    """Return images a second of each form, in turns.

    Args:
        name: The functional form.
        extent: Height and width of images.
        number: Number of images in a batch.
        rounds: Number of times that each is timed.
        device: "cuda" or "cpu".
    """
    from composer import functional

    torch.manual_seed(0)
    augment = getattr(functional, name)
    batch = (images(number, extent)[0] * 255).to(torch.uint8)
    there, some = batch.to(device), batch[:_HOST_IMAGES]
    forms: dict[str, tuple[int, Callable[[], object]]] = {
        DEVICE: (number, lambda: augment(there)),
        HOST: (len(some), lambda: augment(some)),
    }
    if environment.has("PIL"):
        from PIL import Image

        pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in some]
        forms[PILLOW] = len(pictures), lambda: [augment(picture) for picture in pictures]
    found: dict[str, list[float]] = {form: [] for form in forms}
    for number_of_round in range(rounds + 1):
        for form, (count, run) in forms.items():
            # The first round warms up: kernels are loaded, and memory is taken.
            speed = _images_a_second(run, count, _MOST_RUNS if form == DEVICE and device == "cuda" else 1, device)
            if number_of_round:
                found[form].append(speed)
    return found


def _images_a_second(run: Callable[[], object], count: int, runs: int, device: str) -> float:
    _synchronize(device)
    begin = time.perf_counter()
    for _ in range(runs):
        run()
    _synchronize(device)
    return count * runs / (time.perf_counter() - begin)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _over(found: dict[str, list[float]], form: str) -> float:
    """Speed on the device over that of another form, the median of the ratios round by round."""
    if form not in found:
        return math.nan
    return statistics.median(a / b for a, b in zip(found[DEVICE], found[form], strict=True))


def measure(options: Options) -> Report:
    """Time each form of each method.

    Args:
        options: Device, size and rounds.
    """
    rows: list[list[Any]] = []
    samples: dict[str, Any] = {}
    for method, name in FORMS.items():
        for extent in (16,) if options.tiny else _EXTENTS:
            number = 8 if options.tiny else _NUMBER
            arguments = {"name": name, "extent": extent, "number": number, "rounds": options.rounds}
            target = "benchmarks.gpu.augmentations:time_forms"
            found = environment.call(target, {**arguments, "device": options.device})
            label = f"{method}, {number} x 3 x {extent} x {extent}"
            samples[label] = found
            middles = {form: statistics.median(speeds) for form, speeds in found.items()}
            rows.append(
                [
                    label,
                    middles[DEVICE],
                    spread(found[DEVICE]),
                    middles[HOST],
                    middles.get(PILLOW, math.nan),
                    *(_over(found, form) for form in (HOST, PILLOW)),
                ]
            )
    notes = [
        f"Bytes on device {options.device}, medians of {options.rounds} rounds in turns, after one that does not "
        "count; each method and size in a process of its own. The forms on the host have one thread, and work on "
        f"{_HOST_IMAGES} images at most; as many workers of a loader do as many times as much.",
    ]
    columns = ["images a second", DEVICE, "spread", HOST, PILLOW, "over host", "over PIL"]
    title = "Augmentation of images on the device"
    return Report("augmentations", title, columns, rows, [], notes, samples, environment.describe(options.device))
