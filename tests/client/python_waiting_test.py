"""Waits of the Python package over a real cgxd: Ctrl-C in each of them, and a daemon that goes."""

import collections
import ctypes
import datetime
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from daemon_case import Store, WithDaemon, on_ranks

import cgx
import numpy
from cgx._library import ids_array, library
from cgx._poller import _Poller


def files_of(thread):
    """Those whose functions it is inside of."""
    files, frame = [], sys._current_frames().get(thread.ident)
    while frame is not None:
        files.append(os.path.basename(frame.f_code.co_filename))
        frame = frame.f_back
    return files


class AloneOfTwo(WithDaemon):
    def alone_of_two(self, commit=False, tensors=1, timeout=60):
        """A communicator whose other rank does nothing."""
        return self.two_ranks([self.session(), self.session()], "world", tensors if commit else 0, timeout)[0]

    def two_ranks(self, sessions, name, tensors, timeout=60):
        store, ranks = Store(), [None, None]

        def join(rank):
            ranks[rank] = sessions[rank].communicator(name, rank, 2, store.put, store.get, timeout=timeout)
            for number in range(tensors):
                ranks[rank].register(f"t{number}", sessions[rank].empty(4))
            if tensors > 0:
                ranks[rank].commit()
        on_ranks(2, join)
        return ranks


class Interrupts(AloneOfTwo):
    """Ctrl-C ends every wait of the main thread. A promise of 0.3 s; the tests allow for a crowded machine."""

    ALLOWED_S = 2.0

    def interrupt(self, wait):
        """Runs wait() and sends SIGINT as soon as it is inside the library."""
        struck, over = [], threading.Event()

        def strike():
            main = threading.main_thread()
            while not over.is_set():
                if "_waiting.py" in files_of(main):
                    struck.append(time.monotonic())
                    os.kill(os.getpid(), signal.SIGINT)
                    break

        thread = threading.Thread(target=strike)
        thread.start()
        try:
            with self.assertRaises(KeyboardInterrupt):
                wait()
        finally:
            noticed = time.monotonic()
            over.set()
            thread.join()
        self.assertLess(noticed - struck[0], self.ALLOWED_S)

    def test_calls(self):
        comm = self.alone_of_two()
        self.interrupt(lambda: comm.allreduce(numpy.zeros(4, numpy.float32)))
        array = comm.session.empty(4)
        call = comm.allreduce_async(array)
        self.interrupt(call.wait)
        self.interrupt(lambda: call.wait(datetime.timedelta(seconds=60)))
        comm.allreduce_async(array)
        comm.allreduce_async(array)
        self.interrupt(lambda: comm.allreduce_async(array))  # the fifth

    def test_steps(self):
        comm = self.alone_of_two(commit=True)
        comm.submit(0, comm.tensors)
        comm.step_end(0)
        self.interrupt(lambda: comm.wait(0))

    def test_submits_that_wait_for_room(self):
        comm = self.alone_of_two(commit=True, tensors=5000)
        comm.submit(0, comm.tensors)
        comm.step_end(0)
        self.interrupt(lambda: comm.submit(1, comm.tensors))
        comm.close()

    def test_submits_that_find_room_make_no_thread(self):
        session = self.session()
        comms = [session.communicator(name) for name in ("first", "second")]
        for comm in comms:
            home = session.empty(4)
            for number in range(4200):
                comm.register(f"t{number}", home)
            comm.commit()
        with mock.patch.object(cgx.Communicator, "_ask", side_effect=AssertionError("a thread is made")):
            for step in range(3):
                for comm in comms:
                    for first in range(0, 4200, 1400):
                        comm.submit(step, comm.tensors[first:first + 1400])
                    comm.step_end(step)
                    comm.wait(step)

    def test_polling(self):
        session = self.session()
        self.interrupt(lambda: session.poll(0, 60))

    def test_joining(self):
        store = Store()
        began = time.monotonic()
        session = self.session()
        self.interrupt(lambda: session.communicator("world", 0, 2, store.put, store.get, timeout=60))
        session.close()
        self.assertLess(time.monotonic() - began, 20)  # the store waits 20 s

    def test_committing(self):
        comm = self.alone_of_two()
        comm.register("t", comm.session.empty(4))
        self.interrupt(comm.commit)
        comm.close()

    def test_handlers_that_return_do_not_end_a_wait(self):
        comm = self.alone_of_two()
        call, seen = comm.allreduce_async(comm.session.empty(4)), []
        before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        self.addCleanup(signal.signal, signal.SIGINT, before)

        def strike(over):
            while not over.is_set():
                if "_waiting.py" in files_of(threading.main_thread()):
                    os.kill(os.getpid(), signal.SIGINT)
                    break

        while not seen:  # a wait may be over before it is seen
            over = threading.Event()
            striker = threading.Thread(target=strike, args=(over,))
            striker.start()
            began = time.monotonic()
            with self.assertRaises(cgx.TimedOutError):
                call.wait(0.5)
            self.assertGreaterEqual(time.monotonic() - began, 0.5)
            over.set()
            striker.join()
        self.assertEqual(seen, [1])


class Closing(AloneOfTwo):
    """What another thread is inside of is not freed under it."""

    def begin(self, call):
        """Runs call() in a thread, which is returned once it is inside the library, and what it raises."""
        raised = []

        def run():
            try:
                call()
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join)
        while thread.is_alive() and "_waiting.py" not in files_of(thread):
            time.sleep(0.001)
        return thread, raised

    def test_a_session_in_which_a_rank_joins(self):
        store, session, asked, closed = Store(), self.session(), threading.Event(), threading.Event()

        def get(key):
            asked.set()
            closed.wait(20)
            raise KeyError(key)

        thread, raised = self.begin(lambda: session.communicator("world", 0, 2, store.put, get, timeout=60))
        self.assertTrue(asked.wait(20))
        with mock.patch.object(library, "cgx_close", return_value=0) as close:
            session.close()
        closed.set()
        thread.join()
        close.assert_not_called()
        self.assertIsInstance(raised[0], KeyError)

    def test_a_communicator_that_commits(self):
        comm = self.alone_of_two()
        comm.register("t", comm.session.empty(4))
        thread, raised = self.begin(comm.commit)
        comm.close()
        thread.join()
        self.assertIsInstance(raised[0], cgx.CgxError)  # CANCELLED, or that it is closed

    def test_a_communicator_between_two_slices_of_a_wait(self):
        comm, freed, free, wait = self.alone_of_two(), threading.Event(), library.cgx_comm_close, library.cgx_wait_call
        closing = threading.Thread(target=comm.close)

        def wait_and_pause(*arguments):
            code = wait(*arguments)
            if not closing.is_alive():
                closing.start()
                self.assertFalse(freed.wait(0.5))
            return code

        def free_and_tell(handle):
            freed.set()
            return free(handle)

        call = comm.allreduce_async(comm.session.empty(4))
        with mock.patch.object(library, "cgx_wait_call", wait_and_pause), \
                mock.patch.object(library, "cgx_comm_close", free_and_tell):
            with self.assertRaisesRegex(cgx.CgxError, "is closed"):
                call.wait()
            closing.join()
        self.assertTrue(freed.is_set())

    def closes_beside(self, comm, name, call):
        """Closes a communicator while another thread's call() is inside the library's function `name`."""
        function, free, freed = getattr(library, name), library.cgx_comm_close, threading.Event()
        closing = threading.Thread(target=comm.close)

        def pause_and_go_on(*arguments):
            if not closing.is_alive():
                closing.start()
                self.assertFalse(freed.wait(0.3), f"freed beneath {name}")
            return function(*arguments)

        def free_and_tell(handle):
            freed.set()
            return free(handle)

        with mock.patch.object(library, name, pause_and_go_on), mock.patch.object(library, "cgx_comm_close", free_and_tell):
            with self.assertRaisesRegex(cgx.CancelledError, "was closed"):
                call(comm)
            closing.join()
        self.assertTrue(freed.is_set())
        with self.assertRaisesRegex(cgx.CgxError, "is closed"):
            call(comm)

    def test_a_communicator_in_which_another_thread_hands_over_or_looks(self):
        sessions = [self.session(), self.session()]
        array = sessions[0].empty(4)
        for name, call in (("cgx_submit", lambda comm: comm.submit(0, comm.tensors)),
                           ("cgx_absent", lambda comm: comm.absent(0, comm.tensors)),
                           ("cgx_step_end", lambda comm: comm.step_end(0)),
                           ("cgx_step_info", lambda comm: comm.step_info(0)),
                           ("cgx_test", lambda comm: comm.states(0, comm.tensors)),
                           ("cgx_set_gradient_unit", lambda comm: comm.set_gradient_unit(2.0)),
                           ("cgx_step_done", lambda comm: comm.step_done(0)),
                           ("cgx_post", lambda comm: comm.post(0, comm.tensors[0])),
                           ("cgx_register", lambda comm: comm.register("another", comm.tensors[0].array)),
                           ("cgx_allreduce_async", lambda comm: comm.allreduce_async(array)),
                           ("cgx_report", cgx.report)):
            with self.subTest(name):
                self.closes_beside(self.two_ranks(sessions, name, 1)[0], name, call)

    def test_a_commit_that_does_not_hear_at_once(self):
        comm, cancel, told = self.alone_of_two(), library.cgx_comm_cancel, []
        comm.register("t", comm.session.empty(4))
        thread, raised = self.begin(comm.commit)
        began = time.monotonic()
        with mock.patch.object(library, "cgx_comm_cancel", lambda handle: cancel(handle) if told else told.append(0)):
            comm.close()
        thread.join()
        self.assertIsInstance(raised[0], cgx.CgxError)
        self.assertLess(time.monotonic() - began, 20)


class AtExit(WithDaemon):
    CLOSES = """
import atexit, threading, cgx
session = cgx.Session(socket={socket!r}, job="test")
communicator = session.communicator("world")

def refuse(_):
    raise RuntimeError("can't create new thread at interpreter shutdown")  # as Python 3.12

@atexit.register
def end():
    threading.Thread.start = refuse
    communicator.close()
    session.close()
    print("closed")
"""

    def test_a_communicator_closes_where_no_thread_can_be_begun(self):
        ended = subprocess.run([sys.executable, "-c", self.CLOSES.format(socket=self.daemon.socket)], capture_output=True,
                               text=True, timeout=60)
        self.assertEqual((ended.stdout, ended.stderr), ("closed\n", ""))


class DaemonsTimeout(AloneOfTwo):
    """Where the program gives none, in every wait."""

    SETTINGS = ("timeouts.late_warning_ms=1 s", "timeouts.communicator_ms=2 s")
    LEAST_S, MOST_S = 1.5, 6.0  # the library's own bound, which names nobody, is at 7 s

    def ends(self, wait, text):
        began = time.monotonic()
        with self.assertRaisesRegex(cgx.TimedOutError, text):
            wait()
        took = time.monotonic() - began
        self.assertTrue(self.LEAST_S < took < self.MOST_S, took)

    def test_a_step(self):
        comm = self.alone_of_two(commit=True, timeout=None)

        def step():
            comm.submit(0, comm.tensors)
            comm.step_end(0)
            comm.wait(0)

        self.ends(step, "rank 1")

    def test_a_call(self):
        comm = self.alone_of_two(timeout=0)
        self.ends(lambda: comm.allreduce(numpy.zeros(4, numpy.float32)), "rank 1")

    def test_ranks_that_meet(self):
        store = {}
        self.ends(lambda: self.session().communicator("world", 0, 2, store.__setitem__, store.get), "missing: rank 1")

    def test_a_longer_one_of_the_program_counts(self):
        comm = self.alone_of_two(commit=True, timeout=4)
        began = time.monotonic()
        comm.submit(0, comm.tensors)
        comm.step_end(0)
        with self.assertRaisesRegex(cgx.TimedOutError, "rank 1"):
            comm.wait(0)
        self.assertGreater(time.monotonic() - began, 3.5)


class LongTimeout(WithDaemon):
    SETTINGS = ("timeouts.communicator_ms=4 h",)

    def test_it_is_not_cut_to_half_an_hour(self):
        comm, limit = self.session().communicator("world"), ctypes.c_uint64()
        self.assertEqual(library.cgx_comm_timeout(comm.handle, ctypes.byref(limit)), 0)
        self.assertEqual(limit.value, 4 * 3600 * 1000)
        with mock.patch("cgx.communicator.in_slices", return_value=0) as waits:
            comm.wait(0)
        self.assertGreater(waits.call_args.args[1], 4 * 3600 * 1000)


class Parts(list):
    """Stands for a bucket whose future somebody waits for."""

    def __init__(self, *ids):
        super().__init__()
        self.ids = ids_array(ids or [0])

    def fulfil(self):
        self.append(None)

    def fail(self, error):
        self.append(error)


class Pollers(AloneOfTwo):
    """The thread that completes the DDP hook's futures."""

    def test_what_is_handed_over_just_before_the_daemon_goes_gets_an_error(self):
        comm, part = self.alone_of_two(commit=True), Parts()
        comm.submit(0, comm.tensors)
        poller = _Poller(comm.session)
        self.daemon.process.kill()
        poller.run()  # on this thread: as if it still counted as alive, but no longer looked
        poller.watch(comm, 0, part, lambda: None, lambda error: error)
        self.assertEqual(len(part), 1)
        self.assertIsInstance(part[0], cgx.DaemonLostError)

    def test_a_handler_of_signals_may_stop_it_while_a_part_is_handed_over(self):
        comm, part = self.alone_of_two(commit=True), Parts()
        comm.submit(0, comm.tensors)
        poller = _Poller(comm.session)

        class Interrupted(collections.deque):
            def append(self, what):
                super().append(what)
                poller.stop()

        poller._news = Interrupted()
        poller.start()
        watching = threading.Thread(target=poller.watch, args=(comm, 0, part, lambda: None, lambda error: error), daemon=True)
        watching.start()
        watching.join(20)
        self.assertFalse(watching.is_alive())
        self.assertRegex(str(part[0]), "the session was closed")

    BUCKETS = 100

    def begin_pass(self, poller, comm):
        """Hands its buckets over, and has the poller look after each."""
        parts = [Parts(tensor.id) for tensor in comm.tensors]
        for tensor, part in zip(comm.tensors, parts):
            comm.submit(0, [tensor])
            poller.watch(comm, 0, part, lambda: None, lambda error: error)
            poller._look()
        return parts

    def test_it_does_not_look_at_all_of_a_long_pass_at_every_event(self):
        ranks, looks, look = self.two_ranks([self.session(), self.session()], "world", self.BUCKETS), [], library.cgx_test
        poller = _Poller(ranks[0].session)
        with mock.patch.object(library, "cgx_test", lambda *arguments: looks.append(arguments) or look(*arguments)):
            parts = self.begin_pass(poller, ranks[0])
        self.assertLess(len(looks), 20 * self.BUCKETS)
        self.assertEqual(parts, [[]] * self.BUCKETS)
        ranks[1].submit(0, ranks[1].tensors)
        for rank in ranks:
            rank.step_end(0)
        ranks[0].wait(0)
        poller._look()
        self.assertEqual(parts, [[None]] * self.BUCKETS)

    def test_a_communicator_that_ends_fails_its_whole_pass_at_once_behind_one_that_goes_on(self):
        sessions = [self.session(), self.session()]
        first, second = (self.two_ranks(sessions, name, 20)[0] for name in ("first", "second"))
        poller = _Poller(sessions[0])
        waiting, ended = (self.begin_pass(poller, comm) for comm in (first, second))
        library.cgx_comm_cancel(second.handle)
        poller._look()
        self.assertEqual(waiting, [[]] * 20)
        self.assertEqual([[type(error) for error in part] for part in ended], [[cgx.CancelledError]] * 20)


if __name__ == "__main__":
    unittest.main()
