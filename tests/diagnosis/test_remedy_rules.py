"""When each remedy is tried, and that the lines to write work in a program."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer.diagnosis.remedies import REMEDIES, Remedy
from composer.diagnosis.remedy_rules import applicable

DATA = {
    "is_loader": True,
    "workers": 0,
    "persistent": False,
    "prefetch": None,
    "pinned": False,
    "tensors": False,
    "batch_size": 8,
    "shuffled": True,
    "drop_last": False,
}
ADAM = {"name": "AdamW", "module": "torch.optim.adamw", "tensors": 2, "accepts": ["foreach", "fused"]}
FACTS: dict[str, Any] = {
    "device": "cpu",
    "cores": 4,
    "ranks": 1,
    "data": DATA,
    "optimizers": [{**ADAM, "fused": None, "foreach": None}],
    "convolutions": False,
    "find_unused_parameters": False,
    "microbatch": None,
    "compiled": False,
    "float64": False,
    "savers": 0,
    "saves_in_background": True,
    "loggers": [],
    "intervals": {},
}


def names(parts: dict[str, float], chosen: Any = None, **facts: Any) -> list[str]:
    return [one.name for one in applicable({"steps": [parts], "facts": FACTS | facts}, chosen)]


def test_only_what_takes_time_is_tried() -> None:
    assert names({"forward": 1.0}) == []
    assert names({"data": 1.0}) == ["workers-1", "workers-2", "workers-4"]
    assert names({"data": 1.0}, data={**DATA, "tensors": True})[-1] == "tensor_loader"
    assert names({"data": 1.0}, data={**DATA, "is_loader": False}) == []
    assert names({"optimizer": 0.5, "forward": 0.2}) == ["fused", "foreach"]
    assert names({"optimizer": 0.5}, optimizers=[{**ADAM, "fused": True}]) == []
    assert names({"forward": 1.0}, convolutions=True) == ["channels_last"]
    assert names({"forward": 1.0}, ["compile"]) == ["compile"]
    assert names({"saving": 1.0}, savers=1, saves_in_background=False) == ["save_async"]
    assert names({"backward": 1.0}, find_unused_parameters=True, ranks=2) == ["find_unused"]
    assert names({"forward": 1.0}, float64=True) == ["float32"]


def test_microbatches_are_tried_in_other_sizes() -> None:
    assert names({"forward": 1.0}, data={**DATA, "batch_size": 64}) == ["microbatch-32"]
    assert names({"forward": 1.0}, data={**DATA, "batch_size": 64}, steps_by_closure=True) == []
    many = {"steps": [{"forward": 1.0}], "forwards": 8, "facts": FACTS | {"microbatch": 2}}
    assert [one.name for one in applicable(many)] == ["microbatch-whole", "microbatch-4"]
    assert not any(one.exact for one in applicable({**many, "facts": FACTS | {"microbatch": 2, "batch_norm": True}}))


def test_precision_is_tried_where_the_device_has_it() -> None:
    assert names({"forward": 1.0}, precision="fp32", has_bf16=True) == ["bf16"]
    assert names({"forward": 1.0}, precision="fp32", has_bf16=False) == []
    cuda = {"device": "cuda", "precision": "fp32", "has_bf16": True, "matmul_precision": "highest"}
    assert names({"forward": 1.0}, **cuda) == ["bf16", "tf32"]
    assert names({"data": 1.0}, ["pin"], **cuda) == ["pin"]


def test_intervals_of_what_takes_time_are_tried() -> None:
    slow = {"callback OptimizerMonitor": 0.5, "logger CSVLogger": 0.3, "logger Mine": 0.2}
    intervals = {"OptimizerMonitor": ("batch_log_interval", 1), "CSVLogger": ("flush_interval", 100), "Mine": ("", 1)}
    assert names(slow, intervals=intervals) == ["log_interval-OptimizerMonitor", "log_interval-Mine"]
    assert names({"logger ConsoleLogger": 1.0}, loggers=["ConsoleLogger"]) == ["log_interval-ConsoleLogger"]


def test_compiling_the_model_is_compared_with_compiling_its_blocks() -> None:
    assert names({"forward": 1.0}, ["compile"], blocks="Block") == ["compile", "compile_blocks"]
    assert names({"forward": 1.0}, ["compile"], blocks=None) == ["compile"]
    assert names({"forward": 1.0}, ["compile_blocks"], blocks="Block") == ["compile_blocks"]
    assert names({"forward": 1.0}, ["compile"], blocks="Block", compiled=True) == []


PROGRAM = """
import torch
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset
from composer import Trainer
from composer.algorithms import LabelSmoothing
from composer.callbacks import CheckpointSaver, OptimizerMonitor
from composer.core.logger import LoggerDestination
from composer.loggers import CSVLogger
from composer.models import ComposerClassifier

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
    def forward(self, x):
        return self.inner(x)

def scaled(batch):
    seen.append("scaled")
    return batch

class Mine(LoggerDestination):
    def log_metrics(self, metrics, step=None):
        seen.append(step)

seen = []
net = nn.Sequential(nn.Conv2d(3, 4, 3), Block(), Block(), nn.Flatten(), nn.Linear(144, 2)).to(torch.DTYPE)
model = ComposerClassifier(net, num_classes=2)
dataset = TensorDataset(torch.randn(32, 3, 8, 8, dtype=torch.DTYPE), torch.randint(2, (32,)))
# before the objects
loader = DataLoader(dataset, batch_size=8, num_workers=WORKERS)
optimizer = AdamW(model.parameters())
saver = CheckpointSaver("saved", save_interval="1ba")
monitor = OptimizerMonitor()
table = CSVLogger("metrics.csv")
# before the trainer
trainer = Trainer(model=model, train_dataloader=loader, optimizers=optimizer, max_duration="3ba",
                  loggers=[Mine(), table], callbacks=[monitor, saver])
trainer.fit()
"""
BATCH = 8
# Whatever the lines set must not be set before.
OBJECTS = {
    "DataLoader": "loader = DataLoader(dataset, batch_size=8, num_workers=WORKERS)",
    "AdamW": "optimizer = AdamW(model.parameters())",
    "CheckpointSaver": 'saver = CheckpointSaver("saved", save_interval="1ba")',
    "OptimizerMonitor": "monitor = OptimizerMonitor()",
    "CSVLogger": 'table = CSVLogger("metrics.csv")',
    "Trainer": "callbacks=[monitor, saver])",
}


def extended(call: str, given: Mapping[str, str], added: str) -> str:
    """A call with arguments, and lines of a remedy: ``...`` stands for what is there, and names are replaced."""
    new: Any = ast.parse(f"call({added})", mode="eval").body
    arguments = {**given, **{each.arg: ast.unparse(each.value) for each in new.keywords}}
    if "num_workers" in arguments:
        call = call.replace(", num_workers=WORKERS", "")
    texts = [f"{name}={text.replace('LabelSmoothing(...)', 'LabelSmoothing(0.1)')}" for name, text in arguments.items()]
    return f"{call.removesuffix(')')}, {', '.join(texts)})".replace("(, ", "(")


def pasted(remedy: Remedy, given: Mapping[str, Mapping[str, str]]) -> str:
    """The program with more arguments, and with the lines of a remedy, as a user would write them."""
    *before, last = remedy.lines.splitlines()
    program = PROGRAM
    name = last.partition("(")[0]
    for other in given.keys() & OBJECTS.keys() - {name}:
        program = program.replace(OBJECTS[other], extended(OBJECTS[other], given[other], ""))
    if last.startswith("if step"):
        program = program.replace("        seen.append", f"        {last}\n        seen.append")
    elif name == "DataSpec":
        program = program.replace("# before the trainer", f"loader = {last.replace('...', 'loader')}")
    elif name == "TensorLoader":
        program = program.replace(OBJECTS["DataLoader"], f"loader = {last}")
    elif name in OBJECTS:
        added = last.removeprefix(f"{name}(").removeprefix("..., ").removesuffix(")")
        assert program.count(OBJECTS[name]) == 1
        program = program.replace(OBJECTS[name], extended(OBJECTS[name], given.get(name, {}), added))
    else:
        before.append(last)
    program = program.replace("# before the objects", "\n".join(before))
    program = program.replace("DTYPE", "float64" if remedy.name == "float32" else "float32")
    return program.replace("WORKERS", "1" if remedy.name in ("persistent", "prefetch-8") else "0")


def found(parts: dict[str, float], chosen: Any, forwards: float = 1, **facts: Any) -> list[Remedy]:
    return list(applicable({"steps": [parts], "forwards": forwards, "facts": FACTS | facts}, chosen))


COMPUTE = {"forward": 1.0, "optimizer": 1.0}
SLOW_OUTPUTS = {"callback OptimizerMonitor": 1.0, "logger Mine": 1.0, "logger CSVLogger": 1.0, "saving": 1.0}
INTERVALS = {"OptimizerMonitor": ("batch_log_interval", 1), "CSVLogger": ("flush_interval", 1), "Mine": ("", 1)}
CASES = [
    *found({"data": 1.0}, ["workers", "tensor_loader"], cores=2, data={**DATA, "tensors": True}),
    *found({"data": 1.0}, ["persistent", "prefetch"], data={**DATA, "workers": 1}),
    *found(COMPUTE, ["fused", "foreach"]),
    *found(COMPUTE, ["channels_last"], convolutions=True),
    *found(COMPUTE, ["microbatch"], forwards=8, microbatch=2),
    *found(COMPUTE, ["float32"], float64=True),
    *found(COMPUTE, ["bf16"], precision="fp32", has_bf16=True),
    *found(COMPUTE, ["tf32"], precision="fp32", has_bf16=False, device="cuda", matmul_precision="highest"),
    *found(COMPUTE, ["compile", "compile_blocks"], blocks="Block"),
    *found(SLOW_OUTPUTS, ["log_interval", "save_async"], intervals=INTERVALS, savers=1, saves_in_background=False),
    *found({"saving": 1.0}, ["save_async"], savers=1, own_savers=1, saves_in_background=False),
    *found({"logger ConsoleLogger": 1.0}, ["log_interval"], loggers=["ConsoleLogger"]),
    *found({"logger ProgressBarLogger": 1.0}, ["progress_bar"], loggers=["ProgressBarLogger"]),
    *found({"backward": 1.0}, ["find_unused"], find_unused_parameters=True, ranks=2),
]


OLD = {"Trainer": {"grad_accum": "4"}}
WORKERS = {"DataLoader": {"num_workers": "1", "persistent_workers": "True", "prefetch_factor": "4", "timeout": "90"}}
WITHOUT = {"persistent_workers": False, "prefetch_factor": None, "timeout": 0}
DATA_OF_WORKERS = {**DATA, "workers": 1, "persistent": True, "prefetch": 4, "worker_arguments": WITHOUT}
# With arguments that the lines contradict, or must keep.
GIVEN = [
    *((one, OLD) for one in found(COMPUTE, ["microbatch"], forwards=8, microbatch=2, grad_accum=True)),
    *((one, WORKERS) for one in found({"data": 1.0}, ["workers"], cores=2, data=DATA_OF_WORKERS)),
    *(
        (one, {"Trainer": {"algorithms": "[LabelSmoothing(0.1)]"}})
        for one in found(COMPUTE, ["channels_last"], convolutions=True, algorithms=["LabelSmoothing"])
    ),
    *(
        (one, {"DataSpec": {"batch_transforms": "scaled"}})
        for one in found(COMPUTE, ["float32"], float64=True, batch_transforms="scaled")
    ),
]


@pytest.mark.parametrize(
    ("remedy", "given"),
    [*((remedy, {}) for remedy in CASES), *GIVEN],
    ids=lambda each: each.name if isinstance(each, Remedy) else "-".join(each),
)
def test_the_lines_work_when_they_are_pasted(
    remedy: Remedy, given: Mapping[str, Mapping[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compiled: list[str] = []
    if remedy.group == "compile":  # compiling takes long; what is compiled shows all the same
        monkeypatch.setattr(nn.Module, "compile", lambda module, **_: compiled.append(type(module).__name__))
        monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function.__name__) or function)
    before = torch.get_float32_matmul_precision()
    names: dict[str, Any] = {"__name__": "train"}
    try:
        exec(compile(pasted(remedy, given), "train.py", "exec"), names)
        assert names["trainer"].state.timestamp.batch == 3
        check(remedy, names, compiled)
        if "DataSpec" in given:
            assert "scaled" in names["seen"]
        if "algorithms" in given.get("Trainer", {}):
            assert type(names["trainer"].state.algorithms[0]).__name__ == "LabelSmoothing"
    finally:
        torch.set_float32_matmul_precision(before)
        if "trainer" in names:
            names["trainer"].close()


def check(remedy: Remedy, names: dict[str, Any], compiled: list[str]) -> None:
    """Check that the lines have done what the remedy says."""
    trainer, loader = names["trainer"], names["loader"]
    destinations = [type(one).__name__ for one in trainer.logger.destinations]
    name, _, about = remedy.name.partition("-")
    done = {
        "workers": lambda: (loader.num_workers, loader.persistent_workers) == (int(about), about != "0"),
        "persistent": lambda: loader.persistent_workers,
        "prefetch": lambda: loader.prefetch_factor == 8,
        "tensor_loader": lambda: type(loader).__name__ == "TensorLoader",
        "fused": lambda: names["optimizer"].param_groups[0]["fused"],
        "foreach": lambda: names["optimizer"].param_groups[0]["foreach"],
        "channels_last": lambda: type(trainer.state.algorithms[-1]).__name__ == "ChannelsLast",
        "microbatch": lambda: trainer.state.device_train_microbatch_size == (4 if about == "4" else BATCH),
        "float32": lambda: {p.dtype for p in trainer.state.model.parameters()} == {torch.float32},
        "bf16": lambda: trainer.state.precision == "amp_bf16",
        "tf32": lambda: torch.get_float32_matmul_precision() == "high",
        "compile": lambda: compiled == ["forward_alone", "forward_and_loss"],
        "compile_blocks": lambda: compiled == ["Block_0"],  # of both
        "save_async": lambda: names["saver"].asynchronous or "Trainer(..., save_async=True)" in remedy.lines,
        "progress_bar": lambda: "ProgressBarLogger" not in destinations,
        "find_unused": lambda: True,  # whether it is accepted
    }
    intervals = {
        "OptimizerMonitor": lambda: names["monitor"].batch_log_interval == 100,
        "CSVLogger": lambda: names["table"].flush_interval == 100,
        "Mine": lambda: 0 in names["seen"] and 1 not in names["seen"],
        "ConsoleLogger": lambda: True,  # whether it is accepted
    }
    assert intervals[about]() if name == "log_interval" else done[name]()


def test_each_remedy_has_a_case() -> None:
    assert {one.name.partition("-")[0] for one in CASES} == set(REMEDIES) - {"pin"}  # which needs an accelerator


@pytest.mark.parametrize(("name", "other"), [("fused", "foreach"), ("foreach", "fused")])
def test_the_other_implementation_of_an_optimizer_is_switched_off(name: str, other: str) -> None:
    given = {"name": "AdamW", "module": "torch.optim", "tensors": 2, "accepts": ["foreach", "fused"], other: True}
    lines = [one.lines for one in found(COMPUTE, [name], optimizers=[given])]
    assert lines == ([f"AdamW(..., {other}=False, {name}=True)"] if name == "fused" else [])


def test_a_function_without_a_name_is_called_by_that_of_its_argument() -> None:
    lines = [one.lines for one in found(COMPUTE, ["float32"], float64=True, batch_transforms="")]
    assert "    batch = batch_transforms(batch)  # the function that is there\n" in lines[0]
