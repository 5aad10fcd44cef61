"""cgxd as a contestant: a daemon per machine and one worker (cgx_worker.c) per rank."""

import os
import tempfile

import daemons
from contestants import CONGESTION, Contestant

FP32 = {"codec": "fp32"}
DEFAULT = {}  # the default policy: 4 bits


def tolerance_of(policy):
    """4 bits over a range below 2, encoded twice; stochastic rounding errs by less than one unit each time."""
    return 1e-5 if policy.get("codec") == "fp32" else 2 * 2.0 / 14


class Cgxd(Contestant):
    name = "cgxd"
    port = None  # of the mesh; None: as usual

    def __init__(self, machines, ranks_per_machine, bytes_max, policy=None, config=None, build=None):
        self.build = build  # None: today's
        ranks = len(machines) * ranks_per_machine
        self.scale = 1.0 / ranks
        self.policy = DEFAULT if policy is None else policy
        self.tolerance = tolerance_of(self.policy)
        self.config = daemons.merged({"transport": {"congestion_control": CONGESTION, "name": "ucx"}, "policy": self.policy}, config)
        self.daemons = []
        self._directory = tempfile.TemporaryDirectory(prefix="cgx-bench-")
        super().__init__(machines, ranks_per_machine, bytes_max)

    def start(self):
        for machine in self.machines:
            daemon = daemons.Daemon(machine, self._directory.name, self.config, port=self.port, build=self.build)
            self.daemons.append(daemon)
        self.start_ranks(self.daemons)

    def start_ranks(self, through, job=None):
        for rank in range(self.ranks):
            machine = self.machine_of(rank)
            argv = [daemons.binary("cgx_worker", self.build), self.channel.path, self._directory.name, str(rank),
                    str(self.ranks), str(self.bytes_max), *([job] if job else [])]
            self.spawn(machine, argv, env=dict(os.environ, CGX_SOCKET=through[machine.index].socket))

    def measure(self, size, repetitions, warmup=2):
        """Adds what the daemons used. The warm-up is theirs too, so their CPU time is scaled to the repetitions."""
        before = [(d.cpu_seconds(), d.minor_faults()) for d in self.daemons]
        sample = super().measure(size, repetitions, warmup)
        after = [(d.cpu_seconds(), d.minor_faults()) for d in self.daemons]
        share = repetitions / (repetitions + max(1, warmup))
        sample["cpu_s"] += share * sum(a[0] - b[0] for a, b in zip(after, before))
        sample["daemon_faults"] = max((a[1] - b[1] for a, b in zip(after, before)), default=0)
        return sample

    def close(self):
        super().close()
        for daemon in self.daemons:
            daemon.process.terminate()
            daemon.process.wait(10)
        self._directory.cleanup()


class CgxdPieces(Cgxd):
    """The same bytes as equal tensors."""

    def __init__(self, machines, name, pieces, policy, port, bytes_max):
        self.name, self.pieces, self.port = name, pieces, daemons.MESH_PORT + port
        super().__init__(machines, 1, bytes_max, policy)

    def start_ranks(self, through, job=None):
        for rank in range(self.ranks):
            machine = self.machine_of(rank)
            argv = [daemons.binary("cgx_worker", self.build), self.channel.path, self._directory.name, str(rank),
                    str(self.ranks), str(self.bytes_max), job or "bench", str(self.pieces)]
            self.spawn(machine, argv, env=dict(os.environ, CGX_SOCKET=through[machine.index].socket))


class CgxdUnrecorded(Cgxd):
    """Records nothing."""

    name = "unrecorded"
    port = daemons.MESH_PORT + 3

    def __init__(self, machines, bytes_max):
        super().__init__(machines, 1, bytes_max, config={"recorder": {"events": 0}})


class CgxdTcp(Cgxd):
    """Beside the same over UCX, and beside other seals."""

    NAMES = {"link": "cgxd-tcp", "frame": "cgxd-tcp-frame", "encrypt": "cgxd-tcp-encrypt"}

    def __init__(self, machines, ranks_per_machine, bytes_max, policy=None, seal="link"):
        self.name = self.NAMES[seal]
        self.port = daemons.MESH_PORT + 2 * (1 + list(self.NAMES).index(seal))
        super().__init__(machines, ranks_per_machine, bytes_max, policy, {"transport": {"name": "tcp", "seal": seal}})


class InProcess(Contestant):
    """The same engine, codecs and transport in the rank's own process (inprocess.cc), on memfd pages too."""

    name = "inprocess"

    def __init__(self, machines, bytes_max):
        self.scale = 1.0 / len(machines)
        self.tolerance = tolerance_of(DEFAULT)
        self._directory = tempfile.TemporaryDirectory(prefix="cgx-bench-")
        super().__init__(machines, 1, bytes_max)

    def start(self):
        for rank in range(self.ranks):
            machine = self.machine_of(rank)
            argv = [daemons.binary("bench_inprocess"), self.channel.path, self._directory.name, str(rank),
                    str(self.ranks), str(self.bytes_max), machine.interface if machine.netns else ""]
            self.spawn(machine, argv, env=dict(os.environ, CGX_BENCH_CONGESTION=CONGESTION))

    def overlap(self, size):
        """Share of machine 0's frames handed over before the one before them had arrived at machine 1.

        A shaper's burst refunds idle gaps, so wall time alone does not show that encoding and sending overlap."""
        self.channel.ask(f"forget {size}")
        traces = self.channel.ask(f"trace {size}")
        sent, received = traces[0]["sent_ns"], traces[1]["received_ns"]
        if len(sent) != len(received) or len(sent) < 2:
            raise RuntimeError(f"{len(sent)} frames were sent, {len(received)} arrived")
        early = sum(following < arrived for following, arrived in zip(sent[1:], received))
        return early / (len(sent) - 1)

    def close(self):
        super().close()
        self._directory.cleanup()
