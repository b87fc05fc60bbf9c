"""One line where gloo would abort: data of another size than a rank expected."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_GLOO = b"gloo"
_NAME_OFFSET = ctypes.sizeof(ctypes.c_void_p)  # of a std::type_info, after its vtable
_HANDLER = ctypes.CFUNCTYPE(None)
# Handlers that C++ holds must not be collected.
_kept: list[Any] = []


def on_gloo_error(act: Callable[[], None]) -> None:
    """Call `act`, which must not return, when gloo is about to end the process.

    gloo's threads throw what nobody can catch, so C++ calls std::terminate. Its handler may be
    any function, of Python too, and may ask what was thrown (Itanium C++ ABI, 2.9 and 5.4).
    Anything that gloo has not thrown goes to the handler of before.
    """
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
        set_handler = runtime._ZSt13set_terminatePFvvE
        thrown = runtime.__cxa_current_exception_type
    except (OSError, AttributeError):
        return  # Another C++ library: it aborts, as it would without us.
    thrown.restype = ctypes.c_void_p
    set_handler.restype = ctypes.c_void_p
    set_handler.argtypes = [ctypes.c_void_p]

    def handle() -> None:
        kind = thrown()
        if kind:
            name = ctypes.c_char_p.from_address(kind + _NAME_OFFSET).value
            if name is not None and _GLOO in name:
                act()
        _HANDLER(before)()

    handler = _HANDLER(handle)
    _kept.append(handler)
    before = set_handler(ctypes.cast(handler, ctypes.c_void_p))
