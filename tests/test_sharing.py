"""Processes that share the tests run each of them once, whatever they take first."""

from __future__ import annotations

import re

import pytest

from tests.sharing import taken

FILES = {"one": 3, "two": 1, "three": 2}


@pytest.fixture
def tests(pytester):
    for name, count in FILES.items():
        pytester.makepyfile(
            **{
                f"test_{name}": "import pytest\n"
                "@pytest.fixture(scope='module', autouse=True)\n"
                "def around():\n    print('<begin>')\n    yield\n    print('<end>')\n"
                + "".join(f"def test_{k}(): pass\n" for k in range(count))
            }
        )
    return pytester


def ran(result: pytest.RunResult) -> list[str]:
    return re.findall(r"(\w+)\.py::", result.stdout.str())


def test_each_test_is_run_once(tests, tmp_path):
    """By whoever comes first, and with its module's fixtures around it."""
    share = tmp_path / "share"
    word = share / "test_two.py"
    share.mkdir()
    word.touch()  # someone else has it
    first = tests.runpytest_inprocess("-v", "-s", "-p", "tests.sharing", f"--share={share}")
    first.assert_outcomes(passed=5)
    assert ran(first) == ["test_one"] * 3 + ["test_three"] * 2
    # In brackets: paths that are printed may hold either word.
    assert re.findall("<begin>|<end>", first.stdout.str()) == ["<begin>", "<end>"] * 2
    word.unlink()
    second = tests.runpytest_inprocess("-v", "-p", "tests.sharing", f"--share={share}")
    second.assert_outcomes(passed=1)
    assert ran(second) == ["test_two"]
    nothing = tests.runpytest_inprocess("-p", "tests.sharing", f"--share={share}")
    nothing.assert_outcomes()
    assert nothing.ret == pytest.ExitCode.OK
    alone = tests.runpytest_inprocess("-p", "tests.sharing")
    alone.assert_outcomes(passed=6)


def test_a_failure_is_a_failure(tests, tmp_path):
    tests.makepyfile(test_wrong="def test_it(): assert False\ndef test_more(): pass")
    share = ("-p", "tests.sharing", f"--share={tmp_path / 'share'}")
    stopped = tests.runpytest_inprocess("-x", *share, "test_wrong.py")
    stopped.assert_outcomes(failed=1)
    assert stopped.ret == pytest.ExitCode.TESTS_FAILED
    others = tests.runpytest_inprocess(*share)
    others.assert_outcomes(passed=6)


def test_two_at_the_same_time(tmp_path):
    """Each file goes to one of two, whoever asks in what order."""

    class Test:
        def __init__(self, file: int, test: int) -> None:
            self.file, self.nodeid = file, f"folder/{file}.py::{test}"

    tests = [Test(number % 7, number) for number in range(40)]
    one, other = taken(tests, tmp_path), taken(tests, tmp_path)
    found: list[list[Test]] = [[], []]
    for turn in range(60):
        found[turn % 2] += [test for test in [next((one, other)[turn % 2], None)] if test]
    assert len(found[0]) + len(found[1]) == len(tests)
    assert not {test.file for test in found[0]} & {test.file for test in found[1]}
