"""ImageVisualizer: log the model's input images, and for segmentation the predicted masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer._numbers import whole_number
from composer._text import one_of
from composer.callbacks._cadence import Cadence
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.time import Time
from composer.trees import BatchKey

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ImageVisualizer"]


class ImageVisualizer(Callback):
    """Logs the first images of a training batch at an interval, and of the first batch of each evaluation.

    The images are read right before the forward pass, so they show the effect of augmentations: on the device, from
    the first microbatch. Loggers that support images receive them as ``Images/Train`` and ``Images/Eval``; in the mode
    "segmentation" together with the masks ``prediction`` and ``ground_truth`` of class indices.

    Images are logged with values in [0, 1]. Bytes are divided by 255. An image with values outside of that range, such
    as a normalized one, is shifted and scaled so that the union of its range and [0, 1] maps to [0, 1].

    Args:
        interval: How often to log in training: a number of batches, or a time in batches or epochs.
        mode: "input" logs the images, "segmentation" also the masks.
        num_images: Maximum number of images per log.
        channels_last: Whether images are (N, H, W, C) rather than (N, C, H, W).
        input_key: Key of the images in the batch.
        target_key: Key of the target masks in the batch: class indices (N, H, W), or probabilities (N, C, H, W).

    Raises:
        ValueError: An argument is invalid.
        TypeError: In training: the value at a key, or the model's output, is not a tensor of the expected shape.
            Outputs must be logits (N, C, H, W), with C = 1 for one class against the background.

    >>> from composer import Engine, State
    >>> from composer.loggers import InMemoryLogger
    >>> class Shapes(InMemoryLogger):
    ...     def log_images(self, images, name="Images", *args, **kwargs):
    ...         print(name, tuple(images.shape))
    >>> engine = Engine(
    ...     State(model=torch.nn.Linear(1, 1)), callbacks=[ImageVisualizer(num_images=2), Shapes()]
    ... )
    >>> _ = engine.run_event("batch_start")
    >>> engine.state.batch = (torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1]))
    >>> _ = engine.run_event("before_forward")
    Images/Train (2, 3, 8, 8)
    """

    def __init__(
        self,
        interval: int | str | Time = "100ba",
        mode: str = "input",
        num_images: int = 8,
        channels_last: bool = False,
        input_key: BatchKey = 0,
        target_key: BatchKey = 1,
    ) -> None:
        self.mode = one_of("mode", mode.lower(), ("input", "segmentation"))
        self.num_images = whole_number("num_images", num_images, minimum=1)
        self.channels_last = channels_last
        self.input_key = input_key
        self.target_key = target_key
        self._cadence = Cadence("interval", interval)
        self._due = False
        # Handlers at the other mode's events would only prevent compiling forward and loss together.
        unused = (Event.BEFORE_LOSS, Event.EVAL_AFTER_FORWARD), (Event.BEFORE_FORWARD, Event.EVAL_BEFORE_FORWARD)
        self._unused = unused[self.mode == "segmentation"]

    @property
    def interval(self) -> Time:
        """How often training images are logged."""
        return self._cadence.interval

    def __listens__(self, event: Event) -> bool:
        """Return whether this object acts at an event."""
        return event not in self._unused and super().__listens__(event)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Check whether images of this batch are due."""
        self._due = bool(logger.destinations) and self._cadence.due(state.timestamp)

    def before_forward(self, state: State, logger: Logger) -> None:
        """Log the inputs of the first microbatch."""
        self._log(state, logger, "Images/Train")

    def before_loss(self, state: State, logger: Logger) -> None:
        """Log inputs, predictions and targets of the first microbatch."""
        self._log(state, logger, "Images/Train")

    def eval_start(self, state: State, logger: Logger) -> None:
        """Log the first batch of the evaluation."""
        self._due = bool(logger.destinations)

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        """Log the inputs of the first batch."""
        self._log(state, logger, "Images/Eval")

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        """Log inputs, predictions and targets of the first batch."""
        self._log(state, logger, "Images/Eval")

    def _log(self, state: State, logger: Logger, name: str) -> None:
        if not self._due:
            return
        self._due = False
        with torch.no_grad():
            images = self._images(state.batch_get_item(self.input_key))
            if self.mode == "input":
                logger.log_images(images, name=name, channels_last=self.channels_last, use_table=True)
                return
            masks = {
                "prediction": self._prediction(state.outputs),
                "ground_truth": self._target(state.batch_get_item(self.target_key)),
            }
        logger.log_images(images, name=name, channels_last=self.channels_last, masks=masks, use_table=True)

    def _images(self, images: Any) -> Tensor:
        if not isinstance(images, Tensor) or images.ndim not in (3, 4):
            raise TypeError(
                f"input_key={self.input_key!r} must select images (N, C, H, W) or (N, H, W); got {_describe(images)}."
            )
        images = images[: self.num_images]
        if images.dtype == torch.uint8:
            return images.float() / 255
        images = images.float()
        dims = tuple(range(1, images.ndim))
        low = images.amin(dims, keepdim=True).clamp(max=0.0)
        high = images.amax(dims, keepdim=True).clamp(min=1.0)
        return (images - low) / (high - low)

    def _prediction(self, outputs: Any) -> Tensor:
        if not isinstance(outputs, Tensor) or outputs.ndim != 4:
            raise TypeError(f"mode='segmentation' requires logits (N, C, H, W) as outputs; got {_describe(outputs)}.")
        logits = outputs[: self.num_images]
        return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)

    def _target(self, target: Any) -> Tensor:
        if not isinstance(target, Tensor) or target.ndim not in (3, 4):
            raise TypeError(
                f"target_key={self.target_key!r} must select masks (N, H, W) or (N, C, H, W); got {_describe(target)}."
            )
        target = target[: self.num_images]
        if target.ndim == 3:
            return target.long()
        return target[:, 0].round().long() if target.shape[1] == 1 else target.argmax(1)


def _describe(value: Any) -> str:
    """Describe a value in an error message."""
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
