"""A runner that simulates training: learning curves with noise, in no time."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from composer.exploration.goal import Goal
from composer.exploration.runner import Failure, Request
from composer.exploration.trajectory import Evaluation, Trajectory
from composer.exploration.variant import Variant

GOAL = Goal("accuracy", maximize=True, target=0.95)


@dataclass(frozen=True)
class Effect:
    """What a variant does to learning.

    Args:
        speed: How many times as fast it learns, by time.
        late: Fraction of the baseline's time to the target before which it does nothing.
        ceiling: What it adds to the quality that is reached in the end.
        step: How many times as long a step takes; it learns as much more a step.
        startup: Seconds of its first step, such as for compilation.
        fails: The error with which it fails.
    """

    speed: float = 1.0
    late: float = 0.0
    ceiling: float = 0.0
    step: float = 1.0
    startup: float = 0.0
    fails: str = ""


@dataclass
class Simulation:
    """Learning curves q(t) = c (1 - exp(-(t speed / tau)^b)), evaluated at equal numbers of steps.

    Args:
        effects: What each variant does, by name; others do nothing.
        interactions: Factors of the speed of pairs of variants.
        time_noise: Spread of the logarithm of the seconds of a step, per run.
        seed_noise: Spread of the logarithm of the speed of learning that runs with the same seed share.
        learning_noise: The same, of each run.
        value_noise: Standard deviation of an evaluation.
        world: Seed of all noise.
        slowdown: By how much a step takes longer after the time of a run of the baseline than before, on a busy host.
        stop_after: Raises KeyboardInterrupt after this number of runs.
        records: Outcomes by request, as on a disk.
    """

    effects: Mapping[str, Effect] = field(default_factory=dict)
    interactions: Mapping[frozenset[str], float] = field(default_factory=dict)
    time_noise: float = 0.03
    seed_noise: float = 0.03
    learning_noise: float = 0.03
    value_noise: float = 0.002
    goal: Goal = GOAL
    world: int = 0
    tau: float = 25.0
    power: float = 0.8
    ceiling: float = 0.98
    duration: float = 300.0
    interval: float = 3.0
    start: float = 2.0
    evaluation: float = 0.1
    slowdown: float = 0.0
    stop_after: int | None = None
    records: dict[Request, Trajectory | Failure] = field(default_factory=dict)
    runs: int = 0
    spent: float = 0.0

    @property
    def time(self) -> float:
        """Seconds of the baseline to the target, without noise."""
        target = GOAL.target if self.goal.target is None else self.goal.target
        return self.tau * float(np.log(self.ceiling / (self.ceiling - (target or 0.0)))) ** (1 / self.power)

    def train(self, requests: Sequence[Request]) -> list[Trajectory | Failure]:
        found = []
        for request in requests:
            if request not in self.records:
                if self.stop_after is not None and self.runs >= self.stop_after:
                    raise KeyboardInterrupt
                self.runs += 1
                self.records[request] = self._run(request)
            found.append(self.records[request])
        return found

    def _run(self, request: Request) -> Trajectory | Failure:
        earlier = [
            outcome
            for known, outcome in self.records.items()
            if (known.variant, known.seed, known.split) == (request.variant, request.seed, request.split)
        ]
        before = earlier[-1].cost if earlier else 0.0
        done = len(earlier[-1].evaluations) if earlier and isinstance(earlier[-1], Trajectory) else 0
        effects = [self.effects.get(one.name, Effect()) for one in request.variant.single]
        fails = [effect.fails for effect in effects if effect.fails]
        if fails:
            self.spent += self.start
            return Failure(fails[0], cost=before + self.start)
        times, values, step = self._curve(request, effects)
        number = len(times)
        if request.seconds is not None:
            # A run stops at the first step at which its time has passed.
            number = int(np.searchsorted(times, request.seconds, side="right"))
        reached = [self.goal.is_reached(value) for value in values]
        if request.stop_at_target and True in reached[:number]:
            number = reached.index(True) + 1
            seconds = float(times[number - 1])
        else:
            seconds = float(times[-1]) if request.seconds is None else min(request.seconds, float(times[-1]))
        evaluations = tuple(
            Evaluation(float(times[i]), 10 * (i + 1), 320 * (i + 1), float(values[i])) for i in range(number)
        )
        startup = sum(effect.startup for effect in effects)
        trained = earlier[-1].seconds if earlier and isinstance(earlier[-1], Trajectory) else 0.0
        cost = self.start + startup + seconds - trained + self.evaluation * (number - done)
        self.spent += cost
        steps = round(seconds / step)
        complete = number == len(times)
        return Trajectory(evaluations, seconds, steps, startup, before + cost, complete)

    def _curve(self, request: Request, effects: list[Effect]) -> tuple[np.ndarray, np.ndarray, float]:
        name = zlib.crc32(request.variant.name.encode())
        shared = np.random.default_rng([self.world, request.seed]).normal()
        own = np.random.default_rng([self.world, request.seed, name])
        clock, learning = own.normal(size=2)
        slower = float(np.prod([effect.step for effect in effects]))
        step = self.interval / 10 * slower * float(np.exp(self.time_noise * clock))
        if self.slowdown:
            step *= 1 + self.slowdown * self.spent / self.time
        number = max(int(self.duration / (10 * step)), 1)
        times = 10 * step * np.arange(1, number + 1)
        ideal = times * slower * self.interval / (10 * step)  # as the clock without noise
        ideal = ideal * float(np.exp(self.seed_noise * shared + self.learning_noise * learning))
        learned = ideal.copy()
        for effect in effects:
            start = effect.late * self.time
            learned = np.where(ideal > start, learned + (effect.speed - 1) * learned * (1 - start / ideal), learned)
        names = {one.name for one in request.variant.single}
        for pair, factor in self.interactions.items():
            if pair <= names:
                learned = learned * factor
        ceiling = self.ceiling + sum(effect.ceiling for effect in effects)
        values = ceiling * (1 - np.exp(-((learned / self.tau) ** self.power)))
        held_out = np.random.default_rng([self.world, request.seed, name, request.split == "confirmation"])
        return times, values + self.value_noise * held_out.normal(size=number), step


def method(name: str, group: str = "", late: bool = False, speed_only: bool = False) -> Variant:
    """A method of this name."""
    return Variant(name, (f"algorithms+={name}()",), "method", group=group, late=late, speed_only=speed_only)


def placebos(number: int) -> list[Variant]:
    """Methods that do nothing."""
    return [Variant(f"Placebo{n}", (f"algorithms+=Placebo{n}()",), "placebo") for n in range(number)]


def tuning() -> list[Variant]:
    """Learning rates and batch sizes."""
    rates = [
        Variant(f"lr x{k:g}", (f"optimizers.lr={k * 0.1:g}",), "learning_rate", group="lr", factor=k)
        for k in (2, 0.5, 4, 0.25, 8, 1.4, 0.7, 2.8, 0.35, 5.6)
    ]
    sizes = [
        Variant(f"batch x{k:g}", (f"train_dataloader.batch_size={int(k * 32)}",), "batch_size", group="batch")
        for k in (0.5, 2)
    ]
    return rates + sizes


def rates(half: float, double: float, quadruple: float) -> dict[str, Effect]:
    """Effects of all learning rates, by the speeds of three; others are interpolated, and go on like the last ones."""
    places, values = np.array([-1.0, 0.0, 1.0, 2.0]), np.log([half, 1.0, double, quadruple])
    ends = [2 * values[0] - values[1], *values, 2 * values[-1] - values[-2]]
    found = {}
    for one in tuning():
        if one.kind == "learning_rate":
            speed = np.exp(np.interp(np.log2(one.factor), [-2.0, *places, 3.0], ends))
            found[one.name] = Effect(float(speed))
    return found
