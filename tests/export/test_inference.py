"""export_for_inference: every argument, and files that their runtimes run as torch does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer import functional
from composer.checkpoint import file_format
from composer.core.logger import Logger
from composer.core.state import State
from composer.export import export_for_inference, export_with_logger
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning, NoEffectWarning
from tests.export.reading import load_program, load_script, run_onnx

FORMATS = ["torchscript", "onnx", "torch_export"]


def network() -> nn.Module:
    """Convolutions, batch norm with statistics of its own, and dropout, which evaluation mode turns off."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(4, 2),
    )
    net(torch.randn(8, 3, 8, 8))
    return net


class OfDicts(nn.Module):
    """Takes and returns dicts, with a part of the batch that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, batch: dict[str, Any], *, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.linear(batch["x"]) + batch["shift"]
        return {"logits": logits if scale is None else logits * scale, "largest": logits.amax(-1)}


def run(form: str, path: Path, x: torch.Tensor) -> torch.Tensor:
    """What the file of a network with one input and one output makes of ``x``."""
    if form == "onnx":
        return run_onnx(path, {"input": x})["output"]
    return (load_script if form == "torchscript" else load_program)(path)(x)


@pytest.mark.parametrize("form", FORMATS)
def test_matches_evaluation_mode_for_any_batch_size(form: str, tmp_path: Path) -> None:
    net, path = network(), tmp_path / "new folder/net.file"
    export_for_inference(net, form, str(path), sample_input=torch.randn(2, 3, 8, 8))
    assert net.training
    assert [file.name for file in path.parent.iterdir()] == ["net.file"]
    x = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(run(form, path, x), net.eval()(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMATS)
def test_the_batch_of_a_model(form: str, tmp_path: Path) -> None:
    model, path = ComposerClassifier(network(), num_classes=2), tmp_path / "net"
    batch = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
    export_for_inference(model, form, str(path), sample_input=(tuple(part[:2] for part in batch), {}))
    expected = model.eval()(batch)
    if form == "onnx":
        found = run_onnx(path, {"input_0": batch[0], "input_1": batch[1]})["output"]
    else:
        found = (load_script if form == "torchscript" else load_program)(path)(batch)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["onnx", "torch_export"])
def test_dicts_and_arguments_by_name(form: str, tmp_path: Path) -> None:
    net, path = OfDicts(), tmp_path / "net"
    batch, scale = {"x": torch.randn(2, 3), "shift": 2.0}, torch.tensor([3.0, 4.0])
    export_for_inference(net, form, str(path), sample_input=(batch, {"scale": scale}), dynamic_axes={"x": {0: "n"}})
    batch = {"x": torch.randn(7, 3), "shift": 2.0}
    if form == "onnx":
        found = run_onnx(path, {"x": batch["x"], "scale": scale})
    else:
        found = load_program(path)(batch, scale=scale)
    torch.testing.assert_close(found, net(batch, scale=scale))


def test_names_are_matched_to_arguments_in_any_order(tmp_path: Path) -> None:
    class Weighted(nn.Module):
        def forward(self, x, *, b, a):
            return x + 10 * a + 100 * b

    x, a, b = torch.ones(2), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    export_for_inference(Weighted(), "onnx", str(tmp_path / "net"), sample_input=(x, {"a": a, "b": b}))
    found = run_onnx(tmp_path / "net", {"input_0": x, "a": a, "b": b})
    assert found["output"].tolist() == [311, 421]


def test_single_dict_is_a_positional_argument(tmp_path: Path) -> None:
    net, batch = OfDicts(), {"x": torch.randn(2, 3), "shift": 2.0}
    export_for_inference(net, "onnx", str(tmp_path / "net"), sample_input=batch)
    torch.testing.assert_close(run_onnx(tmp_path / "net", {"x": batch["x"]}), net(batch))


def test_names_and_sizes_of_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    axes = {"image": {0: "batch", 2: "height"}, "logits": {0: "batch"}}
    export_for_inference(
        network(),
        "onnx",
        str(path),
        sample_input=torch.randn(2, 3, 8, 8),
        dynamic_axes=axes,
        onnx_opset_version=20,
        input_names=["image"],
        output_names=["logits"],
    )
    file = onnx.load(str(path))
    onnx.checker.check_model(file, full_check=True)
    assert file.opset_import[0].version == 20
    (image,), (logits,) = file.graph.input, file.graph.output
    assert (image.name, logits.name) == ("image", "logits")
    sizes = [size.dim_param or size.dim_value for size in image.type.tensor_type.shape.dim]
    assert sizes == ["batch", 3, "height", 8]
    net, x = network().eval(), torch.randn(1, 3, 6, 8)
    torch.testing.assert_close(run_onnx(path, {"image": x})["logits"], net(x), rtol=1e-5, atol=1e-6)


def test_fixed_sizes(tmp_path: Path) -> None:
    export_for_inference(
        network(), "torch_export", str(tmp_path / "net"), sample_input=torch.randn(1, 3, 8, 8), dynamic_axes={}
    )
    net = load_program(tmp_path / "net")
    assert net(torch.randn(1, 3, 8, 8)).shape == (1, 2)
    with pytest.raises(AssertionError, match="Guard failed"):
        net(torch.randn(2, 3, 8, 8))


def test_a_sample_of_one_row_warns(tmp_path: Path) -> None:
    with pytest.warns(ComposerWarning, match="tensor with one row"):
        export_for_inference(network(), "torch_export", str(tmp_path / "net"), sample_input=torch.randn(1, 3, 8, 8))


def test_torchscript_needs_no_sample(tmp_path: Path) -> None:
    net = network()
    export_for_inference(net, "torchscript", str(tmp_path / "net.pt"))
    x = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(load_script(tmp_path / "net.pt")(x), net.eval()(x))


def test_unscriptable_models_are_traced_or_rejected(tmp_path: Path) -> None:
    net, batch = OfDicts(), {"x": torch.randn(2, 3), "shift": torch.tensor(2.0)}
    with pytest.raises(RuntimeError, match="OfDicts cannot be scripted, and without sample_input it cannot be traced"):
        export_for_inference(net, "torchscript", str(tmp_path / "net"))
    with pytest.raises(RuntimeError, match="must not give scale by name"):
        export_for_inference(net, "torchscript", str(tmp_path / "net"), sample_input=(batch, {"scale": torch.ones(1)}))
    export_for_inference(net, "torchscript", str(tmp_path / "net"), sample_input=batch)
    torch.testing.assert_close(load_script(tmp_path / "net")(batch), net(batch))


def test_surgery_then_checkpoint_weights_then_transforms(tmp_path: Path) -> None:
    def fresh() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Flatten(), nn.Linear(4, 2))

    def surgery(model: nn.Module) -> None:
        functional.apply_blurpool(model, min_channels=0)

    trained, net, x = fresh(), fresh(), torch.randn(2, 3, 4, 4)
    surgery(trained)
    file_format.write({"state": {"model": trained.state_dict()}}, tmp_path / "saved.pt")
    seen: list[str] = []

    def first(model: nn.Module) -> nn.Module:
        seen.append("first")
        return nn.Sequential(model, nn.Softmax(1)).train()

    def second(model: nn.Module) -> nn.Module:
        seen.append("second")
        return nn.Sequential(model, nn.Dropout(0.9))

    before = copy.deepcopy(net.state_dict())
    export_for_inference(
        net,
        "torch_export",
        str(tmp_path / "net.pt2"),
        sample_input=x,
        surgery_algs=surgery,
        transforms=[first, second],
        load_path=str(tmp_path / "saved.pt"),
        load_strict=True,
    )
    torch.testing.assert_close(load_program(tmp_path / "net.pt2")(x), trained(x).softmax(1))
    assert seen == ["first", "second"]
    torch.testing.assert_close(net.state_dict(), before)


def test_mismatched_weights(tmp_path: Path) -> None:
    file_format.write({"state": {"model": {"weight": torch.ones(1, 2), "more": torch.ones(1)}}}, tmp_path / "saved.pt")
    arguments = {"sample_input": torch.ones(3, 2), "load_path": str(tmp_path / "saved.pt")}
    with pytest.raises(RuntimeError, match="lacks bias; the model lacks more"):
        export_for_inference(nn.Linear(2, 1), "torch_export", str(tmp_path / "n.pt2"), load_strict=True, **arguments)
    with pytest.warns(ComposerWarning, match="lacks bias; the model lacks more"):
        export_for_inference(nn.Linear(2, 1), "torch_export", str(tmp_path / "n.pt2"), **arguments)


class Store:
    """An object store in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def upload_object(self, object_name, filename):
        self.folder.joinpath(object_name).write_bytes(Path(filename).read_bytes())

    def download_object(self, object_name, filename, overwrite, callback):
        Path(filename).write_bytes(self.folder.joinpath(object_name).read_bytes())


def test_object_stores(tmp_path: Path) -> None:
    store, trained, x = Store(tmp_path), nn.Linear(2, 1), torch.randn(3, 2)
    file_format.write({"state": {"model": trained.state_dict()}}, tmp_path / "saved.pt")
    export_for_inference(
        nn.Linear(2, 1), "torch_export", "net.pt2", store, x, load_path="saved.pt", load_object_store=store
    )
    torch.testing.assert_close(load_program(tmp_path / "net.pt2")(x), trained(x))
    with pytest.raises(TypeError, match=r"must have a method upload_object"):
        export_for_inference(trained, "torch_export", "net.pt2", save_object_store=object(), sample_input=x)


def test_uris(tmp_path: Path) -> None:
    import fsspec

    trained, x = nn.Linear(2, 1), torch.randn(3, 2)
    file_format.write({"state": {"model": trained.state_dict()}}, tmp_path / "saved.pt")
    with fsspec.open("memory://export/saved.pt", "wb") as file:
        file.write((tmp_path / "saved.pt").read_bytes())
    path = "memory://export/new/net.pt2"
    export_for_inference(nn.Linear(2, 1), "torch_export", path, sample_input=x, load_path="memory://export/saved.pt")
    with fsspec.open(path, "rb") as file:
        (tmp_path / "net.pt2").write_bytes(file.read())
    torch.testing.assert_close(load_program(tmp_path / "net.pt2")(x), trained(x))


def test_weights_next_to_a_file_that_is_too_large_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("composer.export.formats._LARGEST_IN_ONE_FILE", 8)
    net, x = nn.Linear(64, 64), torch.randn(3, 64)
    export_for_inference(net, "onnx", str(tmp_path / "deep/net.onnx"), sample_input=x)
    assert {file.name for file in (tmp_path / "deep").iterdir()} == {"net.onnx", "net.onnx.data"}
    torch.testing.assert_close(run_onnx(tmp_path / "deep/net.onnx", {"input": x})["output"], net(x))


def test_tied_weights_stay_tied_and_the_model_is_unchanged(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.other.weight = self.one.weight

        def forward(self, x):
            return self.other(self.one(x))

    seen: list[nn.Module] = []

    def look(model: nn.Module) -> nn.Module:
        seen.append(model)
        return model

    model, x = Tied(), torch.randn(2, 2)
    export_for_inference(model, "torch_export", str(tmp_path / "net.pt2"), sample_input=x, transforms=look)
    (copied,) = seen
    assert copied.one.weight is copied.other.weight
    assert copied.one.weight.data_ptr() != model.one.weight.data_ptr()
    assert model.one.weight.requires_grad


def test_a_compiled_model_is_unwrapped(tmp_path: Path) -> None:
    model, x = torch.compile(nn.Linear(2, 1), backend="eager"), torch.randn(3, 2)
    export_for_inference(model, "torch_export", str(tmp_path / "net.pt2"), sample_input=x)
    torch.testing.assert_close(load_program(tmp_path / "net.pt2")(x), model(x))


def test_a_sharded_model_raises(tmp_path: Path) -> None:
    from torch import distributed
    from torch.distributed.tensor import distribute_module

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        with pytest.raises(ValueError, match=r"model is sharded across ranks\. Save a checkpoint"):
            export_for_inference(distribute_module(nn.Linear(2, 1), mesh), "torchscript", str(tmp_path / "net.pt"))
    finally:
        distributed.destroy_process_group()


def test_only_rank_zero_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("composer.export.inference.dist.get_global_rank", lambda: 1)
    export_for_inference(nn.Linear(2, 1), "torchscript", str(tmp_path / "net.pt"))
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_on_failure(tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_text("the last one")

    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        export_for_inference(Fails(), "torch_export", str(tmp_path / "net.pt2"), sample_input=torch.ones(2))
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the last one"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"save_format": "torch_exprt"}, "save_format must be one of .* Did you mean 'torch_export'"),
        ({"save_path": "memori://bucket/net.pt2"}, "memori.*Did you mean 'memory'"),
        ({"sample_input": None}, "sample_input is required for the format torch_export"),
        ({"input_names": ["a", "b"]}, r"input_names=\['a', 'b'\] must be .* each of 1 input, by default called input"),
        ({"dynamic_axes": {"inptu": [0]}}, "dynamic_axes has 'inptu', but the inputs are 'input'. Did you mean"),
        ({"dynamic_axes": {"input": [2]}}, r"dynamic_axes\['input'\] has dim 2, but that input has shape \(3, 2\)"),
        ({"model": nn.DataParallel(nn.Linear(2, 1))}, "model is wrapped in DataParallel; export model.module"),
    ],
)
def test_values_that_raise(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    defaults = {
        "model": nn.Linear(2, 1),
        "save_format": "torch_export",
        "save_path": str(tmp_path / "net.pt2"),
        "sample_input": torch.ones(3, 2),
    }
    with pytest.raises(ValueError, match=message):
        export_for_inference(**(defaults | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_input": (torch.ones(2), torch.ones(2))}, r"sample_input does not match Linear.*\(\(x, y\), \{\}\)"),
        ({"transforms": "quantize"}, "transforms must be functions of a model, but got 'quantize'"),
        ({"transforms": [print]}, "transforms must return the module to export, but .*print.* returned None"),
        ({"surgery_algs": [3]}, "surgery_algs must be functions of a model, but got 3"),
    ],
)
def test_types_that_raise(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    defaults = {"sample_input": torch.ones(3, 2)}
    with pytest.raises(TypeError, match=message):
        export_for_inference(nn.Linear(2, 1), "torch_export", str(tmp_path / "n.pt2"), **(defaults | arguments))


def test_options_without_effect_warn(tmp_path: Path) -> None:
    with pytest.warns(NoEffectWarning, match="dynamic_axes, onnx_opset_version has no effect on the format torchscr"):
        export_for_inference(
            nn.Linear(2, 1), "torchscript", str(tmp_path / "a"), dynamic_axes={}, onnx_opset_version=20
        )


def test_logger_without_file_support(tmp_path: Path) -> None:
    model, x = nn.Linear(2, 1), torch.ones(3, 2)
    logger = Logger(State(model=model))
    export_with_logger(
        model, "onnx", str(tmp_path / "net"), logger, None, x, lambda m: nn.Sequential(m, nn.ReLU()), ["x"], ["y"]
    )
    torch.testing.assert_close(run_onnx(tmp_path / "net", {"x": x})["y"], model(x).relu())
