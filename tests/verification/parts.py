"""Small models, data and trainers of which planted faults are made; as they are here, they have no fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from composer import ComposerModel, Trainer, rng

ROWS, FEATURES, CLASSES, BATCH = 48, 6, 3, 8
TOKENS, LENGTH = 11, 7
SEED = 17


def features() -> Tensor:
    """The inputs, (ROWS, FEATURES), all rows different."""
    return torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(1))


def classes() -> Tensor:
    """The targets, (ROWS,)."""
    return features()[:, :CLASSES].argmax(1)


def rows() -> TensorDataset:
    """A data set of classification."""
    return TensorDataset(features(), classes())


class Rows(Dataset[Any]):
    """The same as a class, for data sets that do more."""

    def __init__(self) -> None:
        self.x, self.y = features(), classes()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Texts(Dataset[Any]):
    """Padded rows of tokens with one target for each; targets of padding are -100. The lengths differ much."""

    def __init__(self, targets: str = "labels") -> None:
        generator = torch.Generator().manual_seed(2)
        self.tokens = torch.randint(1, TOKENS, (ROWS, LENGTH), generator=generator)
        self.lengths = torch.randint(1, LENGTH + 1, (ROWS,), generator=generator)
        self.targets = targets

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        is_valid = torch.arange(LENGTH) < self.lengths[index]
        tokens = self.tokens[index] * is_valid
        return {"input_ids": tokens, self.targets: torch.where(is_valid, (tokens * 3 + 1) % TOKENS, -100)}


def loader(dataset: Any = None, shuffle: bool = True, **arguments: Any) -> DataLoader[Any]:
    """A loader of batches of eight."""
    dataset = rows() if dataset is None else dataset
    if "sampler" in arguments or "batch_sampler" in arguments:
        shuffle = False
    if "batch_sampler" not in arguments:
        arguments.setdefault("batch_size", BATCH)
    return DataLoader(dataset, shuffle=shuffle, **arguments)


def network(*extra: nn.Module) -> nn.Sequential:
    """Two layers, with modules in between."""
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.Tanh(), *extra, nn.Linear(12, CLASSES))


class Classifier(ComposerModel):
    """A network of batches ``(x, class)``, with a loss function."""

    def __init__(
        self, net: nn.Module | None = None, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    ) -> None:
        super().__init__()
        self.net = network() if net is None else net
        self.loss_function = loss

    def forward(self, batch: Any) -> Any:
        return self.net(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return self.loss_function(outputs, batch[1])


class Tagger(ComposerModel):
    """A model of batches of tokens, with a loss function of the logits and the batch."""

    def __init__(self, loss: Callable[[Tensor, Any], Tensor] | None = None) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)
        self.loss_function = loss

    def forward(self, batch: Any) -> Tensor:
        return self.head(torch.tanh(self.embed(batch["input_ids"])))

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        if self.loss_function is not None:
            return self.loss_function(outputs, batch)
        return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


def build(
    model: Callable[[], ComposerModel] = Classifier,
    data: Any = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    **arguments: Any,
) -> Trainer:
    """A trainer of two epochs; the model is made after the seed is set, as it should be."""
    rng.seed_all(SEED)
    made = model()
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    arguments = {"max_duration": "2ep", "seed": SEED, "progress_bar": False, "precision": "fp32", **arguments}
    return Trainer(
        model=made,
        train_dataloader=loader() if data is None else data,
        optimizers=make(made.parameters()),
        **arguments,
    )


def dropout_model() -> Classifier:
    """The classifier with dropout, whose random state all runs must keep."""
    return Classifier(network(nn.Dropout(0.3)))
