"""Export of the model of a run: with replaced layers and averaged weights, as in evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from composer import Algorithm, Callback, Logger, State, Trainer
from composer.algorithms import EMA, BlurPool, DiLoCo, MixUp
from composer.core import Event
from composer.export import evaluation_weights
from composer.models import ComposerClassifier
from tests.algorithms.low_communication import Weights, differing, fitted, trainer_with, weights_now
from tests.common import CLASSES, FEATURES, Received, classifier, labeled_data, trainer_of, weights
from tests.export.reading import load_program, load_script
from tests.ranks import Ranks


class Files(Received):
    """Keeps what is uploaded."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}

    def can_upload_files(self):
        return True

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        assert overwrite or remote_file_name not in self.files
        self.files[remote_file_name] = Path(file_path).read_bytes()


def trained(**arguments: object) -> Trainer:
    trainer = trainer_of(classifier(), labeled_data(), **arguments)
    trainer.fit()
    return trainer


def test_the_last_batch_is_the_sample(tmp_path: Path) -> None:
    trainer = trained()
    batch = labeled_data(1, 5, seed=7)[0]
    for form, load in (("torchscript", load_script), ("torch_export", load_program)):
        trainer.export_for_inference(form, str(tmp_path / "net.pt2"))
        torch.testing.assert_close(load(tmp_path / "net.pt2")(batch), trainer.state.model(batch))


def test_sample_is_required_before_training(tmp_path: Path) -> None:
    trainer = trainer_of(classifier(), labeled_data())
    with pytest.raises(ValueError, match="sample_input is required for the format torch_export"):
        trainer.export_for_inference("torch_export", str(tmp_path / "net.pt2"))
    trainer.export_for_inference("torch_export", str(tmp_path / "net.pt2"), sample_input=labeled_data()[0])
    assert (tmp_path / "net.pt2").exists()


def test_file_name_may_contain_the_time(tmp_path: Path) -> None:
    trainer = trained(run_name="night")
    trainer.export_for_inference("torch_export", str(tmp_path / "{run_name}-ba{batch}.pt2"))
    assert [file.name for file in tmp_path.iterdir()] == ["night-ba4.pt2"]


def test_averaged_weights_are_exported_and_training_weights_restored(tmp_path: Path) -> None:
    trainer = trained(algorithms=EMA(half_life="4ba"))
    before, batch = weights(trainer), labeled_data(1, 5, seed=7)[0]
    evaluated = trainer.predict([batch])[0]
    trainer.export_for_inference("torch_export", str(tmp_path / "net.pt2"))
    torch.testing.assert_close(load_program(tmp_path / "net.pt2")(batch), evaluated)
    assert torch.equal(weights(trainer), before)
    assert not torch.allclose(trainer.state.model(batch), evaluated)


def test_replaced_layers_are_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.MaxPool2d(2, 2), nn.Flatten(), nn.LazyLinear(CLASSES))
    net(torch.zeros(1, 3, 16, 16))
    model = ComposerClassifier(net, num_classes=CLASSES)
    data = [(torch.randn(2, 3, 16, 16), torch.tensor([0, 1]))] * 2
    trainer = trainer_of(model, data, algorithms=[BlurPool(min_channels=0), MixUp(0.2)])
    trainer.fit()
    trainer.export_for_inference("torch_export", str(tmp_path / "net.pt2"))
    model.eval()
    torch.testing.assert_close(load_program(tmp_path / "net.pt2")(data[0]), model(data[0]))


def test_compiled_model_is_exported_as_a_copy(tmp_path: Path) -> None:
    trainer = trainer_of(classifier(), labeled_data(), compile_config={"backend": "eager"})
    trainer.fit()
    batch = labeled_data(1, 5, seed=7)[0]
    expected = trainer.predict([batch])[0]
    doubled = nn.Linear(FEATURES, CLASSES)
    doubled.load_state_dict({name: 2 * value for name, value in trainer.state.model.module.state_dict().items()})

    def twice(model: nn.Module) -> nn.Module:
        model.module.load_state_dict(doubled.state_dict())
        return model

    trainer.export_for_inference("torch_export", str(tmp_path / "net.pt2"), transforms=twice)
    torch.testing.assert_close(load_program(tmp_path / "net.pt2")(batch), 2 * expected)
    assert torch.equal(trainer.predict([batch])[0], expected)


def test_logger_with_file_support_receives_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = Files()
    trainer = trained(loggers=files, run_name="night")
    for _ in range(2):
        trainer.export_for_inference("torch_export", "{run_name}/net.pt2")
    assert list(files.files) == ["night/net.pt2"]
    assert not list(tmp_path.iterdir())
    (tmp_path / "copy.pt2").write_bytes(files.files["night/net.pt2"])
    batch = labeled_data()[0]
    torch.testing.assert_close(load_program(tmp_path / "copy.pt2")(batch), trainer.state.model(batch))


def test_evaluation_weights_undo_in_reverse_also_after_an_error() -> None:
    order: list[str] = []

    class Note(Algorithm):
        def __init__(self, name: str) -> None:
            self.name = name

        def match(self, state, event):  # another order of the parameters
            return event in (Event.PREDICT_START, Event.PREDICT_END)

        def apply(self, event, state, logger):
            order.append(f"{self.name} {event.value}")

    class Watch(Callback):
        def predict_start(self, state, logger):
            order.append("never")

    trainer = trainer_of(algorithms=[Note("a"), Note("b")], callbacks=Watch())
    with pytest.raises(RuntimeError, match="inside"), evaluation_weights(trainer.state, trainer.logger):
        raise RuntimeError("inside")
    assert order == ["a predict_start", "b predict_start", "b predict_end", "a predict_end"]


class EvaluationWeights(Callback):
    """Loads the weights of evaluation after each batch, in the middle of rounds too."""

    def __init__(self) -> None:
        self.trained: list[Weights] = []
        self.evaluated: list[Weights] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        self.trained.append(weights_now(state))
        with evaluation_weights(state, logger):
            self.evaluated.append(weights_now(state))
        assert not list(differing(weights_now(state), self.trained[-1]))


def evaluated_in_rounds(with_ema: bool) -> tuple[list[Weights], list[Weights], Weights]:
    algorithms = [DiLoCo(3), *([EMA("6ba", None, "3ba", "3ba")] if with_ema else [])]
    trainer = trainer_with(algorithms, max_duration="8ba", callbacks=(seen := EvaluationWeights()))
    fitted(trainer)
    average = algorithms[1].state_dict()["averages"] if with_ema else {}
    return seen.trained, seen.evaluated, {name: value.clone() for name, value in average.items()}


@pytest.mark.parametrize("with_ema", [False, True])
def test_evaluation_weights_are_those_that_replicas_share(with_ema: bool, two_ranks: Ranks) -> None:
    (first, evaluated, average), (second, others, _) = two_ranks.run(evaluated_in_rounds, with_ema)
    assert list(differing(first[4], second[4]))  # in the middle of a round
    for one, other in zip(evaluated, others, strict=True):
        assert not list(differing(one, other))
    if with_ema:
        assert not list(differing(evaluated[6], average))
    else:
        assert not list(differing(evaluated[4], first[2]))
