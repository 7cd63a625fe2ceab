"""Warning classes of this library, for use with ``warnings.filterwarnings``."""

from __future__ import annotations

__all__ = ["ComposerWarning", "NoEffectWarning", "NotIntendedUseWarning", "VersionedDeprecationWarning"]


class ComposerWarning(UserWarning):
    """Base class of the warnings of this library.

    >>> import warnings
    >>> warnings.simplefilter("ignore", ComposerWarning)
    """


class NoEffectWarning(ComposerWarning):
    """A requested operation has no effect, such as surgery on a model without a matching layer.

    >>> issubclass(NoEffectWarning, ComposerWarning)
    True
    """


class NotIntendedUseWarning(ComposerWarning):
    """A feature is used in an unintended way that may be harmful.

    >>> issubclass(NotIntendedUseWarning, ComposerWarning)
    True
    """


class VersionedDeprecationWarning(ComposerWarning):
    """A feature will be removed in a stated version.

    Args:
        message: What is deprecated, and what to use instead.
        remove_version: The first version without the feature; ``None`` if undecided.

    >>> print(
    ...     VersionedDeprecationWarning(
    ...         "grad_accum is deprecated; use device_train_microbatch_size.", "1.0"
    ...     )
    ... )
    grad_accum is deprecated; use device_train_microbatch_size. It will be removed in version 1.0.
    """

    def __init__(self, message: str, remove_version: str | None = None) -> None:
        # Keep both in `args`, so that the warning can be pickled.
        super().__init__(message, remove_version)
        self.message = message
        self.remove_version = remove_version

    def __str__(self) -> str:
        if self.remove_version is None:
            return self.message
        return f"{self.message} It will be removed in version {self.remove_version}."
