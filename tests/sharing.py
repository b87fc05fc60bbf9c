"""A plugin: pytest processes that are given one folder share the tests, file by file.

Each takes the next file that no other one has taken, so they end at about the same time, however
many they are and however long each test takes: ``pytest -p tests.sharing --share=FOLDER``. Whatever
a process has taken it runs or reports; what it has left to others it does not mention.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where processes leave word of what they have taken."""
    parser.addoption("--share", metavar="FOLDER", type=Path, help="of those who share the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Pytest's own loop, over the tests that are taken one by one."""
    folder = session.config.getoption("share")
    if folder is None or session.config.option.collectonly or session.testsfailed:
        return None
    tests = taken(session.items, folder)
    test = next(tests, None)
    while test is not None:
        following = next(tests, None)  # pytest wants to know which fixtures it needs
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        test = following
    return True


def taken(tests: list[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    """Of these tests those whose files nobody else has taken, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    mine: dict[str, bool] = {}
    for test in tests:
        file = test.nodeid.partition("::")[0]
        if file not in mine:
            mine[file] = take(folder / file.replace("/", "|"))
        if mine[file]:
            yield test


def take(word: Path) -> bool:
    """Leave word of something; whether nobody has before."""
    try:
        os.close(os.open(word, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
