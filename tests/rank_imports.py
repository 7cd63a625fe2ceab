"""Import what most test modules with functions for ranks import, and what a trainer imports when it is made.

The servers of ``tests/ranks.py`` import this module.
"""

from __future__ import annotations

import importlib

from tests import apart

apart.make_importable()  # before packages look for each other
for _name in (
    "tests.ranks",
    "tests.common",
    "composer.trainer",
    "pytest",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.tensor.parallel",
    "torchmetrics",
):
    importlib.import_module(_name)
