"""Map misspelled hooks, and hooks of other libraries, to events: ``on_epoch_end``, ``after_backwards``."""

from __future__ import annotations

import re
from typing import Final

from composer._text import is_slip
from composer.core.event import Event

__all__ = ["is_like_a_hook", "is_misspelled", "meant_event", "words"]

_EVENTS: Final = {event.value for event in Event}
_MOMENTS: Final = {"before", "after", "start", "end"}

# Synonyms for the words in event names, as users and other libraries write them.
_SYNONYMS: Final = {
    "pre": "before", "post": "after",
    "begin": "start", "begins": "start", "begun": "start", "starts": "start", "started": "start", "starting": "start",
    "ends": "end", "ended": "end", "ending": "end", "finish": "end", "finished": "end", "finishes": "end",
    "complete": "end", "completed": "end", "done": "end",
    "epochs": "epoch", "batches": "batch", "step": "batch", "steps": "batch", "iter": "batch",
    "training": "train", "trains": "train", "fitting": "fit",
    "evaluate": "eval", "evaluation": "eval", "evaluator": "eval", "evaluating": "eval", "val": "eval",
    "valid": "eval", "validate": "eval", "validation": "eval", "test": "eval", "testing": "eval",
    "pred": "predict", "prediction": "predict", "predicting": "predict", "inference": "predict",
    "forwards": "forward", "fwd": "forward", "backwards": "backward", "backprop": "backward", "bwd": "backward",
    "losses": "loss", "criterion": "loss", "loader": "dataloader", "dataloaders": "dataloader",
    "optimize": "optimizer", "optim": "optimizer", "opt": "optimizer", "grad": "gradient", "grads": "gradient",
    "gradients": "gradient",
}  # fmt: skip

# Words that may appear in the name of a hook; a name with any other word is a helper method.
_WORDS: Final = (
    {word for name in _EVENTS for word in name.split("_")} - {"init", "checkpoint"}
    | {"train", "step", "optimizer", "gradient", "zero", "stage", "microbatch"}
)  # fmt: skip

# Hooks of Lightning, Keras, Hugging Face, fastai and others that the synonyms do not cover; without "on".
_ELSEWHERE: Final = {
    "setup": "init",
    "init_end": "init",
    "before_zero_grad": "before_train_batch",
    "before_step": "after_train_batch",
    "before_optimizer_step": "after_train_batch",
    "pre_optimizer_step": "after_train_batch",
    "optimizer_step": "batch_end",
    "sanity_check_start": "eval_start",
    "sanity_check_end": "eval_end",
    "substep_end": "after_backward",
    "grad_computed": "after_backward",
    "save_checkpoint": "batch_checkpoint",
    "save": "batch_checkpoint",
    "load_checkpoint": "after_load",
    "evaluate": "eval_end",
    "predict": "predict_end",
    "prediction_step": "eval_batch_end",
    "log": "batch_end",
    "teardown": "fit_end",
}


def words(name: str) -> list[str]:
    """Split a name in snake case or camel case into lowercase words.

    Args:
        name: The name.

    >>> words("onTrainEpochEnd"), words("EPOCH_END")
    (['on', 'train', 'epoch', 'end'], ['epoch', 'end'])
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def meant_event(name: str) -> Event | None:
    """Return the event that a misspelled hook, or a hook of another library, stands for; None if unclear.

    Args:
        name: Name of the method.

    >>> (
    ...     meant_event("on_train_epoch_end"),
    ...     meant_event("on_validation_batch_start"),
    ...     meant_event("on_sigterm"),
    ... )
    (<Event.EPOCH_END: 'epoch_end'>, <Event.EVAL_BATCH_START: 'eval_batch_start'>, None)
    """
    if name.upper() in Event.__members__:
        return Event(name)
    written = words(name)
    bare = written[1:] if written[0] == "on" else written
    if "_".join(bare) in _ELSEWHERE:
        return Event(_ELSEWHERE["_".join(bare)])
    found = next((form for form in _forms(_canonical(bare)) if form in _EVENTS), None)
    return _near(bare) if found is None else Event(found)


def is_like_a_hook(name: str, parameters: tuple[str, ...] = ()) -> bool:
    """Return whether a method was most likely written as a hook.

    Helpers such as ``after_save``, ``epoch_name``, ``evaluate`` or ``batch_send`` are not. If a name is ambiguous, such
    as ``end_epoch``, the parameter names decide.

    Args:
        name: Name of the method, not that of an event.
        parameters: Names of its parameters.

    >>> is_like_a_hook("on_epoch_end"), is_like_a_hook("after_backwards"), is_like_a_hook("after_save")
    (True, True, False)
    >>> is_like_a_hook("end_epoch"), is_like_a_hook("end_epoch", ("state", "logger"))
    (False, True)
    """
    written = words(name)
    if (written[0] == "on" and len(written) > 1) or "pl_module" in parameters:
        return True
    has_state = parameters == ("state", "logger")
    canonical = _canonical(written)
    if len(canonical) > 1 and set(canonical) <= _WORDS and _MOMENTS & set(canonical):
        return has_state or canonical[0] in ("before", "after") or canonical[-1] in ("start", "end")
    event = _near(written)
    if event is None:
        return False
    joined, meant = "".join(written), event.value.replace("_", "")
    # Long names, or names with swapped letters, are close to an event only by a typo.
    return has_state or len(event.value) >= 12 or sorted(joined) == sorted(meant)


def is_misspelled(name: str, known: str) -> bool:
    """Return whether a name is most likely a misspelling of a known name.

    Args:
        name: The name in question.
        known: The known name.

    >>> is_misspelled("eval_foward", "eval_forward"), is_misspelled("loadStateDict", "load_state_dict")
    (True, True)
    """
    if name == known:
        return False
    return "".join(words(name)) == known.replace("_", "") or (len(known) >= 7 and is_slip(name, known))


def _canonical(written: list[str]) -> list[str]:
    joined = "_".join(written).replace("data_loader", "dataloader").split("_")
    return [_SYNONYMS.get(word, word) for word in joined if word not in ("of", "the")]


def _forms(canonical: list[str]) -> list[str]:
    """Return candidate event names for these words, the likeliest first."""
    moments = [word for word in canonical if word in _MOMENTS]
    thing = [word for word in canonical if word not in _MOMENTS]
    if len(moments) != 1 or not thing:
        return ["_".join(canonical)]
    moment = moments[0]
    if "eval" in thing or "predict" in thing:
        thing = [word for word in thing if word not in ("epoch", "train")]
        thing.sort(key=lambda word: word not in ("eval", "predict"))
    elif len(thing) > 1:
        thing = [word for word in thing if word != "train"]
    elif thing[0] in ("train", "stage"):
        thing = ["fit"]
    what = "_".join(thing)
    edge = {"before": "start", "after": "end"}.get(moment, moment)
    side = {"start": "before", "end": "after"}.get(moment, moment)
    nested = [f"{thing[0]}_{side}_{'_'.join(thing[1:])}"]
    return ["_".join(canonical), f"{moment}_{what}", f"{what}_{edge}", f"{side}_{what}", *nested]


def _near(written: list[str]) -> Event | None:
    joined = "".join(written)
    found = min((event for event in _EVENTS if _differ_by_slips(joined, written, event)), default=None)
    return None if found is None else Event(found)


def _differ_by_slips(joined: str, written: list[str], event: str) -> bool:
    """Return whether a name differs only by underscores, by one typo, or by one typo in each long word."""
    if len(event) < 7:
        return joined == event
    if joined == event.replace("_", "") or is_slip(joined, event.replace("_", "")):
        return True
    meant = event.split("_")
    pairs = zip(written, meant, strict=False)
    return len(written) == len(meant) and all(one == two or (len(two) > 3 and is_slip(one, two)) for one, two in pairs)
