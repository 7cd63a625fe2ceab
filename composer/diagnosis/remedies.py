"""The remedies that doctor tries: what each changes, when it applies, and the lines to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer.diagnosis.verdict import shares_of

__all__ = ["REMEDIES", "Remedy", "applicable", "combination", "would_save"]

# Fractions of a step from which a remedy is worth a try.
_DATA, _OPTIMIZER, _SAVING, _COMPUTE = 0.05, 0.05, 0.05, 0.3


@dataclass(frozen=True)
class Remedy:
    """A change that may make a run faster.

    Args:
        name: Its name, of :data:`REMEDIES` with a value, such as "workers-2".
        changes: The change as assignments.
        edits: The change as names of ``edits``.
        lines: What to write into the program.
        exact: Whether it changes no number; others are reported separately, and never combined.
        group: Remedies of one group exclude each other.

    >>> Remedy(
    ...     "workers-2", ("train_dataloader.num_workers=2",), lines="DataLoader(..., num_workers=2)"
    ... ).changed
    ('train_dataloader',)
    """

    name: str
    changes: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    lines: str = ""
    exact: bool = True
    group: str = ""

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the arguments of the trainer that the assignments change."""
        return tuple(dict.fromkeys(change.partition("=")[0].rstrip("+-").partition(".")[0] for change in self.changes))


REMEDIES: dict[str, str] = {
    "workers": "more or fewer data workers",
    "persistent": "data workers that outlive the epoch",
    "prefetch": "more batches that the workers prepare",
    "pin": "pinned memory for the transfer to the device",
    "tensor_loader": "TensorLoader instead of a DataLoader of tensors",
    "channels_last": "images in the memory format channels_last",
    "fused": "the fused implementation of the optimizer",
    "foreach": "the implementation of the optimizer for lists of tensors",
    "find_unused": "no search for unused parameters",
    "save_async": "checkpoints written in the background",
    "progress_bar": "no progress bar",
    "microbatch": "batches in one piece, or larger microbatches",
    "compile": "the compiled model (takes long to start)",
    "float32": "float32 instead of float64 (changes numbers)",
    "bf16": "mixed precision with bfloat16 (changes numbers)",
}
# Tried only if they are named.
_ON_REQUEST = ("compile",)


def applicable(result: Mapping[str, Any], names: Sequence[str] | None = None) -> Iterator[Remedy]:
    """Yield the remedies that may help a measured run.

    Args:
        result: What :class:`.StepRecorder` measured.
        names: Names of the remedies to consider, of :data:`REMEDIES`; None for all that start quickly.

    >>> data = {"is_loader": True, "workers": 0, "pinned": False, "tensors": False}
    >>> facts = {"device": "cpu", "cores": 2, "data": data, "optimizers": []}
    >>> facts |= dict.fromkeys(
    ...     ("convolutions", "find_unused_parameters", "savers", "float64", "compiled"), False
    ... )
    >>> facts |= {"loggers": [], "microbatch": None, "ranks": 1, "saves_in_background": True}
    >>> [one.name for one in applicable({"steps": [{"data": 1.0}], "facts": facts})]
    ['workers-1', 'workers-2']
    """
    facts, shares = result["facts"], shares_of(result)
    chosen = [name for name in REMEDIES if name not in _ON_REQUEST] if names is None else list(names)
    for remedy in (*_data(facts, shares), *_model(facts, shares, result), *_outputs(facts, shares)):
        if remedy.name.partition("-")[0] in chosen:
            yield remedy


def _data(facts: Mapping[str, Any], shares: Mapping[str, float]) -> Iterator[Remedy]:
    data, share = facts["data"], shares.get("data", 0.0) + shares.get("transfer", 0.0)
    if not data["is_loader"] or share < _DATA:
        return
    present = data["workers"]
    for number in sorted({0, 1, 2, 4, facts["cores"]}):
        if number != present and number <= max(2, facts["cores"]) and not (number == 0 and share < 0.1):
            changes = [f"train_dataloader.num_workers={number}"]
            lines = f"DataLoader(..., num_workers={number})"
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
        lines = "composer.datasets.TensorLoader(dataset.tensors, batch_size, shuffle=...)"
        yield Remedy("tensor_loader", edits=("tensor_loader",), lines=lines, group="loader")


def _model(facts: Mapping[str, Any], shares: Mapping[str, float], result: Mapping[str, Any]) -> Iterator[Remedy]:
    compute = sum(shares.get(part, 0.0) for part in ("forward", "loss", "backward"))
    if facts["convolutions"] and not facts.get("channels_last") and compute > _COMPUTE:
        change = ("algorithms+=ChannelsLast()",)
        yield Remedy("channels_last", change, lines="Trainer(..., algorithms=[..., ChannelsLast()])")
    if shares.get("optimizer", 0.0) > _OPTIMIZER:
        for name in ("fused", "foreach"):
            able = [each for each in facts["optimizers"] if name in each["accepts"]]
            if able and len(able) == len(facts["optimizers"]) and not able[0].get(name) and not able[0].get("fused"):
                other = "foreach" if name == "fused" else "fused"
                changes = (f"optimizers.{other}=False", f"optimizers.{name}=True")
                lines = f"{able[0]['name']}(..., {name}=True)"
                yield Remedy(name, changes if other in able[0]["accepts"] else changes[1:], lines=lines, group="step")
    if facts["find_unused_parameters"] and facts["ranks"] > 1:
        lines = "Trainer(..., find_unused_parameters=False)"
        yield Remedy("find_unused", ("find_unused_parameters=False",), lines=lines)
    if result.get("forwards", 1) > 1 and facts["microbatch"]:
        lines = "Trainer(..., device_train_microbatch_size=None)"
        yield Remedy("microbatch", ("device_train_microbatch_size=None", "grad_accum=None"), lines=lines)
    if not facts["compiled"] and compute > _COMPUTE:
        yield Remedy("compile", ("compile_config={}",), lines="Trainer(..., compile_config={})", group="compile")
    if facts["float64"]:
        lines = "model.float(), and batches in float32"
        yield Remedy("float32", edits=("single",), lines=lines, exact=False)
    elif facts["device"] != "cpu" and facts.get("precision") == "fp32":
        yield Remedy("bf16", ("precision=amp_bf16",), lines="Trainer(..., precision='amp_bf16')", exact=False)


def _outputs(facts: Mapping[str, Any], shares: Mapping[str, float]) -> Iterator[Remedy]:
    if shares.get("saving", 0.0) > _SAVING and facts["savers"] and not facts["saves_in_background"]:
        yield Remedy("save_async", ("save_async=True",), lines="Trainer(..., save_async=True)")
    if "ProgressBarLogger" in facts["loggers"] and shares.get("logger ProgressBarLogger", 0.0) > 0.02:
        yield Remedy("progress_bar", ("progress_bar=False",), lines="Trainer(..., progress_bar=False)")


def combination(paying: Sequence[tuple[Remedy, float]]) -> Remedy | None:
    """Return the best remedy of each group as one, or None if fewer than two pay.

    Args:
        paying: The remedies that pay, each with its gain.

    >>> one, two = Remedy("fused", ("optimizers.fused=True",)), Remedy("microbatch", ("grad_accum=None",))
    >>> combination([(one, 0.1), (two, 0.2)]).name
    'microbatch+fused'
    """
    best: dict[str, Remedy] = {}
    for remedy, _ in sorted(paying, key=lambda pair: -pair[1]):
        if remedy.exact:
            best.setdefault(remedy.group or remedy.name, remedy)
    if any("tensor_loader" in remedy.edits for remedy in best.values()):
        best = {group: remedy for group, remedy in best.items() if group != "loader-prefetch"}
    if len(best) < 2:
        return None
    parts = list(best.values())
    return Remedy(
        "+".join(remedy.name for remedy in parts),
        tuple(change for remedy in parts for change in remedy.changes),
        tuple(name for remedy in parts for name in remedy.edits),
        "\n".join(remedy.lines for remedy in parts),
    )


def would_save(result: Mapping[str, Any]) -> dict[str, float]:
    """Return what the run would gain at most without its evaluation, checkpoints, loggers and each callback.

    Computed from the split of the steps, 1 / (1 - share) - 1, not measured.

    Args:
        result: What :class:`.StepRecorder` measured.

    >>> would_save({"steps": [{"callback Slow": 1.0, "forward": 1.0}]})
    {'callback Slow': 1.0}
    """
    able = ("callback ", "logger ", "logging", "evaluation", "saving", "metrics", "method ")
    shares = {part: share for part, share in shares_of(result).items() if part.startswith(able)}
    return {part: 1 / (1 - share) - 1 for part, share in shares.items() if share > 0.02}
