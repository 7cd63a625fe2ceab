"""Part tests: the suite's tests that hold on any device, and those of what only a GPU shows."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.gpu.options import Options, SkipError
from benchmarks.gpu.suite import IN_THE_SUITE, check
from benchmarks.report import Report


def _group(name: str, title: str) -> Callable[[Options], Report]:
    """The tests of a group of tests/on_device.py, which says which these are and why others do not run."""

    def run(options: Options) -> Report:
        options.need("pytest", "hypothesis")
        if options.tiny:
            raise SkipError(IN_THE_SUITE)
        from tests.on_device import GROUPS

        return check(name, title, GROUPS[name])(options)

    return run


def trains(options: Options) -> Report:
    """Train a small network in each precision, without pytest: what is seen first where little is installed."""
    import torch
    from torch import nn

    from composer import Trainer
    from composer.models import ComposerClassifier

    precisions = ["fp32", "amp_bf16"] + (["amp_fp16"] if options.device == "cuda" else [])
    rows, failed = [], []
    for precision in precisions:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(20, 16, 4, generator=generator)
        data = [(each, (each.sum(1) > 0).long()) for each in x]
        torch.manual_seed(1)
        model = ComposerClassifier(nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 2)), num_classes=2)
        losses: list[float] = []
        trainer = Trainer(
            model=model,
            train_dataloader=data,
            max_duration="4ep",
            optimizers=torch.optim.AdamW(model.parameters(), lr=0.01),
            precision=precision,
            device=options.device,
            progress_bar=False,
        )
        for _ in range(4):
            trainer.fit(duration="1ep")
            losses.append(float(trainer.state.total_loss_dict["loss/train/total"]))
        trainer.close()
        rows.append([precision, losses[0], losses[-1]])
        if not losses[-1] < losses[0]:
            failed.append(f"{precision}: the loss went from {losses[0]:.3f} to {losses[-1]:.3f}")
    columns = ["precision", "loss after 1 epoch", "after 4"]
    return Report("trains", "A network trains in each precision", columns, rows, [], [], {}, failed="\n".join(failed))


CHECKS: dict[str, Callable[[Options], Report]] = {
    "trains": trains,
    "precision": check(
        "precision",
        "Precisions: what computes in what, and overflows",
        ["gpu/test_precision.py"],
        tiny=["gpu/test_precision.py::test_trains"],
    ),
    "compiled": check("compiled", "Compiled training gives the losses of eager training", ["gpu/test_compiled.py"]),
    "resuming": check("resuming", "Resuming, and checkpoints beside training: bit for bit", ["gpu/test_resuming.py"]),
    "running out": check("running out", "Running out of memory, and what is left", ["gpu/test_device_memory.py"]),
    "beside": check("beside", "What runs beside what, and no step that waits", ["gpu/test_beside.py"]),
    "leaving": check("leaving", "Exports, and models of Hugging Face", ["gpu/test_leaving.py"]),
    "marked": check(
        "marked",
        "What is marked gpu among the other tests",
        ["callbacks", "datasets", "profiler", "trainer"],
        "-m",
        "gpu",
    ),
    "methods": _group("methods", "What every method promises"),
    "callbacks": _group("callbacks", "What every callback promises"),
    "loggers": _group("loggers", "What every logger promises"),
    "optim": _group("optim", "Optimizers"),
    "checkpoint": _group("checkpoint", "Checkpoints and resuming"),
    "trainer": _group("trainer", "The training loop"),
}
