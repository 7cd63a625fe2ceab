"""Rank the pages in the search of the site: the guide of a subject first, history and tables of old names last."""

from __future__ import annotations

from typing import Any

__all__ = ["HISTORY", "KEYWORDS", "rank_page"]

KEYWORDS: dict[str, list[str]] = {
    "checkpoints.md": ["checkpoint", "resume training", "resume", "save checkpoint", "load checkpoint"],
    "data.md": ["data", "dataloader", "dataset"],
    "distributed.md": [
        "multi gpu",
        "multi-gpu",
        "multiple gpus",
        "distributed training",
        "fsdp",
        "ddp",
        "multi node",
        "activation checkpointing",
        "uneven inputs",
        "nccl timeout",
    ],
    "guides/callbacks.md": ["callbacks"],
    "guides/debugging.md": [
        "debugging",
        "loss spike",
        "bad data",
        "replay",
        "blame",
        "fork",
        "wrong loss scaling",
        "resume gives different results",
    ],
    "guides/evaluation.md": [
        "early stopping",
        "custom metric",
        "custom metrics",
        "confusion matrix",
        "evaluation",
        "validation",
    ],
    "guides/faq.md": ["faq", "frequently asked questions"],
    "guides/logging.md": ["logging", "wandb", "tensorboard", "mlflow"],
    "guides/microbatches.md": [
        "gradient accumulation",
        "out of memory",
        "oom",
        "microbatch",
        "batch size",
        "composer estimate",
    ],
    "guides/numerics.md": ["mixed precision", "amp", "bf16", "fp16", "reproducibility", "torch.compile"],
    "guides/performance.md": ["performance", "profiling", "profiler", "slow training"],
    "guides/schedulers.md": ["learning rate schedule", "learning rate", "scheduler", "warmup"],
    "guides/trainer.md": ["trainer", "trainer arguments", "learning rate finder", "lr finder", "dry run"],
    "guides/your_own.md": ["extending", "custom algorithm", "custom callback", "custom logger"],
    "guides/doctor.md": ["slow", "bottleneck", "profile", "GPU utilization", "composer doctor"],
    "guides/verify.md": ["verify", "nondeterminism", "reproducibility check", "composer verify"],
    "how_to/best_checkpoint.md": ["save best model", "best checkpoint", "best model"],
    "how_to/transfer_learning.md": ["transfer learning", "fine-tuning"],
    "launcher.md": ["launcher", "slurm", "torchrun"],
    "methods/gradient_clipping.md": ["gradient clipping", "clip gradients"],
    "reference/optim.md": ["weight decay"],
}
"""What people type to find a page, beyond its headings."""

# Pages on what was, which use every word of the library.
HISTORY = ("decisions.md", "log.md", "migrating.md")

# Generated pages and overviews rank below the guides.
_BOOSTS = {
    "methods": 1.0,
    "schedules": 1.0,
    "callbacks": 1.0,
    "loggers": 1.0,
    "glossary.md": 0.5,
    "benchmarks.md": 0.3,
    "reference": 0.3,
}


def rank_page(path: str, meta: dict[str, Any]) -> None:
    """Set the search boost of a page, and its keywords as tags, in its metadata.

    >>> meta = {}
    >>> rank_page("migrating.md", meta)
    >>> meta
    {'search': {'boost': 1e-09}}
    """
    meta.setdefault("search", {"boost": _boost(path)})
    if path in KEYWORDS:
        meta.setdefault("tags", KEYWORDS[path])


def _boost(path: str) -> float:
    if path in HISTORY:
        return 1e-9  # titles count a thousand times, tags a million times
    if path.startswith("guides/from_"):
        return 0.5
    return _BOOSTS.get(path.partition("/")[0], 2.0)
