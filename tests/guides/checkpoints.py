"""Saving, resuming by hand and by name, and fine-tuning from a checkpoint."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from composer import Trainer
from composer.algorithms import SqueezeExcite
from composer.models import composer_resnet_cifar, mnist_model

transform = transforms.ToTensor()
train_dataloader = DataLoader(datasets.MNIST("data", train=True, transform=transform), batch_size=128, shuffle=True)
eval_dataloader = DataLoader(datasets.MNIST("data", train=False, transform=transform), batch_size=128)


def make_trainer(**kwargs) -> Trainer:
    model = mnist_model()
    return Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        train_dataloader=train_dataloader,
        eval_dataloader=eval_dataloader,
        progress_bar=False,
        **kwargs,
    )


trainer = make_trainer(
    max_duration="2ep",
    save_folder="./path/to/checkpoints",
    save_filename="ep{epoch}.pt",
    save_interval="1ep",
    save_overwrite=True,
    seed=1,
)
trainer.fit()
print(trainer.saved_checkpoints)
trainer.close()
assert sorted(path.name for path in Path("path/to/checkpoints").glob("ep*.pt")) == ["ep1.pt", "ep2.pt"]

# Go on from the first epoch, to where the first run came.
resumed = make_trainer(max_duration="2ep", load_path="./path/to/checkpoints/ep1.pt", seed=1)
assert resumed.state.timestamp.epoch == 1
resumed.fit()
for ours, theirs in zip(resumed.state.model.parameters(), trainer.state.model.parameters(), strict=True):
    assert torch.equal(ours, theirs)

# The same command again goes on by itself.
for duration in ("1ep", "2ep"):
    again = make_trainer(max_duration=duration, save_folder="runs/{run_name}", autoresume=True, run_name="my_run")
    again.fit()
    again.close()
assert again.state.timestamp.epoch == 2

# Only the weights, into a model with another head.
path = "./path/to/checkpoints/ep2.pt"
state_dict = torch.load(path, weights_only=True)
fine_tuned = mnist_model(num_classes=3)
trainer = Trainer(
    model=fine_tuned,
    train_dataloader=[(x, y % 3) for x, y in train_dataloader],
    max_duration="1ep",
    load_path=path,
    load_weights_only=True,
    load_strict_model_weights=False,
    load_ignore_keys=["state/model/module.fc2*"],
    progress_bar=False,
)
assert torch.equal(fine_tuned.module.conv1.weight, state_dict["state"]["model"]["module.conv1.weight"])
assert trainer.state.timestamp.epoch == 0
trainer.fit()

# A model that surgery changed.
resnet = composer_resnet_cifar("resnet_9", num_classes=10)
Trainer(model=resnet, algorithms=[SqueezeExcite()]).save_checkpoint("changed.pt")
Trainer(model=composer_resnet_cifar("resnet_9", 10), algorithms=[SqueezeExcite()], load_path="changed.pt")
