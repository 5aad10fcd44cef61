"""The thread that completes futures when the daemon has finished what they stand for. One per session.

torch wants a Future, and somebody has to complete it: this thread sleeps in libcgx without the GIL until something is
finished, then looks at what it watches.
"""

import atexit
import collections
import contextlib
import ctypes
import os
import threading

from cgx._library import library
from cgx.errors import CgxError, check

_POLL_MS = 60_000
_LOOKED_AT = 8  # unfinished parts of a step at each event; what is behind them is looked at when one of them is done

_pollers = {}
_lock = threading.Lock()


def poller_of(session):
    with _lock:
        poller = _pollers.get(id(session))
        if poller is None or not poller.is_alive():
            poller = _pollers[id(session)] = _Poller(session)
            session.before_close(poller.stop)
            poller.start()
        return poller


class _Watched:
    def __init__(self, communicator, step, part, finished, failed):
        self.communicator, self.step, self.part = communicator, step, part
        self.finished, self.failed = finished, failed  # failed(error) returns the error to show
        self.pending = ctypes.c_size_t()
        self.turn = communicator, step  # its parts finish nearly in the order they were handed over in, and fail together

    def settle(self):
        """True when the part is done, one way or the other."""
        try:
            with self.communicator._inside():
                check(library.cgx_test(self.communicator.handle, self.step, self.part.ids, len(self.part.ids), None,
                                       ctypes.byref(self.pending)))
                if self.pending.value > 0:
                    return False
                self.finished()
            self.part.fulfil()
        except Exception as error:
            self.part.fail(self.failed(error))
        return True


class _Poller(threading.Thread):
    def __init__(self, session):
        super().__init__(name="cgx-poller", daemon=True)
        self._session = session
        self._watched, self._done = [], []
        self._news = collections.deque()  # no lock: a handler of signals in watch() may stop the thread, and wait for it
        self._stopping = self._over = False  # over: nobody looks at what is watched any more

    def watch(self, *what):
        self._news.append(_Watched(*what))
        if self._over:
            self._give_up(self._take_news())
        else:
            library.cgx_wake(self._session.handle)

    def _take_news(self):
        """Each of them once, whichever thread asks."""
        news = []
        with contextlib.suppress(IndexError):
            while True:
                news.append(self._news.popleft())
        return news

    def stop(self):
        self._stopping = True
        if self._session.is_open:
            library.cgx_wake(self._session.handle)
        if self is not threading.current_thread():
            self.join()
        if _pollers.get(id(self._session)) is self:
            del _pollers[id(self._session)]

    def run(self):
        try:
            self._serve()
        finally:
            self._over = True  # first: what watch() adds from now on is given up there, if not here
            left, self._watched = self._watched + self._take_news(), []
            self._give_up(left)

    @staticmethod
    def _give_up(left):
        for watched in left:
            if not watched.settle():
                watched.part.fail(CgxError("the session was closed before the step had finished"))

    def _serve(self):
        seen, handle = ctypes.c_uint64(), self._session.handle
        while not self._stopping and self._session.is_open:
            code = library.cgx_poll(handle, ctypes.byref(seen), _POLL_MS)
            self._look()
            if not self._watched:
                self._look_at_results()
            if code != 0 and not self._goes_on(code):
                break

    def _look(self):
        """Not at all of a long pass: there is an event for each bucket, and the last one finds all that is done."""
        watched, self._watched = self._watched + self._take_news(), []
        unfinished = collections.Counter()
        for each in watched:
            looks = unfinished[each.turn] < _LOOKED_AT
            if looks and each.settle():
                self._done.append(each)
            else:
                self._watched.append(each)
                unfinished[each.turn] += looks

    def _look_at_results(self):
        """Beside the optimizer's step, so that the next pass need not."""
        done, self._done = self._done, []
        for each in done:
            each.part.look_early()

    def _goes_on(self, code):
        try:
            check(code)
        except TimeoutError:
            return True
        except CgxError:
            return False


@atexit.register
def _stop_all():
    """Before the interpreter takes away what the threads use."""
    with _lock:
        pollers = list(_pollers.values())
        _pollers.clear()
    for poller in pollers:
        if poller.is_alive():
            poller.stop()


def _forget():
    """In a forked child: its parent's threads do not exist here."""
    global _lock
    _lock = threading.Lock()
    _pollers.clear()


os.register_at_fork(after_in_child=_forget)
