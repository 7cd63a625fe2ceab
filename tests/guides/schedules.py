"""Learning rates over time: times as strings, schedules of this library and of torch, one's own."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from composer import State, Time, Trainer
from composer.models import mnist_model
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW, LinearScheduler, MultiStepScheduler

train_dataset = datasets.MNIST("data", train=True, transform=transforms.ToTensor())
train_dataloader = DataLoader(train_dataset, batch_size=100, shuffle=True)


def linear_scheduler(state: State, ssr: float = 1.0) -> float:
    """From 1 to 0; ssr is accounted for, since max_duration is."""
    return 1.0 - float(state.get_elapsed_duration())


for schedulers, kwargs in [
    (MultiStepScheduler(milestones=["1ep", "3ep"], gamma=0.1), {}),
    (LinearScheduler(alpha_i=1.0, alpha_f=0.0, t_max="1dur"), {}),
    (CosineAnnealingWithWarmupScheduler(t_warmup="2ba", t_max="1dur", alpha_f=0.1), {"scale_schedule_ratio": 0.5}),
    ([linear_scheduler], {"step_schedulers_every_batch": True}),
    (torch.optim.lr_scheduler.ExponentialLR, {"step_schedulers_every_batch": False}),
]:
    model = mnist_model()
    optimizer = DecoupledAdamW(model.parameters(), lr=1.0e-2, weight_decay=1e-5)
    if schedulers is torch.optim.lr_scheduler.ExponentialLR:
        schedulers = schedulers(optimizer, gamma=0.5)
    trainer = Trainer(
        model=model,
        train_dataloader=train_dataloader,
        train_subset_num_batches=2,
        max_duration="4ep",
        optimizers=optimizer,
        schedulers=schedulers,
        progress_bar=False,
        **kwargs,
    )
    trainer.fit()
    rate = optimizer.param_groups[0]["lr"]
    print(type(schedulers).__name__, int(trainer.state.timestamp.batch), rate)
    assert rate < 1.0e-2
    assert trainer.state.timestamp.epoch == (2 if kwargs.get("scale_schedule_ratio") else 4)

assert Time.from_timestring("2ep") + Time(1, "ep") == "3ep"
