"""The methods as functions, in a loop of one's own."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

import composer.functional as cf
from composer.loss import soft_cross_entropy
from composer.models import composer_resnet

transform = transforms.Compose([transforms.Resize(32), transforms.Grayscale(3), transforms.ToTensor()])
train_dataloader = DataLoader(datasets.MNIST("data", train=True, transform=transform), batch_size=100, shuffle=True)

my_model = composer_resnet("resnet18", num_classes=10).module

# Surgery: replaces layers of the model in place, and returns it.
my_model = cf.apply_blurpool(my_model)
my_model = cf.apply_squeeze_excite(my_model, latent_channels=64, min_channels=128)
cf.apply_channels_last(my_model)

loss_fn = soft_cross_entropy
opt = torch.optim.SGD(my_model.parameters(), lr=0.05)

for step, (X, y) in enumerate(train_dataloader):
    X, _ = cf.resize_batch(X, y, scale_factor=0.75, mode="resize")
    X_mixed, y_perm, mixing = cf.mixup_batch(X, y, alpha=0.2)
    y_hat = my_model(X_mixed)
    smoothed_targets = cf.smooth_labels(y_hat, y, smoothing=0.1)
    loss = (1 - mixing) * loss_fn(y_hat, smoothed_targets) + mixing * loss_fn(y_hat, y_perm)
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(step, loss.item())
    if step == 2:
        break

# Images: the transforms of one image each.
image = datasets.MNIST("data", train=True)[0][0].convert("RGB")
cf.randaugment_image(image)
cf.augmix_image(image)
cf.colout_batch(X, p_row=0.15, p_col=0.15)
cf.cutout_batch(X, num_holes=1, length=0.5)
