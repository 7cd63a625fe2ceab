"""Trials: short runs of a user's training program, each in a process of its own, with stated changes and a record.

Commands such as ``composer verify`` are made of trials. The modules, in reading order:

- ``target``: the training program: a script, a module, or a function that returns a Trainer.
- ``assignments``: changes of the Trainer's arguments as text, such as ``optimizers.lr=0.001``.
- ``trial``: what to run, and the record of it.
- ``probe``: what a trial measures.
- ``isolation``: what a trial must not do, such as to write into the folders of the run.
- ``leader``: the parent of the processes of a trial, which ends all that they leave.
- ``worker``: the process of a trial, or of each of its ranks.
- ``fork_server``: start processes in milliseconds, as forks of one that has imported torch.
- ``processes``: start the processes of a trial, end them in time, leave none behind.
- ``stack_dump``: the line at which a trial that hangs waits.
- ``termination``: end a study on signals as on Ctrl-C.
- ``records``, ``study``: run many trials, keep their records in a folder, go on after an interruption.
- ``workspace``, ``temporary_folder``: the folder and the fork server of the trials of one call.
- ``interleave``, ``block_steps``, ``blocks``: measure variants in turn, a block of steps each.
- ``endless``, ``peak_memory``: what probes share.
- ``display``: the progress on the terminal.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Assignment": "composer.trials.assignments",
        "ForkServer": "composer.trials.fork_server",
        "Probe": "composer.trials.probe",
        "Record": "composer.trials.trial",
        "Study": "composer.trials.study",
        "Target": "composer.trials.target",
        "Trial": "composer.trials.trial",
        "TrialDisplay": "composer.trials.display",
    },
)
