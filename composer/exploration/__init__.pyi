"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.exploration.choice import CHOICES
from composer.exploration.exploration import Exploration, MethodVerdict
from composer.exploration.explore import explore
from composer.exploration.goal import Goal
from composer.exploration.method_search import search
from composer.exploration.planning import BaselineError, Plan
from composer.exploration.recipe_confirmation import confirm_recipe
from composer.exploration.runner import Failure, Request, Runner
from composer.exploration.trajectory import Evaluation, Trajectory
from composer.exploration.variant import Variant

__all__ = [
    "CHOICES",
    "BaselineError",
    "Evaluation",
    "Exploration",
    "Failure",
    "Goal",
    "MethodVerdict",
    "Plan",
    "Request",
    "Runner",
    "Trajectory",
    "Variant",
    "confirm_recipe",
    "explore",
    "search",
]
