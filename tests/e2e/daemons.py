"""Starts cgxd on machines for tests, benchmarks and the quickstart, and asks cgxctl about it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("CGX_BUILD_DIR", os.path.join(ROOT, "build", "release"))
MESH_PORT = 7700
SLOWER = 3 if os.path.basename(BUILD) in ("asan", "tsan") else 1  # what a sanitizer makes of a limit in seconds
TRANSPORT = os.environ.get("CGX_TEST_TRANSPORT")  # for daemons that are told nothing else; None: their own default


def binary(name, build=None):
    return os.path.join(build or BUILD, "bin", name)


def python_environment(**more):
    """What a trainer needs to import this tree's cgx package and find its library."""
    path = os.pathsep.join([os.path.join(ROOT, "client", "python"), os.environ.get("PYTHONPATH", "")]).rstrip(":")
    return dict(os.environ, PYTHONPATH=path, CGX_LIBRARY=os.path.join(BUILD, "lib", "libcgx.so"), **more)


def merged(base, changes):
    """`changes` laid over `base`, section by section."""
    result = dict(base)
    for key, value in (changes or {}).items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


class Daemon:
    """One cgxd on one machine, in a run directory of its own below `directory`."""

    def __init__(self, machine, directory, config=None, port=None, prefix=(), build=None,
                 own_mesh=False):
        """own_mesh: nothing of `mesh` and `transport` is set but what `config` says."""
        self.machine = machine
        self.build = build  # None: BUILD
        self.directory = os.path.join(directory, f"machine{machine.index}")
        os.makedirs(self.directory, mode=0o755, exist_ok=True)
        self.socket = os.path.join(self.directory, "cgxd.sock")
        self.control = os.path.join(self.directory, "control.sock")
        self.config_path = os.path.join(self.directory, "cgxd.yaml")
        self.log_path = os.path.join(self.directory, "cgxd.log")
        port = port or (MESH_PORT if machine.netns else free_port(machine.address))
        network = machine.address.rsplit(".", 1)[0] + ".0/24"
        edges = {"mesh": {"listen": f"{machine.address}:{port}", "trusted_networks": [network]},
                 "transport": {"devices": [machine.interface]} if machine.netns else {}}
        if TRANSPORT:
            edges["transport"]["name"] = TRANSPORT
        self.config = merged({"run_directory": self.directory, **({} if own_mesh else edges)}, config)
        self.prefix = prefix  # of its command line
        self.process = None
        self.start()

    def start(self):
        """Returns when the daemon says it is ready, as it would to systemd."""
        with open(self.config_path, "w", encoding="utf-8") as file:
            json.dump(self.config, file, indent=1)  # JSON is YAML
        notify_path = os.path.join(self.directory, "notify")
        with open(self.log_path, "a", encoding="utf-8") as log, \
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(notify_path)
            notify.bind(notify_path)
            os.chmod(notify_path, 0o777)  # the daemon may be another user's
            notify.settimeout(0.1)
            self.process = self.machine.start([*self.prefix, binary("cgxd", self.build), "--config", self.config_path],
                                              env=dict(os.environ, NOTIFY_SOCKET=notify_path),
                                              stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self._wait_until_ready(notify)

    def _wait_until_ready(self, notify, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"cgxd on machine {self.machine.index} ended with {self.process.returncode}:\n"
                                   + self.log())
            with contextlib.suppress(TimeoutError):
                if b"READY=1" in notify.recv(4096):
                    return
        raise TimeoutError(f"cgxd on machine {self.machine.index} is not ready after {timeout_s:.0f} s:\n{self.log()}")

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def control_tool(self, *arguments, check=True):
        """cgxctl with JSON output: the parsed answer, or (with check=False) the finished process."""
        done = self.machine.run([binary("cgxctl", self.build), "--socket", self.control, "-o", "json", *arguments],
                                capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if not check:
            return done
        if done.returncode != 0:
            raise RuntimeError(f"cgxctl {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def counters(self):
        answer = self.control_tool("counters")
        return {c["name"]: int(c.get("value", 0)) for c in answer.get("counters", [])}

    def cpu_seconds(self):
        return cpu_seconds(self.process.pid)

    def minor_faults(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            return int(file.read().rsplit(")", 1)[1].split()[7])


@contextlib.contextmanager
def stopped(process):
    """Begins when the last of its threads has stopped: until then some still run, and take in what is sent."""
    freeze(process)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def freeze(process):
    """Returns when the last of its threads has stopped."""
    process.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])


def cpu_seconds(pid):
    """CPU time of all threads that a process has, to the nanosecond."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), \
                open(f"/proc/{pid}/task/{task}/schedstat", encoding="utf-8") as file:
            total += int(file.read().split()[0])
    return total * 1e-9


def free_port(address):
    with socket.create_server((address, 0)) as probe:
        return probe.getsockname()[1]
