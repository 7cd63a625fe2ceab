"""``composer verify``: the training computes the same whatever the number of processes, microbatches and restarts.

The modules, in reading order:

- ``verify``: the checks, the trials of each, and the report.
- ``_recorder``: what a trial does: trains a few steps and writes down what happens.
- ``_watch``, ``module_watch``: the callback and the hooks that see each stage of a step.
- ``exact_mode``, ``_float64``: float64 without randomness, for runs that split the batch in different ways.
- ``digests``, ``snapshot``: fingerprints of tensors, batches and the attributes of objects.
- ``_data_facts``, ``code_facts``, ``objects``: what is known of the data and of the user's code and objects.
- ``compare``: the first difference of two trials, and how far their tensors deviate.
- ``_run_facts``, ``_sampling``: facts about the run, and what samples the same on all ranks.
- ``_judges``, ``_judge_exact``, ``_judge_split``, ``_judge_precision``: the rule of each check, and the
  likely cause of a difference.
- ``_exchange``, ``_judge_exchange``: samples exchanged between microbatches tell whether a loss compares them.
- ``_weighted_mean``, ``_not_finite``: the other losses that depend on how the batch is split.
- ``causes``, ``findings``, ``report_text``: the causes with their remedies, and the report.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CAUSES": "composer.verification.causes",
        "CHECKS": "composer.verification.verify",
        "Cause": "composer.verification.causes",
        "Finding": "composer.verification.findings",
        "Report": "composer.verification.findings",
        "verify": "composer.verification.verify",
    },
)
