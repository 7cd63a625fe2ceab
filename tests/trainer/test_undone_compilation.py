"""A closed trainer leaves its model as it was before ``compile_config``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from composer import Trainer
from composer.models import ComposerClassifier
from tests.common import Regression, regression_data

# Of torch, which traces the second block.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that runs graphs as they are, and counts them."""

    graphs = 0

    def __call__(self, graph: Any, inputs: Any, **more: Any) -> Any:
        self.graphs += 1
        return graph.forward


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


@pytest.mark.parametrize("config", [{}, {"regional": True}])
def test_a_later_trainer_without_a_configuration_is_eager(config: dict[str, Any]) -> None:
    backend = Counting()
    model = ComposerClassifier(nn.Sequential(Block(), Block()), 4)
    batches = [(torch.randn(size, 4), torch.randint(4, (size,))) for size in (8, 6)]

    def trained(batch: Any, **more: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        arguments: Any = {"max_duration": "1ep", "optimizers": optimizer, "progress_bar": False, **more}
        with Trainer(model=model, train_dataloader=[batch], **arguments) as trainer:
            trainer.fit()

    trained(batches[0], compile_config={"backend": backend, **config})
    graphs = backend.graphs
    assert graphs > 0
    trained(batches[1])
    assert backend.graphs == graphs
    assert all(module._compiled_call_impl is None for module in model.modules())


def test_what_the_user_has_compiled_stays() -> None:
    model = Regression()
    model.compile(backend=Counting())
    own = model._compiled_call_impl
    with Trainer(model=model, train_dataloader=regression_data(), compile_config={"backend": "eager"}):
        assert model._compiled_call_impl is not own
    assert model._compiled_call_impl is own


def test_what_another_trainer_has_compiled_since_stays() -> None:
    model = Regression()
    first, second = (
        Trainer(model=model, train_dataloader=regression_data(), compile_config={"backend": "eager"}) for _ in range(2)
    )
    compiled = model._compiled_call_impl
    first.close()
    assert model._compiled_call_impl is compiled is not None
    second.close()


def test_the_model_of_a_compiled_wrapper_is_eager_again() -> None:
    model = Regression()
    wrapper: Any = torch.compile(model, backend="eager")
    with Trainer(model=wrapper, train_dataloader=regression_data(), max_duration="1ba"):
        assert model._compiled_call_impl is not None
    assert model._compiled_call_impl is None
