"""Training models of transformers: microbatches, methods, exact resume, compiled graphs, several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import composer.functional as cf
from composer import Trainer, dist
from composer.algorithms import EMA, Alibi, GatedLinearUnits, LowPrecisionLayerNorm, SeqLengthWarmup, SequencePacking
from composer.callbacks import Generate
from composer.loggers import InMemoryLogger
from composer.metrics import LanguageCrossEntropy
from composer.models import HuggingFaceModel
from composer.nn import LPLayerNorm
from tests.common import At, weights_of
from tests.models import tiny
from tests.ranks import Ranks


def trainer_of(model: HuggingFaceModel, data: Any, **arguments: Any) -> Trainer:
    arguments.setdefault("max_duration", "1ep")
    arguments.setdefault("optimizers", torch.optim.SGD(model.parameters(), lr=0.1))
    return Trainer(model=model, train_dataloader=data, progress_bar=False, seed=3, **arguments)


def gradients(model: HuggingFaceModel, batch: Any, size: int | None) -> tuple[Tensor, float]:
    """The gradient of the whole batch, and its loss, from microbatches of a size."""
    flat = At(
        "after_train_batch", lambda state: torch.cat([p.grad.flatten().clone() for p in state.model.parameters()])
    )
    trainer = trainer_of(model, [batch], device_train_microbatch_size=size, callbacks=flat, max_duration="1ba")
    trainer.fit()
    trainer.close()
    return flat.found[0], float(trainer.state.total_loss_dict["loss/train/total"])


# ------------------------------------------------------------------------------------------------------ AccumEquality


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(0, 8), min_size=2, max_size=6).filter(lambda lengths: max(lengths) > 1),
    size=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_AccumEquality_of_a_causal_model_with_padding(lengths: list[int], size: int, seed: int) -> None:
    """The first token of a sequence is no target, nor is padding; parts may have no target at all."""
    batch = tiny.texts(lengths, seed=seed)
    whole, loss = gradients(HuggingFaceModel(tiny.gpt2().double()), batch, None)
    parts, of_parts = gradients(HuggingFaceModel(tiny.gpt2().double()), batch, size)
    # transformers computes the loss itself in float32.
    assert float((parts - whole).norm()) <= 1e-6 * float(whole.norm())
    assert of_parts == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("kind", ["masked", "decoder"])
def test_AccumEquality_of_other_models_with_padding(kind: str) -> None:
    make = tiny.bert if kind == "masked" else tiny.t5
    batch = tiny.texts([5, 8, 1, 7, 3])
    whole, _ = gradients(HuggingFaceModel(make().double()), batch, None)
    parts, _ = gradients(HuggingFaceModel(make().double()), batch, 2)
    assert float((parts - whole).norm()) <= 1e-6 * float(whole.norm())


def test_labels_alone_do_not_tell_what_a_causal_model_averages_over() -> None:
    """The check above is not blind: with the number of labels for weights the gradient is another one."""
    batch = tiny.texts([8, 2, 2, 2])
    whole, _ = gradients(HuggingFaceModel(tiny.gpt2().double()), batch, None)
    model = HuggingFaceModel(tiny.gpt2().double())
    model.__count_targets__ = lambda batch: (batch["labels"] != -100).sum()  # type: ignore[method-assign]
    parts, _ = gradients(model, batch, 1)
    assert float((parts - whole).norm()) > 1e-2 * float(whole.norm())


# ------------------------------------------------------------------------------------------------------------ methods


def causal_data(number: int = 6) -> list[Any]:
    return [tiny.texts(seed=seed) for seed in range(number)]


def test_SeqLengthWarmup_cuts_what_the_model_reads() -> None:
    read: list[int] = []
    model = HuggingFaceModel(tiny.gpt2())
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    method = SeqLengthWarmup(duration=1.0, min_seq_length=2, max_seq_length=8, step_size=2)
    trainer_of(model, causal_data(), algorithms=method).fit()
    assert read == [2, 2, 4, 4, 6, 6]


@pytest.mark.parametrize("make", [tiny.bert, tiny.gpt2])
@pytest.mark.parametrize("method", [lambda: Alibi(max_sequence_length=16), GatedLinearUnits, LowPrecisionLayerNorm])
def test_surgery_on_models_of_transformers(make: Any, method: Any) -> None:
    """Each changes the layers of the model inside, which trains with them."""
    model = HuggingFaceModel(make(), use_logits=True, metrics=[LanguageCrossEntropy()])
    kinds = {type(module) for module in model.modules()}
    algorithm = method()
    precision = "amp_bf16" if isinstance(algorithm, LowPrecisionLayerNorm) else "fp32"
    before = weights_of(model)
    trainer = trainer_of(model, causal_data(), algorithms=algorithm, precision=precision)
    after = {type(module) for module in model.modules()}
    if isinstance(algorithm, Alibi):
        assert model.model.config._attn_implementation == "alibi"
    else:
        assert after - kinds
    if isinstance(algorithm, LowPrecisionLayerNorm):
        assert LPLayerNorm in after
    trainer.fit()
    assert trainer.state.total_loss_dict["loss/train/total"].isfinite()
    assert before.numel() != weights_of(model).numel() or not torch.equal(before, weights_of(model))
    trainer.close()


def test_functional_alibi_reads_longer_texts_than_the_model_was_made_for() -> None:
    model = HuggingFaceModel(tiny.gpt2(n_positions=8))
    longer = tiny.texts([12, 9], width=12)
    with pytest.raises(IndexError):
        model(longer)
    cf.apply_alibi(model, max_sequence_length=12)
    assert model(longer).loss.isfinite()


def test_Generate_logs_what_the_model_writes() -> None:
    log = InMemoryLogger()
    words = tiny.tokenizer()
    model = HuggingFaceModel(tiny.gpt2(), words)
    callback = Generate(["the cat sat", "a"], "2ba", batch_size=1, max_new_tokens=4)
    trainer = trainer_of(model, causal_data(4), callbacks=callback, loggers=log)
    trainer.fit()
    (table,) = log.tables.values()
    assert "the cat sat" in str(table)
    assert words.padding_side == "right"


# ----------------------------------------------------------------------------------------- checkpoints, compiled graphs


def build(folder: Path | None, **arguments: Any) -> Trainer:
    """A run with dropout, an average of weights, and state in the optimizer."""
    model = HuggingFaceModel(tiny.gpt2(dropout=True), tiny.tokenizer(), metrics=[LanguageCrossEntropy()])
    arguments.setdefault("algorithms", EMA(half_life="2ba"))
    arguments.setdefault("max_duration", "6ba")
    return trainer_of(
        model, causal_data(4), optimizers=torch.optim.AdamW(model.parameters(), lr=0.01), save_folder=folder,
        save_interval="1ba", **arguments,
    )  # fmt: skip


def test_resume_is_exact(tmp_path: Path) -> None:
    whole = build(None)
    whole.fit()
    first = build(tmp_path)
    first.fit(duration="3ba")
    first.close()
    second = build(None, load_path=str(tmp_path / "ep0-ba3-rank0.pt"))
    second.fit()
    assert torch.equal(weights_of(second.state.model), weights_of(whole.state.model))
    one, other = (run.state.algorithms[0].state_dict()["averages"] for run in (second, whole))
    assert all(torch.equal(one[name], other[name]) for name in other)


# So the compiler looks at a tensor that is not a leaf, after transformers has interrupted the graph to log something.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_run_has_the_losses_of_an_eager_one() -> None:
    torch._dynamo.reset()
    losses = []
    for config in (None, {"backend": "eager"}):
        found = At("batch_end", lambda state: float(state.loss.detach()))
        model = HuggingFaceModel(tiny.gpt2(n_layer=1))
        trainer = trainer_of(model, causal_data(3), callbacks=found, compile_config=config)
        trainer.fit()
        trainer.close()
        losses.append(found.found)
    torch._dynamo.reset()
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# -------------------------------------------------------------------------------------------------- several processes

LENGTHS = [[8, 1, 3], [2, 5, 7]]


def joined() -> dict[str, Tensor]:
    parts = [tiny.texts(lengths, seed=number) for number, lengths in enumerate(LENGTHS)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def run_of(folder: str, kind: str | None, **arguments: Any) -> Trainer:
    """Three steps, divided among the processes there are."""
    rank = dist.get_global_rank()
    batch = joined() if dist.get_world_size() == 1 else tiny.texts(LENGTHS[rank], seed=rank)
    model = HuggingFaceModel(tiny.gpt2().double(), tiny.tokenizer())
    config = {"fsdp": {"state_dict_type": kind}} if kind in ("full", "sharded") else None
    arguments.setdefault("max_duration", "3ba")
    return Trainer(
        model=model,
        train_dataloader=[batch] * 4,
        optimizers=torch.optim.AdamW(model.parameters(), lr=0.01),
        parallelism_config=config,
        device_train_microbatch_size=2,
        save_folder=f"{folder}/{kind}",
        save_interval="3ba",
        progress_bar=False,
        device="cpu",
        seed=1,
        **arguments,
    )


def whole_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    found = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}
    return {name: value.detach().clone() for name, value in found.items()}


def divided(folder: str) -> dict[str, Any]:
    """Train with copies of the weights; train, save, resume and generate with divided ones. What becomes of them."""
    copied = run_of(folder, "copied")
    copied.fit()
    found: dict[str, Any] = {"copied": whole_weights(copied.state.model)}
    copied.close()
    for kind in ("full", "sharded"):
        trainer = run_of(folder, kind)
        trainer.fit()
        found[kind] = whole_weights(trainer.state.model)
        model: Any = trainer.state.model
        # Processes write texts of their own, of other lengths.
        prompt = torch.tensor([[5, 6, 7]]) + dist.get_global_rank()
        model.eval()
        with torch.no_grad():
            found[f"{kind} tokens"] = model.generate(prompt, max_new_tokens=3 + 2 * dist.get_global_rank()).tolist()
        trainer.close()
        path = f"{folder}/{kind}/ep0-ba3" + ("-rank0.pt" if kind == "full" else "")
        again = run_of(folder, kind, load_path=path, max_duration="4ba", save_overwrite=True)
        again.fit()
        found[f"{kind} resumed"] = whole_weights(again.state.model)
        again.close()
    return found


@pytest.mark.slow
def test_two_processes_that_divide_the_weights(two_ranks: Ranks, tmp_path: Path) -> None:
    found = two_ranks.run(divided, str(tmp_path))
    alone = run_of(str(tmp_path), None)
    alone.fit()
    expected = whole_weights(alone.state.model)
    alone.fit(duration="1ba")
    further = whole_weights(alone.state.model)
    for rank, of_rank in enumerate(found):
        torch.testing.assert_close(of_rank["copied"], expected, rtol=0, atol=1e-6)
        for kind in ("full", "sharded"):
            torch.testing.assert_close(of_rank[kind], expected, rtol=0, atol=1e-6)
            torch.testing.assert_close(of_rank[f"{kind} resumed"], further, rtol=0, atol=1e-6)
        assert of_rank["full tokens"] == of_rank["sharded tokens"]
        assert len(of_rank["full tokens"][0]) <= 3 + 3 + 2 * rank
    alone.close()

    for name in ("full/ep0-ba3-rank0.pt", "sharded/ep0-ba3"):
        model, words = HuggingFaceModel.hf_from_composer_checkpoint(tmp_path / name)
        read = {f"model.{key}": value.detach() for key, value in model.named_parameters()}
        torch.testing.assert_close(read, expected, rtol=0, atol=1e-6)
        assert words("the cat")["input_ids"] == tiny.tokenizer()("the cat")["input_ids"]


@pytest.mark.parametrize("name", ["Llama", "Mistral", "GPT2"])
def test_documents_packed_into_a_row_train_as_documents_in_rows_of_their_own(name):
    """With a cache, which configurations enable by default, the documents of a row would attend to each other."""
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    documents = [torch.randint(0, 64, (length,), generator=generator) for length in (5, 9, 3, 7, 12)]
    if name == "GPT2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}
    else:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= {"num_key_value_heads": 1} | ({"sliding_window": 4} if name == "Mistral" else {})
    config = getattr(transformers, f"{name}Config")(vocab_size=64, **sizes)
    torch.manual_seed(0)
    causal = transformers.GPT2LMHeadModel if name == "GPT2" else getattr(transformers, f"{name}ForCausalLM")
    model = HuggingFaceModel(causal(config).double(), tokenizer=None, use_logits=True).train()
    assert model.config.use_cache

    def gradients_of(batch: dict[str, Tensor]) -> list[Tensor]:
        loss = model.loss(model(batch), batch)
        return list(torch.autograd.grad(loss, list(model.parameters())))

    ids, mask = (
        pad_sequence(each, batch_first=True) for each in (documents, [torch.ones_like(one) for one in documents])
    )
    padded = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    packed = SequencePacking(16, keep=("input_ids", "labels", "position_ids"))(documents)
    assert len(packed["input_ids"]) == 3
    torch.testing.assert_close(gradients_of(packed), gradients_of(padded), rtol=0, atol=1e-9)


def test_a_batch_that_asks_for_a_cache_has_one():
    model = HuggingFaceModel(tiny.gpt2())
    batch = {"input_ids": torch.arange(4)[None]}
    assert model(batch).get("past_key_values") is None
    cache = model({**batch, "use_cache": True}).past_key_values
    assert cache is not None
    assert model({**batch, "past_key_values": cache}).past_key_values is not None


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [1, 1, 0, 1], [0, 1, 1, 0]])
def test_labels_of_weight_zero_are_ignored(weights):
    model = HuggingFaceModel(tiny.gpt2())
    labels = torch.tensor([[1, 2, 3, 4]])
    ignored = labels.masked_fill(torch.tensor([weights]) == 0, -100)
    batch = {"input_ids": labels, "labels": labels, "loss_weights": torch.tensor([weights], dtype=torch.float32)}
    assert torch.equal(model(batch).loss, model({"input_ids": labels, "labels": ignored}).loss)
    assert model.__count_targets__(batch) == (ignored[:, 1:] != -100).sum()
    with pytest.raises(ValueError, match=r"one of the 'loss_weights' for each .* \(1,\) and \(1, 4\)"):
        model({**batch, "loss_weights": torch.ones(1)})


def test_weights_of_documents_are_an_error_since_the_model_does_not_take_them():
    model = HuggingFaceModel(tiny.gpt2())
    documents = [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]
    for weights in ("token", "document"):
        packed = SequencePacking(8, weights=weights)(documents)
        if weights == "token":
            model(packed)
        else:
            with pytest.raises(ValueError, match=r"'loss_weights' other than 0 and 1.*weights='token'"):
                HuggingFaceModel(tiny.gpt2())(packed)


def test_a_model_that_takes_weights_averages_over_their_sum():
    class Weighted(type(tiny.gpt2())):
        def forward(self, input_ids, labels, loss_weights):
            logits = super().forward(input_ids).logits
            losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
            weights = loss_weights[:, 1:]
            return {"loss": (losses * weights).sum() / weights.sum(), "logits": logits}

    ids = torch.arange(24).view(4, 6)
    weights = torch.linspace(0.5, 3, 24).view(4, 6)
    weights[1, 2:] = 0
    batch = {"input_ids": ids, "labels": ids, "loss_weights": weights}
    found = []
    for size in (None, 1):
        torch.manual_seed(0)
        model = HuggingFaceModel(Weighted(tiny.gpt2().config).eval())
        assert model.__count_targets__(batch).item() == pytest.approx(weights[:, 1:].sum().item())
        found.append(gradients(model, batch, size)[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
