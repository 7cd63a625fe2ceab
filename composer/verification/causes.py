"""The causes that ``composer verify`` names: what each means, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CAUSES", "Cause"]


@dataclass(frozen=True)
class Cause:
    """A likely cause of a difference.

    Args:
        text: What is wrong; ``{name}`` is the module, tensor or object.
        remedy: What to do.

    >>> CAUSES["loss_scale"].remedy[:20]
    'Let the loss be the '
    """

    text: str
    remedy: str


CAUSES: dict[str, Cause] = {
    "nondeterministic_operation": Cause(
        "{name} computes other values from equal inputs and random state",
        "Try deterministic_mode=True. Look in {name} for clocks, os.urandom, id(), sets, threads and own generators.",
    ),
    "unseeded_randomness": Cause(
        "{name} samples random numbers that the seed of the run does not determine",
        "Sample from the generators of torch, NumPy or random, which the run seeds, or seed the generator in {name}.",
    ),
    "time_dependent": Cause("{name} depends on the time", "Use the steps in state.timestamp in place of the clock."),
    "data_order": Cause(
        "The order of the samples is not determined by the seed",
        "Use DataLoader(shuffle=True) or a sampler with a generator seeded by the run, or seed {name} in set_epoch.",
    ),
    "loss_scale": Cause(
        "The gradient is {factor} times as large: the loss is not the mean over the samples, or is scaled twice",
        "Let the loss be the mean over the samples (reduction='mean'); the trainer weights microbatches and ranks.",
    ),
    "ragged_mean": Cause(
        "The loss averages over a number that differs from one microbatch to the next, such as valid tokens",
        "Mark ignored labels with -100 in batch['labels'], or give get_num_tokens_in_batch to DataSpec and set "
        "accumulate_train_batch_on_tokens=True, so that microbatches are weighted by what the loss averages over.",
    ),
    "samples_interact": Cause(
        "{name} computes something of a sample from the other samples of the batch",
        "As with batch normalization, results depend on the microbatch size; keep it fixed, or compute per sample.",
    ),
    "batch_statistics": Cause("{name} uses statistics of each microbatch", "Nothing, if the microbatch size is fixed."),
    "random_in_model": Cause("{name} samples random numbers, which differ with the size of a microbatch", "Nothing."),
    "same_random_numbers_on_ranks": Cause(
        "All ranks sample the same random numbers in {name}",
        "Do not seed in the model or in callbacks; the trainer seeds each rank differently.",
    ),
    "repeated_random_numbers": Cause(
        "{name} samples the same random numbers in every step",
        "Do not seed in the model or in callbacks; the trainer seeds once.",
    ),
    "repeated_samples": Cause(
        "Ranks train on the same samples",
        "Pass a DataLoader with a plain sampler, which the trainer shards, or shard by rank in {name}.",
    ),
    "order_of_workers": Cause(
        "{name} is iterable: its workers take turns, so that the order depends on their number",
        "Nothing, if the number of workers is fixed.",
    ),
    "random_in_data": Cause(
        "{name} samples random numbers, which depend on the worker and the rank", "Nothing; augmentation does so."
    ),
    "rank_randomness": Cause(
        "The samples depend on the number of ranks: {name} keeps state or a generator of its own",
        "Sample from the global generators of torch, NumPy or random, and keep no state in the data.",
    ),
    "lost_samples": Cause(
        "Some samples of the step are trained on no rank", "Check how {name} divides the samples among the ranks."
    ),
    "dataset_modified": Cause(
        "Training modifies the samples of the data set in place ({name})",
        "Copy before an in-place operation: x = x.clone() in the data set, transform, model or algorithm.",
    ),
    "unsaved_module_state": Cause(
        "{name} is not restored by a checkpoint",
        "Register it as a buffer (register_buffer) or parameter, or return it from get_extra_state.",
    ),
    "unsaved_callback_state": Cause(
        "{name} is not restored by a checkpoint",
        "Return it from the callback's state_dict, and set it in load_state_dict.",
    ),
    "unsaved_algorithm_state": Cause(
        "{name} is not restored by a checkpoint",
        "Return it from the algorithm's state_dict, and set it in load_state_dict.",
    ),
    "unsaved_generator": Cause(
        "The generator of random numbers {name} is not restored by a checkpoint",
        "Sample from the global generators, which checkpoints save, or save its state in a state_dict.",
    ),
    "unsaved_optimizer_state": Cause(
        "{name} is not restored by a checkpoint", "Keep it in the optimizer's state or param_groups, which are saved."
    ),
    "unsaved_schedule_state": Cause(
        "{name} is not restored by a checkpoint",
        "Compute the learning rate from state.timestamp, or save the counter in state_dict of the schedule.",
    ),
    "unsaved_data_state": Cause(
        "The position in the training data is not restored ({name})",
        "Give the data set or the loader state_dict and load_state_dict, or use a map-style data set.",
    ),
    "checkpoint_not_stable": Cause(
        "{name} is not restored as it was saved",
        "Let load_state_dict (of a module: set_extra_state) restore what state_dict (get_extra_state) returned.",
    ),
    "saving_changes_training": Cause(
        "Saving a checkpoint changes the training ({name})",
        "Let state_dict and get_extra_state only read: no random numbers, and copies of what changes later.",
    ),
    "resume_fails": Cause("Resuming raises an error", "See the traceback."),
    "worker_randomness": Cause(
        "The samples depend on the number of data workers ({name})",
        "Sample from the global generators of torch, NumPy or random, which are seeded for each batch in every worker.",
    ),
    "evaluation_changes_training": Cause(
        "Evaluation changes the training",
        "Look in eval_forward, update_metric and get_metrics for changes of the model or use of random numbers.",
    ),
    "logging_changes_training": Cause(
        "Logging or a monitor changes the training", "Look for code that asks whether loggers are present."
    ),
    "callback_changes_training": Cause(
        "The callback {name} changes the training",
        "If it should, make it an Algorithm, so that its name is saved and it runs before the callbacks.",
    ),
    "compile_differs": Cause(
        "The compiled model computes something else, first in {name}",
        "Look for Python state that changes in forward (counters, lists); torch.compile may keep its first value.",
    ),
    "precision_differs": Cause(
        "The precision of the run changes the gradients beyond rounding",
        "Keep the operation in float32 (torch.autocast(enabled=False) around it), or train in another precision.",
    ),
    "ranks_diverge": Cause(
        "The parameter {name} differs between ranks",
        "Do the same on every rank; parameters must be in the model before the trainer is created.",
    ),
    "method_not_neutral": Cause("{name} changes the training at its neutral setting", "Report it."),
    "wrong_split": Cause("{name}", "Correct the split_batch of the DataSpec: every row in exactly one microbatch."),
    "wrong_sample_count": Cause("{name}", "Correct get_num_samples_in_batch of the DataSpec."),
    "trial_failed": Cause("The run fails with this change: {name}", "See the traceback."),
    "unknown": Cause("The cause is unknown; {name} differs first", "Compare the two runs from that step on."),
}
