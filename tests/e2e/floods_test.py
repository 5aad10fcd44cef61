"""A user whose program asks, as fast as the daemon takes it, for what costs the daemon most: nobody else waits."""

import contextlib
import fcntl
import functools
import itertools
import os
import socket
import struct
import threading
import time
import unittest

from hostile_test import MIB, Hostile
from strangers_test import greeting, words
from use import Use

FLOOD_S = 6.0  # a daemon that stands still for 4 s has ended its jobs
HELLO, WELCOME, ARENA, CREATE, REGISTER, COMMIT, REPORT = 1, 2, 4, 5, 6, 7, 12  # proto/wire/session_messages.h
NO_ARENA = (1 << 32) - 1
SEALS, SHRINK_GROW = 1033, 2 | 4  # linux/fcntl.h
PACKET_BYTES = 1 << 17
MEMBERS = 2600                   # as many as a packet holds
TENSORS, BATCH = 60_000, 300
LONG_NAME, LONG_NAMES = "x" * 90_000, 1000
HOME_BYTES = 64


def registration(first, names):
    tensors = b"".join(words(name) + struct.pack("<BBBQIQBQ", 0, 0, 0, 1, 1, 1, 0, HOME_BYTES * (first + index))
                       for index, name in enumerate(names))
    return greeting(kind=REGISTER, body=struct.pack("<III", 1, first, len(names)) + tensors)


@functools.cache
def registrations(tensors):
    """The packets of so many: made before anything is measured."""
    return [registration(first, [f"tensor{number}" for number in range(first, first + BATCH)])
            for first in range(0, tensors, BATCH)]


class Program:
    """A client that says what it likes over the session's socket."""

    def __init__(self, daemon, job):
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(10)
        self.link.connect(daemon.socket)
        self.link.send(greeting(kind=HELLO, body=words(job, "flood")))
        welcome = self.link.recv(PACKET_BYTES)
        assert struct.unpack_from("<H", welcome, 6)[0] == WELCOME, welcome
        self.instance = welcome[16:32]

    def answer(self):
        code, length = struct.unpack_from("<HI", packet := self.link.recv(PACKET_BYTES), 16)
        return code, packet[22:22 + length].decode()

    def share(self, size):
        memory = os.memfd_create("cgx-arena", os.MFD_ALLOW_SEALING)
        os.posix_fallocate(memory, 0, size)
        fcntl.fcntl(memory, SEALS, SHRINK_GROW)
        body = struct.pack("<IBB", 0, 0, 0) + bytes(16) + struct.pack("<QQ", size, 0) + bytes(64) + struct.pack("<Q", 0)
        socket.send_fds(self.link, [greeting(kind=ARENA, body=body)], [memory])
        os.close(memory)
        return self.answer()

    def create(self, number, instances):
        members = b"".join(instance + words("") + bytes(16) for instance in instances)
        head = struct.pack("<IQQI", 0, 1, 0, number) + bytes(32) + struct.pack("<I", NO_ARENA) + words("")
        return greeting(kind=CREATE, body=struct.pack("<I", number) + words(f"flood{number}") + head +
                        struct.pack("<I", len(instances)) + members)

    def commit(self, tensors):
        """A communicator of this program alone, of handle 1."""
        self.link.send(self.create(1, [self.instance]))
        assert self.answer()[0] == 0
        for packet in registrations(tensors):
            self.link.send(packet)
        self.link.send(greeting(kind=COMMIT, body=struct.pack("<II", 1, tensors)))
        return self.answer()

    def register(self, first, names):
        self.link.send(registration(first, names))

    def flood(self, packets, waiting):
        """Asks until the returned function is called, which returns how often.

        So many questions wait for their answers: who does not read these is hung up on.
        """
        self.link.settimeout(0.2)
        over, hung_up = threading.Event(), threading.Event()
        room, answered = threading.Semaphore(waiting), itertools.count()

        def send():
            for packet in packets:
                while not over.is_set() and not room.acquire(timeout=0.2):
                    pass
                while not over.is_set():
                    with contextlib.suppress(TimeoutError):
                        self.link.send(packet)
                        break
                if over.is_set():
                    return

        def read():
            while not over.is_set():
                try:
                    if not self.link.recv(PACKET_BYTES):
                        return hung_up.set()
                except TimeoutError:
                    continue
                except ConnectionError:
                    return hung_up.set()
                next(answered)
                room.release()

        threads = [threading.Thread(target=each) for each in (send, read)]
        for each in threads:
            each.start()

        def end():
            over.set()
            for each in threads:
                each.join()
            self.link.close()
            return next(answered), hung_up.is_set()
        return end


class Floods(Hostile):
    def assert_nobody_waits(self, program, packets, waiting):
        end_flood = program.flood(packets, waiting)
        try:
            until = time.monotonic() + FLOOD_S
            while time.monotonic() < until:
                self.quickly("a step beside the flood", self.bystander_steps)
                job = self.quickly("a session beside the flood", lambda: self.job([0, 1], arena_bytes=4 * MIB))
                comm = self.quickly("a meeting beside the flood", job.join)
                job.step(comm, 1)
                job.close()
            self.quickly("an operator's question", lambda: self.daemons[0].control_tool("status"))
        finally:
            asked, hung_up = end_flood()
        print(f"figure: questions answered meanwhile: {asked}", flush=True)
        self.assertFalse(hung_up, "the flood has ended before")
        self.assertGreater(asked, waiting, "nobody answered it")

    def test_of_communicators_over_thousands_of_machines_delay_nobody(self):
        program = Program(self.daemons[0], "crowd")
        instances = [program.instance] + [struct.pack("<QQ", number, number ^ 0x5555) for number in range(1, MEMBERS)]
        self.assert_nobody_waits(program, (program.create(number, instances) for number in itertools.count(1)), 64)

    def test_of_reports_on_tens_of_thousands_of_tensors_delay_nobody(self):
        program = Program(self.daemons[0], "reporter")
        self.assertEqual(program.share(TENSORS * HOME_BYTES), (0, ""))
        self.assertEqual(program.commit(TENSORS), (0, ""))
        self.assert_nobody_waits(program, itertools.repeat(greeting(kind=REPORT, body=struct.pack("<II", 1, 0))), 2)

    def test_of_names_that_are_too_long_are_not_kept_until_they_are_committed(self):
        program, before = Program(self.daemons[0], "names"), Use(self.daemons[0]).memory_bytes
        self.addCleanup(program.link.close)
        program.link.send(program.create(1, [program.instance]))
        self.assertEqual(program.answer(), (0, ""))
        for first in range(LONG_NAMES):
            program.register(first, [LONG_NAME])
        program.link.send(greeting(kind=COMMIT, body=struct.pack("<II", 1, LONG_NAMES)))
        code, text = program.answer()
        self.assertNotEqual(code, 0)
        self.assertIn("a name above 512 bytes", text)
        self.assertLess(Use(self.daemons[0]).memory_bytes, before + LONG_NAMES * len(LONG_NAME) / 2)


if __name__ == "__main__":
    unittest.main()
