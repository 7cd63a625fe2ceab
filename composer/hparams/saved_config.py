"""Log the configuration of a run, and save it as ``config.yaml`` next to its checkpoints."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist
from composer._secrets.masking import mask_text, mask_values
from composer._text import first_of
from composer.core.name_placeholders import format_name
from composer.hparams._yaml import dump, load
from composer.hparams.config_tree import Tree, changes
from composer.storage.atomic_upload import deliver
from composer.storage.folder import Folder
from composer.storage.uris import is_remote, join_path, local_path
from composer.trainer.resume import savers_of
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["record", "save"]

_NAME = "config"


def record(trainer: Trainer, tree: Tree) -> None:
    """Log a configuration as hyperparameters, and save it to the checkpoint folder or with a logger that stores files.

    Passwords, tokens and keys in it are masked, see :func:`.mask_values`.

    Args:
        trainer: The trainer.
        tree: The configuration.

    >>> from composer import Trainer
    >>> from composer.loggers import InMemoryLogger
    >>> from composer.models import ComposerClassifier
    >>> model, log = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2), InMemoryLogger()
    >>> record(Trainer(model=model, loggers=log, progress_bar=False), {"max_duration": "2ep"})
    >>> log.hyperparameters["max_duration"]
    '2ep'
    """
    # Saved configurations are read by more people, and for longer, than the original.
    tree = mask_values(tree)
    trainer.logger.log_hyperparameters(tree)
    if dist.get_global_rank() != 0:
        return
    savers = savers_of(trainer.state)
    if savers:
        save(tree, format_name(savers[0].folder, trainer.state.run_name))
    elif trainer.logger.has_file_upload_destination():
        with tempfile.TemporaryDirectory(prefix="composer-") as folder:
            file = Path(folder, f"{_NAME}.yaml")
            file.write_text(dump(tree), encoding="utf-8")
            trainer.logger.upload_file(f"{{run_name}}/{file.name}", file, overwrite=True)


def save(tree: Tree, folder: str) -> None:
    """Save a configuration in a folder, unless the newest one there is equal.

    The first is ``config.yaml``, the second ``config-2.yaml``. A warning lists the differences.

    Args:
        tree: The configuration.
        folder: A path or URI.

    >>> save({"max_duration": "2ep"}, str(tmp_path))
    >>> save({"max_duration": "2ep"}, str(tmp_path))
    >>> [file.name for file in tmp_path.iterdir()]
    ['config.yaml']
    """
    existing = 0
    while (text := _text(join_path(folder, _name(existing + 1)))) is not None:
        existing, before = existing + 1, text
    if existing:
        found = list(changes(load(before), load(dump(tree))))  # pyright: ignore[reportPossiblyUnboundVariable]
        if not found:
            return
        differences = [f"{key} was {_shown(old)} and is {_shown(new)}" for key, old, new in found]
        warnings.warn(
            f"The configuration differs from {_name(existing)} in {mask_text(folder)}: {first_of(differences)}. It is "
            f"saved as {_name(existing + 1)}.",
            ComposerWarning,
            stacklevel=2,
        )
    with tempfile.TemporaryDirectory(prefix="composer-") as made:
        file = Path(made, _NAME)
        file.write_text(dump(tree), encoding="utf-8")
        deliver(file, join_path(folder, _name(existing + 1)))


def _name(number: int) -> str:
    return f"{_NAME}.yaml" if number == 1 else f"{_NAME}-{number}.yaml"


def _text(path: str) -> str | None:
    """Return the text of a file, or None if it does not exist."""
    if is_remote(path):
        uri, _, name = path.rpartition("/")
        folder = Folder(uri)
        try:
            return folder.read_text(name) if folder.exists(name) else None
        finally:
            folder.close()
    local = local_path(path)
    return local.read_text(encoding="utf-8") if local.exists() else None


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)
