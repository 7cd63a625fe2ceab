"""Rules: which remedies may help a measured run, with the change of each and the lines to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer.diagnosis.remedies import ON_REQUEST, REMEDIES, Remedy
from composer.diagnosis.step_split import shares_of

__all__ = ["applicable"]

# Fractions of a step from which a remedy is worth a try.
_DATA, _OPTIMIZER, _SAVING, _LOGGING, _COMPUTE = 0.05, 0.05, 0.05, 0.02, 0.3
# Batches between two logged points that are enough for a curve.
_LOG_INTERVAL = 100
# Fewer samples in a microbatch are bound by the host.
_SMALLEST_MICROBATCH = 8


def applicable(result: Mapping[str, Any], names: Sequence[str] | None = None) -> Iterator[Remedy]:
    """Yield the remedies that may help a measured run.

    Args:
        result: What :class:`.StepRecorder` measured.
        names: Names of the remedies to consider, of :data:`.REMEDIES`; None for all that start quickly.

    >>> data = {"is_loader": True, "workers": 0, "pinned": False, "tensors": False}
    >>> facts = {"device": "cpu", "cores": 2, "data": data, "optimizers": [], "intervals": {}}
    >>> facts |= dict.fromkeys(
    ...     ("convolutions", "find_unused_parameters", "savers", "float64", "compiled"), False
    ... )
    >>> facts |= {"loggers": [], "microbatch": None, "ranks": 1, "saves_in_background": True}
    >>> [one.name for one in applicable({"steps": [{"data": 1.0}], "facts": facts})]
    ['workers-1', 'workers-2']
    """
    facts, shares = result["facts"], shares_of(result)
    chosen = [name for name in REMEDIES if name not in ON_REQUEST] if names is None else list(names)
    if "compile" in chosen:
        chosen.append("compile_blocks")  # which of the two pays depends on the length of the run
    compute = sum(shares.get(part, 0.0) for part in ("forward", "loss", "backward"))
    rules = (*_data(facts, shares), *_steps(facts, shares), *_computation(facts, compute, result.get("forwards", 1)))
    for remedy in (*rules, *_precision(facts, compute), *_outputs(facts, shares)):
        if remedy.name.partition("-")[0] in chosen:
            yield remedy


def _data(facts: Mapping[str, Any], shares: Mapping[str, float]) -> Iterator[Remedy]:
    """Yield the remedies of the data loader."""
    data, share = facts["data"], shares.get("data", 0.0) + shares.get("transfer", 0.0)
    if not data["is_loader"] or share < _DATA:
        return
    present = data["workers"]
    for number in sorted({0, 1, 2, 4, facts["cores"]}):
        if number != present and number <= max(2, facts["cores"]) and not (number == 0 and share < 0.1):
            changes = [f"train_dataloader.num_workers={number}"]
            without = "".join(f", {name}={none}" for name, none in data.get("worker_arguments", {}).items())
            lines = f"DataLoader(..., num_workers=0{without})"
            if number:
                changes.append("train_dataloader.persistent_workers=True")
                lines = f"DataLoader(..., num_workers={number}, persistent_workers=True)"
            yield Remedy(f"workers-{number}", tuple(changes), lines=lines, group="loader")
    if present and not data["persistent"]:
        change = ("train_dataloader.persistent_workers=True",)
        yield Remedy("persistent", change, lines="DataLoader(..., persistent_workers=True)", group="loader")
    if present and (data["prefetch"] or 2) < 8:
        change = ("train_dataloader.prefetch_factor=8",)
        yield Remedy("prefetch-8", change, lines="DataLoader(..., prefetch_factor=8)", group="loader-prefetch")
    if facts["device"] != "cpu" and not data["pinned"]:
        yield Remedy("pin", ("train_dataloader.pin_memory=True",), lines="DataLoader(..., pin_memory=True)")
    if data["tensors"]:
        given = f"batch_size={data['batch_size']}, shuffle={data['shuffled']}, drop_last={data['drop_last']}"
        lines = f"from composer.datasets import TensorLoader\nTensorLoader(dataset.tensors, {given})"
        yield Remedy("tensor_loader", edits=("tensor_loader",), lines=lines, group="loader")


def _steps(facts: Mapping[str, Any], shares: Mapping[str, float]) -> Iterator[Remedy]:
    """Yield the remedies of the optimizer's step, and of the communication of gradients."""
    if shares.get("optimizer", 0.0) > _OPTIMIZER:
        for name in ("fused", "foreach"):
            able = [each for each in facts["optimizers"] if name in each["accepts"]]
            if able and len(able) == len(facts["optimizers"]) and not able[0].get(name) and not able[0].get("fused"):
                other = "foreach" if name == "fused" else "fused"
                changes = (f"optimizers.{other}=False", f"optimizers.{name}=True")
                off = f"{other}=False, " if able[0].get(other) else ""  # of the two, only one can be on
                lines = f"{able[0]['name']}(..., {off}{name}=True)"
                yield Remedy(name, changes if other in able[0]["accepts"] else changes[1:], lines=lines, group="step")
    if facts["find_unused_parameters"] and facts["ranks"] > 1:
        lines = "Trainer(..., find_unused_parameters=False)"
        yield Remedy("find_unused", ("find_unused_parameters=False",), lines=lines)


def _computation(facts: Mapping[str, Any], compute: float, forwards: float) -> Iterator[Remedy]:
    """Yield the remedies of the forward and backward pass that change no more than rounding."""
    if facts["convolutions"] and not facts.get("channels_last") and compute > _COMPUTE:
        change = ("algorithms+=ChannelsLast()",)
        present = "".join(f"{name}(...), " for name in facts.get("algorithms", ()))
        lines = f"from composer.algorithms import ChannelsLast\nTrainer(..., algorithms=[{present}ChannelsLast()])"
        yield Remedy("channels_last", change, lines=lines)
    yield from _microbatches(facts, compute, forwards)
    if facts["compiled"] or compute <= _COMPUTE:
        return
    yield Remedy("compile", ("compile_config={}",), lines="Trainer(..., compile_config={})", group="compile")
    if facts.get("blocks"):
        argument = "compile_config={'regional': True}"
        yield Remedy("compile_blocks", (argument,), lines=f"Trainer(..., {argument})", group="compile")


def _microbatches(facts: Mapping[str, Any], compute: float, forwards: float) -> Iterator[Remedy]:
    """Yield other sizes of microbatches: all in one, twice as large, and half as large."""
    present, batch = facts["microbatch"], facts["data"].get("batch_size")
    exact = not facts.get("batch_norm")

    def microbatch(size: int | None) -> Remedy:
        name = "microbatch-whole" if size is None else f"microbatch-{size}"
        changes = (f"device_train_microbatch_size={size}", "grad_accum=None")
        old = ", grad_accum=None" if facts.get("grad_accum") else ""  # of the two, only one can be given
        lines = f"Trainer(..., device_train_microbatch_size={size}{old})"
        return Remedy(name, changes, lines=lines, exact=exact, group="microbatch")

    if forwards > 1 and present:
        yield microbatch(None)
        if forwards >= 4:
            yield microbatch(int(present) * 2)
    elif batch and compute > _COMPUTE and batch >= 4 * _SMALLEST_MICROBATCH and not facts.get("steps_by_closure"):
        yield microbatch(batch // 2)


def _precision(facts: Mapping[str, Any], compute: float) -> Iterator[Remedy]:
    """Yield the remedies that change numbers, which are reported separately."""
    if facts["float64"]:
        present = facts.get("batch_transforms")
        before = ""
        if present is not None:
            remark = "" if present else "  # the function that is there"
            before = f"    batch = {present or 'batch_transforms'}(batch){remark}\n"
        lines = (
            "from composer import DataSpec, trees\n"
            "model.float()\n"
            f"def to_float32(batch):\n{before}"
            "    return trees.map_tensors(lambda t: t.float() if t.is_floating_point() else t, batch)\n"
            "DataSpec(..., batch_transforms=to_float32)"
        )
        yield Remedy("float32", edits=("single",), lines=lines, exact=False)
        return
    if facts.get("precision") != "fp32" or compute <= _COMPUTE:
        return
    if facts.get("has_bf16", facts["device"] != "cpu"):
        lines = "Trainer(..., precision='amp_bf16')"
        yield Remedy("bf16", ("precision=amp_bf16",), lines=lines, exact=False, group="precision")
    if facts["device"] == "cuda" and facts.get("matmul_precision") == "highest":
        lines = "torch.set_float32_matmul_precision('high')"
        yield Remedy("tf32", edits=("tf32",), lines=lines, exact=False, group="precision")


def _outputs(facts: Mapping[str, Any], shares: Mapping[str, float]) -> Iterator[Remedy]:
    """Yield the remedies of what a run writes."""
    if shares.get("saving", 0.0) > _SAVING and facts["savers"] and not facts["saves_in_background"]:
        lines = "Trainer(..., save_async=True)"
        if facts.get("own_savers"):
            lines = "CheckpointSaver(..., asynchronous=True)"
        yield Remedy("save_async", edits=("save_async",), lines=lines)
    if "ProgressBarLogger" in facts["loggers"] and shares.get("logger ProgressBarLogger", 0.0) > _LOGGING:
        yield Remedy("progress_bar", ("progress_bar=False",), lines="Trainer(..., progress_bar=False)")
    if shares.get("logger ConsoleLogger", 0.0) > _LOGGING and "ConsoleLogger" in facts["loggers"]:
        change = (f"console_log_interval={_LOG_INTERVAL}ba",)
        lines = f"Trainer(..., console_log_interval='{_LOG_INTERVAL}ba')"
        yield Remedy("log_interval-ConsoleLogger", change, lines=lines)
    for name, (attribute, present) in facts.get("intervals", {}).items():
        share = shares.get(f"logger {name}", 0.0) + shares.get(f"callback {name}", 0.0)
        if attribute == "flush_interval":
            share += shares.get("logging", 0.0)  # reading metrics from the device
        if share <= _LOGGING or (attribute and present >= _LOG_INTERVAL):
            continue
        lines = f"{name}(..., {attribute}={_LOG_INTERVAL})"
        if not attribute:
            lines = f"if step is not None and step % 10: return  # first in {name}.log_metrics"
        yield Remedy(f"log_interval-{name}", edits=(f"log_interval:{name}",), lines=lines)
