from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.algorithms.utils import _levels, augmentation_primitives, augmentation_sets, image_as_type
from composer.algorithms.utils import map_pillow_function as map_pillow
from composer.algorithms.utils._batched import OPERATIONS, Plan, apply_plan

Image = pytest.importorskip("PIL.Image")

NAMES = list(OPERATIONS)


def pictures():
    """Noise, a smooth picture, one of few values, a flat one, a gray one."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (3, 41, 50), generator=generator)
    rows, columns = torch.arange(41).view(-1, 1), torch.arange(50)
    smooth = torch.stack((columns * 4 + rows, rows * 5 + 0 * columns, (rows + columns) * 2)) // 2 + 20
    return [each.to(torch.uint8) for each in (noise, smooth, noise % 9, torch.full((3, 5, 5), 7), noise[:1] // 3 + 40)]


@pytest.mark.parametrize("name", NAMES)
def test_tensors_get_what_pillow_gives(name):
    """One by one, under the same random numbers; values between pixels may be rounded differently."""
    operation = getattr(augmentation_primitives, name)
    for picture in pictures():
        for seed in range(12):
            torch.manual_seed(seed)
            by_pillow = map_pillow(lambda image: operation(image, 9.0), picture)
            torch.manual_seed(seed)
            parameter = torch.tensor(_levels.sample_parameter(name, 9.0)).view(1, 1, 1, 1)
            by_tensor = OPERATIONS[name](picture.unsqueeze(0), parameter)[0]
            difference = (by_pillow.int() - by_tensor.int()).abs()
            assert difference.max() <= 1
            assert difference.float().mean() < 0.01


@pytest.mark.parametrize("name", NAMES)
@given(severity=st.floats(0, 30), uniforms=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 3))
def test_one_formula_for_numbers_and_for_tensors(name, severity, uniforms):
    one = _levels.parameters(name, severity, uniforms)
    many = _levels.parameters(name, severity, torch.tensor(uniforms, dtype=torch.float64).unsqueeze(1))
    assert many.shape == (1,)
    assert many.item() == pytest.approx(one)


HALF = [(0.999999, coin, place) for coin in (0.2, 0.8) for place in (0.0, 0.999999)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("posterize", {1.0}),
        ("rotate", {-29.0, 29.0}),
        ("solarize", {1.0}),
        ("shear_x", {-0.3, 0.3}),
        ("shear_y", {-0.3, 0.3}),
        ("translate_x", {-1 / 3, 1 / 3}),
        ("translate_y", {-1 / 3, 1 / 3}),
        ("color", {0.1, 1.0, 10.0}),
        ("contrast", {0.1, 1.0, 10.0}),
        ("sharpness", {0.1, 1.0, 10.0}),
        ("brightness", {0.1, 1.0, 7.5}),
        ("color_original", {1.9}),
    ],
)
def test_strongest_level_in_closed_form(name, expected):
    found = {round(_levels.parameters(name, 10.0, uniforms), 3) for uniforms in HALF}
    assert found == {round(value, 3) for value in expected}


def test_weakest_level_changes_nothing_but_what_has_no_strength():
    picture = pictures()[0]
    for name in ("rotate", "translate_x", "translate_y"):
        operation = getattr(augmentation_primitives, name)
        assert torch.equal(map_pillow(lambda image, operation=operation: operation(image, 0.1), picture), picture)


def test_signs_are_fair():
    torch.manual_seed(0)
    signs = torch.tensor([_levels.sample_parameter("shear_x", 10.0) for _ in range(2000)]).sign()
    assert signs.mean().abs() < 0.08
    factors = torch.tensor([_levels.sample_parameter("color", 5.0) for _ in range(2000)])
    assert (factors > 1).float().mean().item() == pytest.approx(0.5, abs=0.04)


def test_geometry_in_closed_form():
    x = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4)

    def apply(name, parameter):
        return OPERATIONS[name](x, torch.tensor(parameter).view(1, 1, 1, 1))[0, 0].tolist()

    assert apply("translate_x", 0.25) == [[2, 3, 4, 0], [6, 7, 8, 0], [10, 11, 12, 0], [14, 15, 16, 0]]
    assert apply("translate_y", -0.5) == [[0] * 4, [0] * 4, [1, 2, 3, 4], [5, 6, 7, 8]]
    assert apply("rotate", 90.0) == torch.rot90(x[0, 0]).tolist()
    assert apply("rotate", 0.0) == x[0, 0].tolist()
    assert apply("shear_x", 1.0)[3] == [0, 0, 0, 0]
    assert apply("shear_y", 1.0)[0] == [(1 + 5) // 2, (6 + 10) // 2, (11 + 15) // 2, 0]


def test_values_in_closed_form():
    x = torch.tensor([10, 20, 30, 250], dtype=torch.uint8).view(1, 1, 2, 2)

    def apply(name, parameter):
        return OPERATIONS[name](x, torch.tensor(parameter).view(1, 1, 1, 1)).flatten().tolist()

    assert apply("autocontrast", 0.0) == [0, 10, 21, 255]
    assert apply("posterize", 4.0) == [0, 16, 16, 240]
    assert apply("posterize", 1.0) == [0, 0, 0, 128]
    assert apply("solarize", 30.0) == [10, 20, 225, 5]
    assert apply("solarize", 256.0) == [10, 20, 30, 250]
    assert apply("brightness", 1.5) == [15, 30, 45, 255]
    assert apply("contrast", 0.0) == [78, 78, 78, 78]
    assert apply("contrast", 2.0) == [0, 0, 0, 255]
    assert apply("color", 0.5) == [10, 20, 30, 250]
    assert apply("sharpness", 3.0) == [10, 20, 30, 250]
    ramp = torch.arange(256, dtype=torch.uint8).repeat(4).view(1, 1, 32, 32)
    assert torch.equal(OPERATIONS["equalize"](ramp, torch.zeros(1, 1, 1, 1)), ramp)


@given(choices=st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_a_step_sorts_and_puts_back(choices):
    names = ["posterize", "solarize", "equalize"]
    x = torch.arange(len(choices) * 12, dtype=torch.uint8).view(-1, 3, 2, 2) * 3
    uniforms = torch.rand(1, 3, len(choices), generator=torch.Generator().manual_seed(0))
    made = apply_plan(x, Plan(torch.tensor([choices]), uniforms), names, 9.0)
    for place, choice in enumerate(choices):
        expected = x[place : place + 1]
        if choice < 3:
            parameter = _levels.parameters(names[choice], 9.0, uniforms[0, :, place]).view(1, 1, 1, 1)
            expected = OPERATIONS[names[choice]](expected, parameter)
        assert torch.equal(made[place], expected[0])


def test_sets():
    sizes = {name: len(functions) for name, functions in augmentation_sets.items()}
    assert sizes == {"all": 13, "safe": 9, "original": 13}
    for functions in augmentation_sets.values():
        assert all(function.__name__ in OPERATIONS for function in functions)
    assert set(augmentation_sets["safe"]) == set(augmentation_sets["all"]) & set(augmentation_sets["original"])


def test_image_as_type():
    picture = image_as_type(torch.tensor([[[0.0, 0.5]], [[0.2, 1.5]], [[1.0, -1.0]]]), Image.Image)
    assert (picture.size, picture.mode) == ((2, 1), "RGB")
    assert [picture.getpixel((x, 0)) for x in range(2)] == [(0, 51, 255), (128, 255, 0)]
    back = image_as_type(picture, torch.Tensor)
    assert torch.equal((back * 255).round().int(), torch.tensor([[[0, 128]], [[51, 255]], [[255, 0]]], dtype=torch.int))
    assert image_as_type(picture, Image.Image) is picture
    assert image_as_type(back, torch.Tensor) is back
    assert image_as_type(torch.zeros(2, 3, dtype=torch.uint8), Image.Image).mode == "L"
    assert image_as_type(picture.convert("P"), torch.Tensor).shape == (3, 1, 2)
    assert image_as_type(picture.convert("1"), torch.Tensor).shape == (1, 1, 2)
    with pytest.raises(TypeError, match="typ"):
        image_as_type(picture, int)
    with pytest.raises(TypeError, match="str"):
        image_as_type("x", torch.Tensor)
    with pytest.raises(ValueError, match=r"\(2, 3, 4, 4\)"):
        image_as_type(torch.zeros(2, 3, 4, 4), Image.Image)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.int64])
def test_map_pillow_function_keeps_dtype_and_batch(dtype):
    x = (torch.arange(24).view(2, 3, 2, 2) / (255 if dtype.is_floating_point else 1)).to(dtype)
    made = map_pillow(lambda image: image.rotate(180), x)
    assert made.dtype == dtype
    torch.testing.assert_close(made, x.flip(2, 3))
    picture = Image.new("L", (2, 2))
    assert map_pillow(lambda image: image, picture) is picture
    with pytest.raises(TypeError, match="list"):
        map_pillow(lambda image: image, [1])
