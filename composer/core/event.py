"""The events of the training loop, at which algorithms, callbacks and loggers run their hooks."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from composer._text import did_you_mean

__all__ = ["Event"]


class Event(StrEnum):
    """An event of the loop. In the pseudocode of the loop below, an event fires where its name appears.

    Lines under a ``for`` repeat. ``for epoch`` runs until ``max_duration`` is reached; if that is in the middle of an
    epoch, the events below ``end of epoch`` do not fire. ``evaluate`` stands for the block of that name and runs if an
    evaluator is due. The last ``BEFORE_DATALOADER`` of an epoch finds no further batch; it does not fire if
    ``max_duration`` is reached with the last batch of the epoch.

    .. code-block:: text

        construct:
            INIT
            BEFORE_LOAD
            AFTER_LOAD

        fit:
            FIT_START
            ITERATION_START
            for epoch:
                EPOCH_START
                for batch:
                    BEFORE_DATALOADER
                    AFTER_DATALOADER
                    BATCH_START
                    BEFORE_TRAIN_BATCH
                    for microbatch:
                        BEFORE_FORWARD
                        AFTER_FORWARD
                        BEFORE_LOSS
                        AFTER_LOSS
                        BEFORE_BACKWARD
                        AFTER_BACKWARD
                    AFTER_TRAIN_BATCH
                    BATCH_END
                    evaluate
                    BATCH_CHECKPOINT
                end of epoch:
                    BEFORE_DATALOADER
                    EPOCH_END
                    evaluate
                    EPOCH_CHECKPOINT
            evaluate
            FIT_END

        evaluate:
            EVAL_BEFORE_ALL
            for evaluator:
                EVAL_START
                for eval batch:
                    EVAL_BATCH_START
                    EVAL_BEFORE_FORWARD
                    EVAL_AFTER_FORWARD
                    EVAL_BATCH_END
                EVAL_END
            EVAL_AFTER_ALL

        eval:
            EVAL_STANDALONE_START
            for evaluator:
                EVAL_START
                for eval batch:
                    EVAL_BATCH_START
                    EVAL_BEFORE_FORWARD
                    EVAL_AFTER_FORWARD
                    EVAL_BATCH_END
                EVAL_END
            EVAL_STANDALONE_END

        predict:
            PREDICT_START
            for predict batch:
                PREDICT_BATCH_START
                PREDICT_BEFORE_FORWARD
                PREDICT_AFTER_FORWARD
                PREDICT_BATCH_END
            PREDICT_END

    ``BEFORE_TRAIN_BATCH`` to ``AFTER_TRAIN_BATCH`` run inside the optimizer's closure, so an optimizer that evaluates
    its closure several times fires them several times. From ``BATCH_END`` on, the timestamp includes the batch. If
    an iteration length is set, ``ITERATION_END``, the evaluation and ``ITERATION_CHECKPOINT`` follow the
    ``EPOCH_CHECKPOINT`` that completes it, and the next epoch begins with ``ITERATION_START``.

    Names are accepted in any case, including old names.

    >>> Event("AFTER_FORWARD") is Event("after_forward") is Event.AFTER_FORWARD
    True
    >>> Event("training_start")
    <Event.FIT_START: 'fit_start'>
    """

    INIT = "init"
    BEFORE_LOAD = "before_load"
    AFTER_LOAD = "after_load"
    FIT_START = "fit_start"
    TRAINING_START = "fit_start"

    ITERATION_START = "iteration_start"
    EPOCH_START = "epoch_start"
    BEFORE_DATALOADER = "before_dataloader"
    AFTER_DATALOADER = "after_dataloader"
    BATCH_START = "batch_start"
    BEFORE_TRAIN_BATCH = "before_train_batch"
    BEFORE_FORWARD = "before_forward"
    AFTER_FORWARD = "after_forward"
    BEFORE_LOSS = "before_loss"
    AFTER_LOSS = "after_loss"
    BEFORE_BACKWARD = "before_backward"
    AFTER_BACKWARD = "after_backward"
    AFTER_TRAIN_BATCH = "after_train_batch"
    BATCH_END = "batch_end"
    BATCH_CHECKPOINT = "batch_checkpoint"
    EPOCH_END = "epoch_end"
    EPOCH_CHECKPOINT = "epoch_checkpoint"
    ITERATION_END = "iteration_end"
    ITERATION_CHECKPOINT = "iteration_checkpoint"

    FIT_END = "fit_end"
    TRAINING_END = "fit_end"

    EVAL_BEFORE_ALL = "eval_before_all"
    EVAL_START = "eval_start"
    EVAL_BATCH_START = "eval_batch_start"
    EVAL_BEFORE_FORWARD = "eval_before_forward"
    EVAL_AFTER_FORWARD = "eval_after_forward"
    EVAL_BATCH_END = "eval_batch_end"
    EVAL_END = "eval_end"
    EVAL_AFTER_ALL = "eval_after_all"
    EVAL_STANDALONE_START = "eval_standalone_start"
    EVAL_STANDALONE_END = "eval_standalone_end"

    PREDICT_START = "predict_start"
    PREDICT_BATCH_START = "predict_batch_start"
    PREDICT_BEFORE_FORWARD = "predict_before_forward"
    PREDICT_AFTER_FORWARD = "predict_after_forward"
    PREDICT_BATCH_END = "predict_batch_end"
    PREDICT_END = "predict_end"

    @classmethod
    def _missing_(cls, value: object) -> Event:
        """Accept a name or value in any case; suggest the closest name otherwise."""
        if not isinstance(value, str):
            raise TypeError(f"An event must be an Event or a str, not {type(value).__name__}: {value!r}")
        found = cls.__members__.get(value.upper())
        if found is None:
            raise ValueError(f"Unknown event {value!r}.{did_you_mean(value.lower(), [e.value for e in cls])}")
        return found

    @property
    def is_before_event(self) -> bool:
        """Whether the event opens a span: ``before_*`` and ``*_start``.

        >>> Event.BEFORE_LOSS.is_before_event, Event.BATCH_CHECKPOINT.is_before_event
        (True, False)
        """
        return "before_" in self.value or self.value.endswith("_start")

    @property
    def is_after_event(self) -> bool:
        """Whether the event closes a span: ``after_*`` and ``*_end``.

        >>> Event.EVAL_AFTER_FORWARD.is_after_event, Event.INIT.is_after_event
        (True, False)
        """
        return "after_" in self.value or self.value.endswith("_end")

    @property
    def runs_last_to_first(self) -> bool:
        """Whether algorithms run in reverse order, so that each can undo its changes of the ``before_*`` event.

        >>> Event.AFTER_LOSS.runs_last_to_first, Event.BATCH_END.runs_last_to_first
        (True, False)
        """
        return "after_" in self.value and self not in (Event.AFTER_LOAD, Event.AFTER_DATALOADER)

    @property
    def canonical_name(self) -> str:
        """The span that the event opens or closes.

        >>> Event.BATCH_START.canonical_name, Event.AFTER_FORWARD.canonical_name
        ('batch', 'forward')
        """
        return self.value.replace("before_", "").replace("after_", "").removesuffix("_start").removesuffix("_end")

    @property
    def is_predict(self) -> bool:
        """Whether the event belongs to :meth:`.Trainer.predict`.

        >>> Event.PREDICT_START.is_predict
        True
        """
        return self.value.startswith("predict")

    @property
    def is_eval(self) -> bool:
        """Whether the event belongs to an evaluation.

        >>> Event.EVAL_START.is_eval
        True
        """
        return self.value.startswith("eval")


# The events of a step under names of their own: to read a member off its class takes longer than to fire an event
# that nobody listens to.
BEFORE_DATALOADER: Final = Event.BEFORE_DATALOADER
AFTER_DATALOADER: Final = Event.AFTER_DATALOADER
BATCH_START: Final = Event.BATCH_START
BEFORE_TRAIN_BATCH: Final = Event.BEFORE_TRAIN_BATCH
BEFORE_FORWARD: Final = Event.BEFORE_FORWARD
AFTER_FORWARD: Final = Event.AFTER_FORWARD
BEFORE_LOSS: Final = Event.BEFORE_LOSS
AFTER_LOSS: Final = Event.AFTER_LOSS
BEFORE_BACKWARD: Final = Event.BEFORE_BACKWARD
AFTER_BACKWARD: Final = Event.AFTER_BACKWARD
AFTER_TRAIN_BATCH: Final = Event.AFTER_TRAIN_BATCH
BATCH_END: Final = Event.BATCH_END
BATCH_CHECKPOINT: Final = Event.BATCH_CHECKPOINT
