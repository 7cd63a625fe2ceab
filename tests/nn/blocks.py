"""Residual blocks with the layers of torchvision's and timm's, and others."""

from __future__ import annotations

from torch import nn


class BasicBlock(nn.Module):
    """Two convolutions, activated after the sum, with one activation for all."""

    def __init__(self, num_in, width, num_out):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(num_in, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, num_out, 3, padding=1, bias=False), nn.BatchNorm2d(num_out)
        self.relu = nn.ReLU(inplace=True)
        self.last = self.relu
        self.downsample = None if num_in == num_out else nn.Conv2d(num_in, num_out, 1)

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.last(out)


class Bottleneck(nn.Module):
    """Three convolutions, activated after the sum, with one activation for all."""

    def __init__(self, num_in, width, num_out):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(num_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, num_out, 1, bias=False), nn.BatchNorm2d(num_out)
        self.relu = nn.ReLU(inplace=True)
        self.last = self.relu
        self.downsample = None if num_in == num_out else nn.Conv2d(num_in, num_out, 1)

    def forward(self, x):
        out = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.last(out)


class TimmBasicBlock(nn.Module):
    """As timm names the layers, with an optional one."""

    def __init__(self, num_in, width, num_out):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(num_in, width, 3, padding=1), nn.BatchNorm2d(width)
        self.drop_block, self.act1, self.aa = nn.Identity(), nn.ReLU(inplace=True), nn.AvgPool2d(3, 1, 1)
        self.conv2, self.bn2 = nn.Conv2d(width, num_out, 3, padding=1), nn.BatchNorm2d(num_out)
        self.se, self.drop_path, self.act2 = nn.Sigmoid(), None, nn.ReLU(inplace=True)
        self.downsample = None if num_in == num_out else nn.Conv2d(num_in, num_out, 1)

    def forward(self, x):
        out = self.aa(self.act1(self.drop_block(self.bn1(self.conv1(x)))))
        out = self.se(self.bn2(self.conv2(out)))
        return self.act2(out + (x if self.downsample is None else self.downsample(x)))


class TimmBottleneck(nn.Module):
    """As timm names the layers."""

    def __init__(self, num_in, width, num_out):
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(num_in, width, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.drop_block, self.act2, self.aa = nn.Identity(), nn.ReLU(inplace=True), nn.Identity()
        self.conv3, self.bn3, self.act3 = nn.Conv2d(width, num_out, 1), nn.BatchNorm2d(num_out), nn.ReLU(inplace=True)
        self.se, self.drop_path = None, None
        self.downsample = None if num_in == num_out else nn.Conv2d(num_in, num_out, 1)

    def forward(self, x):
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.aa(self.act2(self.drop_block(self.bn2(self.conv2(out)))))
        out = self.bn3(self.conv3(out))
        return self.act3(out + (x if self.downsample is None else self.downsample(x)))


class Hollow(BasicBlock):
    """The layers of a residual block, activated before the sum."""

    def forward(self, x):
        out = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return out + (x if self.downsample is None else self.downsample(x))


class PreNorm(nn.Module):
    """Half a block of a transformer: x + f(x)."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.body = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.body(self.norm(x)).tanh()
