"""LMEvalHarness on several ranks: scores do not depend on their number, and an error on one rank ends all."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from composer import State, dist
from composer.callbacks import LMEvalHarness, _lm_eval_ranks
from composer.callbacks._lm_eval_ranks import RankedModel
from tests.callbacks.cases import run_with
from tests.callbacks.test_lm_eval_harness import (
    TASKS,
    flat,
    last,
    numbers,
    scores_of,
    text_batches,
    write_tasks,
    writer,
)
from tests.models import tiny
from tests.ranks import Ranks


def harness_at(folder: str, tasks: list[str], **arguments: Any) -> LMEvalHarness:
    return LMEvalHarness(tasks, "2ba", include_path=folder, include_defaults=False, **arguments)


def on_ranks(folder: str, config: Any, limit: int | None) -> tuple[dict[str, float], dict[str, float]]:
    """Train and evaluate; return the scores that this rank logged, and those that it keeps."""
    model = writer()
    callback = harness_at(folder, TASKS, batch_size=2, limit=limit)
    rank = dist.get_global_rank()
    run = run_with(callback, model=model, data=text_batches()[rank::2] * 2, parallelism_config=config, device="cpu")
    run.trainer.fit()
    run.trainer.close()
    if config is None:
        torch.save(model.model.state_dict(), f"{folder}/rank{rank}.pt")
    return last(run.log), flat(callback.results)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1])
def test_scores_do_not_depend_on_the_number_of_ranks(two_ranks: Ranks, limit, tmp_path) -> None:
    """With copies of the weights and with sharded ones (FSDP), and with fewer documents than ranks."""
    write_tasks(tmp_path)
    replicated = two_ranks.run(on_ranks, str(tmp_path), None, limit)
    sharded = two_ranks.run(on_ranks, str(tmp_path), {"fsdp": {}}, limit)
    model = tiny.gpt2()
    model.load_state_dict(torch.load(tmp_path / "rank0.pt"))
    alone = numbers(flat(scores_of(model, tmp_path, limit=limit, bootstrap_iters=0)))
    for logged, results in (*replicated, *sharded):
        assert logged == results == pytest.approx(alone, rel=1e-4)


def failing(folder: str) -> str:
    """An evaluation that fails on one rank only; return the error of this rank."""
    model = writer()
    if dist.get_global_rank() == 1:

        def broken(batch: Any, outputs: Any = None) -> Any:
            raise ValueError("this rank is broken")

        model.eval_forward = broken
    callback = LMEvalHarness(
        ["tiny_choices"], "1ba", include_path=folder, include_defaults=False, tokenizer=tiny.tokenizer()
    )
    run = run_with(callback, model=model, data=text_batches(), device="cpu")
    try:
        run.trainer.fit()
    except Exception as error:
        run.trainer.close()
        return f"{type(error).__name__}: {error}"
    return ""


def unknown_document(folder: str) -> str:
    """An evaluation whose data rank 0 cannot read; return the error of this rank."""
    callback = harness_at(folder, ["tiny_choices"])
    run = run_with(callback, model=writer(), data=text_batches(), device="cpu")
    try:
        run.trainer.fit()
    except Exception as error:
        run.trainer.close()
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.slow
def test_an_error_on_one_rank_ends_all(two_ranks: Ranks, tmp_path) -> None:
    write_tasks(tmp_path)
    first, second = two_ranks.run(failing, str(tmp_path), timeout=120)
    assert second == "ValueError: this rank is broken"
    assert "Rank 1 could not evaluate its share of the requests: ValueError: this rank is broken" in first
    (tmp_path / "questions.jsonl").unlink()
    first, second = two_ranks.run(unknown_document, str(tmp_path), timeout=120)
    assert "questions.jsonl" in first
    assert second.startswith("RuntimeError: Rank 0 could not load the tasks: FileNotFoundError")


def slow() -> tuple[str, int]:
    """Rank 0 is busy for a while; return its result, and the number of messages that this rank has received."""
    model = RankedModel(State(model=torch.nn.Linear(1, 1)), tiny.tokenizer())
    _lm_eval_ranks._KEEP_ALIVE = 0.02
    messages, broadcast = [], dist.broadcast_object_list

    def counted(objects: list[Any], *arguments: Any) -> None:
        broadcast(objects, *arguments)
        messages.append(objects)

    _lm_eval_ranks.dist.broadcast_object_list = counted
    try:
        return model.run(lambda _: time.sleep(0.5) or "done", "sleep"), len(messages)
    finally:
        _lm_eval_ranks.dist.broadcast_object_list = broadcast
        _lm_eval_ranks._KEEP_ALIVE = 5.0


def test_ranks_are_kept_waiting_while_rank_0_loads_data(two_ranks: Ranks) -> None:
    """A download may take longer than the timeout of a collective."""
    (first, _), (second, messages) = two_ranks.run(slow)
    assert first == second == "done"
    assert messages > 5
