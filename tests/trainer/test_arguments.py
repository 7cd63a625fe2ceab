"""Errors for invalid arguments contain the name, the value and the remedy."""

from __future__ import annotations

import functools
import io
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Algorithm, Callback, DataSpec, Evaluator, Trainer
from composer.loggers import ConsoleLogger
from composer.optim import DecoupledSGDW
from composer.warnings import ComposerWarning
from tests.common import Received, Regression, Unsized, regression_data, trainer_of


class Idle(Algorithm):
    """Does nothing."""


class Watch(Callback):
    """Does nothing either."""


def wrong(error: type[Exception], **arguments: Any) -> str:
    """Construct a trainer with wrong arguments; the message."""
    with pytest.raises(error) as raised:
        trainer_of(**arguments)
    return str(raised.value)


# ---------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("train_dataloder", " Did you mean 'train_dataloader'?"),
        ("max_duraton", " Did you mean 'max_duration'?"),
        ("algorithm", " Did you mean 'algorithms'?"),
        ("evaldataloader", " Did you mean 'eval_dataloader'?"),
        ("optimizer", " Use optimizers."),
        ("scheduler", " Use schedulers."),
        ("max_epochs", " Use max_duration='1ep'."),
        ("batch_size", " Use DataLoader(dataset, batch_size=1) as train_dataloader."),
        ("save_name_format", " Use save_filename."),
        ("qqq", ""),
    ],
)
def test_mistyped_names(name, hint) -> None:
    assert wrong(TypeError, **{name: 1}) == f"Trainer has no argument {name!r}.{hint}"


def test_legacy_spelling_of_fsdp_config() -> None:
    assert wrong(ValueError, fsdp_config={}, parallelism_config={"fsdp": {}}) == (
        "Pass parallelism_config={'fsdp': {...}} or its old spelling fsdp_config, not both."
    )
    assert wrong(ValueError, fsdp_config={"sharding_strateg": "FULL_SHARD"}).endswith(
        "Did you mean 'sharding_strategy'?"
    )


def test_mistyped_names_of_fit() -> None:
    with pytest.raises(TypeError) as raised:
        trainer_of().fit(durration="1ep")
    assert str(raised.value) == "Trainer.fit has no argument 'durration'. Did you mean 'duration'?"


# ---------------------------------------------------------------------------------------------------- model


def test_models() -> None:
    def of(model: Any) -> str:
        with pytest.raises(TypeError) as raised:
            Trainer(model=model, progress_bar=False)
        return str(raised.value)

    assert of(nn.Linear(1, 1)) == (
        "model must be a ComposerModel, which defines its loss; got Linear. Wrap a classifier as "
        "composer.models.ComposerClassifier(module, num_classes=...), or subclass ComposerModel with forward(batch) "
        "and loss(outputs, batch)."
    )
    assert of(Regression) == "model: got the class Regression; give an object of it: Regression(...)."
    assert of(None) == (
        "model must be a ComposerModel, such as composer.models.ComposerClassifier(module, num_classes=...); got None."
    )
    with pytest.raises(TypeError, match="must be a ComposerModel, which defines its loss; got Linear"):
        Trainer(model=torch.compile(nn.Linear(1, 1), backend="eager"), progress_bar=False)
    with pytest.raises(TypeError, match="model"):
        Trainer()


# ---------------------------------------------------------------------------------------------------- optimizers


def test_optimizers_without_parameters() -> None:
    expected = "optimizers: got SGD without parameters; make the optimizer first: SGD(model.parameters(), lr=...)."
    assert wrong(TypeError, optimizers=torch.optim.SGD) == expected
    assert wrong(TypeError, optimizers=functools.partial(torch.optim.SGD, lr=0.1)) == expected
    assert wrong(TypeError, optimizers="sgd") == "optimizers must be torch.optim.Optimizer objects; got 'sgd'."


def test_optimizers_of_another_model() -> None:
    assert wrong(ValueError, optimizers=torch.optim.AdamW(Regression().parameters())) == (
        "optimizers: AdamW has none of the model's parameters and would train nothing; create it as "
        "AdamW(model.parameters(), ...) with the model given to the Trainer."
    )


def test_an_optimizer_given_twice() -> None:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="optimizers: the same optimizer is given twice"):
        trainer_of(model, optimizers=[optimizer, optimizer])


def test_the_default_optimizer_warns_once_and_trains() -> None:
    trainer = trainer_of(optimizers=None)
    with pytest.warns(
        ComposerWarning, match="No optimizers were given; DecoupledSGDW with a learning rate of 0.1 is used"
    ) as caught:
        trainer.fit()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    (optimizer,) = trainer.state.optimizers
    assert (type(optimizer), optimizer.param_groups[0]["lr"]) == (DecoupledSGDW, 0.1)
    trainer.fit(duration="1ep")


def test_a_trainer_that_only_evaluates_needs_no_optimizer() -> None:
    trainer = trainer_of(optimizers=None, eval_dataloader=regression_data(1))
    trainer.eval()
    trainer.predict(regression_data(1))


def test_a_model_without_parameters_cannot_train() -> None:
    class Empty(Regression):
        def __init__(self):
            super().__init__()
            del self.linear

    trainer = Trainer(model=Empty(), train_dataloader=regression_data(), max_duration=1, progress_bar=False)
    with pytest.raises(ValueError, match=r"Empty"):
        trainer.fit()


# ---------------------------------------------------------------------------------------------------- lists of objects


def test_lists_of_objects() -> None:
    assert wrong(TypeError, algorithms=Idle) == "algorithms: got the class Idle; give an object of it: Idle(...)."
    assert wrong(TypeError, algorithms=[Watch()]).startswith(
        "algorithms: Watch is a callback; give it as callbacks=. Got <"
    )
    assert wrong(TypeError, callbacks=[Watch(), Watch]) == (
        "callbacks: got the class Watch; give an object of it: Watch(...)."
    )
    assert wrong(TypeError, callbacks=print).startswith(
        "callbacks: every entry must be of type Callback; got <built-in"
    )
    assert wrong(TypeError, loggers=3) == "loggers: every entry must be of type LoggerDestination; got 3."
    assert wrong(TypeError, algorithm_passes=[3]).startswith(
        "algorithm_passes must be functions (algorithms, event) -> algorithms"
    )


# ---------------------------------------------------------------------------------------------------- data


def test_data() -> None:
    of = functools.partial(Trainer, model=Regression(), progress_bar=False)
    with pytest.raises(TypeError, match=r"dataloader must be iterable, such as a torch DataLoader; got 5\."):
        of(train_dataloader=5)
    with pytest.raises(
        TypeError,
        match=r"train_dataloader: got the dataset .* itself; give DataLoader\(dataset, batch_size=...\) instead",
    ):
        of(train_dataloader=TensorDataset(torch.zeros(4, 4)))
    with pytest.raises(TypeError, match=r"eval_dataloader: got the dataset .* itself"):
        of(eval_dataloader=TensorDataset(torch.zeros(4, 4)))
    with pytest.raises(ValueError, match=r"train_dataloader must be given"):
        of(max_duration=1).fit()
    with pytest.raises(
        ValueError, match=r"max_duration must be given to the Trainer, or duration to fit, such as '10ep'"
    ):
        of(train_dataloader=regression_data()).fit()


@pytest.mark.parametrize("subset", [0, -3])
def test_subset(subset) -> None:
    message = f"train_subset_num_batches must be positive, or -1 for all batches; got {subset}."
    assert wrong(ValueError, train_subset_num_batches=subset) == message
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer_of().fit(train_subset_num_batches=subset)


def test_evaluation_data() -> None:
    one, two = (Evaluator(label="a", dataloader=regression_data(1)) for _ in range(2))
    assert wrong(ValueError, eval_dataloader=[one, two]) == (
        "eval_dataloader: the labels ['a'] are given more than once: their metrics would be mixed up. Use a unique "
        "label for each loader: Evaluator(label=..., dataloader=...)."
    )
    assert wrong(ValueError, eval_dataloader=[one, DataSpec(regression_data(1))]) == (
        "eval_dataloader: give either Evaluators or loaders, not both; Evaluator(label=..., dataloader=...) wraps "
        "a loader."
    )
    bare = [DataLoader(regression_data(1), batch_size=None) for _ in range(3)]
    trainer = Trainer(model=Regression(), eval_dataloader=bare, progress_bar=False)
    assert [evaluator.label for evaluator in trainer.state.evaluators] == ["eval", "eval-2", "eval-3"]
    trainer.eval()
    assert {"eval", "eval-2", "eval-3"} == trainer.state.eval_values.keys()
    message = wrong(ValueError, eval_dataloader=regression_data(1), eval_interval="often")
    assert "interval='often' is not valid" in message


# ---------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4"])
@pytest.mark.parametrize("name", ["device_train_microbatch_size", "grad_accum"])
def test_microbatch_sizes(name, value) -> None:
    assert wrong(ValueError, **{name: value}) == (
        f"{name} must be a positive integer, or 'auto' to determine it; got {value!r}."
    )


def test_further_microbatch_sizes() -> None:
    assert wrong(ValueError, device_train_microbatch_size=2, grad_accum=2) == (
        "Pass device_train_microbatch_size (samples in a microbatch) or grad_accum, not both."
    )
    assert wrong(ValueError, grad_accum=2, data=Unsized(regression_data())) == (
        "grad_accum requires a train_dataloader with a batch_size attribute; use device_train_microbatch_size instead, "
        "the number of samples per microbatch."
    )


@pytest.mark.parametrize("value", ["ten", "10", "10 parsecs", "10epp", -1.5, object()])
def test_durations(value) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        trainer_of(max_duration=value)
    assert str(value)[:2] in str(raised.value)


def test_seeds() -> None:
    for seed in (-1, 2**32):
        assert str(seed) in wrong(ValueError, seed=seed)


# ---------------------------------------------------------------------------------------------------- choices


def test_choices() -> None:
    assert wrong(ValueError, python_log_level="infos") == (
        "python_log_level must be one of 'DEBUG', 'INFO', 'WARNING', 'ERROR', 'CRITICAL', but got 'INFOS'. "
        "Did you mean 'INFO'?"
    )
    assert wrong(ValueError, on_logger_error="rase") == (
        "on_logger_error must be one of 'warn', 'raise', but got 'rase'. Did you mean 'raise'?"
    )
    assert wrong(ValueError, device="gpuu").startswith(
        "device 'gpuu' is not known. Did you mean 'gpu'? Available here: "
    )


def test_precisions() -> None:
    for precision in ("amp_fp16", "amp_fp8"):
        message = wrong(ValueError, precision=precision, device="cpu")
        assert message == f"precision {precision} requires an accelerator; on the CPU use 'amp_bf16' or 'fp32'."
    assert "Did you mean 'amp_bf16'?" in wrong(ValueError, precision="amp_bf17")
    assert wrong(ValueError, precision_config={"a": 1}).startswith("precision_config applies to precision amp_fp8 only")


def test_console() -> None:
    with pytest.raises(ValueError, match="stdoutt"):
        Trainer(model=Regression(), console_stream="stdoutt")
    assert "1sp" in wrong(ValueError, log_to_console=True, console_log_interval="1sp")


def with_a_bar(**arguments: Any) -> Trainer:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = regression_data()
    return Trainer(model=model, train_dataloader=data, max_duration="1ba", optimizers=optimizer, **arguments)


@pytest.mark.parametrize("given", [{"log_to_console": True}, {"loggers": lambda: ConsoleLogger()}])
def test_bars_and_lines_on_one_terminal(given, capsys) -> None:
    given = {name: value() if callable(value) else value for name, value in given.items()}
    with pytest.warns(ComposerWarning, match="A progress bar and a console logger write to the same terminal"):
        trainer = with_a_bar(**given)
    trainer.fit()
    assert capsys.readouterr().err.count("rank_zero_seed") == 1


def test_console_lines_in_another_stream() -> None:
    file = io.StringIO()
    with_a_bar(loggers=ConsoleLogger(stream=file)).fit()
    assert "rank_zero_seed" in file.getvalue()


def test_compiled_model_stays_compiled(caplog) -> None:
    model = torch.compile(Regression(), backend="eager")
    trainer = Trainer(model=model, compile_config={"backend": "unheard of"}, progress_bar=False)
    assert "`model` is already compiled with `torch.compile`; compile_config is ignored." in caplog.text
    trainer.close()
    caplog.clear()
    Trainer(model=model, progress_bar=False).close()
    assert "already compiled" in caplog.text and "ignored" not in caplog.text


# ---------------------------------------------------------------------------------------------------- right ones


def test_one_or_multiple_objects() -> None:
    trainer = trainer_of(algorithms=Idle(), callbacks=(Watch(), Watch()), loggers=[Received()])
    assert [type(a).__name__ for a in trainer.state.algorithms] == ["Idle"]
    assert [type(c).__name__ for c in trainer.state.callbacks] == ["Received", "Watch", "Watch"]


def test_duplicate_logger_is_added_once() -> None:
    log = Received()
    trainer = trainer_of(loggers=log, callbacks=[log])
    trainer.fit()
    assert trainer.logger.destinations == (log,)
    assert len(log.series("loss/train/total")) == 4


def test_loggers_among_the_callbacks_are_loggers() -> None:
    log = Received()
    trainer = trainer_of(callbacks=[Watch(), log])
    trainer.fit()
    assert trainer.logger.destinations == (log,)
    assert log.series("loss/train/total")


def test_run_names(monkeypatch) -> None:
    assert trainer_of(run_name="mine").state.run_name == "mine"
    monkeypatch.setenv("RUN_NAME", "lower")
    assert trainer_of().state.run_name == "lower"
    monkeypatch.setenv("COMPOSER_RUN_NAME", "higher")
    assert trainer_of().state.run_name == "higher"
    monkeypatch.delenv("RUN_NAME")
    monkeypatch.delenv("COMPOSER_RUN_NAME")
    first, second = trainer_of().state.run_name, trainer_of().state.run_name
    assert first != second
    assert re.fullmatch(r"\d+-[0-9a-f]{6}", first)
