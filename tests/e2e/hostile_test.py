"""People who try: descriptors that block, holes, words that prove nothing, squatted places, full disks.

Beside each runs a job that must not notice (strangers_test.py has garbage, other keys and crowds).
"""

import array
import contextlib
import itertools
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

from cluster_case import RAW, ClusterCase, figure
from daemons import SLOWER, binary, merged, stopped
from descriptors_test import few_descriptors_free
from doors_test import listeners
from protocols import MEETING_MAGIC, MEETING_VERSION, MESH_VERSION
from ranks import Job, Rank
from strangers_test import greeting, mesh_greeting, mesh_message, words
from use import Use, settle

ROOT = os.geteuid() == 0
MIB = 1 << 20
LINGER_S = 8         # how long closing a hostile descriptor takes
AT_ONCE_S = 2.0 * SLOWER  # what anybody else may take meanwhile, on a busy machine; not LINGER_S
JOIN_S = 6.0 * SLOWER
PUNCH_HOLE, KEEP_SIZE = 2, 1
METRICS_PORT = 9465
WELCOME, REPLY, ADD_ARENA = 2, 3, 4  # kinds of packets (proto/wire/session_messages.h)


class Hostile(ClusterCase):
    CONFIG = {**RAW, "client": {"socket_mode": "0666"}, "timeouts": {"join_ms": int(1000 * JOIN_S)},
              "metrics": {"port": METRICS_PORT}}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.start_bystander(arena_bytes=4 * MIB)

    def tearDown(self):
        self.bystander_steps()

    def quickly(self, what, do):
        began = time.monotonic()
        result = do()
        seconds = time.monotonic() - began
        figure(what, seconds, AT_ONCE_S)
        self.assertLess(seconds, AT_ONCE_S, what)
        return result


def lingering():
    """A descriptor whose last close takes LINGER_S: in its queue lies a TCP socket that lingers with unsent data."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        reader, _ = listener.accept()
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(1 << 20))
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    outside.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sender.fileno()]))])
    sender.close()
    outside.close()
    return inside, reader


def host_arena(number, size):
    """The body of AddArena, without a device, an offset and a handle."""
    return struct.pack("<IBB16xQQ64xQ", number, 0, 0, size, 0, 0)


class Descriptors(Hostile):
    def packets(self):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(link.close)
        link.connect(self.daemons[0].socket)
        return link

    def send_lingering(self, link, packet, copies=1, packets=1, others=0):
        """The daemon holds the only copy then: it is stopped until ours are closed. `others` come before them."""
        held = [[lingering() for _ in range(copies)] for _ in range(packets)]
        with stopped(self.daemons[0].process), open(os.devnull, "rb") as other:
            for sent in held:
                fds = [other.fileno()] * others + [inside.fileno() for inside, _ in sent]
                link.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            for inside, reader in itertools.chain(*held):
                inside.close()
                self.addCleanup(reader.close)  # reading would end the lingering

    def assert_others_are_served(self):
        job = self.quickly("a session meanwhile", lambda: self.job([0, 1], arena_bytes=4 * MIB))
        comm = self.quickly("an arena and a meeting meanwhile", job.join)
        job.step(comm, 1)
        job.ranks[1].kill()
        self.quickly("news of a killed rank meanwhile", lambda: self.assert_status(
            job.ranks[0].ask("allreduce", comm, 0, 0, 4, 16, job.path("in", 0, 0), job.path("out", 0, 0)), "RANK_LOST"))

    def test_that_take_long_to_close_keep_nobody_else_waiting(self):
        hello = greeting(body=words("job", "stranger"))
        for name, packet, copies in (("junk", b"junk", 1), ("a message before Hello", greeting(kind=6), 1),
                                     ("Hello", hello, 1), ("more than one", b"junk", 3)):
            with self.subTest(name):
                self.send_lingering(self.packets(), packet, copies)
                self.assert_others_are_served()

    def test_that_take_long_to_close_keep_no_arena_of_the_same_user_waiting(self):
        link = self.packets()
        link.sendall(greeting(body=words("job", "stranger")))
        self.assertEqual(self.packet_kind(link), WELCOME)
        for number in range(3):
            self.send_lingering(link, greeting(kind=ADD_ARENA, body=host_arena(number, 4 * MIB)))
            self.assertEqual(self.quickly("a refused arena", lambda: self.packet_kind(link)), REPLY)
            self.assert_others_are_served()

    def test_that_take_long_to_close_keep_no_operator_out(self):
        daemon = self.daemons[0]
        for junk in (b"junk", b"PRI * HTTP/1.1\r\n\r\n"):
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.addCleanup(link.close)
            link.connect(daemon.control)
            self.send_lingering(link, junk)
            self.quickly("an operator's question meanwhile", lambda: daemon.control_tool("status"))

    def test_that_come_after_the_opening_keep_no_operator_out(self):
        daemon = self.daemons[0]
        settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
        for _ in range(12):
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.addCleanup(link.close)
            link.connect(daemon.control)
            link.sendall(settings)
            self.assertNotEqual(link.recv(1), b"", "the server's settings")
            self.send_lingering(link, bytes(9))
        self.quickly("an operator's question meanwhile", lambda: daemon.control_tool("status"))
        self.assert_others_are_served()

    def test_that_take_long_to_close_are_no_way_to_take_all_that_the_daemon_has(self):
        daemon = self.daemons[0]
        before = Use(daemon).descriptors
        self.send_lingering(self.packets(), b"junk")
        for path, kind in ((daemon.socket, socket.SOCK_SEQPACKET), (daemon.control, socket.SOCK_STREAM)):
            for _ in range(1500):
                with socket.socket(socket.AF_UNIX, kind) as link, contextlib.suppress(ConnectionError):
                    link.connect(path)
                    link.sendall(b"junk")
        self.assertLess(Use(daemon).descriptors, before + 300)
        self.assert_others_are_served()

    def test_that_find_no_room_keep_nobody_waiting(self):
        """What a process has no room for the kernel closes while it receives."""
        opened = self.packets()
        opened.sendall(greeting(body=words("job", "stranger")))
        self.assertEqual(self.packet_kind(opened), WELCOME)
        arena = greeting(kind=ADD_ARENA, body=host_arena(0, 4 * MIB))
        for name, link, packet, refused in (("before Hello", self.packets(), b"junk", "before the handshake ended"),
                                            ("of a session", opened, arena, "no descriptor left (ulimit -n)")):
            with self.subTest(name), few_descriptors_free(self.daemons[0].process, outside=40):
                self.send_lingering(link, packet, copies=3, others=250)
                self.assert_others_are_served()
                self.assertIn(refused, self.last_words(link).decode("latin-1"))

    def last_words(self, link):
        """Of a daemon that hung up; the first try may say that it has not read everything."""
        with contextlib.suppress(ConnectionResetError):
            return link.recv(1 << 17)
        return link.recv(1 << 17)

    def packet_kind(self, link):
        packet, fds, _, _ = socket.recv_fds(link, 1 << 17, 8)
        for fd in fds:
            os.close(fd)
        return struct.unpack_from("<IHH", packet)[2]

    def test_that_nobody_has_read_yet_keep_nobody_waiting_when_their_connection_ends(self):
        link = self.packets()
        self.send_lingering(link, b"junk", packets=3)  # it hangs up at the first
        self.assert_others_are_served()


class Crowds(Hostile):
    """Connections from another machine that never prove a key, at the port for other daemons."""

    SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

    def crowd(self, many, says):
        """They stay until the test is over; the other machine's are one host's."""
        script = ("import socket, sys, time\n"
                  "held = []\n"
                  "for _ in range(int(sys.argv[3])):\n"
                  "    link = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)\n"
                  "    link.sendall(bytes.fromhex(sys.argv[4]))\n"
                  "    held.append(link)\n"
                  "print('there', flush=True)\n"
                  "sys.stdin.read()\n")
        daemon = self.daemons[0]
        port = daemon.config["mesh"]["listen"].rsplit(":", 1)[1]
        crowd = self.machines[1].start(["/usr/bin/python3", "-c", script, daemon.machine.address, port, str(many), says.hex()],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(crowd.communicate, b"", 10)
        self.assertEqual(crowd.stdout.readline(), b"there\n")

    def test_that_begin_to_speak_or_say_nothing_keep_no_job_no_session_and_no_operator_out(self):
        daemon = self.daemons[0]
        before = Use(daemon).descriptors
        for what, many, says in (("preface and settings", 500, self.SETTINGS), ("nothing", 800, b"")):
            with self.subTest(what):
                self.crowd(many, says)
                self.assertLess(Use(daemon).descriptors, before + 300, "they share few places")
                job = self.quickly(f"a session and a meeting beside {many} that say {what}",
                                   lambda: self.job([0, 1], arena_bytes=4 * MIB))
                comm = self.quickly(f"meeting beside {many} that say {what}", job.join)
                job.step(comm, 1)
                self.quickly("an operator's question", lambda: daemon.control_tool("status"))


class Junk(Hostile):
    """Connections from another machine that say what is no word of the transport, at every port inside the network."""

    def junk(self, many):
        """Returns how many descriptors it left behind, when those in use have come back."""
        daemon = self.daemons[0]
        settle(self.daemons, 1)
        before = Use(daemon).descriptors
        script = ("import socket, sys\n"
                  "for _ in range(int(sys.argv[1])):\n"
                  "    for port in sys.argv[3:]:\n"
                  "        with socket.create_connection((sys.argv[2], int(port)), timeout=5) as link:\n"
                  "            link.sendall(b'no words of UCX' * 9)\n")
        ports = [str(port) for address, port in listeners(daemon) if address == daemon.machine.address]
        self.assertGreater(len(ports), 1, "that of the mesh and that of gradients")
        self.machines[1].run(["/usr/bin/python3", "-c", script, str(many // len(ports)), daemon.machine.address, *ports], check=True)
        settle(self.daemons, 3)
        return Use(daemon).descriptors - before


@unittest.skipUnless(ROOT, "machines of their own need root")
class JunkOverTcp(Junk):
    CONFIG = merged(Hostile.CONFIG, {"transport": {"name": "tcp"}})

    def test_leaves_no_descriptor_behind(self):
        self.junk(20)  # whatever the first ones make once
        self.assertEqual(self.junk(4000), 0)


@unittest.skipUnless(ROOT, "machines of their own need root")
class JunkOverUcx(Junk):
    """UCX's port is open to all in there (F1), and it once kept three after 10,000 of them: fewer than that are its own affair."""

    CONFIG = merged(Hostile.CONFIG, {"transport": {"name": "ucx"}})
    KEPT = 2

    def test_leaves_hardly_any_descriptor_behind(self):
        self.junk(20)  # whatever the first ones make once
        self.assertLessEqual(self.junk(4000), self.KEPT)


class Memory(Hostile):
    @unittest.skipUnless(ROOT, "opening another process' memory needs root")
    def test_holes_cannot_be_punched_once_the_daemon_has_mapped_it(self):
        job = self.job([0, 1], arena_bytes=4 * MIB)
        comm = job.join()
        job.step(comm, 1)
        libc = __import__("ctypes").CDLL(None, use_errno=True)
        arenas = []
        for name in os.listdir(f"/proc/{job.ranks[0].process.pid}/fd"):
            path = f"/proc/{job.ranks[0].process.pid}/fd/{name}"
            if "cgx-arena" in os.readlink(path):
                arenas.append(path)
        self.assertTrue(arenas)
        for path in arenas:
            arena = os.open(path, os.O_RDWR)
            self.addCleanup(os.close, arena)
            self.assertEqual(libc.fallocate(arena, PUNCH_HOLE | KEEP_SIZE, 0, __import__("ctypes").c_long(4 * MIB)), -1)
        job.step(comm, 2)

    @unittest.skipUnless(ROOT, "control groups need root")
    def test_a_trainer_is_refused_what_its_control_group_would_kill_it_for(self):
        group = self.control_group("48M")
        rank = Rank(self.daemons[0], prefix=("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"))
        self.addCleanup(rank.end)
        rank.must("open", "poor", "-", 4 * MIB)
        self.assert_status(rank.ask("alloc", 129 * MIB), "RESOURCE_EXHAUSTED", "control group", "leaves")
        rank.must("alloc", 1 * MIB)

    def control_group(self, limit):
        name = f"cgx-e2e-{os.getpid()}"
        for root, key in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                os.mkdir(path)
                self.addCleanup(os.rmdir, path)
                if not os.path.exists(os.path.join(path, key)):
                    continue
                with open(os.path.join(path, key), "w", encoding="utf-8") as file:
                    file.write(limit)
                return path
        self.skipTest("no control groups that limit memory can be made here")


class Words(Hostile):
    """Unproven ones: of daemons that are none, and of ranks about where daemons are."""

    def waiting(self):
        """A job whose rank 0 waits for rank 1, with the instances of both daemons: rank 0's is the dialed one."""
        for places in ([0, 1], [1, 0]):
            job = self.job(places, arena_bytes=4 * MIB)
            job.create_soon(1, trick="hold")
            job.create_soon(0)
            folder = job.folder
            self.wait_until(lambda: len(self.answers(folder)) == 2, "the answers of both")
            instances = [self.answers(folder)[rank] for rank in (0, 1)]
            if instances[0] > instances[1]:
                daemon = self.daemons[places[0]]
                self.wait_until(lambda: any(c["job"] == job.name for c in daemon.control_tool("jobs")["communicators"]),
                                "joining")
                return job, daemon, instances
            open(job.path("go"), "w", encoding="utf-8").close()
            for rank in job.ranks:
                self.assert_status(rank.receive(), "OK")
        raise AssertionError("one of them is the larger")

    @staticmethod
    def answers(folder):
        found = {}
        for name in os.listdir(folder):
            match = re.search(r"_answer_(\d+)$", name)
            if match:
                with open(os.path.join(folder, name), "rb") as file:
                    found[int(match.group(1))] = file.read()[28:44]
        return found

    def greet(self, daemon, message):
        """From the other machine, as nobody in particular."""
        other = next(machine for machine in self.machines if machine is not daemon.machine)
        script = ("import socket, sys\n"
                  "with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as link:\n"
                  "    link.sendall(bytes.fromhex(sys.argv[3]))\n"
                  "    link.settimeout(0.2)\n"
                  "    try:\n"
                  "        while link.recv(4096): pass\n"
                  "    except OSError: pass\n")
        port = daemon.config["mesh"]["listen"].rsplit(":", 1)[1]
        other.run(["/usr/bin/python3", "-c", script, daemon.machine.address, port, mesh_greeting(message).hex()],
                  check=True)

    def test_of_a_stranger_end_no_jobs_start(self):
        for what, fields in (("another version", {"_1": 99}), ("another key", {"_1": MESH_VERSION, "_6": b"otherkey"}),
                             ("another program", {"_1": MESH_VERSION, "_9": b"cgxd 9.9.9"})):
            with self.subTest(what):
                job, daemon, (own, other) = self.waiting()
                base = {"_2": job.name.encode(), "_4": other, "_5": own, "_6": bytes(8), "_7": bytes(32), "_8": b"evil", "_9": b"cgxd 0.1.0"}
                end = time.monotonic() + 2.6  # longer than a wrong key is given
                while time.monotonic() < end:
                    self.greet(daemon, mesh_message(**dict(sorted({**base, **fields}.items(), key=lambda f: int(f[0][1:])))))
                open(job.path("go"), "w", encoding="utf-8").close()
                comms = [rank.receive() for rank in job.ranks]
                for answer in comms:
                    self.assert_status(answer, "OK")

    def test_of_a_rank_make_no_daemon_dial_elsewhere(self):
        daemon = self.daemons[0]
        own = [f"{host}:{port}" for host, port in listeners(daemon) if host == daemon.machine.address]
        self.assertGreater(len(own), 1, "that of the mesh and that of gradients")
        elsewhere = ("192.0.2.2:34963", f"unix:{daemon.control}", "localhost:80")
        for address, why in [(each, "mesh.trusted_networks") for each in elsewhere] + [(each, "itself") for each in own]:
            with self.subTest(address):
                job = self.job([0, 1], arena_bytes=4 * MIB)
                meeting = job.path(f"cgx_{job.name}_grads")
                head = struct.pack("<II", MEETING_MAGIC, MEETING_VERSION)
                with open(f"{meeting}_member_1", "wb") as file:
                    file.write(head + bytes(32))
                job.create_soon(0)
                self.wait_until(lambda: os.path.exists(f"{meeting}_list"), "the list of rank 0")
                with open(f"{meeting}_list", "rb") as file:
                    answers = f"{meeting}_{file.read()[8:24].hex()}_answer_"
                with open(f"{answers}1.new", "wb") as file:
                    file.write(head + struct.pack("<I", 2) + bytes(16) + b"\xff" * 16 + words(address) + bytes(16))
                os.rename(f"{answers}1.new", f"{answers}1")
                answer = job.ranks[0].receive()
                self.assert_status(answer, "PERMISSION_DENIED", address, why)


class Disk(Hostile):
    @classmethod
    def config_of(cls, machine):
        folder = os.path.join(cls.directory, f"audit{machine}")
        os.makedirs(folder)
        if ROOT:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "cgx-e2e", folder], check=True)
            cls.addClassCleanup(subprocess.run, ["umount", "-l", folder], check=False)
        return merged(cls.CONFIG, {"control": {"audit_file": os.path.join(folder, "audit.jsonl")}})

    @staticmethod
    def fill(folder):
        with open(os.path.join(folder, "filler"), "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    @unittest.skipUnless(ROOT, "a disk of its own needs root")
    def test_a_reload_is_written_down_or_changes_nothing(self):
        daemon = self.daemons[1]
        audit_file = daemon.config["control"]["audit_file"]
        with open(daemon.config_path, "w", encoding="utf-8") as file:
            json.dump(merged(daemon.config, {"policy": {"window": 7}}), file)
        self.fill(os.path.dirname(audit_file))
        daemon.process.send_signal(signal.SIGHUP)
        self.wait_until(lambda: "reload refused, nothing is changed" in daemon.log(), "the refusal")
        self.assertIn("No space left", daemon.log())
        os.unlink(os.path.join(os.path.dirname(audit_file), "filler"))
        daemon.process.send_signal(signal.SIGHUP)
        self.wait_until(lambda: "policy.window" in daemon.log(), "the reload")
        with open(audit_file, encoding="utf-8") as file:
            written = json.loads(file.read().splitlines()[-1])
        self.assertEqual((written["action"], written["result"]), ("reload", "OK"))
        self.assertEqual(written["changes"], ["policy.window: 4 -> 7"])
        self.assertIn(f"SIGHUP of process {os.getpid()}, uid {os.getuid()}", written["caller"])

    @unittest.skipUnless(ROOT, "a disk of its own needs root")
    def test_a_change_that_cannot_be_written_down_is_not_made_and_the_operator_sees_why(self):
        job = self.job([0, 1], arena_bytes=4 * MIB)
        job.step(job.join(), 1)
        daemon, target = self.daemons[0], ["-j", job.name, "-c", "grads"]
        folder = os.path.dirname(daemon.config["control"]["audit_file"])
        self.fill(folder)
        before = daemon.control_tool("policy", "get", *target)
        refused = daemon.control_tool("policy", "apply", *target, "--set", "window=3", check=False)
        self.assertEqual(refused.returncode, 1, refused.stdout)
        self.assertIn("nothing was changed", refused.stderr)
        self.assertIn("No space left", refused.stderr)
        self.assertEqual(daemon.control_tool("policy", "get", *target), before)
        stays = daemon.control_tool("drain", check=False)
        self.assertEqual(stays.returncode, 1, stays.stdout)
        self.assertIn("the daemon goes on", stays.stderr)
        self.assertIn("No space left", stays.stderr)
        self.assert_daemons_serve()
        os.unlink(os.path.join(folder, "filler"))
        daemon.control_tool("policy", "apply", *target, "--set", "window=3", "--wait", "0")
        with open(daemon.config["control"]["audit_file"], encoding="utf-8") as file:
            self.assertEqual(file.read().count("window"), 1)


class Places(Hostile):
    @unittest.skipUnless(ROOT, "other users need root")
    def test_a_squatted_directory_falls_through_to_the_machines_daemon(self):
        uid, squatter = 54321, 54322
        squatted = f"/tmp/cgxd-{uid}"
        shutil.rmtree(squatted, True)  # of a run that was killed
        os.mkdir(squatted)
        self.addCleanup(shutil.rmtree, squatted, True)
        os.chown(squatted, squatter, squatter)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trap:
            trap.bind(f"{squatted}/cgxd.sock")
            os.chmod(f"{squatted}/cgxd.sock", 0o777)
            trap.listen()
            started = self.machines[0].start(
                ["unshare", "-m", "sh", "-c", "mount -t tmpfs cgx-e2e /run && mkdir /run/cgxd && exec \"$@\"", "sh",
                 binary("cgxd"), "--set", "client.socket_mode=0666"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(started.wait)
            self.addCleanup(started.terminate)
            serves = f"/proc/{started.pid}/root/run/cgxd/cgxd.sock"
            self.wait_until(lambda: os.path.exists(serves), "the machine's daemon")
            rank = Rank(None, self.machines[0], prefix=("nsenter", f"--mount=/proc/{started.pid}/ns/mnt", "--", "env",
                                                         "-u", "XDG_RUNTIME_DIR", "-u", "CGX_SOCKET"))
            self.addCleanup(rank.end)
            rank.must("become", uid)
            rank.must("open", "here", "-", 4 * MIB)

    def page(self, path):
        fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
        return self.machines[0].run(["/usr/bin/python3", "-c", fetch, f"http://127.0.0.1:{METRICS_PORT}{path}"],
                                    capture_output=True, text=True, check=True).stdout

    def test_pages_that_anybody_can_read_name_no_job(self):
        if not self.machines.isolated:
            self.skipTest("both daemons would have the same page")
        job = self.job([0, 1], name="secret-plans", arena_bytes=4 * MIB)
        job.step(job.join(name="hush"), 1)
        for path in ("/metrics", "/status.json"):
            text = self.page(path)
            self.assertIn("job-", text)
            self.assertNotIn("secret-plans", text)
            self.assertNotIn("hush", text)


if __name__ == "__main__":
    unittest.main()
