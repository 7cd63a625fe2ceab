from __future__ import annotations

import resource

import pytest

from tests.estimation import llama


@pytest.mark.filterwarnings("ignore:Mismatch dtype", "ignore:FSDP2-wrapped module")
def test_a_model_that_does_not_fit_takes_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    log = llama.estimate(64, layers=2)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 2**20 // 2  # KiB
    # Weights of 15 GB over 64 ranks, the buffers of the embedding and the head, and logits of 1 GB in half precision.
    assert 8e9 < log.peak()[0] < 45e9
