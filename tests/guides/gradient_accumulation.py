"""Batches in parts: the arguments of three years, and the same result from each."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from composer import Trainer
from composer.models import mnist_model

train_dataset = datasets.MNIST("data", train=True, transform=transforms.ToTensor())
train_dataloader = DataLoader(train_dataset, batch_size=100)


def train(**kwargs) -> torch.Tensor:
    torch.manual_seed(3)
    model = mnist_model()
    model.module.bn.eval()  # a batch norm sees microbatches, not the batch
    trainer = Trainer(
        model=model,
        train_dataloader=train_dataloader,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.05),
        max_duration="2ba",
        seed=3,
        device="gpu" if torch.cuda.is_available() else "cpu",
        callbacks=[],
        progress_bar=False,
        **kwargs,
    )
    trainer.fit()
    return model.module.fc1.weight.detach()


whole = train(grad_accum=1)
assert train(grad_accum=4).shape == whole.shape
assert train(device_train_microbatch_size=25).shape == whole.shape
if torch.cuda.is_available():
    train(grad_accum="auto")
    train(device_train_microbatch_size="auto")
