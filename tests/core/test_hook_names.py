"""Hook names: those of other libraries, typos, and helpers with similar names."""

from __future__ import annotations

import random
import string

import pytest

from composer.core.event import Event
from composer.core.hook_names import is_like_a_hook, is_misspelled, meant_event

OTHER_LIBRARIES = {
    # Lightning
    "on_fit_start": "fit_start",
    "on_fit_end": "fit_end",
    "on_train_start": "fit_start",
    "on_train_end": "fit_end",
    "on_train_epoch_start": "epoch_start",
    "on_train_epoch_end": "epoch_end",
    "on_train_batch_start": "batch_start",
    "on_train_batch_end": "batch_end",
    "on_validation_start": "eval_start",
    "on_validation_end": "eval_end",
    "on_validation_epoch_end": "eval_end",
    "on_validation_batch_start": "eval_batch_start",
    "on_validation_batch_end": "eval_batch_end",
    "on_test_batch_end": "eval_batch_end",
    "on_predict_start": "predict_start",
    "on_predict_epoch_end": "predict_end",
    "on_predict_batch_end": "predict_batch_end",
    "on_before_backward": "before_backward",
    "on_after_backward": "after_backward",
    "on_before_optimizer_step": "after_train_batch",
    "on_save_checkpoint": "batch_checkpoint",
    "on_load_checkpoint": "after_load",
    # Keras
    "on_train_begin": "fit_start",
    "on_epoch_begin": "epoch_start",
    "on_epoch_end": "epoch_end",
    "on_batch_begin": "batch_start",
    "on_batch_end": "batch_end",
    "on_test_begin": "eval_start",
    "on_test_end": "eval_end",
    "on_predict_begin": "predict_start",
    # Hugging Face
    "on_init_end": "init",
    "on_step_begin": "batch_start",
    "on_step_end": "batch_end",
    "on_substep_end": "after_backward",
    "on_pre_optimizer_step": "after_train_batch",
    "on_evaluate": "eval_end",
    "on_predict": "predict_end",
    "on_save": "batch_checkpoint",
    "on_log": "batch_end",
    # fastai and others
    "before_fit": "fit_start",
    "after_fit": "fit_end",
    "before_epoch": "epoch_start",
    "after_epoch": "epoch_end",
    "before_batch": "batch_start",
    "after_batch": "batch_end",
    "before_validate": "eval_start",
    "after_val_epoch": "eval_end",
    "after_step": "batch_end",
    # Early versions of Composer
    "training_start": "fit_start",
    "training_end": "fit_end",
}
SLIPS = {
    "after_backwards": "after_backward",
    "epochend": "epoch_end",
    "epoch_ended": "epoch_end",
    "training_step_end": "batch_end",
    "Epoch_End": "epoch_end",
    "EPOCH_END": "epoch_end",
    "epochEnd": "epoch_end",
    "onEpochEnd": "epoch_end",
    "bacth_end": "batch_end",
    "after_foward": "after_forward",
    "afer_bakward": "after_backward",
    "before_data_loader": "before_dataloader",
    "evaluation_batch_end": "eval_batch_end",
    "pre_forward": "before_forward",
    "eval_epoch_end": "eval_end",
}
HELPERS = [
    "after_save", "before_save", "after_upload", "before_sleep", "after_call", "batch_size", "batch_sizes",
    "batch_len", "eval_batch_len", "epoch_name", "epoch_len", "epoch_loss", "epochs", "fit", "evaluate", "predict",
    "train", "step", "save", "load", "log", "setup", "teardown", "close", "log_metrics", "state_dict", "start",
    "stop", "end", "end_time", "start_time", "reset_epoch", "is_epoch_end", "log_epoch_end", "eval_end_time",
    "end_epoch", "start_epoch", "match_end", "patch_start", "batch_send", "compute_loss", "train_epoch", "run",
    "forward", "backward", "loss", "once", "only", "online",
]  # fmt: skip
EVENTS = {event.value for event in Event}


@pytest.mark.parametrize(("name", "event"), [*OTHER_LIBRARIES.items(), *SLIPS.items()])
def test_suggestions(name, event):
    assert is_like_a_hook(name)
    assert meant_event(name) is Event(event)


@pytest.mark.parametrize("name", HELPERS)
def test_helpers_are_not_hooks(name):
    assert not is_like_a_hook(name)
    assert not is_like_a_hook(name, ("path",))


@pytest.mark.parametrize("name", ["end_epoch", "start_of_epoch", "match_end", "forward_before"])
def test_parameters_identify_a_hook_if_the_name_does_not(name):
    assert not is_like_a_hook(name)
    assert is_like_a_hook(name, ("state", "logger"))


@pytest.mark.parametrize("name", ["evaluate", "fit", "save", "after_save", "log_now", "epoch", "train_epoch"])
def test_helper_may_have_hook_parameters(name):
    assert not is_like_a_hook(name, ("state", "logger"))


def test_a_hook_of_lightning_by_its_parameters():
    assert is_like_a_hook("setup", ("trainer", "pl_module", "stage"))
    assert not is_like_a_hook("setup", ("path",))


@pytest.mark.parametrize("name", ["on_exception", "on_sigterm", "on_preemption"])
def test_hooks_without_a_known_event(name):
    assert is_like_a_hook(name)
    assert meant_event(name) is None


@pytest.mark.parametrize("event", [event for event in Event if len(event.value) >= 12])
def test_typo_in_a_long_name_is_detected(event):
    draw = random.Random(event.value)
    for _ in range(40):
        name, place = event.value, draw.randrange(len(event.value))
        letter = draw.choice(string.ascii_lowercase)
        wrong = draw.choice(
            [
                name[:place] + letter + name[place:],
                name[:place] + name[place + 1 :],
                name[:place] + letter + name[place + 1 :],
                name[:place] + name[place : place + 2][::-1] + name[place + 2 :],
            ]
        )
        if wrong in EVENTS or wrong.strip("_") != wrong:
            continue
        assert is_like_a_hook(wrong), wrong
        assert meant_event(wrong) is not None, wrong


@pytest.mark.parametrize("event", list(Event))
def test_every_event_maps_to_itself(event):
    assert meant_event(event.value) is event


def test_misspelled_names_of_methods():
    for written, known in (
        ("run_events", "run_event"),
        ("load_statedict", "load_state_dict"),
        ("eval_foward", "eval_forward"),
    ):
        assert is_misspelled(written, known)
    for written, known in (("closed", "close"), ("lost", "loss"), ("run_event", "run_event"), ("matches", "match")):
        assert not is_misspelled(written, known)
