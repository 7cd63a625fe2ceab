"""What leaves the device: exports and predictions; and models of Hugging Face on it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from tests import on_device
from tests.gpu.runs import run_of


def test_an_export_runs_on_the_host_as_the_model_does(accelerator: str, tmp_path: Path) -> None:
    trainer, _ = run_of(accelerator, precision="fp32")
    trainer.fit()
    x = torch.randn(5, 4)
    batch = (x, torch.zeros(5, dtype=torch.long))
    [expected] = trainer.predict([batch])
    assert expected.device.type == "cpu"
    path = tmp_path / "net.pt2"
    trainer.export_for_inference("torch_export", path, sample_input=batch)
    trainer.close()
    program = torch.export.load(path).module()
    batch = on_device.place(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = program.to(on_device.device())(batch)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 2}], ids=["whole", "microbatches"])
def test_a_model_of_hugging_face_in_bf16(more: dict[str, int], accelerator: str) -> None:
    pytest.importorskip("transformers")
    from composer.models import HuggingFaceModel
    from tests.models import tiny

    model = HuggingFaceModel(tiny.gpt2(), use_logits=True)
    ids = torch.randint(3, tiny.VOCABULARY, (4, 8), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    trainer, log = run_of(
        accelerator,
        model,
        [batch],
        max_duration="30ep",
        precision="amp_bf16",
        optimizers=torch.optim.AdamW(model.parameters(), lr=0.01),
        **more,
    )
    trainer.fit()
    losses = [value for _, value in log.series("loss/train/total")]
    assert losses[-1] < 0.7 * losses[0]
    assert {parameter.device.type for parameter in model.parameters()} == {accelerator}
    trainer.close()
