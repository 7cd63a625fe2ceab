"""The :class:`.Trainer` and its loops. Modules in reading order:

- ``trainer``: the public class; validates arguments, sets up the run, calls the loops.
- ``arguments``, ``argument_types``: validate and normalize its arguments.
- ``unknown_names``, ``short_names``: errors for unknown argument names; "mixup", "csv" as algorithms, loggers.
- ``setup``, ``saver_setup``, ``distributed_setup``: set up loggers, data, precision; checkpoint savers; process group.
- ``run``: the state, engine, strategy and progress that all loops share.
- ``fit``: the training loop over epochs and batches.
- ``batch_loading``: fetch batches, transfer them to the device, count samples and tokens.
- ``training_data``: begin, resume and end epochs; keep the position while the same data is evaluated.
- ``step``, ``optimizer_calls``: one optimizer step per batch; fp16 loss scaling; optimizers without their spans.
- ``microbatch``, ``microbatch_weights``: gradient accumulation, and the loss weight of each microbatch.
- ``zero_weight``: mask the gradients of microbatches without valid targets.
- ``outputs``, ``owned_memory``: free outputs, loss and graph; clone buffers that CUDA graphs overwrite.
- ``auto_microbatch``: automatic microbatch size, retry after out of memory (OOM).
- ``progress``, ``schedules``: advance the training time; learning rate schedules.
- ``train_metrics``: metrics of the training data.
- ``step_sync``, ``uneven_data``: per-step all-reduce of counts; uneven inputs of ranks.
- ``evaluate``, ``evaluation_pass``: the evaluation loop.
- ``predict``: the prediction loop.
- ``find_lr``, ``dry_run``: learning rate finder; short test run.
- ``resume``, ``autoresume``: resume from a checkpoint, or from the newest one.
- ``replay``: repeat any step of a run, with everything in it visible.
- ``fingerprint``: note what a run starts from and checkpoints do not restore, and compare it in a replay.
- ``fork``: load the state of another run at any step, to train on as a new run.
- ``fit_calls``, ``run_completion``: which calls of ``fit`` a resumed run has ended; whether it is complete.
- ``signals``: stop cleanly on SIGTERM, SIGINT and SIGUSR1.
- ``failed_step``, ``argument_rollback``: recover after an exception in a step, or in the arguments of ``fit``.
- ``failure_notes``, ``failure_facts``, ``failure_dtypes``: notes on exceptions with the likely cause.
- ``sampled_loss``, ``per_sample``, ``step_samples``: loss and gradient norm of each sample of a step.
- ``blame``, ``row_ranking``, ``row_contents``, ``blame_report``: find the rows of data behind a loss spike.
- ``compilation``: ``torch.compile``.
- ``default_optimizer``: the optimizer if none is given.
- ``run_ledger``: where the wall time of the run goes, over restarts.
- ``extract_hparams``, ``model_report``, ``run_summary``: logged hyperparameters, model summary, final table.
- ``overrides``: change the trainers of a program from outside, for commands such as ``composer verify``.
- ``_trainer_names``, ``third_party_loops``: attributes and helpers that scripts of 0.32 use.
"""

from __future__ import annotations

from composer.trainer.trainer import Trainer

__all__ = ["Trainer"]
