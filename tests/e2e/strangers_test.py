"""Strangers and poor hosts: garbage on every socket, other versions, keys and users, no daemon, a small /dev/shm.

The daemons live on, and a bystander, a job that is running meanwhile, makes a step with the right bits after each test.
"""

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
import unittest

import numpy as np

from cluster_case import RAW, ClusterCase, figure
from daemons import MESH_PORT, SLOWER, Daemon, free_port, merged
from protocols import MEETING_MAGIC, MEETING_VERSION, SESSION_MAGIC, SESSION_VERSION
from ranks import Job, Rank, Tensor

HANDSHAKE_S = 0.5  # configured below; 2 s by default
JOIN_S = 5.0 * SLOWER
STRANGER_KEY_S = 2.0  # another key may belong to a job still to come: daemons wait so long for the right one
BUSY_S = 2.0 * SLOWER  # what a machine busy with other work may add
CONNECT_S = 10  # how long a client waits for a daemon that is coming up
MIB = 1 << 20

# Says its piece to an address from wherever it runs: prints how the connection ended, or that it heard a text.
SPEAKER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as link:
    try:
        link.sendall(bytes.fromhex(sys.argv[3]))
        answer = b""
        while piece := link.recv(4096):
            answer += piece
            if sys.argv[4] and sys.argv[4].encode() in answer:
                sys.exit("heard")
        print("closed")
    except ConnectionError:
        print("reset")
"""

# Another user whose many connections say nothing, renewed as they are closed, until the end of its input.
CROWD = """
import os, select, socket, sys
os.setuid(65534)
def connect():
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(sys.argv[1])
    return link
links = [connect() for _ in range(100)]
print("crowded", flush=True)
while sys.stdin not in (ready := select.select([sys.stdin, *links], [], [])[0]):
    links = [connect() if link in ready else link for link in links]
"""

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PIECES = {
    "noise": bytes((37 * i * i + 11 * i) & 255 for i in range(5000)),
    "zeros": bytes(5000),
    "another protocol": b"GET / HTTP/1.1\r\nHost: cgxd\r\n\r\n",
    "the beginning of one": HTTP2[:7],
    "noise after an opening": HTTP2 + bytes((91 * i) & 255 for i in range(5000)),
}


def mesh_greeting(message):
    """One gRPC call as the bytes of a connection: cgx.v1.MeshHandshake.Greet."""
    headers = {":method": "POST", ":scheme": "http", ":path": "/cgx.v1.MeshHandshake/Greet", ":authority": "cgx",
               "content-type": "application/grpc", "te": "trailers"}
    block = b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in headers.items())
    body = b"\0" + struct.pack(">I", len(message)) + message
    frames = ((4, 0, 0, b""), (1, 4, 1, block), (0, 1, 1, body))  # settings, headers, data
    return HTTP2 + b"".join(struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) +
                            content for kind, flags, stream, content in frames)


def mesh_message(**fields):
    """A GreetRequest: its fields' numbers and values."""
    def encoded(value):
        if isinstance(value, int):
            return 0, bytes([value])
        return 2, bytes([len(value)]) + value
    parts = [(int(name[1:]), *encoded(value)) for name, value in fields.items()]
    return b"".join(bytes([number << 3 | wire]) + content for number, wire, content in parts)


def greeting(version=SESSION_VERSION, kind=1, request=7, body=b"", magic=SESSION_MAGIC, length=None):
    """A packet of the session protocol (proto/wire/session_messages.h); kind 1 is Hello."""
    return struct.pack("<IHHII", magic, version, kind, request, len(body) if length is None else length) + body


def words(*texts):
    return b"".join(struct.pack("<I", len(t)) + t.encode() for t in texts)


class Strangers(ClusterCase):
    CONFIG = {**RAW, "client": {"socket_mode": "0666"}, "limits": {"arena_bytes": "64 MiB"},
              "timeouts": {"handshake_ms": int(1000 * HANDSHAKE_S), "join_ms": int(1000 * JOIN_S)}}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.start_bystander(arena_bytes=4 * MIB)

    def tearDown(self):
        self.bystander_steps()
        job = self.job([0, 1], arena_bytes=4 * MIB)
        job.step(job.join(), 1)

    def assert_in_time(self, answers, limit_s):
        slowest = max(a.ended for a in answers) - max(a.began for a in answers)
        figure(self.id().rsplit(".", 1)[-1], slowest, limit_s)
        self.assertLess(slowest, limit_s + BUSY_S)

    def speak(self, port, piece, may_stay_open=False, heard=""):
        """From machine 1 to machine 0."""
        command = [sys.executable, "-c", SPEAKER, self.machines[0].address, str(port), piece.hex(), heard]
        done = self.machines[1].run(["timeout", "1", *command] if may_stay_open else command,
                                    capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if not may_stay_open:
            self.assertRegex(done.stdout + done.stderr, "heard" if heard else "closed|reset")


class GarbageOnDataPorts(Strangers):
    def test_garbage_on_the_data_ports_does_not_disturb_anybody(self):
        ports = listening_ports(self.daemons[0])
        self.assertGreater(len(ports), 1, "mesh and data")
        for port in ports:
            for name, piece in PIECES.items():
                with self.subTest(name, port=port):
                    self.speak(port, piece, may_stay_open=True)
        self.bystander_steps()


class GarbageOnDataPortsOverUcx(GarbageOnDataPorts):
    CONFIG = merged(Strangers.CONFIG, {"transport": {"name": "ucx"}})


class Garbage(Strangers):
    def answer_to(self, *packets):
        """What the daemon said before it hung up: the status code and text of a Reply, or nothing."""
        link = self.packets()
        with contextlib.suppress(ConnectionError):
            for packet in packets:
                link.send(packet)
        said = (None, "")
        with contextlib.suppress(ConnectionError):
            while packet := link.recv(1 << 17):
                self.assertEqual(struct.unpack_from("<H", packet, 6)[0], 3, "a Reply")
                code, length = struct.unpack_from("<HI", packet, 16)
                said = code, packet[22:22 + length].decode()
        return said

    def test_garbage_on_the_clients_socket_ends_the_connection(self):
        hello = words("job", "stranger")
        for name, packet in {
                **PIECES, "a wrong magic": greeting(body=hello, magic=1), "no body": greeting(),
                "an unknown message": greeting(kind=99, body=hello), "a message before Hello": greeting(kind=6, body=hello),
                "a length beyond its packet": greeting(body=hello, length=1 << 30),
                "half a Hello": greeting(body=hello[:5]), "a job without a name": greeting(body=words("", "")),
                "a name that is too long": greeting(body=words("j" * 5000, ""))}.items():
            with self.subTest(name):
                code, text = self.answer_to(packet)
                self.assertIn(code, (None, 2, 12), text)  # INVALID_ARGUMENT, PROTOCOL_ERROR

    def test_an_unknown_version_of_the_session_protocol_is_told_both_versions(self):
        code, text = self.answer_to(greeting(version=9, body=words("job", "stranger")))
        self.assertEqual(code, 13, text)  # VERSION_MISMATCH
        self.assertRegex(text, rf"\b9\b.*\b{SESSION_VERSION}\b|\b{SESSION_VERSION}\b.*\b9\b")

    def test_silent_clients_are_shown_out(self):
        crowd = [self.packets() for _ in range(20)]
        began = time.monotonic()
        for link in crowd:
            self.assertIn(b"did not introduce itself", link.recv(4096))
            self.assertEqual(link.recv(4096), b"")
        self.assertLess(time.monotonic() - began, HANDSHAKE_S + BUSY_S)

    @unittest.skipUnless(os.geteuid() == 0, "a second user needs root")
    def test_a_users_crowd_does_not_keep_another_user_out(self):
        crowd = subprocess.Popen([sys.executable, "-c", CROWD, self.daemons[0].socket], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
        self.assertEqual(crowd.stdout.readline(), b"crowded\n")
        job = self.job([0, 1], arena_bytes=4 * MIB)
        job.step(job.join(), 1)
        crowd.communicate(b"", timeout=10)

    def test_garbage_on_the_control_socket_ends_the_connection_and_operators_are_served(self):
        for name, piece in PIECES.items():
            with self.subTest(name):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                    link.settimeout(10)
                    link.connect(self.daemons[0].control)
                    with contextlib.suppress(ConnectionError):
                        link.sendall(piece)
                        while link.recv(4096):
                            pass
                self.assertIn("communicators", self.daemons[0].control_tool("jobs"))
        self.assertGreater(self.daemons[0].counters()["control_junk"], 0)

    def test_garbage_on_the_mesh_port_ends_the_connection_and_links_are_made(self):
        listened = self.daemons[0].config["mesh"]["listen"]
        before = self.daemons[0].counters()["control_junk"]
        for name, piece in PIECES.items():
            with self.subTest(name):
                self.speak(listened.rsplit(":", 1)[1], piece)
                job = self.job([1, 0], arena_bytes=4 * MIB)
                job.step(job.join(), 1)
        self.assertGreater(self.daemons[0].counters()["control_junk"], before)


def listening_ports(daemon):
    """TCP ports this process listens on, mesh and data path."""
    lines = daemon.machine.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[3].rsplit(":", 1)[1]) for line in lines if f"pid={daemon.process.pid}," in line]


class OtherKeysAndUsers(Strangers):
    def test_a_wrong_key_is_named_on_both_machines(self):
        for wrong in (0, 1):
            with self.subTest(wrong=wrong):
                job = self.job([0, 1], arena_bytes=4 * MIB)
                for rank in range(2):
                    job.create_soon(rank, trick="wrong-key" if rank == wrong else "-")
                answers = [rank.receive() for rank in job.ranks]
                for answer in answers:
                    self.assert_status(answer, "AUTH_FAILED", "key", job.name)
                self.assert_in_time(answers, STRANGER_KEY_S)

    def test_a_wrong_key_beside_the_right_one_is_refused_at_once_and_missed_by_the_other(self):
        job = self.job([0, 0], arena_bytes=4 * MIB)
        job.create_soon(0)
        job.create_soon(1, trick="wrong-key")
        answers = [rank.receive() for rank in job.ranks]
        self.assertEqual(sorted(a.status for a in answers), ["MISMATCH", "TIMED_OUT"], [a.text for a in answers])
        for answer in answers:
            self.assertRegex(answer.text, "key|missing: rank")
        self.assert_in_time(answers, JOIN_S)

    @unittest.skipUnless(os.geteuid() == 0, "a second user needs root")
    def test_another_users_job_cannot_be_joined(self):
        for places, statuses in (([0, 1], {"PERMISSION_DENIED"}), ([0, 0], {"TIMED_OUT"})):
            with self.subTest(places=places):
                job = Job(self.daemons, places, name="training", arena_bytes=4 * MIB, open_now=False)
                self.addCleanup(job.close)
                job.ranks[1].must("become", 65534)
                job.must("open", job.name, "-", 4 * MIB)
                for rank in range(2):
                    job.create_soon(rank)
                answers = [rank.receive() for rank in job.ranks]
                self.assertEqual({a.status for a in answers}, statuses, [a.text for a in answers])
                for rank, answer in enumerate(answers):
                    self.assertRegex(answer.text, r"uid 0\b.*uid 65534|uid 65534.*uid 0\b|" + f"missing: rank {1 - rank}")
                self.assert_in_time(answers, JOIN_S)

    def test_another_version_of_the_meeting_is_told_both_versions(self):
        job = self.job([0, 1], arena_bytes=4 * MIB)
        with open(job.path(f"cgx_{job.name}_grads_member_1"), "wb") as file:
            file.write(struct.pack("<II", MEETING_MAGIC, 9) + bytes(32))
        job.create_soon(0)
        self.assert_status(job.ranks[0].receive(), "VERSION_MISMATCH", "rank 1", "version 9", str(MEETING_VERSION))

    def test_a_daemon_of_another_version_is_told_and_ends_no_waiting_where_it_cannot_be_asked_back(self):
        job = self.job([0, 1], arena_bytes=4 * MIB)
        meeting = job.path(f"cgx_{job.name}_grads")
        stranger = bytes(15) + b"\1"  # a small instance: it dials
        head = struct.pack("<II", MEETING_MAGIC, MEETING_VERSION)
        with open(f"{meeting}_member_1", "wb") as file:
            file.write(head + bytes(32))
        job.create_soon(0)
        self.wait_until(lambda: os.path.exists(f"{meeting}_list"), "the list of rank 0")
        with open(f"{meeting}_list", "rb") as file:
            answers = f"{meeting}_{file.read()[8:24].hex()}_answer_"
        with open(f"{answers}1.new", "wb") as file:
            file.write(head + struct.pack("<I", 2) + bytes(16) + stranger + words(f"{self.machines[1].address}:1")
                       + bytes(16))  # on the host
        os.rename(f"{answers}1.new", f"{answers}1")
        self.wait_until(lambda: any(c["job"] == job.name for c in self.daemons[0].control_tool("jobs")["communicators"]),
                        "joining")
        with open(f"{answers}0", "rb") as file:
            asked = file.read()[28:44]
        greeted = mesh_message(_1=99, _2=job.name.encode(), _4=stranger, _5=asked, _6=bytes(8), _7=bytes(32), _8=b"old")
        port = self.daemons[0].config["mesh"]["listen"].rsplit(":", 1)[1]
        self.speak(port, mesh_greeting(greeted), heard="speaks mesh protocol 99")
        self.assert_status(job.ranks[0].receive(), "TIMED_OUT", "rank 1")


class Poverty(Strangers):
    def test_without_a_daemon_opening_says_where_none_was_found(self):
        gone = os.path.join(self.directory, "gone.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left_behind:
            left_behind.bind(gone)
        for path in (os.path.join(self.directory, "nothing.sock"), gone):
            rank = Rank(None, machine=self.machines[0], CGX_SOCKET=path)
            self.addCleanup(rank.end)
            answer = rank.ask("open", "job")
            self.assert_status(answer, "UNAVAILABLE", path)
            self.assertLess(answer.seconds, CONNECT_S + BUSY_S)

    def test_arenas_beyond_the_daemons_limit_are_refused_by_name(self):
        job = self.job([0, 1], arena_bytes=4 * MIB)
        comm = job.join()
        answers = [job.ranks[0].ask("alloc", 5 * MIB)]
        while answers[-1].ok and len(answers) < 20:
            answers.append(job.ranks[0].ask("alloc", 5 * MIB))
        self.assertGreater(len(answers), 5)
        self.assert_status(answers[-1], "RESOURCE_EXHAUSTED", "limits.arena_bytes")
        job.step(comm, 1)

    @unittest.skipUnless(os.geteuid() == 0, "a /dev/shm of one's own needs root")
    def test_a_dev_shm_of_64_megabytes_does_not_matter(self):
        small = ("unshare", "--mount", "sh", "-c",
                 'mount -t tmpfs -o size=64m cgx-small /dev/shm && exec "$@"', "small")
        daemons = [Daemon(m, os.path.join(self.directory, "small"), RAW, prefix=small,
                          port=MESH_PORT + 1 if m.netns else free_port(m.address)) for m in self.machines]
        job = Job(daemons, [0, 0, 1], arena_bytes=128 * MIB, prefix=small)
        try:
            elements = 20 * MIB + 3  # 80 MiB
            comm = job.create()
            job.register(comm, (Tensor("large", (elements,)),))
            job.must("commit", comm)
            for rank in range(3):
                np.full(elements, rank + 1, np.float32).tofile(job.path("in"))
                job.ranks[rank].must("fill", comm, 0, job.path("in"))
            job.must("submit", comm, 1, 0)
            job.must("end", comm, 1)
            job.must("wait", comm, 1)
            for rank in range(3):
                job.ranks[rank].must("dump", comm, 0, job.path("out"))
                self.assertTrue(np.all(np.fromfile(job.path("out"), np.float32) == 6))
        finally:
            job.close()
            for daemon in daemons:
                daemon.process.terminate()
        for daemon in daemons:
            self.assertEqual(daemon.process.wait(10), 0, daemon.log())


if __name__ == "__main__":
    unittest.main()
