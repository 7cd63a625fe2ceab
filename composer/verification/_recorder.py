"""The probe of ``composer verify``: trains a few steps and records digests of what happens in each.

A step is recorded as a chain of stages, in the order in which one causes the next: samples, batch, outputs of the
modules, loss, gradients, learning rates, parameters, buffers, optimizer state. The first stage that differs between two
runs tells where to look.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from composer import dist, rng, trees
from composer.callbacks import LRMonitor, SpeedMonitor
from composer.core.algorithm import Algorithm
from composer.core.state import State
from composer.loggers import InMemoryLogger
from composer.trainer.compilation import torch_arguments
from composer.trainer.short_names import instances
from composer.trials.probe import Finished, Probe
from composer.verification import _checkpoints, code_facts, exact_mode
from composer.verification._exchange import Exchange
from composer.verification._float64 import InFloat64
from composer.verification._watch import Watch
from composer.verification.compare import STEPS_FILE, TENSORS_FILE
from composer.verification.neutral import neutral_setting, set_neutral, why_not_neutral

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["CHECKPOINT", "FACTS_FILE", "Recorder"]

CHECKPOINT = "checkpoint.pt"
FACTS_FILE = "facts.json"
# How to compile a model that the program does not: without the time that inductor takes.
_COMPILE = {"backend": "aot_eager"}


class Recorder(Probe):
    """Trains for some steps, and records them in the folder of the trial.

    Args:
        folder: Folder of the trial; the other trials' folders are beside it.
        steps: Number of steps.
        epoch_batches: Number of batches of an epoch, so that a few steps train more than one epoch.
        exact: Whether to train in float64 without what depends on the size of a microbatch: modules that sample random
            numbers or use statistics of the batch, and algorithms that sample.
        save_at: Number of steps after which to save a checkpoint.
        kill: Whether to save as a run does, in a folder of the trial, and to end as if killed while it saves again.
        resume: Name of the trial that was killed, which to continue as the same command does.
        load: Name of the trial in exact mode whose checkpoint to resume.
        evaluate: Whether to evaluate after each step.
        log: Whether to log with a progress bar and monitors.
        callbacks: Whether to run the callbacks of the program.
        attribute: Whether to find out which callback changes what.
        inspect: Whether to find out which modules and algorithms sample random numbers, and to check the data.
        hooks: Whether to record the outputs of modules; not for a compiled model, which would compile the hooks.
        data: Whether to find out whether training modifies the data.
        neutral: Class of the method to set to its neutral setting.
        compile: Whether to compile the model, if need be with defaults; all other trials run it uncompiled.
        locate: Whether to compile each module alone, beside the model, to find the one that differs.
        share: Whether to give all ranks the same batches, to find what samples the same on all of them.
        exchange: Whether to exchange samples between microbatches, to find whether the loss compares them.
        whole: Whether to exchange all of them, to find whether the order of the microbatches matters.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        epoch_batches: int = 0,
        exact: bool = False,
        save_at: int | None = None,
        kill: bool = False,
        resume: str | None = None,
        load: str | None = None,
        evaluate: bool = False,
        log: bool = False,
        callbacks: bool = True,
        attribute: bool = False,
        inspect: bool = False,
        hooks: bool = True,
        data: bool = False,
        neutral: str = "",
        compile: bool = False,
        locate: bool = False,
        share: bool = False,
        exchange: bool = False,
        whole: bool = False,
    ) -> None:
        super().__init__(folder)
        self._steps, self._epoch_batches, self._save_at = steps, epoch_batches, save_at
        self._evaluate, self._log, self._callbacks, self._load = evaluate, log, callbacks, load
        self._attribute, self._inspect, self._hooks = attribute, inspect, hooks
        self._data, self._compile, self._locate, self._share = data, compile, locate, share
        self._kill, self._resume, self._neutral = kill, resume, neutral
        self._exchanges = [Exchange(whole=whole)] if exchange else []
        self._trainers = 0
        self._exact: exact_mode.Neutral | None = None
        self._watch: Watch | None = None
        self._fixed = False
        # The program may set no seed, and build its model before it creates the trainer.
        rng.seed_all(0)
        if not compile:
            torch.compiler.set_stance("force_eager")
        if exact:
            facts = json.loads((folder.parent / "reference" / FACTS_FILE).read_text(encoding="utf-8"))
            self._exact = exact_mode.Neutral.from_facts(facts)
            torch.set_default_dtype(torch.float64)

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer with the watch, and without what this trial leaves out."""
        if arguments["seed"] is None:
            arguments["seed"] = 0
        callbacks = arguments["callbacks"] if self._callbacks else []
        methods = arguments["algorithms"] = instances("algorithms", arguments["algorithms"], Algorithm)
        set_neutral(methods, self._neutral)
        if self._log:
            arguments["loggers"] = [InMemoryLogger(), *_own_loggers(given["loggers"])]
            arguments["progress_bar"] = True
            present = {type(callback) for callback in callbacks}
            callbacks = [*callbacks, *(cls() for cls in (LRMonitor, SpeedMonitor) if cls not in present)]
        if self._load is not None:
            arguments["load_path"] = str(self.folder.parent / self._load / CHECKPOINT)
        if self._kill or self._resume is not None:
            assert self._save_at is not None
            saves = self.folder if self._resume is None else self.folder.parent / self._resume
            arguments |= _checkpoints.arguments(saves, self._trainers, self._save_at)
        self._trainers += 1
        from torch._dynamo import OptimizedModule  # takes seconds, and only trials need it

        config = arguments["compile_config"]
        compiled = config is not None or isinstance(arguments["model"], OptimizedModule)
        if not self._compile:
            arguments["compile_config"] = None
        elif not compiled:
            arguments["compile_config"] = dict(_COMPILE)
        self._watch = Watch(
            steps=self._steps,
            save_at=self._save_at,
            checkpoint=self.folder / CHECKPOINT if self._exact is not None else None,
            again=None if self._resume is None else self.folder,
            neutral=self._exact,
            inspect=self._inspect,
            attribute=self._attribute or self._log,
            hooks=self._hooks,
            data=self._data,
            evaluate=self._evaluate,
            share=self._share,
            compiled_alone=(_COMPILE if config is None else torch_arguments(config)) if self._locate else None,
        )
        self._watch.compiled = compiled
        self._watch.neutral = {type(one).__name__: _describe(one) for one in methods}
        self._watch.loggers = [type(logger).__qualname__ for logger in _own_loggers(given["loggers"])]
        arguments["callbacks"] = [*callbacks, *self._exchanges, self._watch]
        if self._exact is not None:
            arguments["callbacks"].append(InFloat64())
            arguments = self._exact.arguments(arguments)
        return self._with_data(arguments)

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train until the steps are recorded, and write the records."""
        state = trainer.state
        self._watch = next(callback for callback in state.callbacks if isinstance(callback, Watch))  # of this trainer
        self._watch.num_evaluators = len(state.evaluators)
        if self._resume is not None and state.load_path is None:
            raise RuntimeError("autoresume=True finds no checkpoint in the folder of the run that was killed.")
        if self._kill:
            self._watch.end = self._die
        if not self._evaluate:
            state.evaluators = []
            arguments = {name: value for name, value in arguments.items() if not name.startswith("eval_")}
        else:
            for evaluator in state.evaluators:
                evaluator.eval_interval, evaluator.subset_num_batches = "1ba", 1
        self._watch.trainer = trainer
        with contextlib.suppress(Finished):
            fit(**self._with_data(arguments))
        if dist.get_global_rank() == 0:
            self._write()

    def result(self) -> Mapping[str, Any]:
        """Return how many steps were recorded; the rest is in files."""
        return {"steps": 0 if self._watch is None else len(self._watch.steps)}

    def _die(self, state: State) -> None:
        """Write the records, and end while the next checkpoint is written; return unless this fit is the one meant."""
        self._write()
        with _checkpoints.interrupted_save(state):
            self.finish()

    def _with_data(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of the trainer or of fit with short epochs, and batches of an appropriate size."""
        if arguments.get("train_dataloader") is None:
            return arguments
        name = "train_subset_num_batches"
        given = arguments.get(name)
        # Schedules of torch are made for a number of steps.
        self._fixed |= any(isinstance(one, LRScheduler) for one in trees.ensure_tuple(arguments.get("schedulers")))
        if self._epoch_batches and not self._fixed and (given is None or given == -1 or given > self._epoch_batches):
            arguments[name] = self._epoch_batches
        return arguments if self._exact is None else self._exact.with_batches(arguments)

    def _write(self) -> None:
        assert self._watch is not None
        self.folder.joinpath(STEPS_FILE).write_text(json.dumps(self._watch.record()), encoding="utf-8")
        if self._inspect or self._data:
            self.folder.joinpath(FACTS_FILE).write_text(json.dumps(self._watch.facts), encoding="utf-8")
        if self._watch.tensors:
            torch.save(self._watch.tensors, self.folder / TENSORS_FILE)


def _describe(method: Algorithm) -> str | list[str]:
    """Return the attributes that the neutral setting of a method sets, or why it has none."""
    setting = neutral_setting(method)
    return why_not_neutral(method) if setting is None else sorted(setting)


def _own_loggers(given: Any) -> list[Any]:
    """Return the loggers of classes of the program that declare not to write, or whose code writes nothing."""
    return [
        logger
        for logger in trees.ensure_tuple(given)
        if not isinstance(logger, str)
        and not f"{type(logger).__module__}.".startswith("composer.")
        and not (getattr(logger, "writes_output", True) and code_facts.writes(logger))
    ]
