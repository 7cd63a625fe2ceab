"""Find out which methods pay on a training program, measured with the statistics of a careful paper."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from composer._numbers import whole_number
from composer._text import one_of
from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.choice import Choice, check_changes
from composer.exploration.command import command_of, default_folder
from composer.exploration.durations import as_seconds
from composer.exploration.exploration import Exploration
from composer.exploration.given_recipe import GivenRecipe
from composer.exploration.goal_options import GoalOptions
from composer.exploration.method_search import search
from composer.exploration.planning import LEAST_PAIRS, LEAST_SEARCH_COST, SEARCH_COST, final_quality
from composer.exploration.program_facts import FACTS_PROBE, ProgramFacts
from composer.exploration.progress import Progress
from composer.exploration.recipe_confirmation import confirm_recipe
from composer.exploration.screening import program_facts
from composer.exploration.screening_probe import SCREENING_PROBE
from composer.exploration.screening_stage import KEPT_FOR_RACE, ScreeningStage
from composer.exploration.training_clock import CLOCKS, Clock
from composer.exploration.trial_runner import PROBE, TrialRunner
from composer.exploration.variant import Variant
from composer.statistics._arguments import at_least
from composer.statistics._special import special
from composer.trainer import Trainer
from composer.trials import Target
from composer.trials.workspace import Workspace, threads_each, workspace

__all__ = ["explore"]

_DAY = 86400.0
_PAIRS = 8
# Seeds are less than 2 ** 32; those of the attribution begin some thousands above the first one.
_MOST_SEED = 2**32 - 1 - 10_000


def explore(
    program: Callable[[], Trainer] | Target | Sequence[str],
    *,
    target: str | None = None,
    quality_at: str | float | None = None,
    within: str | None = None,
    metric: str | None = None,
    budget: str | float | None = None,
    search_cost: int = SEARCH_COST,
    pairs: int = _PAIRS,
    methods: Sequence[str] | None = None,
    without: Sequence[str] = (),
    extra: Sequence[str | Variant] = (),
    confirm: str | Variant | Sequence[str | Variant] | None = None,
    changes: Sequence[str] = (),
    ranks: int = 1,
    seed: int = 0,
    folder: str | Path | None = None,
    time_limit: str | float = _DAY,
    fit: int = 1,
    clock: Clock = "wall",
    progress: Callable[[str], None] | None = None,
) -> Exploration:
    """Return which methods, learning rate, batch size and settings pay on a program, and which do not.

    The unchanged program is trained a few times (A/A runs), so that the plan can say what can be told from noise. The
    cost of a step of each method is measured, the baseline is tuned, methods race against it and are combined. What
    seems best is confirmed by pairs of runs with fresh seeds on evaluation data that nothing was selected by, and each
    part of it is left out in turn. The program writes nothing to its own folders.

    Args:
        program: A function that returns a trainer which is not fitted yet; or a command line such as
            ``["train.py", "--lr", "0.1"]``.
        target: The goal as a metric and a value to reach as soon as possible: "MulticlassAccuracy>=0.96".
        quality_at: The goal as a time of training, such as "10m", after which ``metric`` is to be as good as possible.
        within: The goal as a percentage, such as "0.5%": to come as near as this to the final ``metric`` of the
            unchanged program, as soon as possible.
        metric: Name of the metric, for ``quality_at`` and ``within``; None for the only one that is evaluated.
        budget: Wall time of all runs together, such as "2h" or a number of seconds; None for as much as the plan takes.
            Any budget gives a result, which says what could not be told; the program is trained twice as it is even if
            that takes more.
        search_cost: Cost of the search at most, in trainings of the unchanged program, at least 6. With more, more
            combinations of methods are compared, and less of what pays is missed.
        pairs: Number of pairs of the confirmation at most, at least 6.
        methods: Names of the methods to try, of :data:`.CHOICES`; None for all.
        without: Names of what to leave out, also "learning rate" and "batch size", by which the baseline is tuned.
        extra: Further changes to try, each as a method: "algorithms+=my_package.MyMethod()". Classes that a script
            defines need no module.
        changes: Assignments that hold for all runs, such as ``"max_duration=5ep"``.
        ranks: Number of processes of a run.
        seed: Is added to the seeds of all runs, which are 0 to 2 and, for the confirmation, from 1000: another one
            repeats the exploration with other runs. At least 0.
        folder: Folder for the records of runs: the same call continues there after an interruption at any moment. None
            uses a temporary one.
        time_limit: Wall time after which a run is ended and counts as failed.
        fit: Which call of ``fit`` of the program is meant, from 1.
        clock: What seconds are counted in, those of the budget too: "wall", or "cpu" for the CPU time of the training
            process, without data workers. On a CPU that other processes use as well, it repeats far better.
        progress: Called with lines: the plan, then what runs and how much time is left.

    Returns:
        The exploration: ``recipe`` is what to change, ``python`` and ``yaml`` are the lines to write, ``verdicts``
        holds one for each method.

    Raises:
        BaselineError: The program fails as it is, or does not reach the target.
        MissingConditionalImportError: SciPy is not installed (extra ``explore``).
        RuntimeError: The program does not train a step; the error has its traceback.
        TypeError: An argument has another type.
        ValueError: An argument is out of range; the program does not evaluate the metric, or trains on an accelerator
            with ``clock="cpu"``; or a method or an argument to change does not exist, or cannot be used in ``confirm``.

    >>> explore(["train.py"], target="MulticlassAccuracy>0.96")
    Traceback (most recent call last):
    ValueError: target must be METRIC>=VALUE or METRIC<=VALUE, such as MulticlassAccuracy>=0.96; got ...
    """
    goal = GoalOptions(target, quality_at, within, metric)
    recipe = None if confirm is None else GivenRecipe.of(confirm)
    more = search_cost if search_cost != SEARCH_COST else None
    for name, given in (("methods", methods), ("extra", extra), ("search_cost", more)):
        if recipe is not None and given:
            raise ValueError(f"confirm gives the recipe itself, so that {name}={given!r} is one too many.")
    choice = Choice(methods if recipe is None else [], without, extra)
    check_changes("changes", changes)
    at_least("pairs", pairs, LEAST_PAIRS)
    at_least("search_cost", search_cost, LEAST_SEARCH_COST)
    seconds = math.inf if budget is None else as_seconds("budget", budget)
    limit = as_seconds("time_limit", time_limit)
    if at_least("seed", seed, 0) > _MOST_SEED:
        raise ValueError(f"seed must be at most {_MOST_SEED}, but got {seed}.")
    one_of("clock", clock, CLOCKS)
    special()
    settings = _Settings(
        Target.of(program, fit),
        goal,
        choice,
        recipe,
        seconds,
        search_cost,
        pairs,
        tuple(changes),
        whole_number("ranks", ranks, minimum=1),
        seed,
        limit,
        clock,
        None if folder is None else str(folder),
    )
    threads = threads_each(ranks) if ranks > 1 else 0
    with workspace(folder, [PROBE, FACTS_PROBE, SCREENING_PROBE], threads) as where:
        return settings.explored(where, Progress(progress))


@dataclass(frozen=True)
class _Settings:
    """The arguments of :func:`explore`, checked."""

    target: Target
    options: GoalOptions
    choice: Choice
    recipe: GivenRecipe | None
    budget: float
    search_cost: int
    pairs: int
    changes: tuple[str, ...]
    ranks: int
    seed: int
    time_limit: float
    clock: Clock
    folder: str | None

    def explored(self, where: Workspace, progress: Progress) -> Exploration:
        """Explore in a workspace."""
        progress.say("one step of the program shows which methods may apply")
        facts = self._facts(where)
        goal, space = self.options.goal(facts.metrics), self.choice.space(facts)
        recipe = None if self.recipe is None else self.recipe.variant(facts)
        runner = TrialRunner(
            self.target,
            goal,
            where,
            ranks=self.ranks,
            time_limit=self.time_limit,
            changes=self.changes,
            first_seed=self.seed,
            display=progress,
            clock=self.clock,
        )
        if self.options.is_relative:
            goal = self.options.near(goal, final_quality(BudgetedRunner(runner, goal, self.budget, progress.asked)))
            runner.aim_at(goal)
        screening = ScreeningStage(
            self.target,
            facts,
            where,
            ranks=self.ranks,
            changes=self.changes,
            time_limit=self.time_limit,
            clock=self.clock,
            kept=KEPT_FOR_RACE if recipe is None else 0.0,
            say=progress.say,
        )
        if recipe is None:
            decide = functools.partial(search, runner, goal, search_cost=self.search_cost)
        else:
            decide = functools.partial(confirm_recipe, runner, goal, recipe)
        found = decide(
            space.variants,
            budget=self.budget,
            pairs=self.pairs,
            refused=space.refused,
            screening=screening,
            planned=progress.planned,
            asked=progress.asked,
            command=self._command(),
        )
        return replace(found, notes=(*runner.notes, *found.notes), counted=self.clock)

    def _facts(self, where: Workspace) -> ProgramFacts:
        """The facts of the program; its metrics and the user's own variants are checked before anything trains."""
        argument, added = "extra", [change for one in self.choice.added for change in one.changes]
        if self.recipe is not None:
            argument, added = "confirm", list(self.recipe.changes)
        facts = program_facts(
            self.target,
            where,
            ranks=self.ranks,
            changes=self.changes,
            time_limit=self.time_limit,
            assignments=added,
        )
        for change, error in facts.invalid:
            raise ValueError(f"{argument} has {change!r}, which cannot be created: {error}")
        if self.clock == "cpu" and facts.device != "cpu":
            raise ValueError(f"clock='cpu' does not count the time of {facts.device}; use clock='wall'.")
        return facts

    def _command(self) -> str:
        """The command that repeats the exploration, or the call for a function."""
        given = {
            "target": self.options.target,
            "quality_at": self.options.quality_at,
            "within": self.options.within,
            "metric": self.options.metric,
            "budget": None if math.isinf(self.budget) else self.budget,
            "search_cost": None if self.search_cost == SEARCH_COST else self.search_cost,
            "pairs": None if self.pairs == _PAIRS else self.pairs,
            "methods": self.choice.methods if self.recipe is None else None,
            "without": self.choice.without or None,
            "extra": list(self.choice.extra) or None,
            "confirm": None if self.recipe is None else self.recipe.written,
            "changes": self.changes or None,
            "ranks": None if self.ranks == 1 else self.ranks,
            "seed": self.seed or None,
            "fit": None if self.target.fit == 1 else self.target.fit,
            "folder": None if self.folder == default_folder(self.target) else self.folder,
            "time_limit": None if self.time_limit == _DAY else self.time_limit,
            "clock": None if self.clock == "wall" else self.clock,
        }
        return command_of(self.target, given)
