"""The causes that ``composer verify`` names: what each means, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CAUSES", "Cause"]


@dataclass(frozen=True)
class Cause:
    """A likely cause of a difference.

    Args:
        text: What is wrong, a sentence without its period; ``{name}`` is the module, tensor or object, and never the
            first word, so that it keeps its case.
        remedy: What the user can do; empty if there is nothing to do.
        unnamed: What stands for the name if it is unknown.

    >>> CAUSES["time_dependent"].text.format(name="Warmup")
    'The time of day or a timer determines what Warmup does'
    """

    text: str
    remedy: str
    unnamed: str = "the program"


_SEED = "Do not set a seed in the model, the data or a callback; the trainer sets one seed for each rank."

CAUSES: dict[str, Cause] = {
    "nondeterministic_operation": Cause(
        "Equal inputs and an equal random state give other values in {name}",
        "Try deterministic_mode=True in the Trainer. Search {name} for clocks, os.urandom, id(), sets, threads and "
        "custom generators.",
    ),
    "unseeded_randomness": Cause(
        "The seed of the run does not determine the random numbers in {name}",
        "Sample from the global generators of torch, NumPy or random, which the trainer seeds, or seed the generator "
        "in {name}.",
    ),
    "order_by_hash": Cause(
        "The order of {name} differs from process to process, as that of a set of strings does",
        "Sort before iterating over a set, and do not order by hash() or id(): Python hashes strings differently in "
        "each process.",
        "what the program makes",
    ),
    "time_dependent": Cause(
        "The time of day or a timer determines what {name} does",
        "Count steps with state.timestamp.batch in place of reading a clock.",
    ),
    "data_order": Cause(
        "The seed of the run does not determine the order of the samples of {name}",
        "Use DataLoader(shuffle=True), or a sampler whose generator is seeded with the seed of the run and the epoch "
        "(set_epoch).",
        "the data",
    ),
    "loss_scale": Cause(
        "The scale of the gradients depends on how the batch is split, because of {name}: a sum in place of a mean, "
        "or a second division",
        "Let the loss be the mean over the samples that it gets (reduction='mean'), and do not scale losses or "
        "gradients by the number of microbatches or ranks: the trainer does.",
        "the loss",
    ),
    "ignored_samples": Cause(
        "How the batch is split determines which samples count in {name}",
        "Let the loss average over every sample that it gets, and leave none out by its place in the batch.",
        "the loss",
    ),
    "not_finite_in_microbatch": Cause(
        "A part of the batch gives NaN or infinite values, and the whole batch does not, first in {name}",
        "Compute what is defined for one sample, too: a variance or standard deviation with correction=0, and a mean "
        "of a number of values that is at least 1 (clamp(min=1)). Or do not split the batch into parts that small.",
        "the loss",
    ),
    "gradients_modified": Cause(
        "Something other than the loss changes the gradients, in a way that depends on how the batch is split: {name}",
        "Change gradients once in a step, when the trainer has added those of all microbatches and ranks: in "
        "after_train_batch of an Algorithm, not in after_backward or a hook of a tensor.",
        "a callback or a hook",
    ),
    "ragged_mean": Cause(
        "Microbatches have different numbers of the values that {name} averages over, such as tokens other than "
        "padding",
        "Weight microbatches by what the loss averages over: pass DataSpec(dataloader, get_num_tokens_in_batch=...) "
        "and accumulate_train_batch_on_tokens=True to the Trainer. Or average over all samples.",
        "the loss",
    ),
    "samples_interact": Cause(
        "In {name}, the result for a sample depends on the other samples of its microbatch",
        "Keep the microbatch size and the number of ranks fixed, or compute each sample by itself.",
        "the model",
    ),
    "state_per_microbatch": Cause(
        "The gradients depend on state that each microbatch changes: {name}",
        "Keep the microbatch size and the number of ranks fixed, or change it once in a step, in batch_end of an "
        "Algorithm.",
    ),
    "batch_statistics": Cause("The statistics of batch normalization depend on the size of a microbatch: {name}", ""),
    "random_in_model": Cause("Random numbers of modules depend on the size of a microbatch: {name}", ""),
    "same_random_numbers_on_ranks": Cause("All ranks sample the same random numbers in {name}", _SEED),
    "repeated_random_numbers": Cause("Every step samples the same random numbers in {name}", _SEED),
    "repeated_samples": Cause(
        "A sample is trained on more than once in an epoch: {name}",
        "Use DataLoader(shuffle=True) or a sampler without shards, which the trainer shards among the ranks; shard "
        "iterable data sets by rank and by torch.utils.data.get_worker_info().",
        "the data",
    ),
    "drawn_with_repeats": Cause(
        "Samples are drawn at random with repeats, some more than once in an epoch and others never, by {name}",
        "",
        "the sampler",
    ),
    "order_of_workers": Cause(
        "The workers of an iterable data set take turns, so that the order depends on their number: {name}",
        "Keep num_workers fixed if runs must be equal.",
        "the data",
    ),
    "random_in_data": Cause(
        "Random numbers in the data depend on the worker and the rank: {name}",
        "",
        "the data",
    ),
    "rank_randomness": Cause(
        "The samples depend on the number of ranks, because of state or a generator in {name}",
        "Sample from the global generators of torch, NumPy or random, and keep no state in the data set.",
        "the data",
    ),
    "lost_samples": Cause(
        "Samples are lost among the ranks or in the sampler: {name}",
        "Check the number of replicas, the rank and the length in the sampler, or use a plain sampler: the trainer "
        "shards the data among the ranks.",
        "the data",
    ),
    "dataset_modified": Cause(
        "Samples that the data set holds are modified in place: {name}",
        "Copy before an in-place operation in the data set, a transform, the model or an algorithm: x = x.clone().",
        "the data",
    ),
    "unsaved_module_state": Cause(
        "A checkpoint does not restore {name}",
        "Register it as a buffer (register_buffer) or a parameter, or return it from get_extra_state.",
    ),
    "unsaved_callback_state": Cause(
        "A checkpoint does not restore {name}",
        "Return it from state_dict of the callback, and set it in load_state_dict.",
    ),
    "unsaved_algorithm_state": Cause(
        "A checkpoint does not restore {name}",
        "Return it from state_dict of the algorithm, and set it in load_state_dict.",
    ),
    "unsaved_generator": Cause(
        "A checkpoint does not restore the generator of random numbers {name}",
        "Sample from the global generators, which checkpoints save, or save its state in a state_dict.",
    ),
    "unsaved_optimizer_state": Cause(
        "A checkpoint does not restore {name}",
        "Keep it in state or in param_groups of the optimizer, which checkpoints save.",
    ),
    "unsaved_schedule_state": Cause(
        "A checkpoint does not restore {name}",
        "Compute the learning rate from state.timestamp, or save the counter in state_dict of the schedule.",
    ),
    "unsaved_data_state": Cause(
        "A checkpoint does not restore the state of the training data, such as the position: {name}",
        "Give the data set or the loader state_dict and load_state_dict, or use a map-style data set.",
        "the loader",
    ),
    "checkpoint_not_stable": Cause(
        "A checkpoint restores another value than it saved of {name}",
        "Let load_state_dict (of a module: set_extra_state) restore what state_dict (get_extra_state) returned.",
    ),
    "saving_changes_training": Cause(
        "Saving a checkpoint changes the training, because of {name}",
        "Let state_dict and get_extra_state only read: no random numbers, and copies of what changes later.",
        "state_dict",
    ),
    "resume_fails": Cause(
        "Resuming from a checkpoint raises an error: {name}",
        "Correct the error: the evidence is the end of its traceback.",
    ),
    "worker_randomness": Cause(
        "The samples depend on the number of data workers, because of {name}",
        "Sample from the global generators of torch, NumPy or random, which are seeded for each batch in every worker, "
        "and keep no state in the data set.",
        "the data",
    ),
    "evaluation_changes_training": Cause(
        "Evaluation changes {name}",
        "Search eval_forward, update_metric and get_metrics for changes of the model and for random numbers, and let "
        "forward change state only if self.training is true.",
        "the training",
    ),
    "logging_changes_training": Cause(
        "Loggers, the progress bar or monitors change the training, perhaps by {name}",
        "Search {name} for code that asks which loggers there are, samples random numbers, or changes what it logs.",
        "a method that logs",
    ),
    "callback_changes_training": Cause(
        "Training depends on the callbacks: {name}",
        "To change training on purpose, make it an Algorithm, so that it runs before the callbacks and its name is "
        "saved. Otherwise let it only read the state, and sample no random numbers.",
        "one of them",
    ),
    "compile_differs": Cause(
        "The compiled model computes other values, the first of them for {name}",
        "Search forward for Python state that changes, such as counters and lists, of which torch.compile may keep the "
        "first value, or exclude the module with torch.compiler.disable.",
    ),
    "precision_differs": Cause(
        "The precision of the run changes the loss or the gradients by more than rounding, first in {name}",
        "Run the operation in float32 (with torch.autocast(device, enabled=False)), or train in another precision.",
        "the loss",
    ),
    "ranks_diverge": Cause(
        "The ranks have different values of the parameter {name}",
        "Change parameters, gradients and learning rates by the same amount on every rank: reduce what it depends on "
        "with composer.dist. Create all parameters before the Trainer.",
    ),
    "method_not_neutral": Cause(
        "The setting that switches off a method does not do so: {name}",
        "Return early in the method at this setting, before it changes anything or samples random numbers.",
    ),
    "wrong_split": Cause(
        "The microbatches do not have the rows of the batch, because of {name}",
        "Return every row in exactly one microbatch from split_batch of the DataSpec.",
        "split_batch",
    ),
    "wrong_sample_count": Cause(
        "The number of samples is not that of the rows of the batch, because of {name}",
        "Return the number of rows from get_num_samples_in_batch of the DataSpec.",
        "get_num_samples_in_batch",
    ),
    "trial_failed": Cause(
        "The program fails when it is run this way: {name}",
        "Correct the error: the evidence is the end of its traceback.",
    ),
    "unknown": Cause(
        "The cause is unknown; the first difference is in {name}",
        "Keep the records of both runs with --folder, and compare them from the first difference on.",
    ),
}
"""The causes by the identifier that the report has in brackets."""
