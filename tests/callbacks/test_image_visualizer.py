"""ImageVisualizer: which images are logged when, and that masks are class indices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from composer import ComposerModel
from composer.callbacks import ImageVisualizer
from composer.core import LoggerDestination
from tests.callbacks.cases import Case, run_with


class Segmenter(ComposerModel):
    """Predicts a class for each pixel."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, classes, 1)

    def forward(self, batch):
        return self.conv(batch[0].float())

    def loss(self, outputs, batch):
        if outputs.shape[1] == 1:
            return F.binary_cross_entropy_with_logits(outputs[:, 0], batch[1].float())
        return F.cross_entropy(outputs, batch[1])


def scenes(number: int = 4, size: int = 4) -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    return [
        (
            torch.rand(size, 3, 5, 6, generator=generator),
            torch.randint(2, (size, 5, 6), generator=generator),
        )
        for _ in range(number)
    ]


CASE = Case(make=lambda folder: ImageVisualizer("2ba", mode="segmentation"), model=Segmenter, batches=scenes)


class Images(LoggerDestination):
    """Stores the images that it receives."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int | None, Any, Any]] = []
        self.layouts: set[bool] = set()

    def log_images(
        self,
        images,
        name="Images",
        channels_last=False,
        step=None,
        masks=None,
        mask_class_labels=None,
        use_table=True,
    ):
        self.got.append((name, step, images, masks))
        self.layouts.add(channels_last)

    @property
    def steps_by_name(self) -> list[tuple[str, int | None]]:
        return [(name, step) for name, step, *_ in self.got]


def logged(visualizer: ImageVisualizer, data: Any = None, classes: int = 3, **arguments: Any) -> Images:
    images = Images()
    data = scenes() if data is None else data
    run_with(visualizer, model=Segmenter(classes), data=data, loggers=images, **arguments).trainer.fit()
    return images


@pytest.mark.parametrize("mode", ["input", "segmentation"])
@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 1}])
@pytest.mark.parametrize(("interval", "steps"), [("2ba", [0, 2, 4, 6]), (3, [0, 3, 6]), ("1ep", [0, 4]), ("2ep", [0])])
def test_logs_once_in_an_interval(interval, steps, more, mode) -> None:
    images = logged(ImageVisualizer(interval, mode=mode), max_duration="2ep", **more)
    assert images.steps_by_name == [("Images/Train", step) for step in steps]


@pytest.mark.parametrize("mode", ["input", "segmentation"])
def test_logs_the_first_batch_of_each_evaluation(mode) -> None:
    images = logged(ImageVisualizer("100ba", mode=mode), eval_dataloader=scenes(3), eval_interval="2ba")
    assert images.steps_by_name == [("Images/Train", 0), ("Images/Eval", 2), ("Images/Eval", 4)]
    assert torch.equal(images.got[1][2], scenes(1)[0][0])


def test_logs_model_inputs_with_predictions_and_targets() -> None:
    data = scenes(1)
    model = Segmenter()
    images = Images()
    expected = model(data[0]).argmax(1)[:2]
    run_with(ImageVisualizer(mode="segmentation", num_images=2), model=model, data=data, loggers=images).trainer.fit()
    [(_, _, pictures, masks)] = images.got
    assert torch.equal(pictures, data[0][0][:2])
    assert torch.equal(masks["prediction"], expected)
    assert torch.equal(masks["ground_truth"], data[0][1][:2])


def test_one_channel_is_one_class_against_the_background() -> None:
    data = [(torch.rand(2, 3, 4, 4), torch.ones(2, 4, 4))]
    masks = logged(ImageVisualizer(mode="segmentation"), data, classes=1).got[0][3]
    assert set(masks["prediction"].unique().tolist()) <= {0, 1}
    assert masks["ground_truth"].dtype == torch.long
    with torch.no_grad():
        model = Segmenter(1)
        model.conv.bias.fill_(100.0)
    images = Images()
    run_with(ImageVisualizer(mode="segmentation"), model=model, data=data, loggers=images).trainer.fit()
    assert (images.got[0][3]["prediction"] == 1).all()


def test_probabilities_as_targets_become_classes() -> None:
    x, y = scenes(1)[0]
    data = [(x, F.one_hot(y, 3).movedim(-1, 1).float())]
    masks = logged(ImageVisualizer(mode="segmentation"), data).got[0][3]
    assert torch.equal(masks["ground_truth"], y)


def test_ranges_become_those_of_images() -> None:
    visualizer = ImageVisualizer()
    within = torch.tensor([0.25, 0.5]).reshape(1, 1, 1, 2)
    assert torch.equal(visualizer._images(within), within)
    wide = torch.tensor([-1.0, 0.0, 3.0]).reshape(1, 1, 1, 3)
    assert torch.equal(visualizer._images(wide).flatten(), torch.tensor([0.0, 0.25, 1.0]))
    both = visualizer._images(torch.cat([within.expand(1, 1, 3, 2), torch.full((1, 1, 3, 2), -3.0)]))
    assert torch.equal(both[0], within.expand(1, 1, 3, 2)[0])  # each image on its own
    assert (both[1] == 0).all()
    assert torch.equal(
        visualizer._images(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).flatten(), torch.tensor([0.0, 1.0])
    )


def test_other_keys_and_layouts() -> None:
    class Named(Segmenter):
        def forward(self, batch):
            return self.conv(batch["image"].movedim(-1, 1))

        def loss(self, outputs, batch):
            return F.cross_entropy(outputs, batch["mask"])

    data = [{"image": torch.rand(2, 4, 5, 3), "mask": torch.zeros(2, 4, 5, dtype=torch.long)}]
    images = Images()
    visualizer = ImageVisualizer(mode="segmentation", channels_last=True, input_key="image", target_key="mask")
    run_with(visualizer, model=Named(), data=data, loggers=images).trainer.fit()
    assert images.got[0][2].shape == (2, 4, 5, 3)
    assert images.layouts == {True}


def test_has_handlers_only_at_the_events_of_its_mode() -> None:
    from composer import Event

    assert not ImageVisualizer(mode="input").__listens__(Event.BEFORE_LOSS)
    assert ImageVisualizer(mode="segmentation").__listens__(Event.BEFORE_LOSS)
    assert not ImageVisualizer(mode="segmentation").__listens__(Event.BEFORE_FORWARD)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "segmentaton"}, "Did you mean 'segmentation'"),
        ({"interval": "10sp"}, "interval must be in batches or epochs"),
        ({"interval": 0}, "positive number of batches or epochs"),
        ({"num_images": 0}, "num_images"),
    ],
)
def test_refuses_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        ImageVisualizer(**arguments)


@pytest.mark.parametrize(
    ("visualizer", "data", "message"),
    [
        (
            ImageVisualizer(input_key=1),
            [(torch.rand(2, 3, 4, 4), torch.zeros(2, 4).long())],
            "input_key=1 must select",
        ),
        (ImageVisualizer(mode="segmentation", target_key=lambda batch: [1]), None, "must select masks"),
    ],
)
def test_error_describes_an_invalid_image(visualizer, data, message) -> None:
    with pytest.raises(TypeError, match=message):
        logged(visualizer, data)
