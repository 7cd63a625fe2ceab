"""Report the model of a run: one line before training, the full summary, and the table of a notebook."""

from __future__ import annotations

from composer import dist
from composer.core.state_html import state_html
from composer.model_summary import ModelSummary, model_summary
from composer.trainer.run import Run

__all__ = ["html_of_run", "report_model", "summary_of_run"]


def summary_of_run(run: Run, depth: int | None = 2) -> ModelSummary:
    """Return the summary of a run's model, with what its algorithms changed.

    Args:
        run: The run.
        depth: Number of module levels to list; None lists all.
    """
    return model_summary(run.state.model, depth, changes=run.engine.model_changes)


def report_model(run: Run) -> None:
    """Show the model as one line on the console of rank 0, unless the same line was shown before.

    Args:
        run: The run.
    """
    if dist.get_global_rank() != 0:
        return
    line = summary_of_run(run, depth=0).line()
    if line != run.reported_model:
        run.reported_model = line
        run.logger.notices.show(line)


def html_of_run(run: Run) -> str:
    """Return a run as a table for notebooks.

    Args:
        run: The run.
    """
    more = [("ranks", f"{dist.get_world_size()} ({run.strategy.name})")] if dist.get_world_size() > 1 else []
    model = summary_of_run(run, depth=0)
    rows = [("model", model.line().partition("; ")[0]), ("changes", [" ".join(change) for change in model.changes])]
    return state_html(run.state, "Trainer", [*rows, *more])
