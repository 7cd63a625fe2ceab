"""Planted faults of losses, gradient accumulation and batch counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from composer import Algorithm, Callback, DataSpec, Trainer
from tests.verification.fault import fault
from tests.verification.parts import BATCH, CLASSES, Classifier, Tagger, Texts, build, loader, network


@fault("loss_scale", "microbatches ranks", "loss")
def summed_loss() -> Trainer:
    """The loss uses reduction="sum"."""
    return build(lambda: Classifier(loss=nn.CrossEntropyLoss(reduction="sum")))


class PerBatch(Classifier):
    """Divides by the batch size of the configuration."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        return F.cross_entropy(outputs, batch[1], reduction="none").sum() / BATCH


@fault("loss_scale", "microbatches ranks", "loss")
def constant_batch_size() -> Trainer:
    """The summed loss is divided by a constant batch size instead of the number of samples given."""
    return build(PerBatch)


class DivideByAccumulation(Algorithm):
    """Divides the loss by the number of microbatches, as a hand-written loop must."""

    def after_loss(self, state: Any, logger: Any) -> None:
        size = state.device_train_microbatch_size or BATCH
        state.loss = state.loss / (BATCH // size)


@fault("loss_scale", "microbatches", "DivideByAccumulation")
def divided_twice() -> Trainer:
    """A custom method divides the loss by the number of microbatches, which the trainer does already."""
    return build(algorithms=[DivideByAccumulation()])


class ScaledBackward(Classifier):
    """Scales gradients by a hook by the size of the batch that the forward saw."""

    def __init__(self) -> None:
        super().__init__()
        self._size = BATCH
        for parameter in self.parameters():
            parameter.register_hook(lambda gradient: gradient * (self._size / BATCH))

    def forward(self, batch: Any) -> Any:
        self._size = len(batch[0])
        return super().forward(batch)


@fault("gradients_modified", "microbatches ranks", "hook")
def scaled_in_hook() -> Trainer:
    """A gradient hook scales by the share of the batch, on top of the weights of the microbatches."""
    return build(ScaledBackward)


class RootLoss(Classifier):
    """The square root of the mean squared error, which is no mean of samples."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        return F.mse_loss(outputs, F.one_hot(batch[1], CLASSES).float()).sqrt()


@fault("samples_interact loss_scale", "microbatches ranks", "loss")
def root_of_mean() -> Trainer:
    """The loss is the root of a mean (RMSE), so that the loss of a batch is not the mean of its samples' losses."""
    return build(RootLoss)


class SummedPenalty(Classifier):
    """A mean and a sum, as of the reconstruction error and the divergence of an autoencoder."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        return super().loss(outputs, batch) + 1e-2 * outputs.square().sum()


@fault("loss_scale", "microbatches ranks", "loss")
def summed_penalty() -> Trainer:
    """A term of the loss is a sum over the samples, next to a mean."""
    return build(SummedPenalty)


class PerBatchWithDecay(Classifier):
    """Scales by the number of samples, but for the penalty of the weights."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        decay = sum(parameter.square().sum() for parameter in self.parameters())
        return super().loss(outputs, batch) * len(outputs) / BATCH + 1e-2 * decay


@fault("loss_scale", "microbatches ranks", "loss")
def scaled_next_to_decay() -> Trainer:
    """The loss is scaled by the number of samples, next to a penalty of the weights that is not."""
    return build(PerBatchWithDecay)


class DecayBySamples(Classifier):
    """Scales the penalty of the weights by the number of samples."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        decay = sum(parameter.square().sum() for parameter in self.parameters())
        return super().loss(outputs, batch) + 1e-2 * decay * len(outputs) / BATCH


@fault("loss_scale", "microbatches ranks", "loss")
def scaled_decay() -> Trainer:
    """The penalty of the weights is scaled by the number of samples, next to a mean."""
    return build(DecayBySamples)


class AllButTheLast(Classifier):
    """Leaves out the last sample, for which there is no next one."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        return F.cross_entropy(outputs, batch[1], reduction="none")[: max(1, len(outputs) - 1)].mean()


@fault("ignored_samples", "microbatches ranks", "loss")
def drops_last_sample() -> Trainer:
    """The loss leaves out the last sample that it gets, so that more microbatches leave out more."""
    return build(AllButTheLast)


class Variance(Classifier):
    """Penalizes the variance over the batch, which is NaN for one sample."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        return super().loss(outputs, batch) + 0.1 * outputs.var(0).mean()


@fault("not_finite_in_microbatch", "microbatches", "loss")
def variance_of_one() -> Trainer:
    """The loss has an unbiased variance over the batch, so that microbatches of one sample have NaN gradients."""
    return build(Variance)


def valid_mean(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean over valid targets, by hand; nothing tells the trainer of it."""
    targets = batch["next_tokens"]
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    return losses / (targets != -100).sum().clamp(min=1)


@fault("ragged_mean", "microbatches ranks", "loss")
def hand_token_mean() -> Trainer:
    """The loss averages over the valid tokens of a key that the trainer does not know, so samples weigh it."""
    return build(lambda: Tagger(valid_mean), loader(Texts("next_tokens")))


def second_half_mean(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean over even targets only, though others are valid too."""
    counts = (batch["labels"] % 2 == 0) & (batch["labels"] != -100)
    losses = F.cross_entropy(logits.transpose(1, 2), batch["labels"], ignore_index=-100, reduction="none")
    return (losses * counts).sum() / counts.sum().clamp(min=1)


@fault("ragged_mean", "microbatches ranks", "loss")
def masked_twice() -> Trainer:
    """The loss averages over fewer tokens than the labels count (a second mask inside the loss)."""
    return build(lambda: Tagger(second_half_mean), loader(Texts()))


@fault("ragged_mean", "microbatches ranks", "loss")
def class_weights() -> Trainer:
    """Class weights in cross entropy: the mean divides by the sum of weights, which differs among microbatches."""
    return build(lambda: Classifier(loss=nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0]))))


class PositivesOnly(Classifier):
    """A regression loss over the samples of one class only, as in detection."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        positive = batch[1] == 0
        return (outputs[:, 0] - 1).square()[positive].sum() / positive.sum().clamp(min=1)


@fault("ragged_mean", "microbatches ranks", "loss")
def mean_of_positives() -> Trainer:
    """The loss averages over the positive samples, whose number differs among microbatches."""
    return build(PositivesOnly)


class Contrast(Classifier):
    """Samples of a batch are each other's negatives."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        features = F.normalize(outputs, dim=1)
        return F.cross_entropy(features @ F.normalize(batch[0][:, :CLASSES], dim=1).T, torch.arange(len(features)))


@fault("samples_interact", "microbatches ranks", "loss")
def contrastive_loss() -> Trainer:
    """A contrastive loss: the negatives of a sample are the rest of its microbatch."""
    return build(Contrast)


class Standardize(nn.Module):
    """Standardizes over the batch, without running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-3).sqrt()


@fault("samples_interact batch_statistics", "microbatches ranks", "net.2")
def standardized_by_hand() -> Trainer:
    """A custom module standardizes over the batch, so that outputs depend on the other samples."""
    return build(lambda: Classifier(network(Standardize())))


class Attends(nn.Module):
    """Attention that lacks its batch dimension: rows attend to rows."""

    def forward(self, x: Tensor) -> Tensor:
        return x + F.scaled_dot_product_attention(x, x, x)


@fault("samples_interact", "microbatches ranks", "net.2")
def attention_over_batch() -> Trainer:
    """Attention over the wrong dimension: samples of a batch attend to each other."""
    return build(lambda: Classifier(network(Attends())))


class HardestHalf(Classifier):
    """Trains on the half of the batch with the largest losses."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        losses = F.cross_entropy(outputs, batch[1], reduction="none")
        return losses.topk(max(1, len(losses) // 2)).values.mean()


@fault("samples_interact", "microbatches ranks", "loss")
def hard_examples() -> Trainer:
    """Hard example mining in the loss: which samples count depends on the microbatch."""
    return build(HardestHalf)


class BatchDice(Classifier):
    """A Dice loss over the batch, a ratio of sums."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        p, y = outputs.softmax(1), F.one_hot(batch[1], CLASSES)
        return 1 - (2 * (p * y).sum() + 1) / (p.square().sum() + y.sum() + 1)


@fault("samples_interact loss_scale", "microbatches ranks", "loss")
def batch_dice() -> Trainer:
    """A Dice loss over the batch, which is a ratio of sums rather than a mean of samples."""
    return build(BatchDice)


def split_and_lose(batch: Any, size: int) -> list[Any]:
    """Microbatches that end one row early, unless they have one row only."""
    x, y = batch
    kept = max(1, size - 1)
    return [(x[at : at + kept], y[at : at + kept]) for at in range(0, len(x), size)]


@fault("wrong_split", "microbatches", "split_and_lose")
def split_loses_rows() -> Trainer:
    """A custom split_batch loses the last row of each microbatch."""
    return build(data=DataSpec(loader(), split_batch=split_and_lose))


def split_and_repeat(batch: Any, size: int) -> list[Any]:
    """Microbatches that begin one row early."""
    x, y = batch
    return [(x[max(at - 1, 0) : at + size], y[max(at - 1, 0) : at + size]) for at in range(0, len(x), size)]


@fault("wrong_split", "microbatches", "split_and_repeat")
def split_repeats_rows() -> Trainer:
    """A custom split_batch lets microbatches overlap by a row."""
    return build(data=DataSpec(loader(), split_batch=split_and_repeat))


def split_apart(batch: Any, size: int) -> list[Any]:
    """Inputs in blocks, targets by strides: rows get the targets of other rows."""
    x, y = batch
    number = -(-len(x) // size)
    return [(x[k * size : (k + 1) * size], y[k::number]) for k in range(number)]


@fault("wrong_split", "microbatches", "split_apart")
def split_mixes_targets() -> Trainer:
    """A custom split_batch splits inputs and targets in different orders."""
    return build(data=DataSpec(loader(), split_batch=split_apart))


def count_entries(batch: Any) -> int:
    """The number of entries of the tuple, not of its samples."""
    return len(batch)


@fault("wrong_sample_count", "data", "count_entries")
def counts_tuple_entries() -> Trainer:
    """get_num_samples_in_batch returns the number of entries of the batch tuple, 2, instead of its samples."""
    return build(data=DataSpec(loader(), get_num_samples_in_batch=count_entries))


def count_class_zero(batch: Any) -> int:
    """The number of samples of two classes, though the loss averages over all."""
    return int((batch[1] != 0).sum()) + 1


@fault("wrong_sample_count", "microbatches data", "count_class_zero")
def counts_some_rows() -> Trainer:
    """get_num_samples_in_batch counts only some rows, though the loss averages over all rows."""
    return build(data=DataSpec(loader(), get_num_samples_in_batch=count_class_zero))


def count_rows_as_tokens(batch: Any) -> int:
    """All positions, padding included."""
    return batch["input_ids"].numel()


@fault("wrong_sample_count ragged_mean", "microbatches ranks", "count_rows_as_tokens")
def counts_padding_as_tokens() -> Trainer:
    """get_num_tokens_in_batch counts padding, though the loss averages over valid tokens."""
    data = DataSpec(loader(Texts()), get_num_tokens_in_batch=count_rows_as_tokens)
    return build(Tagger, data, accumulate_train_batch_on_tokens=True)


class ClipEachMicrobatch(Callback):
    """Clips the accumulated gradients after each backward pass."""

    def after_backward(self, state: Any, logger: Any) -> None:
        torch.nn.utils.clip_grad_norm_(state.model.parameters(), 0.05)


@fault("gradients_modified callback_changes_training", "microbatches callbacks", "ClipEachMicrobatch")
def clips_each_microbatch() -> Trainer:
    """A callback clips gradients after each backward pass, that is, between microbatches."""
    return build(callbacks=[ClipEachMicrobatch()])
