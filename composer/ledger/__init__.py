"""Account for the wall time of a run: training, waiting for data, evaluation, saving, compiling, crashes (goodput).

The modules, in reading order:

    category: What a second was spent on.
    clock: The clock of a trainer, which assigns each second to one category while it runs.
    process_start: When this process started.
    compile_time: How long ``torch.compile`` has compiled in this process.
    segment: What one process adds to the ledger: a line of ``ledger.jsonl``.
    ledger: The sums over all processes of a run, including what crashes cost.
    goodput: How much of the time of all ranks trained the resulting model.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Category": "composer.ledger.category",
        "Goodput": "composer.ledger.goodput",
        "Ledger": "composer.ledger.ledger",
        "LedgerClock": "composer.ledger.clock",
        "Position": "composer.ledger.segment",
        "Segment": "composer.ledger.segment",
        "timed_as": "composer.ledger.clock",
    },
)
