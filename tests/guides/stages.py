"""Several fits with one trainer: short first, longer after, with other data, batch sizes and methods' schedules."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from composer import DataSpec, Trainer
from composer.algorithms import EMA, SAM, SWA, GhostBatchNorm, LayerFreezing, MixUp
from composer.models import MNIST_Classifier
from composer.optim import DecoupledSGDW, LinearScheduler
from composer.utils import dist

train_dataset = datasets.MNIST("data", train=True, transform=transforms.ToTensor())
test_dataset = datasets.MNIST("data", train=False, transform=transforms.ToTensor())


def loader(dataset, batch_size: int, shuffle: bool = False) -> DataSpec:
    sampler = dist.get_sampler(dataset, shuffle=shuffle)
    normalize = transforms.Normalize((0.1307,), (0.3081,))
    return DataSpec(
        DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=0),
        device_transforms=lambda batch: (normalize(batch[0]), batch[1]),
        get_num_samples_in_batch=lambda batch: len(batch[0]),
    )


model = MNIST_Classifier(num_classes=10)
optimizer = DecoupledSGDW(model.parameters(), lr=0.05, momentum=0.9)
trainer = Trainer(
    model=model,
    train_dataloader=loader(train_dataset, 80, shuffle=True),
    eval_dataloader=loader(test_dataset, 100),
    max_duration="1ep",
    optimizers=optimizer,
    schedulers=LinearScheduler(t_max="3ep"),
    algorithms=[MixUp(alpha=0.2), GhostBatchNorm(ghost_batch_size=40), SAM(rho=0.05, interval=2)],
    step_schedulers_every_batch=True,
    train_subset_num_batches=5,
    deterministic_mode=False,
    precision="fp32",
)
trainer.fit()
assert trainer.state.timestamp.batch == 5
trainer.fit(duration="1ep")
trainer.fit(train_dataloader=loader(train_dataset, 40, shuffle=True), duration="3ba", train_subset_num_batches=-1)
assert trainer.state.timestamp.batch == 13
assert trainer.state.timestamp.sample == 10 * 80 + 3 * 40

averaged = MNIST_Classifier()
Trainer(
    model=averaged,
    train_dataloader=loader(train_dataset, 100),
    optimizers=torch.optim.SGD(averaged.parameters(), lr=0.05),
    max_duration="4ep",
    train_subset_num_batches=2,
    algorithms=[SWA(swa_start="0.5dur", swa_end="0.9dur", update_interval="1ba"), LayerFreezing(0.5, 0.5)],
).fit()
Trainer(
    model=MNIST_Classifier(),
    train_dataloader=loader(train_dataset, 100),
    max_duration="2ep",
    train_subset_num_batches=2,
    algorithms=[EMA(half_life="2ba", update_interval="1ba")],
).fit()
