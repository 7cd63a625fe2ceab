"""The code of the pages runs, page after page, on small data and models that take the place of the reader's."""

from __future__ import annotations

import doctest
import gc
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Algorithm, Event, Trainer
from composer.models import ComposerClassifier
from docs.event_loop import event_loop, with_event_loop
from docs.hooks import made_pages
from tests.algorithms import test_contract as contract
from tests.docs.blocks import DOCS, FOREIGN, blocks, pages_with_code

# Their code has tests of its own, which say what comes of it.
ELSEWHERE = {
    "checkpoints.md",
    "data.md",
    "distributed.md",
    "export.md",
    "guides/debugging.md",
    "guides/verify.md",
    "hyperparameters.md",
    "recipes.md",
}
PAGES = sorted(pages_with_code() - ELSEWHERE)
GUIDES = sorted(str(path.relative_to(DOCS)) for folder in ("guides", "how_to") for path in DOCS.glob(f"{folder}/*.md"))


def make_model() -> ComposerClassifier:
    """Convolutions on images of 8 x 8 pixels."""
    layers = (
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    return ComposerClassifier(nn.Sequential(*layers), num_classes=4)


def make_data() -> tuple[Tensor, Tensor]:
    """Images of four classes that differ in brightness."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(48) % 4
    return torch.randn(48, 1, 8, 8, generator=generator) + y[:, None, None, None], y


def make_dataloader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*make_data()), batch_size=8, shuffle=True)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@pytest.fixture
def given(tmp_path, monkeypatch) -> Iterator[dict[str, Any]]:
    """The names that every page has; files go to a folder of their own, and trainers are closed at the end."""
    made: list[Trainer] = []
    construct = Trainer.__init__

    def noted(self: Trainer, **arguments: Any) -> None:
        construct(self, **arguments)
        made.append(self)

    monkeypatch.setattr(Trainer, "__init__", noted)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = make_model()
    yield {
        "__name__": "page",
        "make_model": make_model,
        "make_dataloader": make_dataloader,
        "make_optimizer": make_optimizer,
        "model": model,
        "train_dataloader": make_dataloader(),
        "eval_dataloader": make_dataloader(),
        "optimizer": make_optimizer(model),
    }
    for trainer in made:
        trainer.close()
    written = {block.module for page in PAGES for block in blocks(page)} & set(sys.modules)
    for name in written:
        del sys.modules[name]
    if written:
        gc.collect()
        # Parsers of configurations import the module of each subclass.
        assert not written & {method.__module__ for method in Algorithm.__subclasses__()}
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()


# transformers deprecates what peft reads.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_page_runs(page, given) -> None:
    if "sklearn" in (DOCS / page).read_text():
        pytest.importorskip("sklearn")
    for block in blocks(page):
        block.run(given)


def test_every_guide_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text()
    assert [page for page in GUIDES if f" {page}" not in navigation] == []


def test_foreign_code_is_on_the_pages_for_those_who_come_from_there() -> None:
    titles = {page: set(re.findall(r'^```python title="([^"]+)"$', (DOCS / page).read_text(), re.M)) for page in GUIDES}
    having = {page for page, found in titles.items() if found & FOREIGN}
    assert having <= {"guides/from_huggingface.md", "guides/from_lightning.md", "guides/from_plain_loop.md"}
    assert set().union(*titles.values()) >= FOREIGN


def test_links_of_the_guides_to_made_pages_lead_somewhere() -> None:
    """Those to pages written by hand are checked when the site is built."""
    made = made_pages()
    for page in [*GUIDES, "index.md"]:
        for link in re.findall(r"\]\(([^)#]+\.md)", (DOCS / page).read_text()):
            target = (DOCS / page).parent.joinpath(link).resolve().relative_to(DOCS)
            assert (DOCS / target).is_file() or str(target) in made, f"{page} links to {link}"


def test_the_tour_of_the_trainer_has_each_argument_once() -> None:
    page = (DOCS / "guides" / "trainer.md").read_text()
    table = page.partition("## Arguments by subject")[2].partition("## ")[0]
    listed = re.findall(r"`(\w+)`", table)
    known = [p.name for p in inspect.signature(Trainer).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert sorted(listed) == sorted(known)


def test_the_loop_is_that_of_the_code() -> None:
    assert doctest.testmod(sys.modules[event_loop.__module__]) == (0, 1)
    parts = event_loop()
    assert set(parts) == {"construct", "fit", "evaluate", "eval", "predict"}
    named = set(re.findall(r"\b[A-Z_]{4,}\b", "\n".join(parts.values())))
    # The page says in words when the two of iterations fire, as the docstring does.
    assert {event.name for event in Event} - named == {"ITERATION_END", "ITERATION_CHECKPOINT"}
    page = (DOCS / "guides" / "loop.md").read_text()
    shown = with_event_loop(page)
    assert "<!-- loop" not in shown
    assert all(f"```text\n{part}\n```" in shown for part in parts.values())


CONTRACT = (
    contract.test_class_equals_function,
    contract.test_does_something,
    contract.test_neutral_equals_absent_bit_for_bit,
    contract.test_leaves_the_batch_as_found,
    contract.test_deterministic_under_a_seed,
    contract.test_resumes_bit_for_bit,
    contract.test_repr_shows_the_arguments,
)


def test_the_method_that_the_page_writes_keeps_the_contract(given) -> None:
    for block in blocks("guides/your_own.md"):
        if block.module is not None:
            block.run({})
    written = sys.modules["tests.algorithms.test_input_noise"]
    for promise in CONTRACT:
        promise(written.CASE)
    for name, check in vars(written).items():
        if name.startswith("test_"):
            check()
    # Its class would remain in these.
    for cached in vars(contract).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()
