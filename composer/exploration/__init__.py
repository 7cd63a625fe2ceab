"""Explore: which methods pay on a model and its data, measured with the statistics of a careful paper.

The modules, in reading order:

- ``goal``: what a run is to reach, such as ``MulticlassAccuracy>=0.96`` as soon as possible.
- ``variant``: a named set of changes to the program, such as a method or another learning rate.
- ``trajectory``: what a run has reached after which time.
- ``runner``: trains variants; strategies ask it, and tests replace it by a simulation.
- ``trial_runner``: the runner of real programs, of which each run is a trial, or several that go on from each other.
- ``training_probe``, ``training_clock``: what such a trial does: trains, evaluates, stops, saves a checkpoint.
- ``held_out``: the halves of the evaluation data.
- ``program_facts``, ``method_rows``, ``space``: what is known of a program, and the variants that may apply to it.
- ``screening``, ``screening_probe``: what a step of each variant costs, measured in turn with the unchanged run.
- ``durations``: times such as "10m".
"""

from __future__ import annotations

__all__: list[str] = []
