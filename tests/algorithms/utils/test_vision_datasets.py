from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from composer.algorithms import RandAugment
from composer.algorithms.utils.vision_datasets import DatasetTransform, add_vision_dataset_transform
from composer.core.evaluator import Evaluator
from composer.core.state import State
from composer.warnings import NotIntendedUseWarning
from tests.algorithms.cases import make_model


class Images(Dataset):
    """Like a ``VisionDataset`` of torchvision: a transform of images, one of targets, and one of both."""

    def __init__(self, transform=None, target_transform=None, transforms=None):
        self.transform, self.target_transform = transform, target_transform
        if transform is not None or target_transform is not None:
            transforms = StandardTransform(transform, target_transform)
        self.transforms = transforms

    def __len__(self):
        return 4

    def __getitem__(self, index):
        image = torch.full((3, 8, 8), index, dtype=torch.float32)
        return (image, index) if self.transforms is None else self.transforms(image, index)


class StandardTransform:
    def __init__(self, transform, target_transform):
        self.transform, self.target_transform = transform, target_transform

    def __call__(self, image, target):
        image = image if self.transform is None else self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image):
        return image


def double(image):
    return image * 2


def add_one(image):
    return image + 1


def negate(target):
    return -target


def both(image, target):
    return image * 10, target + 5


@pytest.mark.parametrize(
    ("dataset", "image", "target"),
    [
        (Images(), 4, 2),
        (Images(add_one), 6, 2),
        (Images(Compose([add_one])), 6, 2),
        (Images(Compose([add_one, ToTensor()])), 6, 2),
        (Images(Compose([ToTensor(), add_one])), 5, 2),
        (Images(ToTensor()), 4, 2),
        (Images(target_transform=negate), 4, -2),
        (Images(transforms=both), 40, 7),
    ],
)
def test_added_at_the_right_position(dataset, image, target):
    add_vision_dataset_transform(dataset, double)
    dataset = pickle.loads(pickle.dumps(dataset))
    found = dataset[2]
    assert found[0].eq(image).all()
    assert found[1] == target
    if dataset.transform is not None:
        assert dataset.transform(torch.tensor(2)).eq(image)


def test_transform_of_tensors_goes_after():
    dataset = Images(Compose([ToTensor(), add_one]))
    add_vision_dataset_transform(dataset, double, is_tensor_transform=True)
    assert [getattr(step, "__name__", "ToTensor") for step in dataset.transform.transforms] == [
        "ToTensor",
        "double",
        "add_one",
    ]


def test_several_are_added_one_after_the_other():
    for dataset in (Images(), Images(add_one), Images(transforms=both)):
        before = dataset[1][0]
        add_vision_dataset_transform(dataset, double)
        add_vision_dataset_transform(dataset, add_one)
        assert torch.equal(dataset[1][0], before * 2 + 1)
        assert repr(dataset.transforms)


def test_what_is_shared_with_another_data_set_stays():
    shared = Compose([add_one])
    train, evaluation = Images(shared), Images(shared)
    add_vision_dataset_transform(train, double)
    assert evaluation[1][0].eq(2).all()
    assert shared.transforms == [add_one]


def test_data_that_takes_no_transform():
    with pytest.raises(TypeError, match="list"):
        add_vision_dataset_transform([1, 2], double)
    adding = DatasetTransform("Doubling", "Use Halving.")

    def state(loader):
        return State(model=make_model(), max_duration="1ep", train_dataloader=loader)

    with pytest.raises(TypeError, match=r"Doubling .* type list\. Use Halving\."):
        adding.add(state([1]), double)
    with pytest.raises(TypeError, match=r"VisionDataset.*type list\. Use Halving\."):
        adding.add(state(DataLoader([1])), double)
    with pytest.raises(TypeError, match=r"type Subset, whose parent dataset would be changed"):
        adding.add(state(DataLoader(Subset(Images(), [0]))), double)


def test_added_once_to_each_data_set():
    adding = DatasetTransform("Doubling", "Use Halving.")
    datasets = [Images(), Images()]
    for dataset in datasets * 2:
        state = State(model=make_model(), max_duration="1ep", train_dataloader=DataLoader(dataset))
        adding.add(state, double)
    assert all(dataset[3][0].eq(6).all() for dataset in datasets)


def test_warns_of_an_evaluator_on_the_same_data():
    dataset = Images()
    state = State(
        model=make_model(),
        max_duration="1ep",
        train_dataloader=DataLoader(dataset),
        evaluators=Evaluator(label="test", dataloader=DataLoader(dataset)),
    )
    with pytest.warns(NotIntendedUseWarning, match=r"RandAugment .* 'test' uses too"):
        DatasetTransform("RandAugment", "").add(state, RandAugment().transform())
