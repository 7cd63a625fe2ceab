"""How long torch compiles."""

from __future__ import annotations

import time

import pytest
import torch

from composer.ledger.compile_time import _watch, compile_seconds, watch_compilation


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def slow_backend(graph, inputs):
    time.sleep(0.05)
    return graph.forward


def test_counts_compilation_and_not_calls() -> None:
    compiled = torch.compile(lambda x: torch.sin(x) + 1, backend=slow_backend)
    watch_compilation()
    watch_compilation()
    before, began = compile_seconds(), time.perf_counter()
    compiled(torch.ones(3))
    wall = time.perf_counter() - began
    assert 0.05 <= compile_seconds() - before <= wall
    before = compile_seconds()
    compiled(torch.ones(3))
    assert compile_seconds() == before


def test_watches_again_after_torch_was_reset() -> None:
    watch_compilation()
    torch._dynamo.reset()
    watch_compilation()
    handler = torch._dynamo.callback.callback_handler
    assert handler.start_callbacks.count(_watch.begin) == handler.end_callbacks.count(_watch.end) == 1


def test_an_end_without_a_beginning_counts_nothing() -> None:
    before = compile_seconds()
    _watch.end(None)
    assert compile_seconds() == before
