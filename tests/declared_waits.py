"""Allowed host-device synchronizations of our algorithms, callbacks and loggers: in which steps, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.accelerator import Wait


@dataclass(frozen=True)
class Declared:
    """Waits that one class may cause.

    Attributes:
        what: What the host waits for, as in :class:`tests.accelerator.Wait`; "" is anything.
        where: The file, and after a space the function, where it happens.
        steps: Tells whether it happens in a step of the case in the class's test file, counted from 1.
        why: Why it has to.
    """

    what: str
    where: str
    steps: Callable[[int], bool]
    why: str

    def covers(self, wait: Wait) -> bool:
        file, _, function = self.where.partition(" ")
        place, _, caller = wait.where.partition(" ")
        return (
            self.what in ("", wait.what)
            and place.startswith(f"{file}:")
            and caller == function
            and self.steps(wait.step)
        )


FIRST_BATCH = Declared(
    "_local_scalar_dense",
    "composer/algorithms/_augmentation.py <genexpr>",
    lambda step: step == 1,
    "The values of the first batch are compared with value_range, once in a run, since images that were normalized "
    "before would be cut off in silence.",
)

WAITS: dict[str, tuple[Declared, ...]] = {
    "AugMix": (FIRST_BATCH,),
    "RandAugment": (FIRST_BATCH,),
    "CheckpointSaver": (
        Declared(
            "copy to the host",
            "composer/checkpoint/file_format.py write",
            lambda step: step % 2 == 0,
            "A checkpoint holds what is on the device; with save_async=True it is copied to the host in one go.",
        ),
        Declared(
            "copy to the host",
            "composer/checkpoint/metric_values.py _plain",
            lambda step: step == 4,
            "The training metrics of an epoch are computed before the checkpoint at its end, which has their values.",
        ),
    ),
    "Generate": (
        Declared(
            "",
            "tests/callbacks/test_generate.py generate",
            lambda step: step % 2 == 0,
            "generate() of transformers reads each token, at the end of the step in which generating is due.",
        ),
        Declared(
            "copy to the host",
            "composer/callbacks/generate.py _continue",
            lambda step: step % 2 == 0,
            "The tokens are decoded to text there.",
        ),
    ),
    "LMEvalHarness": (
        Declared(
            "copy to the host",
            "composer/callbacks/_lm_eval_ranks.py _score",
            lambda step: step % 2 == 0,
            "The harness computes its scores on the host, at the end of the step in which an evaluation is due.",
        ),
    ),
    "PostHocEMA": (
        Declared(
            "copy to the host",
            "composer/algorithms/post_hoc_ema.py _full_copy",
            lambda step: True,
            "A snapshot is kept in the memory of the host; the case takes one in each step, a run twenty in all.",
        ),
    ),
}


def compare(name: str, found: Iterable[Wait], num_steps: int) -> tuple[list[Wait], list[Declared]]:
    """Return the waits of a class that are not declared, and the declarations of waits that did not happen.

    Args:
        name: The class.
        found: The waits of a run with it.
        num_steps: The number of steps of the run.
    """
    found, declared = list(found), WAITS.get(name, ())
    undeclared = [wait for wait in found if not any(each.covers(wait) for each in declared)]
    missing = [
        each
        for each in declared
        for step in range(1, num_steps + 1)
        if each.steps(step) and not any(each.covers(wait) and wait.step == step for wait in found)
    ]
    return undeclared, missing
