"""Explore: which methods pay on a model and its data, measured with the statistics of a careful paper.

The modules, in reading order:

- ``goal``: what a run is to reach, such as ``MulticlassAccuracy>=0.96`` as soon as possible.
- ``variant``: a named set of changes to the program, such as a method or another learning rate.
- ``trajectory``: what a run has reached after which time.
- ``runner``: trains variants; strategies ask it, and tests replace it by a simulation.
"""

from __future__ import annotations

__all__: list[str] = []
