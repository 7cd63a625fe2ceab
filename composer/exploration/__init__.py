"""Explore: which methods pay on a model and its data, measured with the statistics of a careful paper.

The modules, in reading order:

- ``explore``: the call for a program, from its facts to the report.
- ``goal_options``, ``choice``, ``given_recipe``: the goal, and the methods to try or to confirm, as a user names them.
- ``goal``: what a run is to reach, such as ``MulticlassAccuracy>=0.96`` as soon as possible.
- ``variant``: a named set of changes to the program, such as a method or another learning rate.
- ``trajectory``: what a run has reached after which time.
- ``runner``: trains variants; strategies ask it, and tests replace it by a simulation.
- ``method_search``: the search from beginning to end.
- ``budgeted_runner``: what was spent, what a run will cost, and whether it fits into the budget.
- ``planning``: A/A runs of the baseline, what can be told within the budget, and how long it takes.
- ``curves``: the time to a target, and how far a run is ahead of the baseline at equal time.
- ``joint_effects``, ``short_runs``: estimate the effects of many methods from few runs of combinations.
- ``halving``, ``race``: tune the baseline, find methods that seem to pay, and combine them.
- ``paired_runs``, ``confirmation``: pairs of runs with fresh seeds decide what pays.
- ``recipe_confirmation``: the same for a recipe that is given, without a search.
- ``kept_runs``: the runs that were compared, to be drawn.
- ``attribution``: what each part of a confirmed combination contributes.
- ``conclusions``: verdicts, the effect of the recipe, and the runs that are kept, from all of these.
- ``exploration``, ``recipe``: the result, and the lines to paste.
- ``trial_runner``: the runner of real programs, of which each run is a trial, or several that go on from each other.
- ``training_probe``, ``training_clock``: what such a trial does: trains, evaluates, stops, saves a checkpoint.
- ``held_out``: the halves of the evaluation data.
- ``program_facts``, ``method_rows``, ``space``: what is known of a program, and the variants that may apply to it.
- ``screening``, ``screening_probe``: what a step of each variant costs, measured in turn with the unchanged run.
- ``screening_stage``: which variants are screened, for how long, and the records of it.
- ``progress``, ``command``: what is said meanwhile, and the command that repeats it.
- ``durations``: times such as "10m".
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CHOICES": "composer.exploration.choice",
        "BaselineError": "composer.exploration.planning",
        "Evaluation": "composer.exploration.trajectory",
        "Exploration": "composer.exploration.exploration",
        "Failure": "composer.exploration.runner",
        "Goal": "composer.exploration.goal",
        "MethodVerdict": "composer.exploration.exploration",
        "Plan": "composer.exploration.planning",
        "Request": "composer.exploration.runner",
        "Runner": "composer.exploration.runner",
        "Trajectory": "composer.exploration.trajectory",
        "Variant": "composer.exploration.variant",
        "confirm_recipe": "composer.exploration.recipe_confirmation",
        "explore": "composer.exploration.explore",
        "search": "composer.exploration.method_search",
    },
)
