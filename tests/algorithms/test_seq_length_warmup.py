from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.algorithms import SeqLengthWarmup, set_batch_sequence_length
from composer.core.logger import LoggerDestination
from composer.core.state import State
from tests import loop
from tests.algorithms.cases import Case
from tests.algorithms.text import make_text_batches, make_text_model, train_by_hand


def _make():
    return SeqLengthWarmup(duration=0.75, min_seq_length=4, max_seq_length=16, step_size=4)


CASE = Case(
    make=_make,
    by_hand=lambda batches: train_by_hand(
        batches, edit=lambda batch, elapsed: set_batch_sequence_length(batch, int(4 + 16 * elapsed))
    ),
    neutral=lambda: SeqLengthWarmup(min_seq_length=16, max_seq_length=16),
    model=make_text_model,
    batches=make_text_batches,
)


# ------------------------------------------------------------------------------------------------------ the function


def test_truncates():
    batch = {"input_ids": torch.arange(12).view(2, 6), "labels": torch.arange(12).view(2, 6), "name": ["a", "b"]}
    short = set_batch_sequence_length(batch, 2)
    assert short["input_ids"].tolist() == short["labels"].tolist() == [[0, 1], [6, 7]]
    assert short["name"] == ["a", "b"]
    assert short["input_ids"].is_contiguous()
    assert batch["input_ids"].shape == (2, 6)


@pytest.mark.parametrize("length", [6, 7, 1000])
def test_short_sequences_stay(length):
    batch = {"input_ids": torch.arange(12).view(2, 6)}
    assert set_batch_sequence_length(batch, length) is batch


def test_shapes_other_than_those_of_tokens():
    batch = {
        "input_ids": torch.zeros(2, 6, dtype=torch.long),
        "embeddings": torch.zeros(2, 6, 3),
        "features_like_tokens": torch.zeros(2, 6, 6),
        "mask": torch.arange(72).view(2, 6, 6),
        "heads": torch.zeros(2, 1, 6, 6),
        "causal": torch.zeros(6, 6),
        "class": torch.zeros(2),
        "scale": torch.zeros(()),
    }
    short = set_batch_sequence_length(batch, 4)
    assert {key: tuple(value.shape) for key, value in short.items()} == {
        "input_ids": (2, 4),
        "embeddings": (2, 4, 3),
        "features_like_tokens": (2, 4, 6),
        "mask": (2, 4, 4),
        "heads": (2, 1, 4, 4),
        "causal": (4, 4),
        "class": (2,),
        "scale": (),
    }
    assert torch.equal(short["mask"], batch["mask"][:, :4, :4])


@pytest.mark.parametrize("key", ["attention_mask", "Decoder_Mask", "attn_bias"])
def test_masks_that_are_added_to_scores(key):
    """A floating-point (B, S, S) is a mask by its key; other shapes cannot be features."""
    mask = torch.randn(2, 6, 6)
    for end in (False, True):
        batch = {"input_ids": torch.ones(2, 6).long(), "attention_mask": torch.ones(2, 6)}
        if end and key in batch:
            continue  # the end is found by a mask of padding
        short = set_batch_sequence_length({**batch, key: mask}, 4, preserve_end_of_sequence=end)
        assert torch.equal(short[key], mask[:, :4, :4])
    batch = (torch.ones(2, 6).long(), mask[:1], mask)
    _, shared, features = set_batch_sequence_length(batch, 4)
    assert torch.equal(shared, mask[:1, :4, :4])
    assert torch.equal(features, mask[:, :4])


def test_square_masks_cannot_be_split():
    ids, mask = torch.ones(2, 6).long(), torch.ones(2, 6, 6)
    for one in (mask, mask.bool(), mask.long()):
        with pytest.raises(ValueError, match=r"square attention masks, .* \(2, 6, 6\). Use truncate=True"):
            set_batch_sequence_length({"input_ids": ids, "attention_mask": one}, 3, truncate=False)
    split = set_batch_sequence_length({"input_ids": ids, "inputs_embeds": mask}, 3, truncate=False)
    assert split["inputs_embeds"].shape == (4, 3, 6)


def test_as_many_sequences_as_tokens():
    batch = {"input_ids": torch.arange(16).view(4, 4)}
    assert set_batch_sequence_length(batch, 2)["input_ids"].shape == (4, 2)


def test_reshapes():
    batch = (torch.arange(10).view(2, 5), torch.arange(20).view(2, 5, 2))
    first, second = set_batch_sequence_length(batch, 3, truncate=False)
    assert first.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert second.tolist() == torch.arange(18).view(3, 3, 2).tolist()
    with pytest.raises(ValueError, match="every tensor has a shape that starts with"):
        set_batch_sequence_length((batch[0], torch.zeros(2)), 3, truncate=False)


@given(rows=st.integers(1, 5), size=st.integers(1, 20), length=st.integers(1, 25))
def test_reshaping_keeps_all_tokens_but_a_rest(rows, size, length):
    ids = torch.arange(rows * size).view(rows, size)
    short = set_batch_sequence_length({"input_ids": ids}, length, truncate=False)["input_ids"]
    assert short.shape[1] == min(length, size)
    assert short.flatten().tolist() == list(range(short.numel()))
    assert rows * size - short.numel() < length


def test_last_token_stays_with_padding_on_either_side():
    ids = torch.tensor([[1, 2, 3, 4, 5, 9], [1, 2, 3, 9, 0, 0], [1, 9, 0, 0, 0, 0], [0, 0, 0, 0, 1, 9]])
    mask = (ids > 0).long()
    states = torch.stack([ids, -ids], dim=-1)
    batch = {"input_ids": ids, "attention_mask": mask, "states": states, "class": torch.arange(4)}
    kept = ids.clone()
    short = set_batch_sequence_length(batch, 3, preserve_end_of_sequence=True)
    assert short["input_ids"].tolist() == [[1, 2, 9], [1, 2, 9], [1, 9, 0], [0, 0, 9]]
    assert short["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [0, 0, 1]]
    assert torch.equal(short["states"], torch.stack([short["input_ids"], -short["input_ids"]], dim=-1))
    assert short["class"] is batch["class"]
    assert torch.equal(batch["input_ids"], kept)


def test_last_token_of_a_single_sequence_is_not_written_into_the_data():
    batch = {"input_ids": torch.tensor([[1, 2, 3, 9]]), "attention_mask": torch.ones(1, 4)}
    assert set_batch_sequence_length(batch, 2, preserve_end_of_sequence=True)["input_ids"].tolist() == [[1, 9]]
    assert batch["input_ids"].tolist() == [[1, 2, 3, 9]]


def test_wrong_arguments_of_the_function():
    batch = {"input_ids": torch.zeros(2, 6)}
    with pytest.raises(ValueError, match="curr_seq_len"):
        set_batch_sequence_length(batch, 0)
    with pytest.raises(ValueError, match="attention_mask"):
        set_batch_sequence_length(batch, 3, preserve_end_of_sequence=True)
    with pytest.raises(ValueError, match="no tensor of sequences"):
        set_batch_sequence_length({"lengths": torch.zeros(2)}, 3)


# ------------------------------------------------------------------------------------------------------- the schedule


def test_schedule_by_hand():
    warmup = SeqLengthWarmup(duration=0.5, min_seq_length=8, max_seq_length=64, step_size=8)
    # Seven steps in half of the training.
    assert [warmup.length_at(k / 14) for k in range(15)] == [8, 16, 24, 32, 40, 48, 56, *[64] * 8]
    assert warmup.length_at(0.99 / 14) == 8


@given(
    duration=st.floats(0, 1),
    least=st.integers(1, 50),
    span=st.integers(0, 100),
    step=st.integers(1, 30),
    elapsed=st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_schedule_grows_from_min_to_max_in_steps(duration, least, span, step, elapsed):
    warmup = SeqLengthWarmup(duration, least, least + span, step)
    first, second = (warmup.length_at(t) for t in sorted(elapsed))
    assert least <= first <= second <= least + span
    assert first == least + span or (first - least) % step == 0
    assert warmup.length_at(duration) == warmup.length_at(1.0) == least + span
    assert warmup.length_at(0.0) == (least if duration > 0 else least + span)


def lengths(warmup, number, max_duration, epochs=1):
    """The lengths of the batches of a run."""
    state = State(model=make_text_model(), max_duration=max_duration)
    state.set_dataloader([None] * number, "train")
    engine = loop.Engine(state, algorithms=[warmup])
    found = []
    for _ in range(epochs):
        for batch in make_text_batches(number):
            state.batch = batch
            engine.run_event("after_dataloader")
            found.append(state.batch["input_ids"].shape[1])
            state.timestamp = state.timestamp.to_next_batch(samples=6, tokens=96)
        state.timestamp = state.timestamp.to_next_epoch()
    return found


@pytest.mark.parametrize("max_duration", ["2ep", "8ba", "48sp", "768tok"])
def test_every_unit_gives_the_same_lengths(max_duration):
    warmup = SeqLengthWarmup(duration=0.5, min_seq_length=4, max_seq_length=16, step_size=4)
    assert lengths(warmup, 4, max_duration, epochs=2) == [4, 4, 8, 12, 16, 16, 16, 16]


@pytest.mark.parametrize("max_duration", ["1ba", "2ba", "3ba", "1ep"])
def test_short_runs_do_not_divide_by_zero(max_duration):
    warmup = SeqLengthWarmup(duration=0.3, min_seq_length=1, max_seq_length=16, step_size=1)
    found = lengths(warmup, 3, max_duration)
    assert found[0] == 1
    assert found == sorted(found)
    assert lengths(SeqLengthWarmup(0.0, 1, 16), 1, "1ba") == [16]


def test_no_end_of_training():
    with pytest.raises(ValueError, match="max_duration"):
        lengths(_make(), 1, None)


def test_logs_and_declares():
    class Notes(LoggerDestination):
        def __init__(self):
            self.notes = []

        def log_metrics(self, metrics, step=None):
            self.notes.append(dict(metrics))

    notes = Notes()
    state = State(model=make_text_model(), max_duration="4ba")
    engine = loop.Engine(state, algorithms=[SeqLengthWarmup(0.5, 4, 16, 4, truncate=False)], callbacks=[notes])
    loop.fit(engine, make_text_batches())
    names = ("seq_length_warmup/curr_seq_len", "seq_length_warmup/curr_bs")
    assert [tuple(note[name] for name in names) for note in notes.notes if names[0] in note] == [
        (4, 24),
        (8, 12),
        (16, 6),
        (16, 6),
    ]
    assert SeqLengthWarmup.__traits__.changes_shapes
    assert not SeqLengthWarmup.required_on_load()


def test_wrong_arguments():
    for arguments, name in (
        ({"duration": 1.5}, "duration"),
        ({"duration": -0.1}, "duration"),
        ({"min_seq_length": 0}, "min_seq_length"),
        ({"min_seq_length": 20, "max_seq_length": 10}, "max_seq_length"),
        ({"step_size": 0}, "step_size"),
    ):
        with pytest.raises(ValueError, match=name):
            SeqLengthWarmup(**arguments)
