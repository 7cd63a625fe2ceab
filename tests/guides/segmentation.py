"""Segmentation: DeepLabv3+ and a U-Net with the methods of their recipes, on digits and their shapes."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets

from composer import Trainer
from composer.algorithms import EMA, ChannelsLast, ColOut
from composer.loss import DiceLoss, soft_cross_entropy
from composer.models import UNet, composer_deeplabv3
from composer.optim import CosineAnnealingScheduler, DecoupledSGDW

digits = datasets.MNIST("data", train=True)
images = torch.nn.functional.pad(digits.data[:8], (2, 2, 2, 2)).unsqueeze(1) / 255
# Each pixel of a digit is of the digit's class; the last class is the background.
targets = torch.where(images[:, 0] > 0.3, digits.targets[:8, None, None], 10)

dataloader = DataLoader(TensorDataset(images.expand(-1, 3, -1, -1), targets), batch_size=2, drop_last=True)
model = composer_deeplabv3(
    num_classes=11,
    backbone_arch="resnet50",
    backbone_weights=None,
    sync_bn=False,
    use_plus=True,
    ignore_index=-1,
    cross_entropy_weight=0.375,
    dice_weight=1.125,
    initializers=["kaiming_normal", "bn_ones"],
)
trainer = Trainer(
    model=model,
    train_dataloader=dataloader,
    eval_dataloader=dataloader,
    eval_subset_num_batches=1,
    optimizers=DecoupledSGDW(model.parameters(), lr=0.01, momentum=0.9, weight_decay=2.0e-5),
    schedulers=CosineAnnealingScheduler(),
    algorithms=[ChannelsLast(), EMA(half_life="1ba", update_interval="1ba"), ColOut(p_row=0.1, p_col=0.1)],
    max_duration="2ba",
)
trainer.fit()
assert {"MIoU", "CrossEntropy"} <= set(trainer.state.eval_metrics["eval"])

# The parts of that loss, by hand.
outputs = model((images[:2].expand(-1, 3, -1, -1), targets[:2]))
dice = DiceLoss(softmax=True, batch=True, ignore_absent_classes=True)(outputs, targets[:2])
print(soft_cross_entropy(outputs, targets[:2], ignore_index=-1), dice)

# Slices of a scan: here, images of five channels, and one class beside the background.
unet = UNet(num_classes=1)
scans = DataLoader(
    TensorDataset(images.expand(-1, 5, -1, -1)[..., :32, :32], (images[:, 0] > 0.3).long()), batch_size=2
)
try:
    unet(next(iter(scans)))
except ValueError as error:
    print(error)  # six halvings of 32 pixels leave less than one
scans = [
    (torch.nn.functional.interpolate(x, scale_factor=3), y.repeat_interleave(3, 1).repeat_interleave(3, 2))
    for x, y in scans
]
trainer = Trainer(model=unet, train_dataloader=scans, eval_dataloader=scans[:1], max_duration="1ba")
trainer.fit()
print(trainer.state.eval_metrics["eval"]["Dice"].compute())
