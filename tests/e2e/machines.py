"""Machines for tests, benchmarks and the quickstart: network namespaces on one bridge, or loopback addresses.

As root `Machines(n)` makes n network namespaces, each with one interface `eth0`, joined by a bridge that lives in a
namespace of its own, and can shape every link like a slow network. Without root it hands out 127.0.0.2, 127.0.0.3, ...
and says so (`isolated` is False): same programs, no shaping, no byte counters.

Rules: everything made here carries this process's id in its name and is removed on exit, on SIGINT and on SIGTERM;
what a killed run left behind is removed by the next one. Processes started here die with this process.
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

# Shapes that let TCP reach 95 % of the nominal rate: a burst must hold several 64 KiB GSO packets.
SHAPES = {
    "unshaped": None,
    "300kbit-8s": ("rate", "300kbit", "burst", "8kb", "latency", "8s"),  # a queue of eight seconds
    "100mbit": ("rate", "100mbit", "burst", "128kb", "latency", "200ms"),
    "500mbit": ("rate", "500mbit", "burst", "128kb", "latency", "50ms"),
    "1gbit": ("rate", "1gbit", "burst", "256kb", "latency", "50ms"),
    "10gbit": ("rate", "10gbit", "burst", "1mb", "latency", "50ms"),
}
PREFIX = "cgx-net"
INTERFACE = "eth0"
PR_SET_PDEATHSIG = 1
# Of packet filters: where a random word is read from, and what becomes of a packet.
RANDOM_WORD, DROP, PASS = 0xFFFFF000 + 56, 2, 0
_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def isolation_possible():
    """Root may make no namespaces in many a container, and not every kernel has bridges and shapers: it is tried once."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"{PREFIX}-{os.getpid()}-try"
    subprocess.run(["ip", "netns", "del", name], capture_output=True)  # of an earlier process of this number
    try:
        _ip("netns", "add", name)
        _ip("link", "add", "br0", "type", "bridge", netns=name)
        _ip("link", "add", "port0", "type", "veth", "peer", "name", INTERFACE, netns=name)
        tried = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "port0", "root", "tbf", *SHAPES["1gbit"]],
                               capture_output=True, text=True)
        if tried.returncode != 0:
            raise RuntimeError(tried.stderr.strip())
        return True
    except RuntimeError as refused:
        if not re.search("not permitted|Permission denied|not supported|Unknown device|Specified qdisc", str(refused)):
            raise
        print(f"no network namespaces: {refused}", file=sys.stderr)
        return False
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _ip(*arguments, netns=None):
    command = ["ip"] + (["-n", netns] if netns else []) + list(arguments)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _tc(*arguments, netns):
    subprocess.run(["tc", "-n", netns, *arguments], check=True, capture_output=True)


def _reap_stale():
    """Removes namespaces of runs whose process is gone."""
    for name in os.listdir("/run/netns") if os.path.isdir("/run/netns") else []:
        parts = name.rsplit("-", 2)
        if len(parts) == 3 and parts[0] == PREFIX and parts[1].isdigit():
            if not os.path.exists(f"/proc/{parts[1]}"):
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def core_of(index):
    """The core of a machine that has one to itself, or as nearly as there are cores."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[index % len(cores)]


class Machine:
    """One machine: an address, a way to start processes on it, and the bytes that crossed its link."""

    def __init__(self, owner, index, address, netns):
        self.index, self.address, self.netns = index, address, netns
        self.interface = INTERFACE if netns else "lo"
        self.port = f"port{index}"  # the other end of its link, in the switch
        self._owner = owner

    @property
    def switch(self):
        """The namespace of the bridge."""
        return self._owner.switch

    def command(self, argv):
        """The command line that runs argv here; the process keeps its pid (nsenter and env exec)."""
        return ["nsenter", f"--net=/run/netns/{self.netns}", "--", *argv] if self.netns else list(argv)

    def start(self, argv, **options):
        """Popen in this machine, in a session of its own; it is ended with the machines."""
        options.setdefault("start_new_session", True)
        process = subprocess.Popen(self.command(argv), preexec_fn=self._begin, **options)
        self._owner.processes.append(process)
        return process

    def _begin(self):
        _die_with_parent()
        if self._owner.one_core_each:
            os.sched_setaffinity(0, {core_of(self.index)})

    def run(self, argv, **options):
        return subprocess.run(self.command(argv), **options)

    def counters(self):
        """Bytes the interface has sent and received, or None where links are not our own."""
        if not self.netns:
            return None
        stats = json.loads(_ip("-s", "-j", "link", "show", self.interface, netns=self.netns))[0]["stats64"]
        return {"tx": stats["tx"]["bytes"], "rx": stats["rx"]["bytes"],
                "tx_packets": stats["tx"]["packets"], "rx_packets": stats["rx"]["packets"]}


class Machines:
    """`with Machines(2, shape="1gbit") as machines: machines[0].start([...])`.

    one_core_each (of namespaces): what starts on a machine stays on its core, as if the others' work were done elsewhere.
    """

    def __init__(self, count, shape="unshaped", isolate=None, one_core_each=False):
        self.isolated = isolation_possible() if isolate is None else isolate
        self.one_core_each = one_core_each and self.isolated
        self.processes = []
        self.switch = None
        self._namespaces = []
        self._closed = False
        self._previous = {}
        if not self.isolated:
            self._machines = [Machine(self, i, f"127.0.0.{i + 2}", None) for i in range(count)]
            return
        _reap_stale()
        self._arm_cleanup()
        try:
            self.switch = self._add_namespace("sw")
            _ip("link", "add", "br0", "type", "bridge", netns=self.switch)
            _ip("link", "set", "br0", "up", netns=self.switch)
            self._machines = [self._add_machine(i) for i in range(count)]
            self.shape(shape)
        except BaseException:
            self.close()
            raise

    def _arm_cleanup(self):
        atexit.register(self.close)
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: atexit has to do
                self._previous[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number, _frame):
        self.close()
        sys.exit(128 + number)

    def _add_namespace(self, suffix):
        name = f"{PREFIX}-{os.getpid()}-{suffix}"
        _ip("netns", "add", name)
        self._namespaces.append(name)
        return name

    def _add_machine(self, index):
        netns, port = self._add_namespace(f"m{index}"), f"port{index}"
        address = f"10.77.0.{index + 1}"
        _ip("link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", netns, netns=self.switch)
        _ip("link", "set", port, "master", "br0", "up", netns=self.switch)
        _ip("link", "set", "lo", "up", netns=netns)
        _ip("addr", "add", f"{address}/24", "dev", INTERFACE, netns=netns)
        _ip("link", "set", INTERFACE, "up", netns=netns)
        return Machine(self, index, address, netns)

    def shape(self, name):
        """Shapes both ends of every link: SHAPES names what there is."""
        if not self.isolated:
            return
        ends = [(m.netns, INTERFACE) for m in self._machines]
        ends += [(self.switch, f"port{m.index}") for m in self._machines]
        for netns, device in ends:
            subprocess.run(["tc", "-n", netns, "qdisc", "del", "dev", device, "root"], capture_output=True)
            if SHAPES[name]:
                subprocess.run(["tc", "-n", netns, "qdisc", "add", "dev", device, "root", "tbf", *SHAPES[name]],
                               check=True)

    def lose(self, machine, share):
        """Of the packets to and from a machine `share` are lost on the way; 0: none, 1: a cut nobody is told of."""
        port = f"port{machine.index}"
        subprocess.run(["tc", "-n", self.switch, "qdisc", "del", "dev", port, "clsact"], capture_output=True)
        if share == 0:
            return
        _tc("qdisc", "add", "dev", port, "clsact", netns=self.switch)
        # Socket filter code, there being no netem everywhere: drop where a random word is above the limit.
        limit = int((1 - share) * 0xFFFFFFFF)
        code = f"4,32 0 0 {RANDOM_WORD},37 0 1 {limit},6 0 0 {DROP},6 0 0 {PASS}"
        for way in ("ingress", "egress"):
            _tc("filter", "add", "dev", port, way, "bpf", "da", "bytecode", code, netns=self.switch)

    def describe(self):
        if self.isolated:
            return f"{len(self)} network namespaces joined by a bridge"
        return (f"{len(self)} loopback addresses: not root, or no namespaces to be had, so the link is not shaped "
                "and bytes on it are not counted")

    def close(self):
        if self._closed:
            return
        self._closed = True
        end_processes(self.processes)
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        for number, handler in self._previous.items():
            with contextlib.suppress(ValueError):
                signal.signal(number, handler)
        atexit.unregister(self.close)

    def __len__(self):
        return len(self._machines)

    def __getitem__(self, index):
        return self._machines[index]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def end_processes(processes, grace_s=3.0):
    """SIGTERM to each session, SIGKILL to what is left after the grace."""
    alive = [p for p in processes if p.poll() is None]
    for process in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for process in alive:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in alive:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
