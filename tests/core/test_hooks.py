from __future__ import annotations

import pytest

from composer.core.event import Event
from composer.core.hooks import Hooks


class AtLoss(Hooks):
    def after_loss(self, state, logger):
        state.append("after_loss")


class Deeper(AtLoss):
    def init(self, state, logger):
        state.append("init")


@pytest.mark.parametrize("event", list(Event))
def test_every_method_does_nothing_by_default(event):
    assert getattr(Hooks(), event.value)(None, None) is None
    assert not Hooks().__listens__(event)


def test_overrides():
    assert [e for e in Event if AtLoss().__listens__(e)] == [Event.AFTER_LOSS]
    assert [e for e in Event if Deeper().__listens__(e)] == [Event.INIT, Event.AFTER_LOSS]


def test_instance_methods_count():
    hooks = Hooks()
    hooks.batch_end = lambda state, logger: None
    assert [e for e in Event if hooks.__listens__(e)] == [Event.BATCH_END]
    assert not Hooks().__listens__(Event.BATCH_END)
