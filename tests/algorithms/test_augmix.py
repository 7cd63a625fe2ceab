from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer import functional
from composer.algorithms import AugmentAndMixTransform, AugMix, augmix_image
from composer.algorithms import augmix as module
from composer.algorithms.utils import augmentation_primitives as primitives
from composer.algorithms.utils import augmentation_sets
from tests.algorithms.cases import Case, by_hand

# The images of the contract are normal numbers.
RANGE = (-6.0, 6.0)


def _step(model, batch, elapsed):
    x, y = batch
    x = augmix_image(x, 3, -1, 3, 1.0, "all", RANGE)
    return model.loss(model((x, y)), (x, y))


CASE = Case(
    make=lambda: AugMix(on_device=True, value_range=RANGE),
    by_hand=by_hand(_step),
    neutral=None,
    why_not_neutral="its operations change images at every severity, and there is at least one",
    with_keys=lambda input_key, target_key: AugMix(on_device=True, input_key=input_key, value_range=RANGE),
)


def fix_weights(monkeypatch, ratio, weights):
    """Fix the weight of the chains and the weights among them, for PIL images and tensors."""
    monkeypatch.setattr(module, "sample_beta", lambda alpha: ratio)

    def sample(alpha, size, number):
        row = [1 - ratio, ratio] if size == 2 else weights
        return torch.tensor([row]).expand(number, -1)

    monkeypatch.setattr(module, "sample_dirichlet", sample)


def images(batch=4, channels=3, height=17, width=12):
    return torch.randint(256, (batch, channels, height, width), dtype=torch.uint8)


def posterized(x):
    return x & 0b11110000


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_closed_form(monkeypatch, ratio):
    """At low severity, to posterize keeps 4 bits, once or several times."""
    fix_weights(monkeypatch, ratio, [0.5, 0.2, 0.3])
    x = images()
    expected = x * (1 - ratio) + posterized(x) * ratio
    made = augmix_image(x, 1, -1, 3, 1.0, [primitives.posterize])
    assert torch.equal(made, expected.round().to(torch.uint8))
    floats = x / 255
    made = augmix_image(floats, 1, -1, 3, 1.0, [primitives.posterize])
    torch.testing.assert_close(made, expected / 255)
    image_module = pytest.importorskip("PIL.Image")
    picture = image_module.fromarray(x[0].permute(1, 2, 0).contiguous().numpy())
    made = augmix_image(picture, 1, -1, 3, 1.0, [primitives.posterize])
    difference = torch.tensor(list(made.tobytes())) - expected[0].permute(1, 2, 0).flatten()
    assert difference.abs().max() <= 0.5 + 1e-4


def test_chains_are_weighted(monkeypatch):
    """One chain moves all to black, the others have no effect, whatever their operations are."""
    image_module = pytest.importorskip("PIL.Image")
    calls = []

    def nothing(image, severity):
        calls.append(severity)
        return image if len(calls) != 2 else image_module.new("L", image.size, 0)

    fix_weights(monkeypatch, 0.5, [0.5, 0.2, 0.3])
    made = augmix_image(image_module.new("L", (2, 2), 200), 3, 1, 3, 1.0, [nothing])
    # 0.5 * 200 + 0.5 * (0.5 + 0.3) * 200
    assert made.getpixel((0, 0)) == 180
    assert calls == [3, 3, 3]


def test_exact_floats_are_kept_where_the_image_itself_is_mixed_in(monkeypatch):
    fix_weights(monkeypatch, 0.0, [1.0])
    x = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(augmix_image(x, width=1), x)


def test_lengths_of_chains():
    torch.manual_seed(0)
    plan = module._sample_chains(3000, -1, 5)
    lengths = (plan.choices < 5).sum(0)
    assert torch.equal(torch.bincount(lengths, minlength=4).bool(), torch.tensor([False, True, True, True]))
    torch.testing.assert_close(torch.bincount(lengths)[1:] / 3000, torch.full((3,), 1 / 3), atol=0.04, rtol=0)
    # Nothing follows an operation of nothing.
    assert (plan.choices.diff(dim=0)[plan.choices[:-1] == 5] == 0).all()
    assert module._sample_chains(7, 2, 5).choices.shape == (2, 7)
    image_module = pytest.importorskip("PIL.Image")
    count = []
    augmix_image(image_module.new("L", (2, 2)), 3, 4, 2, 1.0, [lambda image, severity: count.append(1) or image])
    assert len(count) == 8


@settings(max_examples=30)
@given(
    severity=st.floats(0, 10),
    depth=st.integers(-1, 3),
    width=st.integers(1, 4),
    alpha=st.floats(0.05, 5),
    channels=st.sampled_from([1, 3]),
    name=st.sampled_from(sorted(augmentation_sets)),
    seed=st.integers(0, 99),
)
def test_bytes_and_floats_agree(severity, depth, width, alpha, channels, name, seed):
    torch.manual_seed(seed)
    x = images(3, channels, 5, 6)
    torch.manual_seed(seed)
    by_bytes = augmix_image(x, severity, depth, width, alpha, name)
    torch.manual_seed(seed)
    by_floats = augmix_image(x / 255, severity, depth, width, alpha, name)
    assert by_bytes.dtype == torch.uint8
    torch.testing.assert_close(by_floats * 255, by_bytes.float(), atol=0.5 + 1e-3, rtol=0)


def test_black_and_flat_images_stay_what_they_are():
    """Whatever the weights, since they sum to one."""
    torch.manual_seed(0)
    x = torch.full((50, 3, 8, 8), 77, dtype=torch.uint8)
    kept = [primitives.autocontrast, primitives.equalize, primitives.contrast, primitives.sharpness, primitives.color]
    assert torch.equal(augmix_image(x, augmentation_set=kept), x)
    image_module = pytest.importorskip("PIL.Image")
    picture = image_module.new("RGB", (8, 8), (77, 77, 77))
    assert augmix_image(picture, augmentation_set=kept).tobytes() == picture.tobytes()


def test_each_image_of_a_batch_differs_and_several_inputs_do_not():
    torch.manual_seed(0)
    x = images(1).expand(30, -1, -1, -1).contiguous(memory_format=torch.channels_last)
    one, two = augmix_image((x, x.clone()))
    assert torch.equal(one, two)
    assert len(one.unique(dim=0)) > 20
    assert one.is_contiguous(memory_format=torch.channels_last)
    assert augmix_image(x[0]).shape == x[0].shape


def test_nothing_is_read_from_the_device():
    """A meta tensor has no values to read."""
    x = torch.empty(6, 3, 8, 8, device="meta")
    assert augmix_image(x).shape == x.shape


def test_functions_of_ones_own_take_tensors_image_by_image():
    pytest.importorskip("PIL.Image")
    x = images(2)
    made = augmix_image(x, augmentation_set=[lambda image, severity: image])
    assert (made.int() - x.int()).abs().max() <= 1


def test_without_an_image_the_transform_comes():
    transform = functional.augmix_image(severity=2, width=2)
    assert isinstance(transform, AugmentAndMixTransform)
    transform = pickle.loads(pickle.dumps(transform))
    assert (transform.severity, transform.width, transform.depth) == (2, 2, -1)
    assert transform(images()).shape == images().shape
    assert repr(transform).startswith("AugmentAndMixTransform(severity=2, depth=-1, width=2, alpha=1.0")
    with pytest.raises(TypeError, match="None"):
        transform(None)


def test_wrong_arguments():
    for make in (AugMix, AugmentAndMixTransform, lambda **keys: augmix_image(images(), **keys)):
        for severity in (-1, 10.5):
            with pytest.raises(ValueError, match="severity"):
                make(severity=severity)
        for severity in (True, "3"):
            with pytest.raises(TypeError, match="severity must be a number"):
                make(severity=severity)
        with pytest.raises(ValueError, match="width"):
            make(width=0)
        with pytest.raises(ValueError, match="alpha"):
            make(alpha=0)
        with pytest.raises(KeyError, match="Did you mean 'original'"):
            make(augmentation_set="orignal")
        with pytest.raises(ValueError, match="value_range"):
            make(value_range=(1, 1))
    with pytest.raises(TypeError, match="bool"):
        augmix_image(images().bool())
    with pytest.raises(ValueError, match="on_device=True"):
        AugMix(augmentation_set=[print], on_device=True)
