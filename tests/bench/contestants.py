"""Who takes part in a benchmark: each contestant is one allreduce implementation, running as one process per rank.

Workers live from start() to close(), so that rounds of several contestants can be interleaved; between rounds they
sleep in read(). A worker connects to the runner's Unix socket, names its rank, and answers commands (see command.h).
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import tempfile
import time

from machines import core_of, end_processes

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = "/usr/bin/python3"
CONGESTION_WISHED = "cubic"
# What glibc does by default (mmap and unmap per large allocation) costs the peers up to 1.7x; both are run tuned.
MALLOC_TUNED = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}
BYTES_MAX = 256 << 20


def settable_congestion(name):
    """The algorithm if this process may give it to a socket, else what a socket has anyway."""
    with socket.socket() as probe:
        with contextlib.suppress(OSError):
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        return probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()


CONGESTION = settable_congestion(CONGESTION_WISHED)


class Channel:
    """The runner's end of the workers' sockets."""

    def __init__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="cgx-bench-")
        self.path = os.path.join(self._directory.name, "commands")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self.workers = {}  # rank -> (stream, pid)

    def wait_for(self, ranks, processes, timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while len(self.workers) < ranks:
            for process in processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{process.args} ended with {process.returncode} before its ranks were ready")
            if time.monotonic() > deadline:
                raise TimeoutError(f"only ranks {sorted(self.workers)} of {ranks} connected in {timeout_s:.0f} s")
            if select.select([self._listener], [], [], 0.2)[0]:
                stream = self._listener.accept()[0].makefile("rw")
                _, rank, _, pid = stream.readline().split()
                self.workers[int(rank)] = (stream, int(pid))

    def ask(self, command):
        """Sends one command to every rank and returns the replies in rank order."""
        streams = [self.workers[rank][0] for rank in sorted(self.workers)]
        for stream in streams:
            stream.write(command + "\n")
            stream.flush()
        replies = [stream.readline() for stream in streams]
        for rank, reply in enumerate(replies):
            if not reply:
                raise RuntimeError(f"rank {rank} ended during '{command}'")
        return [json.loads(reply) for reply in replies]

    def close(self):
        for stream, _ in self.workers.values():
            with contextlib.suppress(OSError):
                stream.write("quit\n")
                stream.flush()
                stream.close()
        self._listener.close()
        self._directory.cleanup()


class Contestant:
    """Base: subclasses start their workers; `name` is what the table and the JSON call it."""

    name = ""
    scale = 1.0         # result = scale * sum, for the check
    tolerance = 1e-5    # largest error of the first result, in units of the data (values in (-1, 1))

    def __init__(self, machines, ranks_per_machine, bytes_max=BYTES_MAX, tuned=True):
        self.machines, self.ranks_per_machine, self.bytes_max = machines, ranks_per_machine, bytes_max
        self.ranks = len(machines) * ranks_per_machine
        self.tuned = tuned
        self.processes = []
        self.channel = Channel()
        try:
            self.start()
            self.channel.wait_for(self.ranks, self.processes)
        except BaseException:
            self.close()
            raise

    def start(self):
        raise NotImplementedError

    def machine_of(self, rank):
        return self.machines[rank // self.ranks_per_machine]

    def environment(self, **more):
        environment = dict(os.environ, OMP_NUM_THREADS="1", **(MALLOC_TUNED if self.tuned else {}))
        environment.update(more)
        return environment

    def spawn(self, machine, argv, **options):
        self.processes.append(machine.start(argv, stdin=subprocess.DEVNULL, **options))

    def measure(self, size, repetitions, warmup=2):
        """One round: every rank runs the allreduce; returns the slowest rank's time per repetition, in us."""
        replies = self.channel.ask(f"allreduce {size} {repetitions} {max(1, warmup)}")
        worst = max(reply["error"] for reply in replies)
        if not worst <= self.tolerance * self.ranks * self.scale:
            raise RuntimeError(f"{self.name}: {size} bytes: wrong result, error {worst:g}")
        times = [max(at) for at in zip(*(reply["us"] for reply in replies))]
        return {"us": times, "cpu_s": sum(reply["cpu_s"] for reply in replies),
                "faults": max(reply["faults"] for reply in replies), "error": worst}

    def close(self):
        self.channel.close()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3.0)
        end_processes(self.processes)


def peer_preload(build):
    return os.path.join(build, "lib", "libcongestion_preload.so")


class Gloo(Contestant):
    name = "gloo"

    def start(self):
        for rank in range(self.ranks):
            machine = self.machine_of(rank)
            environment = self.environment(
                RANK=str(rank), WORLD_SIZE=str(self.ranks), MASTER_ADDR=self.machines[0].address, MASTER_PORT="29400",
                GLOO_SOCKET_IFNAME=machine.interface, CGX_BENCH_CONGESTION=CONGESTION,
                LD_PRELOAD=peer_preload(self.machines.build))
            self.spawn(machine, [PYTHON, os.path.join(HERE, "gloo_peer.py"), self.channel.path], env=environment)


class OpenMpi(Contestant):
    """Over TCP across machines, over shared memory (vader) on one."""

    name = "openmpi"

    def start(self):
        if len(self.machines) > 1:
            transport = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", self.machines[0].interface]
        else:
            transport = ["--mca", "btl", "vader,self"]
        isolated = self.machines.isolated
        hosts = ",".join(f"{m.netns if isolated else 'localhost'}:{self.ranks_per_machine}" for m in self.machines)
        environment = self.environment(CGX_BENCH_CONGESTION=CONGESTION)
        if self.machines.one_core_each:
            environment["CGX_BENCH_CORES"] = ",".join(str(core_of(m.index)) for m in self.machines)
        exports = [x for name in environment if name.startswith("MALLOC_") for x in ("-x", name)]
        command = ["mpirun", "--bind-to", "none", "--host", hosts, "-np", str(self.ranks), "--mca", "pml", "ob1",
                   "--mca", "mpi_yield_when_idle", "1" if self.ranks > os.cpu_count() else "0", *transport, *exports,
                   "-x", "CGX_BENCH_CONGESTION", "-x", f"LD_PRELOAD={peer_preload(self.machines.build)}"]
        if os.geteuid() == 0:
            command.insert(1, "--allow-run-as-root")
        if isolated:
            first = self.machines[0].netns
            command += ["--mca", "plm_rsh_agent", os.path.join(HERE, "netns_rsh"),
                        "--mca", "oob_tcp_if_include", self.machines[0].interface]
            command = ["unshare", "--uts", "--", "sh", "-c", f"hostname {first}; exec \"$@\"", "sh", *command]
        worker = [os.path.join(self.machines.build, "bin", "mpi_peer"), self.channel.path, str(self.bytes_max)]
        self.spawn(self.machines[0], command + worker, env=environment)
