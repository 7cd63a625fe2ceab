"""Tables of the checks and causes of ``composer verify``, for its page."""

from __future__ import annotations

from composer.verification.causes import CAUSES
from composer.verification.verify import CHECKS
from docs.text import table

__all__ = ["RULES", "with_verification"]

_EXACT = "Bit for bit"
_ROUNDING = "Float64"

RULES: dict[str, str] = {
    "same": f"{_EXACT}. The second run is a fresh Python process, and saves a checkpoint.",
    "data": "Samples, fetched with the same random state, are the same before and after training. A custom sampler "
    "yields every index once. `split_batch` and `get_num_samples_in_batch` agree with the batch.",
    "resume": f"{_EXACT}, from the checkpoint on, at a random step in the middle of an epoch.",
    "reload": f"{_EXACT}: model, optimizers, schedules, callbacks, methods, random state, time and data position.",
    "resume_ranks": f"{_ROUNDING}, from the checkpoint on, and the rules of `ddp`.",
    "microbatch": f"{_ROUNDING}. A module whose output for a sample depends on the rest of the batch is expected.",
    "ddp": f"{_ROUNDING}. In addition, the ranks together train on the samples of one rank, and have the same "
    "parameters.",
    "fsdp": "As `ddp`.",
    "tp": "As `ddp`.",
    "random": "All ranks have the same batches. After each module that samples, the state of the generator differs "
    "between the ranks; what a module, the loss, a method or a callback samples from its own generators differs too.",
    "evaluation": f"{_EXACT}, evaluating after each step.",
    "logging": f"{_EXACT}, with the progress bar, `LRMonitor`, `SpeedMonitor` and custom loggers that write nothing.",
    "callbacks": f"{_EXACT}, without the callbacks. A callback that changes only learning rates, buffers or parameters "
    "that are not trained is expected.",
    "workers": f"{_EXACT}: 0 workers in place of the run's, or 2 in place of 0. Random augmentation is expected to "
    "differ.",
    "compile": f"{_ROUNDING}. The backend is `aot_eager` if the run does not compile.",
    "methods": f"{_EXACT}, compared with the run without the method; skipped if it has no neutral setting.",
    "precision": "The loss of each step is within 5 % of that in fp32, and each gradient of the first step within 30 % "
    "(if the run samples random numbers, its norm within 50 %), of parameters with at least 1 % of the gradient.",
}
"""The rule of each check."""


def with_verification(markdown: str) -> str:
    """Replace the marks of the two tables.

    >>> "| `loss_scale`<br>" in with_verification("<!-- verify: causes -->")
    True
    """
    checks = [(f"`{name}`", f"{text[:1].upper()}{text[1:]}.", RULES[name]) for name, text in CHECKS.items()]
    causes = [(f"`{name}`<br>{_sentence(cause.text)}", _sentence(cause.remedy)) for name, cause in CAUSES.items()]
    tables = {
        "<!-- verify: checks -->": table(["check", "what must hold", "rule"], checks),
        "<!-- verify: causes -->": table(["cause", "remedy"], causes),
    }
    for mark, made in tables.items():
        markdown = markdown.replace(mark, made)
    return markdown


def _sentence(text: str) -> str:
    """Return the text of a cause without a run, in which what it names is in capital letters.

    >>> _sentence("The time determines what {name} does")
    'The time determines what *NAME* does.'
    """
    return f"{text.format(name='*NAME*').rstrip('.') or 'None is needed'}."
