"""Compare models and methods without compilation, with the full model compiled, and with its blocks compiled.

For each model and method: CPU seconds of a step after warm-up, of the cold start, and the number of compilations.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.kept import kept
from benchmarks.report import Goal, Report, spread

__all__ = ["CASES", "Case", "measure", "measured", "report_of"]

CONFIGS: dict[str, dict[str, Any] | None] = {"eager": None, "full": {}, "by block": {"regional": True}}
ROUNDS = 12
# Steps between the cold start and the measured ones: long enough for all sizes that a method goes through.
WARMUP = 12
# A timed piece lasts at least so many CPU seconds.
_PIECE = 0.15
# A compiled step may take so much of the eager one's time, for a throughput of 0.99.
_SLOWEST = 1 / 0.99


@dataclass(frozen=True)
class Case:
    """A model and a method.

    Attributes:
        model: A name of :data:`benchmarks.estimate_models.MODELS`, or "gpt-lengths" or "bert".
        method: Makes the algorithms.
        batch_size: Number of samples.
        options: Further arguments of the trainer.
        compilations: Number of compilations of forward passes that the method declares; for compiled blocks, of each
            class and shape of blocks.
    """

    model: str
    method: Callable[[], list[Any]] = list
    batch_size: int = 8
    options: dict[str, Any] = field(default_factory=dict)
    compilations: int = 1


def _method(name: str, *args: Any, **options: Any) -> Callable[[], list[Any]]:
    """Return what makes a method of ``composer.algorithms``, which is imported in the measuring process only."""

    def make() -> list[Any]:
        from composer import algorithms

        return [getattr(algorithms, name)(*args, **options)]

    return make


def _stochastic_depth() -> list[Any]:
    from benchmarks.estimate_models import GELUBlock
    from composer.algorithms import StochasticDepth
    from composer.algorithms.stochastic_depth import register_residual_block

    register_residual_block(GELUBlock)
    return [StochasticDepth("GELUBlock", stochastic_method="sample", drop_rate=0.1)]


_RESIZING = {"initial_scale": 0.5, "delay_fraction": 0.0, "finetune_fraction": 0.2, "size_increment": 4}
_LENGTHS = {"duration": 0.9, "min_seq_length": 24, "max_seq_length": 96, "step_size": 8}

CASES: dict[str, Case] = {
    "MLP, EMA": Case("mlp", _method("EMA", half_life="10ba"), 32),
    "MLP, SAM": Case("mlp", _method("SAM"), 32),
    "MLP, GyroDropout": Case("mlp", _method("GyroDropout", 0.5, 8, 4), 32, compilations=2),
    "embedding bag, SelectiveBackprop": Case(
        "bag", _method("SelectiveBackprop", 0.0, 1.0, 0.5, 1.0, 0), 32, compilations=2
    ),
    "LSTM, LabelSmoothing": Case("lstm", _method("LabelSmoothing", 0.1), compilations=2),
    "GRU, GradientClipping": Case("gru", _method("GradientClipping", "norm", 1.0), 4, compilations=4),
    "conv net, ProgressiveResizing": Case("convnet", _method("ProgressiveResizing", **_RESIZING), compilations=5),
    "conv net, GhostBatchNorm": Case("convnet", _method("GhostBatchNorm", 4)),
    "conv net, BlurPool": Case("convnet", _method("BlurPool")),
    "group norm net, CutMix": Case("group-norms", _method("CutMix", 1.0)),
    "autoencoder, CutOut": Case("autoencoder", _method("CutOut")),
    "mobile net, ChannelsLast": Case("mobile", _method("ChannelsLast")),
    "ResNet, MixUp": Case("resnet", _method("MixUp", 0.2), 4),
    "U-Net": Case("unet", batch_size=4),
    "ViT, StochasticDepth": Case("vit", _stochastic_depth, 4, compilations=2),
    "ViT, microbatches": Case("vit", batch_size=4, options={"device_train_microbatch_size": 2}),
    "GPT, SeqLengthWarmup": Case("gpt-lengths", _method("SeqLengthWarmup", **_LENGTHS)),
    "GPT, ZClip": Case("gpt", _method("ZClip"), 2),
    "GPT with tied weights, NEFTune": Case("gpt-tied", _method("NEFTune"), 2),
    "Llama, EMA": Case("llama", _method("EMA", half_life="10ba"), 2),
    "Llama, activation checkpointing": Case("llama-recompute", batch_size=2),
    "BERT of transformers": Case("bert", batch_size=2),
}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the compilers that it has started."""
    return sum(os.times()[:4])


def make_model(case: Case) -> tuple[Any, Any]:
    """Return the model of a case and a batch, the same each time.

    Args:
        case: The case.
    """
    import torch

    from benchmarks import method_models
    from benchmarks.estimate_models import MODELS, NUM_CLASSES
    from benchmarks.language_model import SEQUENCE, VOCABULARY, LanguageModel
    from composer.models import ComposerClassifier, HuggingFaceModel

    torch.manual_seed(0)
    if case.model == "gpt-lengths":
        tokens = torch.randint(VOCABULARY, (case.batch_size, SEQUENCE))
        return LanguageModel(128, num_layers=4), {"input_ids": tokens, "labels": tokens.clone()}
    if case.model == "bert":
        tokens = torch.randint(1000, (case.batch_size, 96))
        batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}
        return HuggingFaceModel(method_models.bert()), batch
    model = MODELS[case.model]
    sample = torch.stack([model.sample() for _ in range(case.batch_size)])
    target = torch.randint(NUM_CLASSES, (case.batch_size,))
    return ComposerClassifier(model.build(), NUM_CLASSES, train_metrics={}), (sample, target)


def measured(name: str, cache: str) -> dict[str, Any]:
    """Train a case in each configuration, in turns; return what was measured in JSON types.

    What torch does once in a process is done before, and each configuration has an inductor cache of its own.

    Args:
        name: The case, of :data:`CASES`.
        cache: Folder for inductor's caches.
    """
    from benchmarks.regional_compilation import start_toolchain
    from composer.parallel.wrapping import repeated_blocks

    case = CASES[name]
    once = start_toolchain(cache)
    blocks = repeated_blocks(make_model(case)[0])
    names = [config for config in CONFIGS if config != "by block" or blocks]
    trainers: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for config in names:
        trainers[config], start = _start(case, CONFIGS[config])
        found[config] = {"start": start, "steps": []}
    for trainer in trainers.values():
        trainer.fit(duration=f"{WARMUP}ba")
    pieces = max(1, math.ceil(_PIECE / _step(trainers["eager"], 2)))
    for number in range(ROUNDS):
        for config in names if number % 2 else reversed(names):
            found[config]["steps"].append(_step(trainers[config], pieces))
    for config in names:
        monitor = trainers[config].state.callbacks[-1]
        found[config]["compilations"] = monitor.compilations
        found[config]["functions"] = 0 if config == "eager" else _functions(trainers[config].state.model, config)
        trainers[config].close()
    return {"name": name, "once": once, "blocks": len(blocks), "steps_a_piece": pieces, "configs": found}


def _start(case: Case, config: dict[str, Any] | None) -> tuple[Any, float]:
    """Make a trainer and train one step; return it with the CPU seconds of both."""
    import torch
    from torch._inductor.utils import fresh_cache

    from composer import Trainer
    from composer.callbacks import RecompileMonitor

    model, batch = make_model(case)
    with fresh_cache():
        begin = cpu_seconds()
        trainer = Trainer(
            model=model,
            train_dataloader=[batch] * 1000,
            max_duration="1ba",
            optimizers=torch.optim.AdamW(model.parameters(), lr=1e-4),
            algorithms=case.method(),
            callbacks=RecompileMonitor(),
            compile_config=config,
            seed=1,
            progress_bar=False,
            **case.options,
        )
        trainer.fit()
        return trainer, cpu_seconds() - begin


def _step(trainer: Any, number: int) -> float:
    """Train some steps; return CPU seconds a step."""
    begin = time.process_time()
    trainer.fit(duration=f"{number}ba")
    return (time.process_time() - begin) / number


def _functions(model: Any, config: str) -> int:
    """Return the number of functions that a configuration compiles: one, or one for each group of blocks."""
    if config != "by block":
        return 1
    compiled = (module._compiled_call_impl for module in model.modules())
    return len({id(one._compiled) for one in compiled if one is not None})


def measure(folder: Path, names: Iterable[str] = tuple(CASES)) -> Report:
    """Measure cases, as far as the folder does not have the results, and report all that it has.

    Args:
        folder: Folder of all records.
        names: The cases.
    """
    target, cache = "benchmarks.compiled_methods:measured", str(folder / "cache")
    for name in names:
        kept(_path(folder, name), lambda one=name: environment.call(target, {"name": one, "cache": cache}))
        print(report_of(folder).text(), flush=True)
    return report_of(folder)


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(', ', '-').replace(' ', '_')}.json"


_COLUMNS = ["model, method", "compiled", "step, ms", "spread", "step, of eager", "cold start, s", "compilations",
            "declared", "pays after"]  # fmt: skip


def report_of(folder: Path) -> Report:
    """Return the report of all results in a folder.

    Args:
        folder: Folder of all records.
    """
    results = [kept(path, dict) for name in CASES if (path := _path(folder, name)).exists()]
    rows: list[list[Any]] = []
    slower: list[str] = []
    excess = compiled = 0
    for result in results:
        eager = result["configs"]["eager"]
        for config, one in result["configs"].items():
            pairs = zip(one["steps"], eager["steps"], strict=True)
            ratio = statistics.median(value / base for value, base in pairs)
            if config != "eager":
                compiled += 1
                excess += max(0, one["compilations"] - _declared(result["name"], one))
                slower += [f"{result['name']} ({config}) {ratio:.2f}"] if ratio > _SLOWEST else []
            rows.append(_row(result["name"], config, one, eager, ratio))
    names = "; ".join(slower) if slower else "none"
    notes = [
        "Each model with its method is trained in one process: without compilation, with the full model compiled, and, "
        "if it repeats blocks, with these compiled. CPU seconds on one thread, with the compilers that are started. "
        "AdamW, float32, small batches.",
        f"Steps are timed in turns, {ROUNDS} rounds of at least {_PIECE} s, after {WARMUP + 1} steps; the ratio is the "
        f"median of those of the rounds, and the spread half the distance of the quartiles.",
        "A cold start is that of a trainer with one step, with an empty cache, after torch has done what it does once "
        "in a process.",
        "Compilations are those of forward passes, over all steps, also where a method changes the sizes of batches. "
        "GyroDropout has no masks in the first step, and SelectiveBackprop computes losses without gradients: each "
        "declares one more, as StochasticDepth does, whose rate differs between blocks. Convolutions are "
        "compiled for each of the 5 sizes of ProgressiveResizing. "
        "torch does not compile recurrent layers, so that what is before and after them are two, or "
        "four together with the loss.",
        f"Of {compiled} compiled runs, {len(slower)} have less than 0.99 of the eager throughput after warm-up "
        f"(step of eager): {names}. Compilation is not on by default, and `composer doctor` and `composer explore` "
        f"recommend it only after they have measured it on the program.",
    ]
    goals = [Goal("compilations beyond those declared", excess, 0)] if results else []
    return Report(
        "compiled_methods", "Compiled models and methods", _COLUMNS, rows, goals, notes,
        {result["name"]: result for result in results}, environment.describe(), arguments="FOLDER --write",
    )  # fmt: skip


def _declared(name: str, one: dict[str, Any]) -> int:
    """Return the number of compilations that a case declares for what a configuration compiles."""
    return CASES[name].compilations * one["functions"]


def _row(name: str, config: str, one: dict[str, Any], eager: dict[str, Any], ratio: float) -> list[Any]:
    """Return a row of the table."""
    step, base = statistics.median(one["steps"]), statistics.median(eager["steps"])
    start, pays = one["start"], "-"
    if config != "eager":
        saved = base - step
        clear = saved > max(spread(one["steps"]), spread(eager["steps"]))
        pays = f"{(start - eager['start']) / saved:,.0f} steps" if clear else "not measurably"
    counts = [one["compilations"], _declared(name, one)] if config != "eager" else ["-", "-"]
    return [name if config == "eager" else "", config, step * 1e3, spread(one["steps"]) * 1e3, ratio, start, *counts,
            pays]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of all records; a later command with it continues")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), help="all by default")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/ from all that the folder has")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    report = measure(folder, given.only)
    if given.write:
        report.write()


if __name__ == "__main__":
    main()
