"""Interrupts are raised at once, and again where they were swallowed."""

import os
import signal
import sys

import pytest

from spgnn.train.interrupts import Interrupts


class InterruptedFinaliser:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)


def test_swallowed_interrupt_comes_again(monkeypatch):
    swallowed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: swallowed.append(event.exc_type))
    with Interrupts() as interrupts:
        interrupts.check()
        InterruptedFinaliser()
        assert swallowed == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_interrupt_is_raised_at_once_and_the_handler_restored():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            interrupts.check()
    finally:
        signal.signal(signal.SIGINT, before)
