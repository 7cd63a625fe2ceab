"""Everything that needs a GPU, in one command: ``make gpu``, or one part of it, ``make gpu PART=speed``.

A part is a module of this package with a table ``CHECKS``: a name, and a function of
:class:`~benchmarks.gpu.options.Options` that returns a
:class:`~benchmarks.report.Report`, or raises :class:`~benchmarks.gpu.options.SkipError`.
"""

from __future__ import annotations

PARTS = ("tests", "nccl", "speed", "memory")
