from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from composer import functional
from composer.algorithms import RandAugment, RandAugmentTransform, randaugment_image
from composer.algorithms.utils import augmentation_primitives, augmentation_sets, image_as_type
from composer.core.engine import Engine
from composer.core.state import State
from composer.warnings import NotIntendedUseWarning
from tests.algorithms.cases import Case, by_hand, make_model
from tests.algorithms.utils.test_vision_datasets import Compose, Images, ToTensor

# The images of the contract are normal numbers.
RANGE = (-6.0, 6.0)


def _step(model, batch, elapsed):
    x, y = batch
    x = randaugment_image(x, 9, 2, "all", RANGE)
    return model.loss(model((x, y)), (x, y))


CASE = Case(
    make=lambda: RandAugment(on_device=True, value_range=RANGE),
    by_hand=by_hand(_step),
    neutral=lambda: RandAugment(depth=0, on_device=True, value_range=RANGE),
    with_keys=lambda input_key, target_key: RandAugment(on_device=True, input_key=input_key, value_range=RANGE),
)


def images(batch=4, channels=3, height=17, width=12):
    return torch.randint(256, (batch, channels, height, width), dtype=torch.uint8)


@settings(max_examples=40)
@given(
    severity=st.floats(0, 10),
    depth=st.integers(0, 4),
    batch=st.integers(1, 5),
    channels=st.sampled_from([1, 2, 3, 4]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    name=st.sampled_from(sorted(augmentation_sets)),
    seed=st.integers(0, 99),
)
def test_bytes_and_floats_agree(severity, depth, batch, channels, height, width, name, seed):
    torch.manual_seed(seed)
    x = images(batch, channels, height, width)
    torch.manual_seed(seed)
    by_bytes = randaugment_image(x, severity, depth, name)
    torch.manual_seed(seed)
    by_floats = randaugment_image(x / 255, severity, depth, name)
    assert by_bytes.shape == x.shape
    assert by_bytes.dtype == torch.uint8
    assert by_floats.dtype == torch.float32
    assert torch.equal(by_bytes / 255, by_floats)
    torch.manual_seed(seed)
    shifted = randaugment_image(x / 127.5 - 1, severity, depth, name, (-1, 1))
    torch.testing.assert_close(shifted, by_floats * 2 - 1)


def test_each_image_gets_different_operations():
    torch.manual_seed(0)
    x = images(1).expand(60, -1, -1, -1)
    assert len(randaugment_image(x, depth=1).unique(dim=0)) > 30


def test_an_image_of_a_batch_is_never_confused_with_another():
    torch.manual_seed(0)
    # Each image has one value, which translation keeps or makes black.
    values = torch.arange(100, 150, dtype=torch.uint8).view(-1, 1, 1, 1)
    x = values.expand(-1, 3, 8, 8)
    made = randaugment_image(x, 9, 3, [augmentation_primitives.translate_x, augmentation_primitives.translate_y])
    assert ((made == 0) | (made == values)).all()
    assert torch.equal(made.amax((1, 2, 3)), values.flatten())
    assert made.eq(0).any()


def test_kinds_of_input():
    torch.manual_seed(0)
    assert randaugment_image(images()[0]).shape == (3, 17, 12)
    assert randaugment_image(images().half() / 255).dtype == torch.float16
    x = images().to(memory_format=torch.channels_last)
    assert randaugment_image(x).is_contiguous(memory_format=torch.channels_last)
    one, (two,) = randaugment_image((x, (x.clone(),)))
    assert torch.equal(one, two)
    assert randaugment_image(x, depth=0) is x


def test_nothing_is_read_from_the_device():
    """A meta tensor has no values to read."""
    x = torch.empty(6, 3, 8, 8, device="meta")
    assert randaugment_image(x, depth=20).shape == x.shape


def test_values_out_of_range_are_cut_off():
    x = torch.full((4, 3, 8, 8), 3.0)
    assert randaugment_image(x, depth=1).max() <= 1


def test_pillow_images_get_the_operations():
    image_module = pytest.importorskip("PIL.Image")
    seen = []

    def one(image, severity):
        seen.append(("one", severity))
        return image

    def two(image, severity):
        seen.append(("two", severity))
        return image

    image = image_module.new("RGB", (8, 6), (10, 20, 30))
    torch.manual_seed(0)
    for _ in range(200):
        assert randaugment_image(image, 5, 2, [one, two]) is image
    assert len(seen) == 400
    assert {severity for _, severity in seen} == {5}
    assert 140 < sum(name == "one" for name, _ in seen) < 260
    # Tensors go through custom functions image by image.
    x = images(2)
    assert torch.equal(randaugment_image(x, 5, 1, [one]), x)
    assert seen[-2:] == [("one", 5)] * 2


def test_pillow_images_and_tensors_agree():
    """The same values are sampled for one operation, so the same image is returned up to rounding."""
    image_module = pytest.importorskip("PIL.Image")
    x = images(1)[0]
    picture = image_as_type(x, image_module.Image)
    torch.manual_seed(0)
    for operation in (augmentation_primitives.posterize, augmentation_primitives.equalize):
        by_pillow = randaugment_image(picture, 1, 1, [operation])
        by_tensor = randaugment_image(x, 1, 1, [operation])
        assert list(by_pillow.tobytes()) == by_tensor.permute(1, 2, 0).flatten().tolist()


def test_without_an_image_the_transform_comes():
    """As in the guides: transforms.Compose([cf.randaugment_image(), ...])."""
    transform = functional.randaugment_image(severity=5)
    assert isinstance(transform, RandAugmentTransform)
    assert transform.severity == 5
    transform = pickle.loads(pickle.dumps(transform))
    assert Compose([transform])(images()).shape == images().shape
    assert repr(transform) == "RandAugmentTransform(severity=5, depth=2, augmentation_set='all')"
    with pytest.raises(TypeError, match="None"):
        transform(None)


def start(dataset, algorithm):
    state = State(model=make_model(), max_duration="1ep", train_dataloader=DataLoader(dataset, batch_size=2))
    engine = Engine(state, algorithms=[algorithm])
    engine.run_event("fit_start")
    return engine


def test_added_to_the_data_set_before_tensors_are_made():
    dataset = Images(Compose([ToTensor()]))
    start(dataset, RandAugment(depth=1))
    steps = dataset.transform.transforms
    assert [type(step).__name__ for step in steps] == ["RandAugmentTransform", "ToTensor"]
    with pytest.raises(TypeError, match="on_device=True"):
        start([1, 2], RandAugment())


def test_nothing_is_added_to_the_data_set_for_work_on_the_device():
    dataset = Images()
    engine = start(dataset, RandAugment(on_device=True))
    assert dataset.transform is None
    engine.state.batch = {"image": images(), "label": torch.zeros(4)}
    with pytest.raises(KeyError):
        engine.run_event("after_dataloader")
    engine = start(dataset, RandAugment(on_device=True, input_key="image"))
    engine.state.batch = {"image": images(), "label": torch.zeros(4)}
    engine.run_event("after_dataloader")
    assert engine.state.batch["image"].shape == (4, 3, 17, 12)


def test_warns_once_of_images_that_are_normalized():
    engine = start(Images(), RandAugment(on_device=True))
    engine.state.batch = [torch.full((1, 3, 4, 4), -1.5), torch.zeros(1)]
    with pytest.warns(NotIntendedUseWarning, match=r"-1.5 to -1.5.*value_range=\(0.0, 1.0\)"):
        engine.run_event("after_dataloader")
    engine.state.batch = [torch.full((1, 3, 4, 4), -1.5), torch.zeros(1)]
    engine.run_event("after_dataloader")


def test_wrong_arguments():
    with pytest.raises(KeyError, match="Did you mean 'safe'"):
        RandAugment(augmentation_set="saef")
    with pytest.raises(KeyError, match="Did you mean 'safe'"):
        RandAugmentTransform(augmentation_set="saef")
    with pytest.raises(KeyError, match="saef"):
        randaugment_image(images(), augmentation_set="saef")
    with pytest.raises(ValueError, match="severity"):
        RandAugment(severity=-1)
    with pytest.raises(ValueError, match="depth"):
        RandAugment(depth=-1)
    with pytest.raises(ValueError, match="depth"):
        randaugment_image(images(), depth=-1)
    with pytest.raises(ValueError, match="value_range"):
        RandAugment(value_range=(1, 0))
    with pytest.raises(ValueError, match="augmentation_set"):
        randaugment_image(images(), augmentation_set=[])
    with pytest.raises(ValueError, match="on_device=True"):
        RandAugment(augmentation_set=[print], on_device=True)
    with pytest.raises(TypeError, match="int64"):
        randaugment_image(images().long())
    with pytest.raises(TypeError, match="str"):
        randaugment_image("x")
    with pytest.raises(ValueError, match=r"\(4, 3\)"):
        randaugment_image(torch.zeros(4, 3))
