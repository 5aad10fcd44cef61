"""The package and the library it loads: the same structs, the same ABI; and what is not built yet, by name."""

import ctypes
import os
import re
import subprocess
import sys
import unittest
import uuid

from daemon_case import WithDaemon

import cgx
import numpy
from cgx._library import (ABI, ArenaOptions, CommOptions, OpenOptions, Options, PostOptions, StepReport, TensorOptions,
                          library)


class Structs(WithDaemon):
    def test_are_those_of_the_librarys_header(self):
        session = self.session()
        comm = session.communicator("world")
        into = ctypes.byref(ctypes.c_void_p())
        callers = {
            OpenOptions: lambda given: library.cgx_open(given, into),
            ArenaOptions: lambda given: library.cgx_arena_alloc_at(session.handle, given, into),
            CommOptions: lambda given: library.cgx_comm_create(session.handle, given, into),
            TensorOptions: lambda given: library.cgx_register(comm.handle, given, ctypes.byref(ctypes.c_uint32())),
            PostOptions: lambda given: library.cgx_post(comm.handle, given, None),
            StepReport: lambda given: library.cgx_step_info(comm.handle, 0, given),
        }
        self.assertEqual(set(callers), set(Options.__subclasses__()))
        for kind, call in callers.items():
            with self.subTest(kind.__name__):
                given = kind()
                self.assertEqual(given.size, ctypes.sizeof(kind))
                given.size = 0
                self.assertNotEqual(call(ctypes.byref(given)), 0)
                said = re.search(r"which is (\d+) in this library's header", library.cgx_last_error().decode())
                self.assertEqual(int(said.group(1)), ctypes.sizeof(kind))

    def test_a_library_of_another_abi_is_refused_by_name(self):
        environment = {**os.environ, "CGX_LIBRARY": "libc.so.6"}  # no cgx_abi: as before it was numbered
        loaded = subprocess.run([sys.executable, "-c", "import cgx"], env=environment, capture_output=True, text=True)
        self.assertNotEqual(loaded.returncode, 0)
        self.assertIn(f"libc.so.6 has ABI 1, this package needs {ABI}", loaded.stderr)


class NotBuiltYet(WithDaemon):
    def expect(self, text, call, *arguments, **options):
        with self.assertRaises(cgx.UnimplementedError) as caught:
            call(*arguments, **options)
        self.assertIn(text, str(caught.exception))

    def test_is_answered_by_name_where_it_is_asked_for(self):
        session = self.session()
        comm = session.communicator("world")
        array, rows = session.empty(64), session.empty(4, "int32")
        array[:] = 3
        tensor = comm.register("t", array)
        comm.commit()
        for collective in cgx.communicator.COLLECTIVES[1:]:
            self.expect(f"the collective {collective} is not built yet", comm.call, collective, array)
        self.expect("root 1", comm.call, "allreduce", array, root=1)
        self.expect("peer 2", comm.call, "allreduce", array, peer=2)
        self.expect("tag 3", comm.call, "allreduce", array, tag=3)
        self.expect("timeline word", comm.call, "allreduce", array, ready=(array.ctypes.data, 1))
        self.expect("timeline word", comm.post, 0, tensor, ready=(array.ctypes.data, 1))
        self.expect("rows named by indices", comm.post, 0, tensor, array, indices=rows)
        with self.assertRaisesRegex(cgx.errors.NotFoundError, "no CUDA driver"):
            session.empty(64, device=uuid.uuid4())
        with self.assertRaises(ValueError):
            comm.call("broadcats", array)
        # Nothing of that has happened.
        comm.call("allreduce", array).wait()
        comm.post(0, tensor)
        comm.step_end(0)
        comm.wait(0)
        self.assertTrue((array == 3).all())


class Posting(WithDaemon):
    def test_a_tensor_is_read_and_written_where_it_says(self):
        session = self.session()
        comm = session.communicator("world")
        home, source, target = (session.empty(16) for _ in range(3))
        tensor = comm.register("t", home)
        comm.commit()
        source[:], target[:], home[:] = 5, 0, 1
        comm.post(0, tensor, source, target)
        comm.step_end(0)
        comm.wait(0)
        self.assertEqual([array[15] for array in (source, target, home)], [5, 5, 1])


class Closing(WithDaemon):
    def test_gives_the_memory_of_what_was_unfinished_back(self):
        def body(comm):
            memory = comm.session.empty(1 << 20)
            address = memory.ctypes.data
            if comm.rank == 1:
                comm.allreduce_async(memory)  # nobody else takes part
                comm.close()
                del memory
                self.assertEqual(comm.session.empty(1 << 20).ctypes.data, address)

        self.on_communicator(2, body)

    def test_of_a_session_nobody_closed_ends_with_the_interpreter(self):
        program = ("import cgx; session = cgx.Session(socket=%r); comm = session.communicator('world'); "
                   "comm.allreduce_async(session.empty(8))" % self.daemon.socket)
        ended = subprocess.run([sys.executable, "-c", program], timeout=20, capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
