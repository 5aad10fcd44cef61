"""The Python package over a real cgxd: ranks are threads with a session each."""

import gc
import os
import subprocess
import sys
import threading
import time
import unittest

from private_daemon import PrivateDaemon

import cgx
import numpy


class Store:
    """What all ranks reach: get waits for put."""

    def __init__(self):
        self._values, self._changed = {}, threading.Condition()

    def put(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, 20):
                raise TimeoutError(key)
            return self._values[key]


def on_ranks(size, body):
    """Runs body(rank) in `size` threads; raises the first error."""
    errors = []

    def guarded(rank):
        try:
            body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class WithDaemon(unittest.TestCase):
    def setUp(self):
        self.daemon = PrivateDaemon()
        self.addCleanup(self.daemon.stop)

    def session(self, **options):
        session = cgx.Session(socket=self.daemon.socket, job="test", **options)
        self.addCleanup(session.close)
        return session

    def on_communicator(self, size, body):
        """Runs body(communicator) on every rank of one communicator."""
        store = Store()

        def rank_body(rank):
            session = self.session()
            body(session.communicator("world", rank, size, store.put, store.get, timeout=30))

        on_ranks(size, rank_body)


class Errors(unittest.TestCase):
    def test_every_status_has_a_class_of_its_own(self):
        names = {kind.status for kind in cgx.errors.BY_CODE.values()}
        self.assertIn("STEP_OPEN", names)
        self.assertIn("CORRUPT", names)
        self.assertEqual(cgx.StepOpenError.status, "STEP_OPEN")
        self.assertTrue(all(issubclass(kind, cgx.CgxError) for kind in cgx.errors.BY_CODE.values()))

    def test_expected_python_exceptions_catch_them(self):
        with self.assertRaises(ConnectionError) as caught:
            cgx.Session(socket="/nonexistent/cgxd.sock")
        self.assertIsInstance(caught.exception, cgx.UnavailableError)
        self.assertIn("/nonexistent/cgxd.sock", str(caught.exception))
        self.assertTrue(issubclass(cgx.TimedOutError, TimeoutError))
        self.assertTrue(issubclass(cgx.InvalidArgumentError, ValueError))


class Arena(WithDaemon):
    def test_arrays_outlive_their_session(self):
        session = self.session()
        array = session.empty((16, 16))
        view = array[3:, ::2]
        session.close()
        del array
        gc.collect()
        view[...] = 7
        self.assertEqual(view.sum(), 7 * 13 * 8)

    def test_memory_of_dead_arrays_is_used_again(self):
        session = self.session(arena_bytes=4 << 20)
        for _ in range(200):
            session.empty(1 << 20, "uint8")[:] = 1

    def test_all_dtypes_have_arrays(self):
        session = self.session()
        for dtype, (_, size) in cgx.DTYPES.items():
            array = session.empty((3, 5), dtype)
            self.assertEqual((array.shape, array.itemsize), ((3, 5), size))
        self.assertEqual(session.empty((0, 4)).size, 0)
        with self.assertRaises(ValueError):
            session.empty(4, "fp8")

    def test_allreduce_takes_other_libraries_arrays_through_dlpack(self):
        import torch

        def body(comm):
            tensor = torch.full((3, 2), float(comm.rank + 1))
            self.assertIs(comm.allreduce(tensor), tensor)
            self.assertTrue((tensor == 3).all())
            out = comm.session.empty(4)
            comm.allreduce(torch.ones(4), op="avg", out=out)
            self.assertEqual(list(out), [1.0] * 4)
            with self.assertRaisesRegex(ValueError, "contiguous"):
                comm.allreduce(torch.ones(4, 4).t())
        self.on_communicator(2, body)

    def test_torch_takes_arrays_through_dlpack_without_a_copy(self):
        import torch
        array = self.session().empty(8)
        tensor = torch.from_dlpack(array)
        tensor.fill_(3)
        self.assertEqual(array.tolist(), [3.0] * 8)


class Calls(WithDaemon):
    def test_sum_and_average_in_place(self):
        def body(comm):
            array = comm.session.empty(1000)
            array[:] = numpy.arange(1000) + comm.rank
            self.assertIs(comm.allreduce(array), array)
            self.assertTrue((array == 2 * numpy.arange(1000) + 1).all())
            array[:] = comm.rank
            comm.allreduce(array, op="avg")
            self.assertTrue((array == 0.5).all())
        self.on_communicator(2, body)

    def test_every_dtype_sums(self):
        def body(comm):
            for dtype in cgx.DTYPES:
                if dtype == "bf16":
                    continue
                array = comm.session.empty(77, dtype)
                array[:] = 3
                comm.allreduce(array)
                self.assertTrue((array == 6).all(), dtype)
        self.on_communicator(2, body)

    def test_arrays_outside_the_arena_are_copied(self):
        def body(comm):
            array = numpy.full((4, 4), comm.rank + 1.0, dtype=numpy.float32)
            out = numpy.zeros((4, 4), dtype=numpy.float32)
            comm.allreduce(array, out=out)
            self.assertTrue((out == 3).all())
            self.assertTrue((array == comm.rank + 1).all())
        self.on_communicator(2, body)

    def test_calls_can_be_waited_for_later(self):
        def body(comm):
            arrays = [comm.session.empty(64) for _ in range(10)]
            calls = []
            for k, array in enumerate(arrays):
                array[:] = k
                calls.append(comm.allreduce_async(array))
            for k, call in enumerate(calls):
                self.assertEqual(call.wait(30)[0], 2 * k)
                self.assertTrue(call.done())
        self.on_communicator(2, body)

    def test_disagreement_raises_mismatch_everywhere(self):
        def body(comm):
            with self.assertRaises(cgx.MismatchError) as caught:
                comm.allreduce(comm.session.empty(10 + comm.rank))
            self.assertIn("rank 1", str(caught.exception))
        self.on_communicator(2, body)

    def test_bad_arguments_are_named(self):
        comm = self.session().communicator("alone")
        with self.assertRaisesRegex(ValueError, "'max' must be"):
            comm.allreduce(numpy.zeros(4, numpy.float32), op="max")
        with self.assertRaisesRegex(ValueError, "complex64"):
            comm.allreduce(numpy.zeros(4, numpy.complex64))
        with self.assertRaisesRegex(ValueError, "contiguous"):
            comm.allreduce(numpy.zeros((4, 4), numpy.float32)[:, 1])


class Steps(WithDaemon):
    def test_absent_tensors_are_filled(self):
        def body(comm):
            ours = comm.register("ours", comm.session.empty((2, 3)), op="sum")
            theirs = comm.register("theirs", comm.session.empty(5), op="avg")
            comm.commit()
            for step in range(3):
                ours.array[...] = step
                theirs.array[...] = 8
                comm.submit(step, [ours])
                if comm.rank == 0:
                    comm.submit(step, [theirs])
                with self.assertRaises(cgx.StepOpenError):
                    comm.wait(step)
                comm.step_end(step)
                comm.wait(step, 30)
                self.assertEqual(ours.array[1, 2], 2 * step)
                self.assertEqual(theirs.array[4], 4)
                expected = cgx.RESULT if comm.rank == 0 else cgx.FILLED
                self.assertEqual(comm.states(step, [ours, theirs]), [cgx.RESULT, expected])
                self.assertTrue(comm.step_info(step).finished)
        self.on_communicator(2, body)

    def test_abandoned_step_is_redone(self):
        def body(comm):
            tensor = comm.register("t", comm.session.empty(4), op="sum")
            comm.commit()
            comm.submit(0, [tensor])
            if comm.rank == 1:
                with self.assertRaises(cgx.StepAbandonedError):
                    comm.submit(0, [tensor])
            else:
                try:
                    comm.step_end(0)
                    comm.wait(0, 30)
                    self.fail("the step should have failed")
                except cgx.StepAbandonedError as error:
                    self.assertIn("rank 1", str(error))
            step = comm.redo()
            tensor.array[:] = 2
            comm.submit(step, [tensor])
            comm.step_end(step)
            comm.wait(step, 30)
            self.assertEqual(tensor.array[0], 4)
        self.on_communicator(2, body)

    def test_dropped_step_is_said_once_and_in_time(self):
        comm = self.session().communicator("alone")
        tensor = comm.register("t", comm.session.empty(4))
        comm.commit()
        comm.submit(0, [tensor])
        comm.step_end(0)
        comm.wait(0, 30)
        comm.step_done(0, dropped=True)
        comm.submit(1, [tensor])
        with self.assertRaises(cgx.StepOrderError):
            comm.step_done(0, dropped=True)

    def test_gradient_unit_is_a_positive_number(self):
        comm = self.session().communicator("alone")
        tensor = comm.register("t", comm.session.empty(4))
        comm.commit()
        for unit in (0.0, -1.0, float("nan"), float("inf")):
            with self.assertRaisesRegex(cgx.InvalidArgumentError, "gradient unit"):
                comm.set_gradient_unit(unit)
        comm.set_gradient_unit(1024 / 0.1)
        comm.submit(0, [tensor])
        comm.set_gradient_unit(1.0)  # of the next step
        comm.step_end(0)
        comm.wait(0, 30)

    def test_first_steps_of_ranks_must_agree(self):
        store = Store()

        def body(rank):
            session = self.session()
            with self.assertRaises(cgx.MismatchError):
                session.communicator("w", rank, 2, store.put, store.get, first_step=rank, timeout=2)
                raise cgx.TimedOutError  # the other rank was refused, this one may only time out
        try:
            on_ranks(2, body)
        except cgx.TimedOutError:
            pass

    def test_events_tell_of_completions(self):
        session = self.session()
        comm = session.communicator("alone")
        comm.allreduce_async(session.empty(4)).wait(30)
        self.assertGreater(session.poll(0, 10), 0)
        with self.assertRaises(TimeoutError):
            session.poll(session.poll(0, 10), 0)


class BadDays(WithDaemon):
    def test_errors_of_the_callers_store_come_back(self):
        def put(key, value):
            raise KeyError("the store is down")
        with self.assertRaisesRegex(KeyError, "the store is down"):
            self.session().communicator("w", 0, 2, put, put)

    def test_killed_daemon_wakes_a_waiter_within_a_second(self):
        store, waited = Store(), []

        def body(rank):
            session = self.session()
            comm = session.communicator("world", rank, 2, store.put, store.get, timeout=30)
            if rank == 1:
                store.get("go")
                self.daemon.kill()
                return
            call = comm.allreduce_async(session.empty(4))
            store.put("go", b"")
            with self.assertRaises(cgx.DaemonLostError):
                call.wait()
            waited.append(time.monotonic())
        on_ranks(2, body)
        self.assertEqual(len(waited), 1)

    def test_forked_child_is_told_and_the_parent_goes_on(self):
        session = self.session()
        comm = session.communicator("alone")
        array = session.empty(4)
        child = os.fork()
        if child == 0:
            try:
                array[0] = 5
                comm.allreduce(array)
            except cgx.ForkedError:
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(array[0], 5)
        comm.allreduce(array)

    def test_works_without_numpy(self):
        program = ("import sys; sys.modules['numpy'] = None\n"
                   "import array, cgx\n"
                   f"with cgx.Session(socket={self.daemon.socket!r}) as session:\n"
                   "    comm = session.communicator('alone')\n"
                   "    shared = session.empty((2, 3))\n"
                   "    shared[1, 2] = 1.5\n"
                   "    comm.allreduce(shared)\n"
                   "    own = array.array('f', [2.5, 3.5])\n"
                   "    comm.allreduce(own)\n"
                   "    assert shared[1, 2] == 1.5 and own[1] == 3.5\n")
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


if __name__ == "__main__":
    unittest.main()
