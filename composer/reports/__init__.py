"""Reports of runs: pages with curves, events and facts of a run, in one file that opens offline.

The modules, in reading order:

- ``page``: the page of one run, from its history.
- ``curves``: figures of its metrics over the steps, with events; ``groups`` chooses which metrics share a figure.
- ``run_clock``: samples, tokens and seconds of its steps, for other x axes.
- ``checkpoints``: the best checkpoint, and the lines that load it.
- ``run_time``: the ledger of the run, for where its time went; ``time_shares`` draws it.
- ``logged``: sections of tables, matrices and images that were logged.
- ``png``: write images as PNG.
- ``comparison``: runs or groups of seeds side by side; ``run_groups`` groups runs, ``targets`` names the metric,
  ``measures`` and ``differences`` compare what they came to, ``pareto`` time against quality, and ``remarks`` says what
  limits the comparison.
- ``comparison_page``, ``comparison_text``, ``group_curves``: its page, its tables on the terminal, and its figures.
- ``formatting``: numbers, durations and nested values as text.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ReportImage": "composer.reports.logged",
        "RunComparison": "composer.reports.comparison",
        "RunGroup": "composer.reports.run_groups",
        "compare_runs": "composer.reports.comparison",
        "run_report": "composer.reports.page",
    },
)
