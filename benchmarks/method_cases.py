"""Cases for timing the methods: each runs with this package or with MosaicML Composer."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.method_models import bert, dropouts, group_norms, images, photograph, resnet, with_gradients

Run = Callable[[Any], object]
KINDS = {
    "batch": "work on a batch, in each step",
    "model": "work on a model, once in a run or occasionally",
    "step": "a forward and a backward pass with the method",
}


@dataclass(frozen=True)
class Work:
    """What is timed.

    Attributes:
        run: Is timed, with what ``prepare`` returned.
        prepare: Makes anew what the run uses up, not timed; None where a run leaves everything as it was.
    """

    run: Run
    prepare: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        name: The function, or the method.
        on: What it works on.
        kind: One of ``KINDS``.
        build: Loads what is needed, and returns the work.
        unlike: Why both sides do not do the same work; such a case is shown and counts for no goal.
    """

    name: str
    on: str
    kind: str
    build: Callable[[], Work]
    unlike: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}, {self.on}"


CASES: dict[str, Case] = {}


def case(name: str, on: str, kind: str, unlike: str = "") -> Callable[[Callable[[], Work]], Callable[[], Work]]:
    """Enter what builds a case into ``CASES``."""

    def enter(build: Callable[[], Work]) -> Callable[[], Work]:
        entry = Case(name, on, kind, build, unlike)
        CASES[entry.label] = entry
        return build

    return enter


def functional() -> Any:
    """The functional forms of whichever package is there."""
    import composer.functional

    return composer.functional


def surgery(make: Callable[[], nn.Module], apply: Callable[[Any, nn.Module], object]) -> Callable[[], Work]:
    """A change of a model, a fresh copy each time, that the weights of an optimizer do not follow."""

    def build() -> Work:
        found, model = functional(), make()
        return Work(lambda fresh: apply(found, fresh), lambda: copy.deepcopy(model))

    return build


def step(
    make: Callable[[], nn.Module], apply: Callable[[Any, nn.Module], object], inputs: Callable[[], dict[str, Any]]
) -> Callable[[], Work]:
    """Forward and backward pass of a model that was changed."""

    def build() -> Work:
        model, given = make(), inputs()
        apply(functional(), model)
        model.train()

        def run(_: Any) -> None:
            outputs = model(*given["args"], **given["kwargs"])
            outputs = outputs if isinstance(outputs, Tensor) else outputs.logits
            outputs.float().square().mean().backward()
            model.zero_grad()

        return Work(run)

    return build


def _image_input(size: int, extent: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": [images(size, extent)[0]], "kwargs": {}}


def _tokens() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"args": [], "kwargs": {"input_ids": torch.randint(1000, (8, 128))}}


def _features() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"args": [torch.randn(128, 512)], "kwargs": {}}


BATCH = "256 x 3 x 32 x 32"


@case("mixup_batch", BATCH, "batch")
def _mixup() -> Work:
    f, (x, y) = functional(), images()
    return Work(lambda _: f.mixup_batch(x, y, alpha=0.2))


@case("cutmix_batch", BATCH, "batch")
def _cutmix() -> Work:
    f, (x, y) = functional(), images()
    return Work(lambda _: f.cutmix_batch(x, y, alpha=1.0))


@case("cutout_batch", BATCH, "batch")
def _cutout() -> Work:
    f, (x, _) = functional(), images()
    return Work(lambda _: f.cutout_batch(x, num_holes=1, length=0.5))


@case("colout_batch", BATCH, "batch")
def _colout() -> Work:
    f, (x, _) = functional(), images()
    return Work(lambda _: f.colout_batch(x, p_row=0.15, p_col=0.15))


@case("smooth_labels", "256 x 1000", "batch")
def _smooth() -> Work:
    f = functional()
    torch.manual_seed(0)
    logits, target = torch.randn(256, 1000), torch.randint(1000, (256,))
    return Work(lambda _: f.smooth_labels(logits, target, smoothing=0.1))


@case("resize_batch (resize)", BATCH, "batch")
def _resize() -> Work:
    f, (x, y) = functional(), images()
    return Work(lambda _: f.resize_batch(x, y, scale_factor=0.5, mode="resize"))


@case("resize_batch (crop, made contiguous)", BATCH, "batch")
def _crop() -> Work:
    """The predecessor returns a view, of which the first layer makes the copy."""
    f, (x, y) = functional(), images()
    return Work(lambda _: f.resize_batch(x, y, scale_factor=0.5, mode="crop")[0].contiguous())


@case("randaugment_image", "PIL 224 x 224", "batch")
def _randaugment() -> Work:
    f, image = functional(), photograph()
    return Work(lambda _: [f.randaugment_image(image, severity=9, depth=2) for _ in range(50)])


@case("augmix_image", "PIL 224 x 224", "batch")
def _augmix() -> Work:
    f, image = functional(), photograph()
    return Work(lambda _: [f.augmix_image(image, severity=3, width=3) for _ in range(20)])


@case("select_using_loss", BATCH + ", a network of one layer", "batch")
def _select() -> Work:
    f, (x, y) = functional(), images()
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    return Work(lambda _: f.select_using_loss(x, y, model, F.cross_entropy, keep=0.5, scale_factor=1))


@case("should_selective_backprop", "1000 calls", "batch")
def _should_select() -> Work:
    f = functional()
    return Work(lambda _: [f.should_selective_backprop(0.7, place) for place in range(1000)])


def _shorten(**arguments: Any) -> Callable[[], Work]:
    def build() -> Work:
        f = functional()
        torch.manual_seed(0)
        batch = {
            "input_ids": torch.randint(1000, (32, 512)),
            "labels": torch.randint(1000, (32, 512)),
            "attention_mask": torch.ones(32, 512, dtype=torch.long),
        }
        return Work(lambda _: f.set_batch_sequence_length(dict(batch), 256, **arguments))

    return build


case("set_batch_sequence_length", "32 x 512 tokens", "batch")(_shorten())
case("set_batch_sequence_length (fold)", "32 x 512 tokens", "batch")(_shorten(truncate=False))
case("set_batch_sequence_length (keep the end)", "32 x 512 tokens", "batch")(_shorten(preserve_end_of_sequence=True))


def _clip(kind: str, threshold: float) -> Callable[[], Work]:
    def build() -> Work:
        f, model = functional(), with_gradients(resnet(50))
        return Work(lambda _: f.apply_gradient_clipping(model, kind, threshold, fsdp_enabled=False))

    return build


for _kind, _threshold in (("norm", 1.0), ("value", 0.5), ("adaptive", 0.01)):
    case(f"apply_gradient_clipping ({_kind})", "ResNet-50", "batch")(_clip(_kind, _threshold))


@case("compute_ema", "ResNet-50", "batch")
def _ema() -> Work:
    f, model = functional(), resnet(50)
    average = copy.deepcopy(model)
    return Work(lambda _: f.compute_ema(model, average, smoothing=0.99))


@case("freeze_layers", "ResNet-50", "model")
def _freeze() -> Work:
    f, model = functional(), resnet(50)

    def prepare() -> Any:
        fresh = copy.deepcopy(model)
        return fresh, torch.optim.SGD(fresh.parameters(), lr=0.1)

    return Work(lambda made: f.freeze_layers(*made, current_duration=0.8, freeze_start=0.5), prepare)


def _low_precision(name: str) -> Callable[[Any, nn.Module], object]:
    def apply(found: Any, model: nn.Module) -> object:
        from composer.core import Precision

        return getattr(found, name)(model, precision=Precision.AMP_BF16)

    return apply


SURGERIES: dict[str, tuple[Callable[[Any, nn.Module], object], Callable[[], nn.Module], str]] = {
    "apply_blurpool": (lambda f, m: f.apply_blurpool(m), lambda: resnet(50), "ResNet-50"),
    "apply_channels_last": (lambda f, m: f.apply_channels_last(m), lambda: resnet(50), "ResNet-50"),
    "apply_ghost_batchnorm": (lambda f, m: f.apply_ghost_batchnorm(m), lambda: resnet(50), "ResNet-50"),
    "apply_squeeze_excite": (lambda f, m: f.apply_squeeze_excite(m), lambda: resnet(50), "ResNet-50"),
    "apply_weight_standardization": (lambda f, m: f.apply_weight_standardization(m), lambda: resnet(50), "ResNet-50"),
    "apply_stochastic_depth": (
        lambda f, m: f.apply_stochastic_depth(m, "ResNetBottleneck"),
        lambda: resnet(50),
        "ResNet-50",
    ),
    "apply_low_precision_layernorm": (_low_precision("apply_low_precision_layernorm"), bert, "BERT of 4 layers"),
    "apply_low_precision_groupnorm": (_low_precision("apply_low_precision_groupnorm"), group_norms, "20 layers"),
    "apply_gyro_dropout": (
        lambda f, m: f.apply_gyro_dropout(m, iters_per_epoch=100, max_epoch=10, p=0.5, sigma=256, tau=16),
        dropouts,
        "3 layers",
    ),
    "apply_alibi": (lambda f, m: f.apply_alibi(m, max_sequence_length=256), bert, "BERT of 4 layers"),
    "apply_gated_linear_units": (
        lambda f, m: f.apply_gated_linear_units(m, optimizers=None),
        bert,
        "BERT of 4 layers",
    ),
}
for _name, (_apply, _make, _on) in SURGERIES.items():
    case(_name, _on, "model")(surgery(_make, _apply))

_DECOMPOSES = "the predecessor initializes new random weights, Composer decomposes those of the model"
case("apply_factorization", "ResNet-18", "model", unlike=_DECOMPOSES)(
    surgery(lambda: resnet(18), lambda f, m: f.apply_factorization(m, min_channels=256))
)

_SMALL_IMAGES = _image_input(8, 96)
_CONTROL = "both sides do the same work, which shows the error of the ratios"
case("no method", "ResNet-18, 8 x 3 x 96 x 96", "step", unlike=_CONTROL)(
    step(lambda: resnet(18), lambda f, m: None, _SMALL_IMAGES)
)
for _name, _apply in {
    "BlurPool": lambda f, m: f.apply_blurpool(m),
    "ChannelsLast": lambda f, m: f.apply_channels_last(m),
    "SqueezeExcite": lambda f, m: f.apply_squeeze_excite(m),
    "WeightStandardization": lambda f, m: f.apply_weight_standardization(m),
    "Factorize": lambda f, m: f.apply_factorization(m, min_channels=256),
}.items():
    case(_name, "ResNet-18, 8 x 3 x 96 x 96", "step")(step(lambda: resnet(18), _apply, _SMALL_IMAGES))
case("GhostBatchNorm", "ResNet-18, 64 x 3 x 32 x 32, ghosts of 16", "step")(
    step(lambda: resnet(18), lambda f, m: f.apply_ghost_batchnorm(m, ghost_batch_size=16), _image_input(64, 32))
)
for _method in ("block", "sample"):
    # Hardly ever is anything dropped: what is would make some passes shorter than others.
    case(f"StochasticDepth ({_method})", "ResNet-50, 8 x 3 x 64 x 64", "step")(
        step(
            lambda: resnet(50),
            lambda f, m, how=_method: f.apply_stochastic_depth(
                m, "ResNetBottleneck", how, drop_rate=1e-6, drop_distribution="uniform"
            ),
            _image_input(8, 64),
        )
    )
case("GyroDropout", "3 layers of 512, batch of 128", "step")(
    step(dropouts, SURGERIES["apply_gyro_dropout"][0], _features)
)
case("Alibi", "BERT of 4 layers, 8 x 128 tokens", "step")(step(bert, SURGERIES["apply_alibi"][0], _tokens))
case("GatedLinearUnits", "BERT of 4 layers, 8 x 128 tokens", "step")(
    step(bert, SURGERIES["apply_gated_linear_units"][0], _tokens)
)


@case("SAM", "ResNet-18, 8 x 3 x 96 x 96, both gradients and the update", "step")
def _sam() -> Work:
    functional()
    from composer.algorithms.sam import SAMOptimizer

    model, (x, y) = resnet(18), images(8, 96)
    optimizer = SAMOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4), rho=0.05, interval=1)

    def closure(**_: Any) -> Tensor:  # the predecessor hands over whether to synchronize gradients
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return Work(lambda _: optimizer.step(closure))


@case("SAM, the optimizer alone", "ResNet-50", "batch")
def _sam_alone() -> Work:
    functional()
    from composer.algorithms.sam import SAMOptimizer

    model = with_gradients(resnet(50))
    optimizer = SAMOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), rho=0.05, interval=1)
    losses = itertools.repeat(torch.ones(()))
    return Work(lambda _: optimizer.step(lambda **_: next(losses)))
