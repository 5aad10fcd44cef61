"""Waiting so that signals are noticed: Python runs their handlers between two calls, never inside one of the library's.

A wait with a time-out is made of slices. A call that cannot be asked again (joining, committing, redoing) runs in a
thread beside the main one, which sleeps where Python can wake it. Other threads call the library directly: Python
handles signals in the main thread only.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from datetime import timedelta
from typing import Callable, List, Optional, Union

Seconds = Union[float, timedelta, None]

SLICE_MS = 100
_ASKS_NO_MORE_S = 1.0  # a call that asks back has done so by then
TIMED_OUT = 10  # proto/wire/status_codes.def


def milliseconds(timeout: Seconds) -> int:
    """Of seconds or a timedelta, rounded up; -1 for None."""
    if timeout is None:
        return -1
    try:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    except (TypeError, ValueError):
        raise TypeError(f"timeout {timeout!r} must be a number of seconds or a timedelta") from None
    if not seconds >= 0:
        raise ValueError(f"a timeout of {seconds} s must not be negative")
    return math.ceil(min(seconds, 1e12) * 1000)


def in_slices(wait: Callable[[int], int], timeout_ms: int) -> int:
    """The status of wait(timeout_ms), waited for in slices. timeout_ms: -1 is for ever."""
    if threading.current_thread() is not threading.main_thread():
        return wait(timeout_ms)
    deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
    while True:
        began = time.monotonic()
        left = SLICE_MS if deadline is None else min(SLICE_MS, max(0, math.ceil((deadline - began) * 1000)))
        code = wait(left)
        # A time-out before the slice is over is not the slice's: what was waited for ended with it.
        if code != TIMED_OUT or left < SLICE_MS or time.monotonic() - began < left / 1000:
            return code


def _is_main_and_runs() -> bool:
    """Not at exit, where a handler (atexit) runs when the main thread counts as ended: Python 3.12 begins no thread there."""
    main = threading.main_thread()
    return threading.current_thread() is main and main.is_alive()


class Beside:
    """A call in a thread of its own; what it asks back runs in the thread that waits for it.

    Of another thread than the main one, and at exit, it is an ordinary call.
    """

    def __init__(self, call: Callable[["Beside"], object]):
        self._call = call
        self._messages: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()  # guards `left` and `_began` until the call has begun
        self._began, self._over = False, threading.Event()
        self._meanwhile, self._next_look = None, 0.0
        self.left = False  # by the thread that waited: it was interrupted

    def wait(self, meanwhile: Optional[Callable[[], object]] = None):
        """The call's result. What interrupts the wait is raised at once, while the call goes on.

        meanwhile() is called some times a second (in another thread than the main one: while the call asks back);
        what it raises interrupts, too.
        """
        self._meanwhile = meanwhile
        try:
            return self._run_beside() if _is_main_and_runs() else self._run_here()
        finally:
            self._meanwhile = None  # what it holds must not live until the owner's next call

    def _run_beside(self):
        self._thread = threading.Thread(target=self._run, name="cgx-call", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.leave()
            raise
        while True:
            try:
                kind, what = self._next_message()
            except BaseException:
                self.leave()
                raise
            if kind == "result":
                return what
            if kind == "error":
                raise what
            function, arguments, answer = what
            try:
                self._look_aside()  # raises inside the call, which ends by it
                answer.put((function(*arguments), None))
            except BaseException as error:
                answer.put((None, error))

    def _next_message(self):
        while self._meanwhile is not None:
            try:
                return self._messages.get(timeout=_ASKS_NO_MORE_S)
            except queue.Empty:
                self._look_aside()
        return self._messages.get()

    def _look_aside(self):
        if self._meanwhile is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + SLICE_MS / 1000
            self._meanwhile()

    def ask(self, function, *arguments):
        """From inside the call: function(*arguments), run by the waiting thread."""
        if self._thread is None:
            self._look_aside()
            return function(*arguments)
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._messages.put(("ask", (function, arguments, answer)))
        while not self.left:
            try:
                result, error = answer.get(timeout=SLICE_MS / 1000)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            return result
        raise InterruptedError("the call was interrupted")

    def under_way(self) -> bool:
        """Whether it may still use what it was given: from the start, unless it was left before it had begun."""
        return not self._over.is_set() and (not self.left or self._began)  # in this order: no lock is held

    def join(self, seconds: float) -> bool:
        """Waits so long at most; whether it is over."""
        return not self.under_way() or self._over.wait(seconds)

    def leave(self) -> None:
        """A call that has not begun will not: an interrupt may come while its thread is being made."""
        with self._lock:
            self.left = True

    def _run_here(self):
        self._begin()
        try:
            return self._call(self)
        finally:
            self._end()

    def _run(self):
        try:
            self._begin()
            message = ("result", self._call(self))
        except BaseException as error:  # raised where it is waited for
            message = ("error", error)
        self._end()
        self._messages.put(message)

    def _begin(self):
        with self._lock:
            if self.left:
                raise InterruptedError("the call was interrupted")
            self._began = True

    def _end(self):
        self._call = None  # what it holds may hold this
        self._over.set()


class Uses:
    """Which threads are inside something that another may want to free: a context for each of them.

    A list's append and remove are whole, so coming and going takes a lock only while somebody waits for it. Whoever frees
    first makes what is used unreachable, and waits then; so those who come later do not find it.
    """

    def __init__(self):
        self._threads: List[int] = []
        self._changed, self._awaited = threading.Condition(), False

    def __enter__(self) -> None:
        self._threads.append(threading.get_ident())

    def __exit__(self, *error) -> None:
        self._threads.remove(threading.get_ident())
        if self._awaited:
            with self._changed:
                self._changed.notify_all()

    def others_left(self, seconds: float) -> bool:
        """Waits so long at most. This thread may be inside, too: in a handler of signals it cannot wait for itself."""
        own = threading.get_ident()
        with self._changed:
            self._awaited = True
            return self._changed.wait_for(lambda: all(each == own for each in list(self._threads)), seconds)


class Calls:
    """Those of one owner, which may go on when nobody waits for them any more."""

    def __init__(self):
        self._calls: List[Beside] = []
        self._lock = threading.RLock()  # a handler of signals may close what this thread waits in

    def wait(self, call: Callable[[Beside], object], meanwhile: Optional[Callable[[], object]] = None):
        beside = Beside(call)
        try:
            with self._lock:
                self._calls = self.under_way() + [beside]
            return beside.wait(meanwhile)
        except BaseException:
            beside.leave()
            raise

    def under_way(self) -> List[Beside]:
        return [each for each in self._calls if each.under_way()]
