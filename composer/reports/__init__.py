"""Reports of runs: pages with curves, events and facts of a run, in one file that opens offline.

The modules, in reading order:

- ``page``: the page of one run, from its history.
- ``curves``: figures of its metrics over the steps, with events; ``groups`` chooses which metrics share a figure.
- ``checkpoints``: the best checkpoint, and the lines that load it.
- ``logged``: sections of tables, matrices and images that were logged.
- ``png``: write images as PNG.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ReportImage": "composer.reports.logged",
        "run_report": "composer.reports.page",
    },
)
