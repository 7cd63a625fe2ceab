"""A griffe extension that shows docstrings as Markdown: roles such as :func: and examples become code."""

from __future__ import annotations

from typing import Any

import griffe

from docs.text import as_markdown, grouped_arguments, without_sections

__all__ = ["TRAINER_GROUPS", "Docstrings"]

# The arguments of Trainer in the order of the signature: the first argument of each group, and its heading.
TRAINER_GROUPS = {
    "model": "Model and data",
    "max_duration": "Duration, methods, optimizers and schedules",
    "eval_dataloader": "Evaluation",
    "callbacks": "Callbacks and logging",
    "load_path": "Loading checkpoints",
    "save_folder": "Saving checkpoints and resuming",
    "parallelism_config": "Sharding",
    "device": "Device, precision and microbatches",
    "seed": "Reproducibility",
    "dist_timeout": "Distributed training",
    "profiler": "Profiling, log messages and compilation",
    "grad_accum": "Former spellings",
    "on_logger_error": "Errors in loggers, dry run and debugging",
    "save_async": "Checkpoints in the background, on failures and on signals",
}


class Docstrings(griffe.Extension):
    """Rewrite every docstring when its object is loaded. Method pages show the sections of methods themselves."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        # Trainer(**unknown: Never) only catches misspelled arguments.
        if isinstance(obj, griffe.Function) and "unknown" in obj.parameters:
            del obj.parameters["unknown"]
        if obj.docstring is not None:
            text = obj.docstring.value
            if obj.is_class and obj.path.startswith("composer.algorithms."):
                text = without_sections(text)
            if obj.path == "composer.trainer.trainer.Trainer":
                text = grouped_arguments(text, TRAINER_GROUPS)
            obj.docstring.value = as_markdown(text)
