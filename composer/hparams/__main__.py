"""``composer train run.yaml``: train with a YAML configuration."""

from __future__ import annotations

from collections.abc import Sequence

from composer.hparams.command_line import exit_with_error, trainer_from_args

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with the configuration of a command line.

    Args:
        arguments: The command-line arguments after the program name; None uses ``sys.argv``.

    Raises:
        SystemExit: Help was printed, or the configuration is invalid.

    >>> main(["--max_duratoin", "2ep"])
    Traceback (most recent call last):
    SystemExit: 2
    """
    with trainer_from_args(arguments) as trainer:
        needed = {"train_dataloader": trainer.state.train_phase.loader, "max_duration": trainer.state.max_duration}
        for name, value in needed.items():
            if value is None:
                exit_with_error(f"{name} must be given.")
        trainer.fit()


if __name__ == "__main__":
    main()
