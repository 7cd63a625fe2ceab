"""Part tests: the suite's tests that hold on any device, and those of what only a GPU shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.gpu import commands, compiler
from benchmarks.gpu.options import Options
from benchmarks.gpu.suite import check, marked
from benchmarks.report import Report


def on_gpu() -> dict[str, list[str]]:
    """Return the files of tests that need a GPU, by what they are about; those of groups are with part nccl."""
    return {**GPU, "marked": [file for file in marked("gpu") if file not in _of_groups()]}


def anywhere() -> dict[str, Sequence[str]]:
    """Return the groups of tests/on_device.py, which says which these are and why others do not run."""
    from tests.on_device import GROUPS

    return {name: files for name, files in GROUPS.items() if name != "gpu"}


def _of_groups() -> set[str]:
    return {file for files in anywhere().values() for file in files}


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


GPU: dict[str, list[str]] = {
    "precisions, and overflows": ["gpu/test_precision.py"],
    "losses of compiled training": ["gpu/test_compiled.py"],
    "resuming, bit for bit": ["gpu/test_resuming.py"],
    "running out of memory": ["gpu/test_device_memory.py"],
    "what runs beside what, and no step that waits": ["gpu/test_beside.py"],
    "exports, and Hugging Face": ["gpu/test_leaving.py"],
    "attention within packed documents": ["gpu/test_packed_attention.py"],
}

CHECKS: dict[str, Callable[[Options], Report]] = {
    "compiler": compiler.measure,
    "trains": trains,
    "commands": commands.measure,
    "gpu": check("gpu", "What only a GPU shows", on_gpu, tiny=["gpu/test_precision.py::test_trains"]),
    "anywhere": check("anywhere", "Tests that hold on any device: methods, callbacks, the loop, ...", anywhere),
}
SECONDS = {"compiler": 30.0, "trains": 30.0, "commands": 300.0, "gpu": 190.0, "anywhere": 170.0}
