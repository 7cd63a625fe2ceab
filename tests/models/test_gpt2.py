"""GPT-2 by name: its sizes, its metrics, trained weights from a folder."""

from __future__ import annotations

from pathlib import Path

import torch

import composer.models
from composer.models.gpt2 import create_gpt2
from tests.models import tiny
from tests.models.test_huggingface_training import trainer_of


def test_sizes_are_those_of_the_paper_without_a_download() -> None:
    with torch.device("meta"):
        model = create_gpt2()
    assert model.model.num_parameters() == 124_439_808
    assert model.tokenizer is None
    assert composer.models.create_gpt2 is create_gpt2


def test_it_is_trained_and_measured() -> None:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": tiny.VOCABULARY}
    model = create_gpt2(model_config=sizes)
    batch = tiny.texts()
    trainer = trainer_of(model, [batch], eval_dataloader=[batch])
    trainer.fit()
    trainer.eval()
    found = trainer.state.eval_metrics["eval"]
    with torch.no_grad():
        loss = model.eval()(batch).loss
    torch.testing.assert_close(found["LanguageCrossEntropy"].compute(), loss)
    torch.testing.assert_close(found["LanguagePerplexity"].compute(), loss.exp())


def test_trained_weights_from_a_folder(tmp_path: Path) -> None:
    tiny.gpt2().save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    model = create_gpt2(True, str(tmp_path), tokenizer_name=str(tmp_path))
    expected = tiny.gpt2().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.model.state_dict().items())
    assert len(model.tokenizer) == 24
    assert create_gpt2(False, str(tmp_path), {"n_layer": 1}).config.n_layer == 1
