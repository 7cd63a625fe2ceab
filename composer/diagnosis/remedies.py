"""The remedies that doctor tries: what each changes, and the lines to write; ``remedy_rules`` says when."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer.diagnosis.communication import COMMUNICATION, WAITING
from composer.diagnosis.step_split import shares_of

__all__ = ["ON_REQUEST", "REMEDIES", "Remedy", "combination", "would_save"]


@dataclass(frozen=True)
class Remedy:
    """A change that may make a run faster.

    Args:
        name: Its name, of :data:`REMEDIES` with a value, such as "workers-2".
        changes: The change as assignments.
        edits: The change as names of ``edits``.
        lines: What to write into the program; ``...`` stands for the arguments that are there.
        exact: Whether it changes no number but in its last digits; others are reported separately, and never combined.
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
    "log_interval": "metrics logged every 100 batches",
    "microbatch": "the batch in one piece, or in larger or smaller microbatches",
    "compile": "the compiled model, and its compiled blocks if it repeats any (takes long to start)",
    "compile_blocks": "only the compiled blocks of the model, such as its layers (takes less long to start)",
    "float32": "float32 instead of float64 (changes numbers)",
    "bf16": "mixed precision with bfloat16 (changes numbers)",
    "tf32": "TensorFloat32 for matrix products in float32 on CUDA (changes numbers)",
}
# Tried only if they are named.
ON_REQUEST = ("compile", "compile_blocks")
# A line to write that adds arguments to a call which is there.
_CALL = re.compile(r"(?P<name>\w+)\(\.\.\., (?P<arguments>.*)\)")


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
    loader = best.get("loader", Remedy(""))
    for group, without in (("loader-prefetch", ("tensor_loader", "workers-0")), ("pin", ("tensor_loader",))):
        if loader.name in without:
            best.pop(group, None)
    if len(best) < 2:
        return None
    parts = list(best.values())
    return Remedy(
        "+".join(remedy.name for remedy in parts),
        tuple(change for remedy in parts for change in remedy.changes),
        tuple(name for remedy in parts for name in remedy.edits),
        _together(remedy.lines for remedy in parts),
    )


def _together(texts: Iterable[str]) -> str:
    """Return lines to write as one text: imports first, and the arguments of the same call in one line.

    Args:
        texts: The lines of each remedy.
    """
    imports: dict[str, None] = {}
    rest: dict[str, list[str]] = {}
    for line in (line for text in texts for line in text.splitlines()):
        call = _CALL.fullmatch(line)
        if line.startswith(("from ", "import ")):
            imports[line] = None
        elif call is not None:
            rest.setdefault(call["name"], []).append(call["arguments"])
        else:
            rest[line] = []
    written = (f"{name}(..., {', '.join(given)})" if given else name for name, given in rest.items())
    return "\n".join([*imports, *written])


def would_save(result: Mapping[str, Any]) -> dict[str, float]:
    """Return what the run would gain at most without its evaluation, checkpoints, communication and each callback.

    Computed from the split of the steps, 1 / (1 - share) - 1, not measured. For the evaluation, also what the run
    would gain if it were half and a tenth as often.

    Args:
        result: What :class:`.StepRecorder` measured.

    >>> would_save({"steps": [{"callback Slow": 1.0, "forward": 1.0}]})
    {'callback Slow': 1.0}
    >>> {
    ...     name: round(gain, 2)
    ...     for name, gain in would_save({"steps": [{"evaluation": 1, "forward": 1}]}).items()
    ... }
    {'evaluation': 1.0, 'evaluation half as often': 0.33, 'evaluation a tenth as often': 0.82}
    """
    able = ("callback ", "logger ", "logging", "evaluation", "saving", "metrics", "method ", COMMUNICATION, WAITING)
    gains: dict[str, float] = {}
    for part, share in shares_of(result).items():
        if part.startswith(able) and share > 0.02:
            gains[part] = _gain(share)
            if part == "evaluation":
                gains |= {"evaluation half as often": _gain(share / 2)}
                gains |= {"evaluation a tenth as often": _gain(share * 0.9)}
    return gains


def _gain(share: float) -> float:
    """Return the gain in speed without a fraction of a step."""
    return 1 / (1 - share) - 1 if share < 1 else float("inf")
