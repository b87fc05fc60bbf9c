"""Lines for the user: short, one of them, with what would be right."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spgnn.errors import (
    LONGEST_LINE,
    InputError,
    OutOfMemory,
    check_choice,
    check_integer,
    check_number,
    memory_for,
    unknown,
)


def test_a_message_is_one_short_line():
    error = InputError("first line\nand " + "x" * 5000 + " its end")
    assert len(str(error)) == LONGEST_LINE
    assert str(error).startswith("first line and xxx")
    assert str(error).endswith("xxx its end")
    assert str(InputError("short")) == "short"
    assert str(InputError("a\0b\x1b[31m é \udcff")) == r"a\x00b\x1b[31m é \udcff"


def test_a_typo_is_answered_with_what_was_meant():
    assert "did you mean 'column'?" in str(unknown("--cover", "colunm", ("column", "row")))
    assert "did you mean" not in str(unknown("--cover", "zzz", ("column", "row")))
    check_choice("--cover", "row", ("column", "row"))
    with pytest.raises(InputError, match="--cover rov: choose one of column, row; did you mean"):
        check_choice("--cover", "rov", ("column", "row"))
    assert len(str(unknown("--cover", "c" * 5000, ("column",)))) < LONGEST_LINE


@pytest.mark.parametrize(
    ("check", "kind", "right", "wrong"),
    [
        (
            lambda value: check_integer("k", value, 1, 2),
            int,
            [2, np.int64(2), np.uint8(2)],
            [2.0, "2", None, True, 0, 3, [2], 10**5000],
        ),
        (
            lambda value: check_number("k", value, 1, 2),
            float,
            [1, 1.0, np.float32(1.5), np.int64(2)],
            [0.9, 2.1, math.nan, math.inf, "1", None, True, [1], 10**5000, 1j],
        ),
    ],
)
def test_numbers_in_a_range(check, kind, right, wrong):
    for value in right:
        assert check(value) == value
        assert type(check(value)) is kind
    for value in wrong:
        with pytest.raises(InputError, match=r"k must be an? (integer|number) in \[1, 2\], got "):
            check(value)
    assert check_integer("k", 9, 1) == 9


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "^a table$"),
        (MemoryError("std::bad_alloc"), "^a table$"),
        (RuntimeError("x.cpp:7 can't allocate memory: 9 bytes"), "^a table$"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
            r"^a table \(20.00 GiB more\)$",
        ),
    ],
)
def test_running_out_of_memory_says_for_what(error, said):
    with pytest.raises(OutOfMemory, match=said), memory_for("everything"), memory_for("a table"):
        raise error


@pytest.mark.parametrize(
    ("make", "said"), [(torch.empty, r"\d+ bytes more"), (np.empty, r"512. PiB more")]
)
def test_libraries_say_how_much_they_wanted(make, said):
    with pytest.raises(OutOfMemory, match=rf"^the weights \({said}\)$"), memory_for("the weights"):
        make(2**56)


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match=r"^other$"), memory_for("a table"):
        raise RuntimeError("other")
    with memory_for("a table"):
        pass
