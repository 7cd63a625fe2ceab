"""Measure the search by simulated explorations: ``python -m tests.exploration.measure --explorations 200``."""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from composer.exploration.exploration import Exploration
from composer.exploration.method_search import search
from composer.exploration.planning import Plan
from composer.exploration.screening import Screened
from composer.exploration.screening_stage import Screening
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import TUNED_KINDS, Variant
from composer.statistics.holm import Decision
from composer.statistics.paired import Ratio
from tests.exploration.simulation import Effect, Simulation, method, placebos, rates, tuning


@dataclass(frozen=True)
class World:
    """A program: what variants there are, and what each does.

    Args:
        variants: The variants.
        effects: What each does, by name.
        simulation: Everything else.
        good: Names of the methods that are to be found.
        is_screened: Whether the cost of a step of each method is measured before the race.
    """

    variants: Sequence[Variant]
    effects: Mapping[str, Effect]
    simulation: Simulation
    good: frozenset[str] = frozenset()
    is_screened: bool = False

    def explore(self, number: int, noise: float, budget: float = math.inf) -> tuple[Exploration, Simulation]:
        """Explore a copy of it with other noise."""
        runner = replace(
            self.simulation, effects=self.effects, world=number, time_noise=noise, learning_noise=noise, records={}
        )
        screening = self._screening(number) if self.is_screened else None
        # The order decides which methods a search draws for its first runs.
        variants = list(self.variants)
        random.Random(number).shuffle(variants)
        return search(runner, runner.goal, variants, budget=budget, screening=screening), runner

    def _screening(self, number: int) -> Callable[[Plan, Sequence[Trajectory], Sequence[Variant]], Screening]:
        """A screening that measures the cost of steps with noise, in the time that a screening may take."""

        def screened(plan: Plan, runs: Sequence[Trajectory], variants: Sequence[Variant]) -> Screening:
            found: list[Screened] = []
            for one in variants:
                if one.kind not in TUNED_KINDS:
                    noise = np.random.default_rng([number, zlib.crc32(one.name.encode())]).normal()
                    speed = math.exp(_SCREENING_NOISE * noise) / self.effects.get(one.name, Effect()).step
                    found.append(Screened(one, Ratio(speed, speed / 1.3, speed * 1.3)))
            return Screening(tuple(variants), screened=tuple(found), seconds=_SCREENING_SHARE * plan.search)

        return screened

    def speed(self, variant: Variant) -> float:
        """How many times as fast a variant learns in truth, without interactions and ceilings."""
        return math.prod(self.effects.get(one.name, Effect()).speed for one in variant.single)


# Standard deviation of the logarithm of a screened speed, as that of placebos on real programs, and what it takes.
_SCREENING_NOISE, _SCREENING_SHARE = 0.07, 0.2
_WORSE = {f"Worse{n}": Effect(0.85, step=1.1) for n in range(8)}
_MANY = {"GoodA": Effect(1.45), "GoodB": Effect(1.3), "GoodC": Effect(1.25), "GoodD": Effect(1.15)}
_BAD = {f"Bad{n}": Effect(0.6) for n in range(4)}
_TUNING = rates(0.8, 1.0, 0.5)

# Methods that change what a step costs, as they did on real programs: of some that are fast a step learns little.
_IMAGES = {
    "Layout": Effect(1.4, step=1 / 1.4),
    "Half": Effect(1.15, step=1 / 1.1),
    "Resize": Effect(0.12, step=1 / 2),
    "Columns": Effect(0.9, step=1 / 1.3),
    "Sharp": Effect(0.6, step=2.0),
    **{f"Dear{n}": Effect(0.65, step=1.5) for n in range(4)},
}
_TEXT = {
    "Short": Effect(1.6, step=1 / 4.5),
    "Bias": Effect(3.5, step=1.2),
    "Gates": Effect(0.95, step=1.25),
    "Half": Effect(0.65, step=1.5),
    "Sharp": Effect(0.6, step=2.0),
}

# A memory layout and a precision change nothing else.
_SPEED_ONLY = ("Layout", "Half")


def _methods(names: Iterable[str]) -> list[Variant]:
    return [method(name, speed_only=name in _SPEED_ONLY) for name in names]


WORLDS = {
    "placebos": World([*tuning(), *placebos(10)], {}, Simulation()),
    "placebos and a winner": World(
        [*tuning(), method("Good"), method("Help"), *placebos(10), *map(method, _WORSE)],
        {"Good": Effect(1.3), "Help": Effect(1.1, step=0.9), **_TUNING, **_WORSE},
        Simulation(),
        frozenset({"Good"}),
    ),
    "quality": World(  # costs time, and reaches more
        [*tuning(), method("Deep"), *placebos(10), *map(method, _WORSE), method("Fails")],
        {"Deep": Effect(0.95, step=1.3, ceiling=0.03), **_TUNING, **_WORSE, "Fails": Effect(fails="out of memory")},
        Simulation(),
        frozenset({"Deep"}),
    ),
    "many": World(  # which help together, among as many that hurt, and runs that take long to start
        [*tuning(), *placebos(10), *map(method, [*_WORSE, *_BAD, *_MANY])],
        {**_MANY, **_BAD, **_TUNING, **_WORSE},
        Simulation(start=8.0),
        frozenset(_MANY),
    ),
    "quality, marked as late": World(
        [*tuning(), method("Deep", late=True), *placebos(10), *map(method, _WORSE)],
        {"Deep": Effect(0.95, step=1.3, ceiling=0.03), **_TUNING, **_WORSE},
        Simulation(),
        frozenset({"Deep"}),
    ),
    "late": World(
        [*tuning(), method("Average", late=True), *placebos(10), *map(method, _WORSE)],
        {"Average": Effect(2.2, late=0.35), **_TUNING, **_WORSE},
        Simulation(),
        frozenset({"Average"}),
    ),
    "trap": World(  # fast at first, and never at the target
        [*tuning(), method("Trap"), method("Good"), *placebos(10), *map(method, _WORSE)],
        {"Trap": Effect(1.5, ceiling=-0.04), "Good": Effect(1.3), **_TUNING, **_WORSE},
        Simulation(),
        frozenset({"Good"}),
    ),
    "badly tuned": World(
        [*tuning(), method("Good"), *placebos(10), *map(method, _WORSE)],
        {**rates(0.7, 1.5, 1.2), "Good": Effect(1.3), **_WORSE},
        Simulation(),
        frozenset({"Good"}),
    ),
    "much too slow": World(  # whose learning rate is far from the best one
        [*tuning(), method("Good"), *placebos(10), *map(method, _WORSE)],
        {**rates(0.5, 1.8, 2.6), "Good": Effect(1.3), **_WORSE},
        Simulation(),
        frozenset({"Good"}),
    ),
    "tuning hurts": World(  # a little, so that noise alone may choose it
        [*tuning(), *placebos(10)],
        {**rates(0.95, 0.95, 0.9), "batch x0.5": Effect(0.95)},
        Simulation(),
    ),
    "images": World(  # where a method has the fastest steps by far, and learns next to nothing
        [*tuning(), *placebos(5), *_methods([*_IMAGES, *_WORSE, *_BAD])],
        {**_IMAGES, **_TUNING, **_WORSE, **_BAD},
        Simulation(start=16.0),
        frozenset({"Layout"}),
        is_screened=True,
    ),
    "text": World(  # where the best method has steps that are slower
        [*tuning(), *placebos(5), *_methods([*_TEXT, *list(_WORSE)[:4]])],
        {**_TEXT, **rates(0.8, 1.2, 0.9), **_WORSE},
        Simulation(start=16.0),
        frozenset({"Bias"}),
        is_screened=True,
    ),
    "conflict": World(  # each alone is good, together they are not
        [*tuning(), method("One"), method("Two"), *placebos(10), *map(method, _WORSE)],
        {"One": Effect(1.3), "Two": Effect(1.25), **_TUNING, **_WORSE},
        Simulation(interactions={frozenset({"One", "Two"}): 0.6}),
        frozenset({"One", "Two"}),
    ),
}


def accepted(found: Exploration, names: str) -> bool:
    """Whether the exploration says of a variant whose name begins so that it pays."""
    return any(one.decision is Decision.PAYS and one.variant.name.startswith(names) for one in found.verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--explorations", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first exploration, which seeds its noise")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="time for each line, after which fewer are made"
    )
    parser.add_argument("--noise", type=float, nargs="+", default=[0.02, 0.05, 0.1])
    given = parser.parse_args()
    for name in given.worlds:
        world = WORLDS[name]
        for noise in given.noise:
            end, found = time.monotonic() + given.seconds, list[Exploration]()
            while len(found) < given.explorations and time.monotonic() < end:
                found.append(world.explore(given.first + len(found), noise)[0])
            print(f"{name}, noise {noise:.0%}, {len(found)} explorations: {report(world, found)}", flush=True)


def report(world: World, found: Sequence[Exploration]) -> str:
    """What came out of explorations, in a line."""
    number = len(found)
    costs = sorted(one.search_cost for one in found)
    totals = sorted(sum(one.costs.values()) / one.plan.cost for one in found)
    recipes = [{part.name for part in one.recipe.single} for one in found]
    parts = [
        f"placebo accepted {sum(accepted(one, 'Placebo') for one in found) / number:.1%}",
        f"placebo in recipe {sum(any(each.startswith('Placebo') for each in names) for names in recipes) / number:.1%}",
        f"changed {sum(one.found for one in found) / number:.1%}",
        f"tuned {sum(bool(one.tuned.single) for one in found) / number:.1%}"
        f" (worse than given {sum(world.speed(one.tuned) < 0.99 for one in found) / number:.1%})",
        f"search {statistics.median(costs):.1f} (at most {costs[-1]:.1f}) baselines",
        f"in all {statistics.median(totals):.0f}",
    ]
    if world.good:
        hits = sum(not world.good.isdisjoint(names) for names in recipes)
        parts.insert(0, f"found {hits / number:.1%}")
        speeds = sorted(world.speed(one.recipe) for one in found)
        parts.append(f"true speed of recipes {speeds[number // 10]:.2f} / {statistics.median(speeds):.2f}")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
