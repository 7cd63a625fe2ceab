from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from composer.loss import dice_loss, soft_cross_entropy
from composer.models import composer_unet
from composer.models._segmentation import SegmentationLoss
from composer.models.unet import ResidualBlock, ResidualUNet
from tests.common import trainer_of


@settings(max_examples=25)
@given(height=st.integers(1, 40), width=st.integers(9, 40))
def test_any_size_comes_out_as_it_went_in(height: int, width: int) -> None:
    network = ResidualUNet(2, 3, widths=(4, 4, 4, 4))
    with torch.no_grad():
        assert network(torch.zeros(1, 2, height, width)).shape == (1, 3, height, width)


def test_volumes_pass_slice_by_slice() -> None:
    network = ResidualUNet(2, 3, widths=(4, 8)).eval()
    volume = torch.randn(2, 2, 5, 8, 8)
    with torch.no_grad():
        outputs = network(volume)
        for depth in range(5):
            torch.testing.assert_close(outputs[:, :, depth], network(volume[:, :, depth]))


def test_a_block_by_hand() -> None:
    block = ResidualBlock(3, 4, stride=2)
    x = torch.randn(2, 3, 8, 8)
    norm, act = nn.InstanceNorm2d(4), nn.LeakyReLU(0.01)
    branch = norm(block.conv2(act(norm(block.conv1(x)))))
    torch.testing.assert_close(block(x), act(branch + norm(block.shortcut[0](x))))
    assert isinstance(ResidualBlock(4, 4).shortcut, nn.Identity)


def test_number_of_parameters() -> None:
    """Counted from the paper's picture: convolutions have no bias, each norm has two vectors."""

    def block(outer: int, inner: int, shortcut: bool) -> int:
        return 9 * outer * inner + 9 * inner * inner + 4 * inner + (outer * inner + 2 * inner if shortcut else 0)

    model = composer_unet(num_classes=3, in_channels=5, widths=(8, 16, 32))
    wanted = block(5, 8, True) + block(8, 16, True) + block(16, 32, True)
    wanted += (4 * 32 * 16 + 16) + block(32, 16, True) + (4 * 16 * 8 + 8) + block(16, 8, True)
    assert sum(parameter.numel() for parameter in model.parameters()) == wanted + 8 * 4 + 4


def shapes_to_find(images: int = 4, size: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Squares of two kinds: class 1 is bright, class 2 is dark."""
    generator = torch.Generator().manual_seed(1)
    x = 0.1 * torch.randn(images, 1, size, size, generator=generator)
    y = torch.zeros(images, size, size, dtype=torch.long)
    for image in range(images):
        for kind, value in ((1, 1.0), (2, -1.0)):
            top = int(torch.randint(0, size - 8, (), generator=generator))
            left = int(torch.randint(0, size // 2 - 8, (), generator=generator)) + (kind - 1) * size // 2
            x[image, 0, top : top + 8, left : left + 8] += value
            y[image, top : top + 8, left : left + 8] = kind
    return x, y


def test_it_learns_to_find_shapes() -> None:
    model = composer_unet(num_classes=2, in_channels=1, widths=(8, 16), initializers=["kaiming_normal"])
    assert sorted(model.get_metrics(is_train=True)) == sorted(model.get_metrics(is_train=False)) == ["Dice"]
    data = shapes_to_find()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    trainer = trainer_of(
        model, [data], optimizers=optimizer, max_duration="30ba", eval_dataloader=[data], eval_interval="30ba"
    )
    trainer.fit()
    assert trainer.state.eval_metric_values["Dice"] > 90


# ------------------------------------------------------------------------------------------------ loss


def test_loss_has_its_parts_without_the_background() -> None:
    model = composer_unet(num_classes=2, in_channels=1, widths=(4, 8))
    outputs, y = torch.randn(3, 3, 6, 6), torch.randint(3, (3, 6, 6))
    parts = model.loss(outputs, (None, y))
    assert list(parts) == ["total", "cross_entropy", "dice"]
    torch.testing.assert_close(parts["cross_entropy"], soft_cross_entropy(outputs, y))
    one_hot = nn.functional.one_hot(y, 3).movedim(-1, 1).float()
    wanted = dice_loss(outputs.softmax(1)[:, 1:], one_hot[:, 1:], batch=True)
    torch.testing.assert_close(parts["dice"], wanted)
    torch.testing.assert_close(parts["total"], parts["cross_entropy"] + parts["dice"])


def test_probabilities_give_the_loss_of_their_indices() -> None:
    outputs, y = torch.randn(2, 4, 5, 5), torch.randint(4, (2, 5, 5))
    soft = nn.functional.one_hot(y, 4).movedim(-1, 1).float()
    y[0, 0], soft[0, :, 0] = 255, 0  # ignored, in either way
    loss = SegmentationLoss(0.7, 0.3, ignore_index=255)
    for name, part in loss(outputs, y).items():
        torch.testing.assert_close(loss(outputs, soft)[name], part)


def test_places_that_do_not_count_have_no_gradient() -> None:
    outputs = torch.randn(2, 3, 4, 4, requires_grad=True)
    y = torch.randint(3, (2, 4, 4))
    y[:, :2] = -1
    SegmentationLoss(1.0, 1.0)(outputs, y)["total"].backward()
    assert not outputs.grad[:, :, :2].any()
    assert outputs.grad[:, :, 2:].all()


def test_a_weight_of_zero_leaves_its_part_out() -> None:
    outputs, y = torch.randn(1, 3, 4, 4), torch.randint(3, (1, 4, 4))
    assert list(SegmentationLoss(1.0, 0.0)(outputs, y)) == ["total", "cross_entropy"]
    parts = SegmentationLoss(0.0, 2.0)(outputs, y)
    assert list(parts) == ["total", "dice"]
    torch.testing.assert_close(parts["total"], 2 * parts["dice"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: composer_unet(widths=(8,)), "widths must be two or more"),
        (lambda: ResidualUNet(1, 2, (4, 4))(torch.zeros(1, 8, 8)), r"images \(B, C, H, W\) or volumes"),
        (lambda: ResidualUNet(1, 2, (4, 4, 4))(torch.zeros(1, 1, 4, 3)), "4 x 3 pixels leaves one pixel"),
        (lambda: SegmentationLoss(0.0, 0.0), "must not both be 0"),
        (lambda: SegmentationLoss(1.0, -1.0), "dice_weight must be 0 or greater"),
    ],
)
def test_wrong_arguments_are_refused(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()
