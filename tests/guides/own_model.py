"""A model of one's own: forward, loss, metrics; two evaluators; predictions."""

import torch
import torch.nn.functional as F
import torchmetrics
import torchvision
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms

from composer import Evaluator, Trainer
from composer.metrics import CrossEntropy
from composer.models import ComposerClassifier, ComposerModel, Initializer


class ResNet18(ComposerModel):
    def __init__(self):
        super().__init__()
        self.model = torchvision.models.resnet18(num_classes=10)
        self.model.apply(Initializer.KAIMING_NORMAL.get_initializer())
        self.train_accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=10, average="micro")
        self.val_accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=10, average="micro")

    def forward(self, batch):
        inputs, _ = batch
        return self.model(inputs)

    def loss(self, outputs, batch, *args, **kwargs):
        _, targets = batch
        return F.cross_entropy(outputs, targets)

    def eval_forward(self, batch, outputs=None):
        if outputs is not None:
            return outputs
        return self.forward(batch)

    def update_metric(self, batch, outputs, metric):
        _, targets = batch
        metric.update(outputs, targets)

    def get_metrics(self, is_train=False):
        return {"Accuracy": self.train_accuracy if is_train else self.val_accuracy}


transform = transforms.Compose(
    [
        transforms.Resize(32),
        transforms.Grayscale(3),
        transforms.ToTensor(),
        transforms.Normalize((0.13,) * 3, (0.3,) * 3),
    ]
)
train_dataset = datasets.MNIST("data", train=True, transform=transform)
test_dataset = datasets.MNIST("data", train=False, transform=transform)

trainer = Trainer(
    model=ResNet18(),
    train_dataloader=DataLoader(train_dataset, batch_size=32, shuffle=True, drop_last=True),
    eval_dataloader=[
        Evaluator(label="first", dataloader=DataLoader(Subset(test_dataset, range(50)), batch_size=25)),
        Evaluator(
            label="second",
            dataloader=DataLoader(Subset(test_dataset, range(50, 100)), batch_size=25),
            metric_names=["Accuracy"],
            subset_num_batches=1,
        ),
    ],
    eval_interval="2ba",
    max_duration="4ba",
)
trainer.fit()
print(trainer.state.eval_metrics["first"]["Accuracy"].compute())
outputs = trainer.predict(DataLoader(test_dataset, batch_size=100))
assert torch.cat(outputs).shape == (100, 10)
trainer.eval(DataLoader(test_dataset, batch_size=100))

# Or, where a module maps images to logits:
composer_model = ComposerClassifier(
    module=torchvision.models.resnet18(num_classes=10),
    train_metrics=torchmetrics.classification.MulticlassAccuracy(num_classes=10, average="micro"),
    val_metrics=torchmetrics.MetricCollection(
        [CrossEntropy(), torchmetrics.classification.MulticlassAccuracy(num_classes=10, average="micro")]
    ),
)
Trainer(
    model=composer_model,
    train_dataloader=DataLoader(train_dataset, batch_size=32),
    eval_dataloader=DataLoader(test_dataset, batch_size=100),
    max_duration="2ba",
).fit()
