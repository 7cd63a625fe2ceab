"""Warnings of this library, one class per kind, so that each can be filtered."""

from __future__ import annotations

__all__ = ["ComposerWarning", "NoEffectWarning", "NotIntendedUseWarning", "VersionedDeprecationWarning"]


class ComposerWarning(UserWarning):
    """Base of the warnings of this library.

    >>> import warnings
    >>> warnings.simplefilter("ignore", ComposerWarning)
    """


class NoEffectWarning(ComposerWarning):
    """Something was asked for that changes nothing, such as surgery on a model without a fitting layer.

    >>> issubclass(NoEffectWarning, ComposerWarning)
    True
    """


class NotIntendedUseWarning(ComposerWarning):
    """Something is used in a way that it was not made for and may do harm.

    >>> issubclass(NotIntendedUseWarning, ComposerWarning)
    True
    """


class VersionedDeprecationWarning(ComposerWarning):
    """A feature will be removed in a stated version.

    Args:
        message: What is deprecated, and what to use instead.
        remove_version: The first version without the feature; ``None`` where that is not decided.

    >>> print(
    ...     VersionedDeprecationWarning(
    ...         "grad_accum is deprecated; use device_train_microbatch_size.", "1.0"
    ...     )
    ... )
    grad_accum is deprecated; use device_train_microbatch_size. It will be removed in version 1.0.
    """

    def __init__(self, message: str, remove_version: str | None = None) -> None:
        # Both stay in `args`, so that the warning survives pickling between processes.
        super().__init__(message, remove_version)
        self.message = message
        self.remove_version = remove_version

    def __str__(self) -> str:
        if self.remove_version is None:
            return self.message
        return f"{self.message} It will be removed in version {self.remove_version}."
