"""Look up names of other libraries in the table of ``_foreign_names``, for errors and for short names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import cast

from composer._foreign_names import ARGUMENTS, CLASSES, MEMBERS, SHORT_NAMES
from composer._text import did_you_mean

__all__ = ["argument_hint", "class_hint", "class_meant", "member_hint", "normalized"]


def argument_hint(name: str, known: Iterable[str], value: object = None) -> str:
    """Return what to use in place of an argument that the trainer does not have; nothing where that is not known.

    Args:
        name: The argument.
        known: The arguments that there are.
        value: What was given; a positive number stands in the answer.

    >>> argument_hint("max_epochs", ["max_duration"], 3)
    " Use max_duration='3ep'."
    >>> argument_hint("max_duratoin", ["max_duration"])
    " Did you mean 'max_duration'?"
    """
    known = list(known)
    answer = ARGUMENTS.get(name)
    if answer is None or name in known:
        return did_you_mean(name, known)
    given = str(value) if type(value) in (int, float) and cast(float, value) > 0 else None
    shown = re.sub(r"<([\d.?]+)>", lambda sample: given or sample[1].replace("?", "..."), answer)
    return f" Use {shown}."


def member_hint(name: str, known: Iterable[str]) -> str:
    """Return what to use in place of a method or attribute that the trainer does not have; perhaps nothing.

    Args:
        name: The method or attribute.
        known: The methods and attributes that there are.

    >>> member_hint("train", ["fit"])
    ' Use trainer.fit().'
    """
    answer = MEMBERS.get(name)
    return did_you_mean(name, known) if answer is None else f" Use {answer}."


def normalized(name: str) -> str:
    """Return a name in the spelling by which names are compared: lower case, letters and digits only.

    Args:
        name: A class or short name.

    >>> normalized("Early_Stopper"), normalized("JSONLinesLogger")
    ('earlystopper', 'jsonlineslogger')
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())


def class_meant(name: str, known: Iterable[str]) -> str | None:
    """Return the class that a name stands for, in any case, with or without underscores; None where there is none.

    Args:
        name: A class name, a short name such as "csv" or "early_stopper", or the name of another library's class.
        known: The classes that there are.

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


def class_hint(name: str, homes: Mapping[str, str]) -> str:
    """Return where a class is, or which class does its work here; nothing where that is not known.

    Args:
        name: The class that was not found.
        homes: Names that there are, with the packages that have them.

    >>> class_hint("EarlyStopping", {"EarlyStopper": "composer.callbacks"})
    ' Use composer.callbacks.EarlyStopper.'
    >>> class_hint("AdamW", {}), class_hint("Thing", {})
    (' Use torch.optim.AdamW.', '')
    """
    meant = name if name in homes else class_meant(name, homes)
    if meant is not None:
        return f" Use {homes[meant]}.{meant}."
    answer = CLASSES.get(name, "")
    return f" Use {answer}." if " " in answer or "." in answer else ""
