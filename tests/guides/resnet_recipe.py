"""A ResNet for small images: a baseline, then the same with a recipe, compared in time and accuracy."""

import time

import torch
import torch.utils.data
from torchvision import datasets, transforms

import composer
from composer import models
from composer.loggers import InMemoryLogger
from composer.utils import reproducibility

reproducibility.configure_deterministic_mode()
reproducibility.seed_all(42)

data_directory = "data"
batch_size = 50
to_rgb = transforms.Compose([transforms.Resize(32), transforms.Grayscale(3), transforms.ToTensor()])
train_dataset = datasets.MNIST(data_directory, train=True, download=True, transform=to_rgb)
test_dataset = datasets.MNIST(data_directory, train=False, download=True, transform=to_rgb)
train_dataloader = torch.utils.data.DataLoader(train_dataset, batch_size=batch_size, shuffle=True)
test_dataloader = torch.utils.data.DataLoader(test_dataset, batch_size=batch_size, shuffle=False)

model = models.composer_resnet_cifar(model_name="resnet_20", num_classes=10)

optimizer = composer.optim.DecoupledSGDW(model.parameters(), lr=0.05, momentum=0.9, weight_decay=2.0e-4)
lr_scheduler = composer.optim.LinearWithWarmupScheduler(t_warmup="1ep", alpha_i=1.0, alpha_f=1.0)
logger_for_baseline = InMemoryLogger()
train_epochs = "2ep"
device = "gpu" if torch.cuda.is_available() else "cpu"

trainer = composer.trainer.Trainer(
    model=model,
    train_dataloader=train_dataloader,
    eval_dataloader=test_dataloader,
    max_duration=train_epochs,
    optimizers=optimizer,
    schedulers=lr_scheduler,
    train_subset_num_batches=3,
    eval_subset_num_batches=1,
    device=device,
    loggers=logger_for_baseline,
)
start_time = time.perf_counter()
trainer.fit()
print(f"It took {time.perf_counter() - start_time:0.4f} seconds to train")

timeseries_raw = logger_for_baseline.get_timeseries("metrics/eval/MulticlassAccuracy")
assert len(timeseries_raw["metrics/eval/MulticlassAccuracy"]) == 2
assert len(logger_for_baseline.data["loss/train/total"]) == 6

label_smoothing = composer.algorithms.LabelSmoothing(0.1)
blurpool = composer.algorithms.BlurPool(replace_convs=True, replace_maxpools=True, blur_first=True)
prog_resize = composer.algorithms.ProgressiveResizing(
    initial_scale=0.6, delay_fraction=0.2, finetune_fraction=0.2, resize_targets=False
)

model = models.composer_resnet_cifar(model_name="resnet_20", num_classes=10)
optimizer = composer.optim.DecoupledSGDW(model.parameters(), lr=0.05, momentum=0.9, weight_decay=2.0e-4)
logger_for_algorithm_run = InMemoryLogger()
trainer = composer.trainer.Trainer(
    model=model,
    train_dataloader=train_dataloader,
    eval_dataloader=test_dataloader,
    max_duration=train_epochs,
    optimizers=optimizer,
    schedulers=lr_scheduler,
    train_subset_num_batches=3,
    eval_subset_num_batches=1,
    device=device,
    loggers=logger_for_algorithm_run,
    algorithms=[label_smoothing, blurpool, prog_resize],
)
trainer.fit()
accuracy = logger_for_algorithm_run.get_timeseries("metrics/eval/MulticlassAccuracy")
print(accuracy["metrics/eval/MulticlassAccuracy"])
torch.use_deterministic_algorithms(False)
