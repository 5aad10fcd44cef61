"""One exception class per status of libcgx, made from the library's own list: STEP_OPEN is cgx.errors.StepOpenError.

All derive from CgxError, which carries `code` and `status` ("STEP_OPEN"). Some also derive from the Python exception a
caller would expect, so that `except TimeoutError` works.
"""

import contextlib
import copy

from cgx._library import library

OK = 0
_CODES_MAX = 256
_PYTHON = {"INVALID_ARGUMENT": ValueError, "TIMED_OUT": TimeoutError, "UNAVAILABLE": ConnectionError,
           "DAEMON_LOST": ConnectionError, "PERMISSION_DENIED": PermissionError, "RESOURCE_EXHAUSTED": MemoryError,
           "ARENA_FULL": MemoryError, "UNIMPLEMENTED": NotImplementedError}


class CgxError(RuntimeError):
    """What libcgx answered instead of OK."""
    code = None
    status = None


def _class_name(status):
    return "".join(word.capitalize() for word in status.split("_")) + "Error"


def _make_classes():
    classes = {}
    for code in range(1, _CODES_MAX):
        status = library.cgx_status_name(code).decode()
        if status == "UNKNOWN":
            continue
        bases = (CgxError, _PYTHON[status]) if status in _PYTHON else (CgxError,)
        meaning = library.cgx_status_meaning(code).decode()
        classes[code] = type(_class_name(status), bases,
                             {"code": code, "status": status, "__doc__": meaning, "__module__": __name__})
    return classes


BY_CODE = _make_classes()
globals().update({kind.__name__: kind for kind in BY_CODE.values()})
__all__ = ["CgxError", "check"] + [kind.__name__ for kind in BY_CODE.values()]


class UnsupportedGradientError(UnimplementedError):  # noqa: F821  one of the classes above
    """Gradients of a kind that cgx does not take, and what to do instead."""


__all__.append("UnsupportedGradientError")


def anew(error):
    """A copy to raise where an error is kept: each raise adds frames to it, and those hold what they worked on."""
    try:
        made = copy.copy(error)
    except Exception:  # its constructor takes other arguments than it keeps
        made = CgxError(f"{type(error).__name__}: {error}")
    return made.with_traceback(error.__traceback__)


@contextlib.contextmanager
def named(what, kinds=Exception):
    """Puts what it is about before the text of an error."""
    try:
        yield
    except kinds as error:
        error.args = (f"{what}: {error}",)
        raise


def call_all(actions):
    """Calls each, whatever the others raise, then raises the first error. An interrupt ends it at once."""
    first = None
    for action in actions:
        try:
            action()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


def check(code):
    """Raises what a library call answered, unless it was OK."""
    if code != OK:
        text = library.cgx_last_error().decode(errors="replace")
        raise BY_CODE.get(code, CgxError)(text or library.cgx_status_meaning(code).decode())
