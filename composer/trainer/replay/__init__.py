"""Replay: repeat any step of a run, bit for bit, with everything in it visible.

The order of the data is a function of the seed, and checkpoints are exact; so a step is that of the run if training
starts from an earlier checkpoint. The modules, in reading order:

- ``replay``: choose where to start, train up to the step without outputs, run it.
- ``recorder``: what is read in the step; a prompt before it.
- ``loss_calls``: the loss of each sample, after the step.
- ``record``: the step as a value, and as a table on the terminal.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Microbatch": "composer.trainer.replay.record",
        "Replay": "composer.trainer.replay.replay",
        "ReplayedStep": "composer.trainer.replay.record",
    },
)
