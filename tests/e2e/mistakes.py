"""Twelve ways to set up two machines wrongly, each on a pair of machines of its own, tried at the same time.

A `Mistake` says what is wrong on machine 1 (or on both), which machine and key everybody has to name, and how the
machines are made so. `Attempt` makes the pair, asks `cgxctl doctor` on machine 0, then lets a DDP job of two ranks try.
"""

import contextlib
import ctypes
import dataclasses
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

from cluster_case import RAW
from daemons import BUILD, MESH_PORT, ROOT, Daemon, binary, merged

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
KEY = "0123456789abcdef"  # of the cluster
LIMIT_S = 15.0
_libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass
class Mistake:
    name: str
    key: str                   # that is named beside the machine
    config: dict = dataclasses.field(default_factory=dict)   # over the right one, of machine 1
    starts: bool = True        # whether machine 1's daemon does
    machine: int = 1           # which one is named
    prepare: str = ""          # run in machine 1's network before its daemon starts
    break_later: str = ""      # and after
    daemon: bool = True        # whether one is tried to start
    uid: int = 0               # of machine 1's rank and doctor
    program: str = "cgxd"      # machine 1's
    doctor_on: int = 0         # who is asked
    job_key: str = ""          # what a job names where it cannot know the key; empty: the same
    job: bool = True           # whether a job shows it; another test does where not
    both: bool = False         # machine 0 is made and broken like machine 1: either may dial the other


MISTAKES = [
    Mistake("loopback default", "mesh.network", {"mesh": {"network": []}}, doctor_on=1),
    Mistake("wrong network", "mesh.network", {"mesh": {"network": ["192.0.2.0/24"]}},
            prepare="ip addr add 192.0.2.7/24 dev eth0", doctor_on=1),
    Mistake("wrong interface", "transport.devices", {"transport": {"devices": ["lo"]}}, starts=False, doctor_on=1),
    Mistake("closed port", "mesh.listen", {"mesh": {"listen": "{address}:7700"}},
            break_later="ip rule add ipproto tcp sport 7700 blackhole", both=True),
    Mistake("other user's socket", "client.socket_mode", uid=65534, doctor_on=1),
    Mistake("no daemon yet", "control.socket", daemon=False, doctor_on=1, job_key="CGX_SOCKET"),
    Mistake("wrong key", "mesh.key_file", {"mesh": {"cluster_key": KEY[::-1]}}),
    Mistake("two versions", "version", program="cgxd-other"),
    Mistake("missing device", "transport.devices", {"transport": {"devices": ["eth77"]}}, starts=False, doctor_on=1),
    Mistake("unknown group", "client.socket_group", {"client": {"socket_group": "nobody-here"}}, starts=False,
            doctor_on=1),
    Mistake("missing key file", "mesh.key_file", {"mesh": {"key_file": "/nowhere/key", "cluster_key": None}},
            starts=False, doctor_on=1),
    Mistake("port in use", "mesh.listen", {"mesh": {"listen": "{address}:7700"}}, starts=False, doctor_on=1),
]


def named(host):
    """The beginning of a command line whose program runs on a machine of that name."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "-"]


def other_version(directory):
    """A cgxd that says it is of another version."""
    path = os.path.join(directory, "cgxd-other")
    with open(binary("cgxd"), "rb") as file:
        program = file.read()
    assert b"cgxd 0.1.0" in program
    with open(path, "wb") as file:
        file.write(program.replace(b"cgxd 0.1.0", b"cgxd 0.0.9"))
    os.chmod(path, 0o755)
    return path


class NamedDaemon(Daemon):
    """A daemon on a machine with a name, which may refuse to start."""

    def __init__(self, machine, directory, config, host, program=None):
        self.program = program
        super().__init__(machine, directory, config, prefix=named(host), own_mesh=True)

    def start(self):
        if self.program:
            os.makedirs(os.path.join(self.directory, "bin"), exist_ok=True)
            link = os.path.join(self.directory, "bin", "cgxd")
            with contextlib.suppress(FileExistsError):
                os.symlink(self.program, link)
            self.build = self.directory
        super().start()


class Attempt:
    """One mistake, made and told."""

    def __init__(self, mistake, machines, directory):
        self.mistake, self.machines = mistake, machines
        self.directory = os.path.join(directory, mistake.name.replace(" ", "-").replace("'", ""))
        os.makedirs(self.directory, mode=0o755)
        self.hosts = [f"host-{machine.index}" for machine in machines]
        self.refusal, self.daemons = None, []
        self.doctor, self.doctor_s = None, None
        self.answers = [None, None]  # of the ranks: (seconds, text)

    @property
    def culprit(self):
        return self.hosts[self.mistake.machine]

    def set_up(self):
        right = {**RAW, "mesh": {"network": ["10.77.0.0/16"], "cluster_key": KEY}}
        for place, machine in enumerate(self.machines):
            config = right
            if place == 1 or self.mistake.both:
                config = self._filled(merged(right, self.mistake.config), machine)
            if place == 1:
                self._in(machine, self.mistake.prepare)
                if self.mistake.name == "port in use":
                    machine.start([sys.executable, "-c", "import socket, time\ns = socket.create_server(("
                                   f"'{machine.address}', 7700))\ntime.sleep(1000)"])
                    self._wait_for_port(machine)
            self._start(place, machine, config)
        for machine in self.machines if self.mistake.both else self.machines[1:]:
            self._in(machine, self.mistake.break_later)

    def _wait_for_port(self, machine):
        look = f"import socket; socket.create_connection(('{machine.address}', 7700)).close()"
        deadline = time.monotonic() + 10
        while machine.run([sys.executable, "-c", look], capture_output=True).returncode != 0:
            assert time.monotonic() < deadline, "the port was not taken"

    @staticmethod
    def _mesh_port(daemon):
        """Of the line that says what it serves, which may come a moment after it is ready."""
        deadline = time.monotonic() + 5
        while "mesh=" not in daemon.log():
            assert time.monotonic() < deadline, "the daemon does not say where it listens"
            time.sleep(0.01)
        return daemon.log().split("mesh=")[1].split()[0].rsplit(":", 1)[1]

    @staticmethod
    def _filled(config, machine):
        text = json.dumps(config).replace("{address}", machine.address)
        config = json.loads(text)
        config["mesh"] = {key: value for key, value in config["mesh"].items() if value is not None}
        return config

    @staticmethod
    def _in(machine, command):
        if command:
            subprocess.run(machine.command(["sh", "-c", command]), check=True, capture_output=True)

    def _start(self, place, machine, config):
        program = None if place == 0 or self.mistake.program == "cgxd" else other_version(self.directory)
        try:
            if place == 1 and not self.mistake.daemon:
                raise RuntimeError("not started")
            self.daemons.append(NamedDaemon(machine, self.directory, config, self.hosts[place], program))
        except RuntimeError as error:
            if place == 0 or (self.mistake.starts and self.mistake.daemon):
                raise
            self.refusal = str(error)

    def place_of(self, place, name):
        return os.path.join(self.directory, f"machine{self.machines[place].index}", name)

    def ask_doctor(self):
        place = self.mistake.doctor_on
        other = self.machines[1 - place].address
        port = f":{MESH_PORT}" if "listen" in self.mistake.config.get("mesh", {}) else ""
        if not port and len(self.daemons) == 2:
            port = ":" + self._mesh_port(self.daemons[1 - place])
        config = ["--config", self.place_of(place, "cgxd.yaml")] if os.path.exists(self.place_of(place, "cgxd.yaml")) else []
        user = ["setpriv", f"--reuid={self.mistake.uid}", f"--regid={self.mistake.uid}", "--clear-groups"]
        command = [*named(self.hosts[place]), *(user if self.mistake.uid else []), binary("cgxctl"),
                   "-a", self.place_of(place, "control.sock"), "doctor", other + port, *config]
        began = time.monotonic()
        self.doctor = self.machines[place].run(command, capture_output=True, text=True, timeout=60)
        self.doctor_s = time.monotonic() - began

    def start_job(self):
        """Two ranks, forks of this process, which has imported torch."""
        pipes = []
        for rank in (0, 1):
            reading, writing = multiprocessing.Pipe(duplex=False)
            process = multiprocessing.get_context("fork").Process(target=self._rank, args=(rank, writing), daemon=True)
            process.start()
            writing.close()
            pipes.append((process, reading))
        self._ranks = pipes

    def finish_job(self, deadline):
        for rank, (process, reading) in enumerate(self._ranks):
            if reading.poll(max(deadline - time.monotonic(), 0)):
                with contextlib.suppress(EOFError):
                    self.answers[rank] = reading.recv()
            process.join(max(deadline - time.monotonic(), 0.1))
            if process.is_alive():
                process.kill()
                process.join()

    def _rank(self, rank, writing):
        machine, uid = self.machines[rank], self.mistake.uid if rank == 1 else 0
        _libc.setns(os.open(f"/run/netns/{machine.netns}", os.O_RDONLY), CLONE_NEWNET)
        _libc.unshare(CLONE_NEWUTS)
        socket.sethostname(self.hosts[rank])
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.environ.update(CGX_SOCKET=self.place_of(rank, "cgxd.sock"), GLOO_SOCKET_IFNAME="eth0", CGX_JOB="mistake",
                          MASTER_ADDR=self.machines[0].address, MASTER_PORT="29500", RANK=str(rank), WORLD_SIZE="2")
        writing.send(train(rank))
        os._exit(0)


def train(rank):
    """One step of a small model; (seconds from the hook on, what it failed with)."""
    import torch
    import torch.distributed as dist
    import cgx.torch
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40))
    began = time.monotonic()
    try:
        cgx.torch.register(model)
        model(torch.ones(1, 40)).sum().backward()
    except Exception as error:
        return time.monotonic() - began, f"{type(error).__name__}: {error}"
    return time.monotonic() - began, ""


def load_torch():
    """Before the ranks are forked."""
    sys.path.insert(0, os.path.join(ROOT, "client", "python"))
    os.environ["CGX_LIBRARY"] = os.path.join(BUILD, "lib", "libcgx.so")
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import cgx.torch  # noqa: F401
    torch.set_num_threads(1)


def in_parallel(actions):
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def have_what_it_takes():
    return all(shutil.which(name) for name in ("unshare", "setpriv", "ip"))
