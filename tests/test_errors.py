"""Lines for the user: short, one of them, with what would be right."""

from __future__ import annotations

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


def repr_or_long(value: object) -> str:
    return "long" if isinstance(value, int) and value > 9 else repr(value)


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2)])
def test_integers(value):
    assert check_integer("k", value, 1) == 2
    assert type(check_integer("k", value, 1, 2)) is int


@pytest.mark.parametrize("value", [2.0, "2", None, True, 0, 3, [2], 10**5000], ids=repr_or_long)
def test_what_is_no_integer_in_range(value):
    with pytest.raises(InputError, match=r"k must be an integer in \[1, 2\], got "):
        check_integer("k", value, 1, 2)


@pytest.mark.parametrize("value", [0, 1.0, np.float32(0.5), np.int64(1)])
def test_numbers(value):
    assert check_number("p", value, 0, 1) == value
    assert type(check_number("p", value, 0, 1)) is float


@pytest.mark.parametrize(
    "value", [-0.1, 1.1, float("nan"), float("inf"), "1", None, True, [1], 10**5000, 1j],
    ids=repr_or_long,
)  # fmt: skip
def test_what_is_no_number_in_range(value):
    with pytest.raises(InputError, match=r"p must be a number in \[0, 1\], got "):
        check_number("p", value, 0, 1)


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
