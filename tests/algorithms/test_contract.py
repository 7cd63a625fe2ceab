"""Contract tests that every algorithm must pass."""

from __future__ import annotations

import functools
import inspect
import io
import warnings
from typing import Any

import pytest
import torch

from composer import Trainer, functional, rng, trees
from composer.core.algorithm import Algorithm
from composer.warnings import NoEffectWarning
from tests import loop
from tests.accelerator import FakeAccelerator, Wait
from tests.algorithms.cases import (
    Case,
    absent,
    all_cases,
    copied,
    make_batches,
    make_model,
    public_classes,
    same,
    weights,
)
from tests.common import At, Lives, Received
from tests.declared_waits import compare
from tests.tensor_devices import devices_of_state, differences
from tests.trainer.test_sync_free import Step

CASES = all_cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
editing_case = pytest.mark.parametrize("case", [c for c in CASES if c.with_keys], ids=lambda case: case.name)


def train(case: Case, *algorithms: Algorithm, batches: list[Any] | None = None, compile_with: Any = None) -> Any:
    """Train the model of a case on its batches; return the engine."""
    torch.manual_seed(3)
    model = case.model()
    if compile_with is not None:
        torch.compiler.reset()
        model.compile(backend=compile_with)
    return loop.fit(
        loop.start(model, algorithms, case.optimizer(model), precision=case.precision),
        case.batches() if batches is None else batches,
    )


@functools.cache
def trained(case: Case) -> dict[str, torch.Tensor]:
    """The outcome of a run with the method of a case: what several tests compare with."""
    algorithm = case.make()
    return case.outcome(train(case, algorithm).state.model, algorithm)


@functools.cache
def trained_without(case: Case) -> tuple[dict[str, torch.Tensor], float]:
    """The weights and the last loss of the same run without it."""
    state = train(case).state
    return weights(state.model), state.loss.item()


def test_every_public_algorithm_has_a_case():
    untested = {name for name, cls in public_classes().items() if cls.__module__ in absent}
    assert {case.name for case in CASES} | untested == set(public_classes())


@every_case
def test_class_equals_function(case):
    if case.by_hand is None:
        pytest.skip(case.why_no_function)
    torch.manual_seed(3)
    by_hand = case.by_hand(case.batches())
    outcome = trained(case)
    assert outcome.keys() == by_hand.keys()
    for name, value in outcome.items():
        torch.testing.assert_close(value, by_hand[name], msg=lambda text, name=name: f"{name}: {text}")


@every_case
def test_function_is_in_the_index(case):
    module = inspect.getmodule(type(case.make()))
    functions = [name for name in functional.__all__ if getattr(functional, name).__module__ == module.__name__]
    assert functions or case.why_no_function


@every_case
def test_does_something(case):
    if case.neutral is None:
        pytest.skip(case.why_not_neutral)
    assert not same(trained(case), trained_without(case)[0])


@every_case
def test_neutral_equals_absent_bit_for_bit(case):
    """DisabledIsAbsent."""
    if case.neutral is None:
        assert case.why_not_neutral
        pytest.skip(case.why_not_neutral)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoEffectWarning)
        disabled = train(case, case.neutral())
    expected, loss = trained_without(case)
    assert same(weights(disabled.state.model), expected)
    assert disabled.state.loss.item() == loss


@every_case
def test_leaves_the_batch_as_found(case):
    seen: list[Any] = []

    class Watch(Algorithm):
        """Given first, so that it is first before the forward pass and last after the backward pass."""

        def before_forward(self, state, logger):
            seen.append((leaves(state.batch), leaves(copied(state.batch))))

        def after_backward(self, state, logger):
            found, values = seen.pop()
            assert all(now is then for now, then in zip(leaves(state.batch), found, strict=True))
            assert all(torch.equal(now, then) for now, then in zip(leaves(state.batch), values, strict=True))

    def leaves(batch):
        return list(trees.leaves(batch))

    batches = case.batches()
    train(case, Watch(), case.make(), batches=batches)
    assert not seen
    # The data itself is never written to, either.
    for batch, fresh in zip(batches, case.batches(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(leaves(batch), leaves(fresh), strict=True))


# What stays as long as the method itself is kept, and why.
KEPT = {
    "EMA": ({"parameters", "buffers"}, "get_ema_model() distinguishes the trained model from a copy"),
    "NEFTune": ({"parameters"}, "the embedding is found at INIT, before the model is wrapped"),
    "ScheduleFree": ({"batch"}, "calibration_batches, for the next fit()"),
}


@every_case
def test_keeps_nothing_of_a_closed_run(case):
    """Model, batches and outputs are freed although the algorithm lives; what it keeps is freed with it."""
    algorithm, watch = case.make(), Lives()
    torch.manual_seed(3)
    model = case.model()
    trainer = Trainer(
        model=model,
        train_dataloader=case.batches(),
        optimizers=case.optimizer(model) or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        algorithms=algorithm,
        callbacks=watch,
        max_duration="1ep",
        precision=case.precision,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    watch.note(trainer=trainer, state=trainer.state)
    del trainer, model
    assert set(watch.left()) == KEPT.get(case.name, (set(), ""))[0]
    del algorithm
    assert watch.left() == []


@every_case
def test_deterministic_under_a_seed(case):
    expected, again = trained(case), case.make()
    assert same(case.outcome(train(case, again).state.model, again), expected)


@every_case
def test_resumes_bit_for_bit(case):
    batches, expected = case.batches(), trained(case)
    torch.manual_seed(3)
    first = case.make()
    engine = _start(case, first)
    # Two batches of an epoch of four: the events of its end must not fire yet.
    loop_events = _fit_batches(engine, batches[:2], begin=True)
    assert loop_events == 2
    file = io.BytesIO()
    torch.save(
        {
            "model": engine.state.model.state_dict(),
            "optimizer": engine.state.optimizers[0].state_dict(),
            "algorithm": first.state_dict(),
            "rng": rng.get_local_rng_state(),
        },
        file,
    )
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    torch.manual_seed(99)
    second = case.make()
    second.load_state_dict(saved["algorithm"])  # also before INIT
    resumed = _start(case, second)
    resumed.state.model.load_state_dict(saved["model"])
    resumed.state.optimizers[0].load_state_dict(saved["optimizer"])
    second.load_state_dict(saved["algorithm"])
    resumed.run_event("after_load")
    resumed.state.timestamp = engine.state.timestamp
    rng.set_local_rng_state(saved["rng"])
    loop.fit(resumed, batches[2:])
    assert same(case.outcome(resumed.state.model, second), expected)


def _start(case, algorithm):
    model = case.model()
    return loop.start(model, [algorithm], case.optimizer(model), precision=case.precision)


def _fit_batches(engine, batches, begin):
    """Train without reaching the end of the epoch."""
    engine.run_event("fit_start")
    if begin:
        engine.run_event("epoch_start")
    state = engine.state
    for state.batch in batches:
        engine.run_event("after_dataloader")
        engine.run_event("batch_start")
        loop.step(engine)
        state.timestamp = state.timestamp.to_next_batch(samples=1)
        engine.run_event("batch_end")
    return len(batches)


@functools.cache
def on_accelerator(case: Case) -> tuple[list[Wait], list[torch.Tensor]]:
    """The waits of a run on the accelerator, and its weights."""
    with FakeAccelerator() as accelerator:
        trainer = _trainer(case, Step(lambda step: setattr(accelerator, "step", step)))
        trainer.fit()
        trainer.close()
        accelerator.step = None
        values = [value.cpu() for value in trainer.state.model.state_dict().values()]
    return accelerator.found, values


@every_case
def test_SyncFree(case):
    """The host synchronizes with the device only where declared."""
    waits, _ = on_accelerator(case)
    assert compare(case.name, waits, 4) == ([], [])


@every_case
def test_after_loading_tensors_lie_where_the_first_step_put_them(case, tmp_path):
    """Device by device: at the first batch after loading, nothing that belongs on the accelerator is on the host."""
    found = []
    with FakeAccelerator():
        for more in (
            {"save_folder": str(tmp_path), "save_interval": "2ba"},
            {"load_path": f"{tmp_path}/ep0-ba2-rank0.pt"},
        ):
            watching = At("batch_start", devices_of_state), At("batch_end", devices_of_state)
            trainer = _trainer(case, *watching, run_name="run", **more)
            trainer.fit()
            trainer.close()
            found.append([at.found for at in watching])
    (_, fresh), (starts, ends) = found
    assert (len(fresh), len(starts)) == (4, 2)
    assert differences(fresh[1], starts[0]) == {}
    assert differences(fresh[2], ends[0]) == {}
    # The tables are no emptier than what they are about.
    assert sum(name.startswith(("model.", "optimizer")) for name in starts[0]) > 1


def test_losses_on_the_accelerator_are_those_on_the_cpu():
    """Results do not depend on the device, except for values sampled there."""
    for case in CASES:
        if case.precision == "fp32":
            _, found = on_accelerator(case)
            other = _trainer(case, device="cpu")
            other.fit()
            for here, there in zip(found, other.state.model.state_dict().values(), strict=True):
                torch.testing.assert_close(here, there, msg=lambda text, case=case: f"{case.name}: {text}")


def _trainer(case, *watching, **more):
    if case.precision != "fp32":
        pytest.skip("Autocast does nothing to tensors of the pretend accelerator.")
    torch.manual_seed(3)
    model = case.model()
    return Trainer(
        model=model,
        train_dataloader=case.batches(),
        max_duration="1ep",
        optimizers=case.optimizer(model) or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        algorithms=case.make(),
        callbacks=list(watching),
        loggers=Received(50),
        progress_bar=False,
        seed=3,
        precision="fp32",
        **more,
    )


@every_case
def test_repr_shows_the_arguments(case):
    algorithm = case.make()
    shown = repr(algorithm)
    assert shown.startswith(f"{case.name}(")
    for name, parameter in inspect.signature(type(algorithm)).parameters.items():
        assert f"{name}=" in shown or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


@every_case
def test_runs_under_compile(case):
    """CompileMatrix: the same result, in as many graphs as the method declares, and without unexpected names."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    plain, compiled = trained(case), case.make()
    outcome = case.outcome(train(case, compiled, compile_with=backend).state.model, compiled)
    # Without a trainer, which declares sizes that change as dynamic, there is a graph for the first size.
    assert min(case.graphs, 1) <= len(graphs) <= case.graphs + compiled.__traits__.changes_shapes
    assert bool(compiled.__traits__.dynamic_dims) == compiled.__traits__.changes_shapes
    assert outcome.keys() == plain.keys()
    for name, value in outcome.items():
        torch.testing.assert_close(value, plain[name], rtol=1e-4, atol=1e-5)


def _as_dict(batch):
    return {"image": batch[0], "info": {"label": batch[1]}}


def _as_multi(batch):
    return {"left": batch[0], "right": batch[0].clone(), "one": batch[1], "two": batch[1].clone()}


FORMS = {
    "list": (list, 0, 1),
    "dict": (_as_dict, "image", "info.label"),
    "pairs": (
        _as_dict,
        (lambda b: b["image"], lambda b, v: {**b, "image": v}),
        (lambda b: b["info"]["label"], lambda b, v: {**b, "info": {"label": v}}),
    ),
    "multi": (_as_multi, ["left", "right"], ["one", "two"]),
}


@editing_case
@pytest.mark.parametrize("form", FORMS)
def test_takes_batches_of_every_form(case, form):
    """MultiInput: whatever the type of the batch, the model gets the same values as from a tuple."""
    reference = train(case, case.with_keys(0, 1)).state.model.seen
    convert, input_key, target_key = FORMS[form]
    several = isinstance(input_key, list)
    keys = {"inputs": input_key, "targets": target_key} if several else {"inputs": [input_key], "targets": [target_key]}
    torch.manual_seed(3)
    engine = loop.start(make_model(**keys), [case.with_keys(input_key, target_key)])
    loop.fit(engine, [convert(batch) for batch in make_batches()])
    for leaves, (x, y) in zip(engine.state.model.seen, reference, strict=True):
        expected = [x, x, y, y] if several else [x, y]
        assert all(torch.equal(part, other) for part, other in zip(leaves, expected, strict=True))


@editing_case
def test_wrong_key_names_the_key(case):
    with pytest.raises(KeyError, match=r"imagee.*Did you mean 'image'") as caught:
        batches = [_as_dict(batch) for batch in make_batches()]
        loop.fit(
            loop.start(make_model(inputs=["image"], targets=["info.label"]), [case.with_keys("imagee", "imagee")]),
            batches,
        )
    (note,) = caught.value.__notes__
    assert note.startswith(f"Raised by {case.name} at the event '")
    assert note.endswith("_key='imagee': pass those of your batches.")


def test_cases_are_complete():
    for case in CASES:
        assert isinstance(case, Case)
        assert case.by_hand is not None or case.why_no_function
        assert case.neutral is not None or case.why_not_neutral
        signature = inspect.signature(type(case.make()))
        assert (case.with_keys is not None) == (
            "target_key" in signature.parameters or "input_key" in signature.parameters
        )


def test_old_home_of_the_warnings():
    from composer.algorithms import warnings as old_home

    assert old_home.NoEffectWarning is NoEffectWarning
