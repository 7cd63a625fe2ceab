"""Look up names of other libraries in the tables of ``other_libraries``, for "Use ..." hints and for short names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from composer._compat.other_libraries import ARGUMENTS, CLASSES, MEMBERS, SHORT_NAMES
from composer._compat.other_library_values import answer_to
from composer._numbers import as_integer
from composer._text import did_you_mean, did_you_slip

__all__ = ["argument_hint", "class_hint", "class_meant", "is_foreign_class", "member_hint", "normalized"]


def argument_hint(
    name: str,
    known: Iterable[str],
    value: object = None,
    *,
    batches: int | None = None,
    of_trainer: Iterable[str] = (),
) -> str:
    """Return a hint for an argument that the trainer does not have, or "".

    Args:
        name: The unknown argument.
        known: The arguments of the called function.
        value: Value of the argument; a positive number is inserted into the hint.
        batches: Number of training batches, if known.
        of_trainer: The arguments of Trainer, if one of its methods was called.

    >>> argument_hint("max_epochs", ["max_duration"], 3)
    " Use max_duration='3ep'."
    >>> argument_hint("max_duratoin", ["max_duration"])
    " Did you mean 'max_duration'?"
    """
    known, trainer = list(known), list(of_trainer)
    if name in known:
        return ""
    if name in trainer:
        return _use(name, known, trainer)
    answer = answer_to(name, value, batches) or ARGUMENTS.get(name)
    if answer is None:
        slip = did_you_slip(name, known)
        return slip or next((_use(one, known, trainer) for one in trainer if did_you_slip(name, [one])), "")
    number = value if type(value) is float else as_integer(value)
    whole_only = re.search(r"<\d+>(ep|ba)'|<\?>|=<\d+>", answer) and "lr=" not in answer and "decay=" not in answer
    fits = number is not None and number > 0 and (type(number) is int or not whole_only)
    given = str(number) if fits else None
    return _use(re.sub(r"<([\d.?]+)>", lambda sample: given or sample[1].replace("?", "..."), answer), known, trainer)


def _use(answer: str, known: Sequence[str], trainer: Sequence[str]) -> str:
    """Return the hint for an answer about Trainer, adapted to the arguments of the called function."""
    argument = (re.match(r"\w+", answer) or [""])[0]
    if not trainer or argument in known:
        return f" Use {answer}."
    data = next((one for one in ("train_dataloader", "eval_dataloader", "dataloader") if one in known), "")
    if argument == "DataLoader" and data and not set(re.findall(r"\w+", answer)) & set(known):
        return f" Use {re.sub(r'(train|eval)_dataloader', data, answer)}."
    here = {
        "max_duration": "duration",
        "train_dataloader": next((one for one in ("eval_dataloader", "dataloader") if one in known), ""),
        "eval_dataloader": "dataloader",
        "train_subset_num_batches": "subset_num_batches",
        "eval_subset_num_batches": "subset_num_batches",
    }.get(argument, "")
    if here in known:
        return f" Use {re.sub(rf'^{argument}', here, answer)}."
    if argument not in trainer:
        return f" Use {answer}."
    return f" Pass it to the Trainer: Trainer({answer if _is_code(answer) else f'{argument}=...'})."


def _is_code(answer: str) -> bool:
    """Return whether an answer is exactly one keyword argument with its value."""
    try:
        call = cast(ast.Call, ast.parse(f"f({answer})", mode="eval").body)
    except SyntaxError:
        return False
    return len(call.keywords) == 1 and not call.args


def member_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint for a method or attribute that the trainer does not have, or "".

    Args:
        name: The unknown method or attribute.
        known: The existing methods and attributes.

    >>> member_hint("train", ["fit"])
    ' Use trainer.fit().'
    """
    answer = MEMBERS.get(name)
    return did_you_mean(name, known) if answer is None else f" Use {answer}."


def normalized(name: str) -> str:
    """Return a name normalized for comparison: lower case, letters and digits only.

    Args:
        name: A class or short name.

    >>> normalized("Early_Stopper"), normalized("JSONLinesLogger")
    ('earlystopper', 'jsonlineslogger')
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())


def class_meant(name: str, known: Iterable[str]) -> str | None:
    """Return the class that a name means, regardless of case and underscores, or None.

    Args:
        name: A class name, a short name such as "csv" or "early_stopper", or the name of another library's class.
        known: The existing classes.

    >>> class_meant("early_stopper", ["EarlyStopper"]), class_meant("wandb", ["WandBLogger"])
    ('EarlyStopper', 'WandBLogger')
    >>> class_meant("ModelCheckpoint", ["CheckpointSaver"])
    'CheckpointSaver'
    """
    ours = {normalized(one): one for one in known}
    short = {key.removesuffix(ending): one for ending in ("logger", "callback", "monitor") for key, one in ours.items()}
    wanted = normalized(name)
    foreign = {normalized(one): answer for one, answer in CLASSES.items()}
    for meant in (ours.get(wanted), short.get(wanted), SHORT_NAMES.get(wanted), foreign.get(wanted)):
        if meant is not None and normalized(meant) in ours:
            return ours[normalized(meant)]
    return None


def _function_meant(name: str, homes: Mapping[str, str]) -> str | None:
    """Return the function that a lower-case name means: "blurpool" for ``apply_blurpool``."""
    if not name.islower():
        return None
    plain = name.replace("_", "")
    forms = (
        CLASSES.get(name, ""),
        f"apply_{name}",
        f"apply_{plain}",
        f"{name}_batch",
        f"{plain}_batch",
        f"{plain}_image",
    )
    return next((form for form in forms if form in homes), None)


def class_hint(name: str, homes: Mapping[str, str]) -> str:
    """Return a hint with the package of a class, or with the equivalent class, or "".

    Args:
        name: The class that was not found.
        homes: The existing names, each with its package.

    >>> class_hint("EarlyStopping", {"EarlyStopper": "composer.callbacks"})
    ' Use composer.callbacks.EarlyStopper.'
    >>> class_hint("AdamW", {}), class_hint("Thing", {})
    (' Use torch.optim.AdamW.', '')
    """
    answer = CLASSES.get(name, "")
    if name not in homes and (" " in answer or "." in answer):
        return f" Use {answer}."
    meant = next((one for one in (name, answer) if one in homes), None)
    meant = meant or _function_meant(name, homes) or class_meant(name, homes)
    if meant is not None:
        return f" Use {homes[meant]}.{meant}."
    return ""


def is_foreign_class(name: str) -> bool:
    """Return whether a name is a class of another library, and so not a misspelling.

    Args:
        name: The name that was not found.

    >>> is_foreign_class("Accelerator"), is_foreign_class("Trianer")
    (True, False)
    """
    return name in CLASSES
