"""The one exception that means: the input is wrong, and this line says how."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input from outside: a file, a flag, a matrix, labels.

    The message is one line that names the file, line or argument, says what is wrong and what
    would be right. Command lines print it after ``error:`` and exit with status 2, without a
    traceback. It is raised before any collective starts.
    """
