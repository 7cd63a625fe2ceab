"""The requests of lm-eval, as batches of tokens and back: the texts are those of HFLM."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from composer import State
from composer.callbacks._lm_eval_model import language_model
from composer.callbacks._lm_eval_ranks import RankedModel
from composer.models import HuggingFaceModel
from tests.models import tiny


@settings(max_examples=15)
@given(
    contexts=st.lists(st.lists(st.sampled_from(tiny.WORDS), min_size=1, max_size=40), min_size=1, max_size=5),
    until=st.sampled_from([[], ["house"], ["cat", "mat on"], "the"]),
    new_tokens=st.integers(1, 12),
    batch_size=st.integers(1, 3),
)
def test_generated_texts_are_those_of_the_harness_alone(contexts, until, new_tokens, batch_size) -> None:
    """Also where contexts are padded or too long, and where a text ends early."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    arguments = {"until": until, "max_gen_toks": new_tokens}
    requests = [
        Instance("generate_until", {}, (" ".join(words), arguments), number) for number, words in enumerate(contexts)
    ]
    model = HuggingFaceModel(tiny.gpt2(initializer_range=1.0), tiny.tokenizer()).eval()
    lm = language_model(RankedModel(State(model=model), model.tokenizer), model.tokenizer, 32, batch_size)
    alone = HFLM(pretrained=model.model, tokenizer=tiny.tokenizer(), batch_size=1, max_length=32)
    found = lm.generate_until(requests)
    assert found == alone.generate_until(requests)
    assert all(isinstance(text, str) for text in found)
