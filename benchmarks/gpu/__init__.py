"""Everything that needs a GPU, in one command: ``make gpu``, or one part of it, ``make gpu PART=speed``.

A part is a module of this package with a table ``CHECKS``: a name, and a function of
:class:`~benchmarks.gpu.options.Options` that returns a
:class:`~benchmarks.report.Report`, or raises :class:`~benchmarks.gpu.options.SkipError`; and a table ``SECONDS``, the
time of each check, which is never taken by those before it.
"""

from __future__ import annotations

PARTS = ("tests", "nccl", "memory", "speed")
ALONE = ("speed",)
"""Parts whose checks are never run beside others: they measure time."""
PIECES = (
    'PART=tests GPU_ARGS="--only compiler trains gpu anywhere"',
    'PART=tests GPU_ARGS="--only commands"',
    "PART=nccl",
    "PART=memory",
    'PART=speed GPU_ARGS="--only gpt2 resnet50"',
    'PART=speed GPU_ARGS="--only step_overhead checkpoint_stall augmentations methods"',
)
"""What to give to ``make gpu`` for everything in commands of less than ten minutes each, 34 minutes together."""
