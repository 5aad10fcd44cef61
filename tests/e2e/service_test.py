"""cgxd as a service: reload, watchdog, what its log tells, what --check-config sees, the confinement of its unit."""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from cluster_case import RAW, ClusterCase, stop
from daemons import ROOT, Daemon, binary, merged
from machines import Machines

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000  # of waitpid: threads of other processes, too
UNIT_USER = 54321
ONE = 0  # machine
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


def lines_of(daemon):
    """The log's JSON lines."""
    return [json.loads(line) for line in daemon.log().splitlines() if line.startswith("{") and line.endswith("}")]


class Service(ClusterCase):
    CONFIG = merged(RAW, {"log": {"format": "json"}})

    def lines(self, daemon, message, **fields):
        return [line for line in lines_of(daemon) if line["message"] == message
                and all(line.get(key) == value for key, value in fields.items())]

    def wait_for_line(self, daemon, message, **fields):
        self.wait_until(lambda: self.lines(daemon, message, **fields), f"the line '{message}' {fields}")
        return self.lines(daemon, message, **fields)[-1]

    def reload(self, daemon, changes, text=None):
        """Returns the lines that it made."""
        before = len(lines_of(daemon))
        with open(daemon.config_path, "w", encoding="utf-8") as file:
            file.write(json.dumps(merged(daemon.config, changes)) if text is None else text)
        daemon.process.send_signal(signal.SIGHUP)
        ends = ("reloaded", "reload refused, nothing is changed")
        self.wait_until(lambda: any(line["message"] in ends for line in lines_of(daemon)[before:]), "the reload")
        return lines_of(daemon)[before:]

    def test_a_reload_takes_over_what_may_change_and_names_the_rest(self):
        daemon = self.daemons[ONE]
        running = self.job([0, 1])
        comm = running.join()
        running.step(comm, 1)
        lines = self.reload(daemon, {"policy": {"window": 7}, "metrics": {"port": 9777},
                                     "timeouts": {"late_warning_ms": 300}})
        changed = {line["key"]: (line["from"], line["to"]) for line in lines if "from" in line}
        self.assertEqual(changed, {"policy.window": ("4", "7"), "timeouts.late_warning_ms": ("5 s", "300 ms")})
        waiting = [line["key"] for line in lines if "until the daemon is restarted" in line["message"]]
        self.assertEqual(waiting, ["metrics.port"])
        running.step(comm, 2)
        window = daemon.control_tool("policy", "get", "-j", running.name)["policy"]["window"]
        self.assertEqual(window, 4, "it began before")
        later = self.job([0, 1])
        comm = later.join()
        self.assertEqual(daemon.control_tool("policy", "get", "-j", later.name)["policy"]["window"], 7)
        later.submit(comm, 1, [0])
        self.wait_until(lambda: re.search(r"rank 1\b", daemon.log()), "the warning after 0.3 s")
        later.submit(comm, 1, [1])
        later.must("wait", comm, 1)
        self.reload(daemon, {})

    def test_a_wrong_file_changes_nothing_and_says_why(self):
        daemon = self.daemons[ONE]
        for text, said in (('{"policy": {"window": 9999}}', ("policy.window", "9999", "1 to 64", daemon.config_path + ":1")),
                           ('{"polcy": {}}', ("polcy", "did you mean policy?")),
                           ('{"policy": {"codec": "maxmin:77"}}', ("policy.codec", "77")),
                           ('{"policy": ', ("not YAML",)),
                           ('{"client": {"socket_group": "nobody-here"}, "policy": {"codec": "fp32", "window": 9}}', ("socket_group",))):
            with self.subTest(text):
                lines = self.reload(daemon, None, text)
                if "socket_group" in said:  # it waits for a restart, where it will be refused
                    self.assertIn("client.socket_group", [line.get("key") for line in lines])
                    self.reload(daemon, {})
                    continue
                refused = [line for line in lines if line["message"].startswith("reload refused")]
                self.assertEqual(len(refused), 1, lines)
                for part in said:
                    self.assertIn(part, refused[0]["cause"])
        os.unlink(daemon.config_path)
        before = len(lines_of(daemon))
        daemon.process.send_signal(signal.SIGHUP)
        self.wait_until(lambda: "cannot read" in str(lines_of(daemon)[before:]), "the refusal")
        self.reload(daemon, {})
        self.assert_daemons_serve()

    def test_a_file_that_was_cut_off_leaves_gradients_exact(self):
        daemon = self.daemons[ONE]
        for text, said in (("", "says nothing"), ("# cgxd\n", "says nothing"), ("policy:\n", ":1: policy: has nothing below it"),
                           ("log: {format: json}\n", "policy.codec: is no longer written")):
            with self.subTest(text):
                lines = self.reload(daemon, None, text)
                self.assertEqual([line["message"] for line in lines if line["message"] != "audit"],
                                 ["reload refused, nothing is changed"])
                self.assertIn(daemon.config_path, lines[-1]["cause"])
                self.assertIn(said, lines[-1]["cause"])
                self.assertIn("policy.codec", lines[-1]["cause"])
        later = self.job([0, 1])
        later.join()
        self.assertEqual(daemon.control_tool("policy", "get", "-j", later.name)["policy"]["codec"], "fp32")
        warned = [line["what"] for line in self.reload(daemon, {"policy": {"codec": "fp16"}}) if line["level"] == "warning"]
        self.assertEqual(warned, ["policy.codec: fp32 -> fp16"])
        self.reload(daemon, {})

    def test_the_log_tells_of_jobs_and_switches_on_every_machine(self):
        job = self.job([0, 1])
        comm = job.join()
        job.step(comm, 1)
        for daemon in self.daemons:
            begun = self.wait_for_line(daemon, "job begins", job=job.name)
            self.assertEqual(begun["uid"], os.getuid())
            ready = self.wait_for_line(daemon, "communicator is ready", job=job.name)
            self.assertEqual((ready["communicator"], ready["ranks"], ready["machines"], ready["tensors"]), ("grads", 2, 2, 3))
        self.daemons[1].control_tool("policy", "apply", "-j", job.name, "--set", "window=6", "--reason", "wider")
        for step in range(2, 6):
            job.step(comm, step)
        for daemon in self.daemons:
            line = self.wait_for_line(daemon, "policy is in force", job=job.name)
            self.assertEqual((line["version"], line["reason"]), (2, "wider"))
            self.assertIn(f"uid {os.getuid()} on ", line["by"])
        job.ranks[0].must("close")
        self.assertEqual(self.wait_for_line(self.daemons[0], "job ends", job=job.name)["level"], "info")
        job.ranks[1].kill()
        self.assertEqual(self.wait_for_line(self.daemons[1], "job ends", job=job.name)["level"], "warning")

    def test_it_says_why_it_stops_and_with_what_in_flight(self):
        with tempfile.TemporaryDirectory() as directory:
            daemon = Daemon(self.machines[ONE], directory, self.CONFIG, port=7811)
            self.wait_for_line(daemon, "cgxd 0.1.0 serves")
            self.assertEqual(stop(daemon), 0)
            stopping, stopped = self.lines(daemon, "stopping")[0], self.lines(daemon, "stopped")[0]
            self.assertIn(f"SIGTERM of process {os.getpid()}, uid {os.getuid()}", stopping["cause"])
            self.assertEqual((stopping["sessions"], stopping["in_flight"], stopped["drained"]), (0, "nothing", "yes"))

    def test_it_says_who_ended_it_whatever_the_level(self):
        with tempfile.TemporaryDirectory() as directory:
            daemon = Daemon(self.machines[ONE], directory, merged(self.CONFIG, {"log": {"level": "error"}}), port=7811)
            daemon.control_tool("drain", "--reason", "new kernel")
            self.assertEqual(daemon.process.wait(20), 0)
            self.assertEqual([line["message"] for line in lines_of(daemon)], ["audit", "stopping"])
            self.assertRegex(self.lines(daemon, "stopping")[0]["cause"], "^drain by uid .*: new kernel$")

    def test_one_whose_sockets_are_removed_says_so_and_leaves_the_next_one_its_own(self):
        """As a cleaner of /tmp does."""
        unfindable = "nobody finds this daemon any more: its socket was removed or replaced"
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as to_end:
            first = Daemon(self.machines[ONE], directory, self.CONFIG, port=7812)
            to_end.callback(first.process.kill)
            self.reload(first, {})
            for name in [name for name in os.listdir(first.directory) if ".sock" in name]:
                os.unlink(os.path.join(first.directory, name))
            second = Daemon(self.machines[ONE], directory, self.CONFIG, port=7813)  # with the same log
            to_end.callback(second.process.kill)
            for _ in range(2):
                self.reload(first, {})
                self.wait_for_line(first, unfindable, socket=first.control)
            self.assertEqual(stop(first), 0)
            self.assertEqual([line["socket"] for line in self.lines(first, unfindable)], [first.socket, first.control])
            self.assertEqual(second.control_tool("status")["role"], "operator")
            self.assertEqual(stop(second), 0)
            self.assertFalse([name for name in os.listdir(second.directory) if ".sock" in name])


class Watchdog(unittest.TestCase):
    @staticmethod
    def hears(manager, word, count):
        """Returns when it has come so often."""
        manager.settimeout(20)
        while count:
            count -= manager.recv(4096).decode() == word

    def heard(self, manager, seconds):
        """What the service manager hears within the time."""
        words, deadline = [], time.monotonic() + seconds
        while time.monotonic() < deadline:
            manager.settimeout(max(0.001, deadline - time.monotonic()))
            with contextlib.suppress(TimeoutError):
                words.append(manager.recv(4096).decode())
        return words

    def test_it_asks_for_the_time_that_its_drain_takes(self):
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(os.path.join(directory, "notify"))
            with subprocess.Popen([binary("cgxd"), "--set", f"run_directory={directory}/run", "--set", "timeouts.drain_ms=2 min"],
                                  env=dict(os.environ, NOTIFY_SOCKET=os.path.join(directory, "notify"))) as daemon:
                manager.settimeout(20)
                self.assertEqual(manager.recv(4096), b"READY=1")
                daemon.terminate()
                self.assertEqual(manager.recv(4096), b"STOPPING=1\nEXTEND_TIMEOUT_USEC=130000000")

    def thread_of(self, pid, name):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), \
                    open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8") as file:
                if file.read().strip() == name:
                    return int(task)
        return self.fail(f"no thread {name}")

    def stop_thread(self, pid, name):
        """It stands still; returns its number."""
        thread = self.thread_of(pid, name)
        self.assertEqual(_libc.ptrace(PTRACE_SEIZE, thread, None, None), 0, os.strerror(ctypes.get_errno()))
        self.addCleanup(self.let_go, thread)  # else a failure leaves what nobody can end
        self.assertEqual(_libc.ptrace(PTRACE_INTERRUPT, thread, None, None), 0)
        os.waitpid(thread, WALL)
        return thread

    @staticmethod
    def let_go(thread):
        """A dead one, too, of which its process would otherwise wait for us."""
        with contextlib.suppress(ChildProcessError):
            if _libc.ptrace(PTRACE_DETACH, thread, None, None) != 0:
                os.waitpid(thread, WALL)

    @unittest.skipUnless(os.geteuid() == 0, "stopping one thread of another process needs root")
    def test_it_ends_though_a_thread_does_not_after_ten_seconds_or_at_a_further_signal(self):
        for signalled, least_s, most_s in ((True, 0, 5), (False, 9.5, 20)):
            with self.subTest(signalled), tempfile.TemporaryDirectory() as directory:
                daemon = subprocess.Popen([binary("cgxd"), "--set", f"run_directory={directory}/run"], stderr=subprocess.PIPE, text=True)
                self.addCleanup(daemon.stderr.close)
                self.addCleanup(daemon.wait)
                self.addCleanup(daemon.kill)
                self.assertIn(" serves ", daemon.stderr.readline())
                thread = self.stop_thread(daemon.pid, "cgxd-planner")
                daemon.terminate()
                self.assertIn(" stopping ", daemon.stderr.readline())
                self.assertIn(" stopped drained=yes", daemon.stderr.readline())
                began = time.monotonic()
                limit = threading.Timer(30, daemon.kill)
                limit.start()
                self.addCleanup(limit.cancel)
                if signalled:
                    daemon.terminate()
                self.assertRegex(daemon.stderr.readline(), r"error ends without waiting for its threads any longer threads=.*cgxd-planner")
                self.let_go(thread)
                self.assertEqual(daemon.wait(20), 1)
                seconds = time.monotonic() - began
                self.assertTrue(least_s <= seconds <= most_s, f"{seconds} s")

    @unittest.skipUnless(os.geteuid() == 0, "stopping one thread of another process needs root")
    def test_it_is_silent_when_the_thread_that_moves_gradients_stands_still(self):
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(os.path.join(directory, "notify"))
            environment = dict(os.environ, NOTIFY_SOCKET=os.path.join(directory, "notify"), WATCHDOG_USEC="600000")
            daemon = subprocess.Popen([binary("cgxd"), "--set", f"run_directory={directory}/run"], env=environment,
                                      stderr=subprocess.PIPE, text=True)
            self.addCleanup(daemon.stderr.close)
            self.addCleanup(daemon.wait)
            self.addCleanup(daemon.kill)
            manager.settimeout(20)
            self.assertEqual(manager.recv(4096), b"READY=1")
            self.hears(manager, "WATCHDOG=1", 5)
            thread = self.stop_thread(daemon.pid, "cgxd-data")
            self.heard(manager, 0.5)  # what was under way
            self.assertEqual(self.heard(manager, 1.5), [])
            self.assertEqual(_libc.ptrace(PTRACE_DETACH, thread, None, None), 0)
            self.hears(manager, "WATCHDOG=1", 1)
            daemon.terminate()
            self.assertEqual(daemon.wait(20), 0)
            self.assertIn("the data thread does not answer", daemon.stderr.read())


class Closed(unittest.TestCase):
    """Programs that are started without standard descriptors: what they open first must not get their numbers."""

    def serve(self, closed):
        """A daemon, once it answers cgxctl."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.control = os.path.join(directory.name, "control.sock")
        daemon = subprocess.Popen(["sh", "-c", f'exec "$0" "$@" {closed}', binary("cgxd"), "--set", f"run_directory={directory.name}"],
                                  stderr=subprocess.DEVNULL)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        deadline = time.monotonic() + 20
        while self.ask("status").returncode != 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        return daemon

    def ask(self, *words, closed=""):
        return subprocess.run(["sh", "-c", f'exec "$0" "$@" {closed}', binary("cgxctl"), "--socket", self.control, *words],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)

    def test_the_log_of_a_daemon_goes_nowhere_and_not_into_its_memory_of_events(self):
        for closed in "0<&- 1>&- 2>&-", "2>&-":
            with self.subTest(closed):
                daemon = self.serve(closed)
                printed = [os.readlink(f"/proc/{daemon.pid}/fd/{each[0]}") for each in closed.split() if each[0] != "0"]
                self.assertEqual(set(printed), {"/dev/null"})  # gRPC takes number 0 before main, and leaves it
                daemon.send_signal(signal.SIGHUP)  # it writes lines
                for _ in range(5):
                    events = self.ask("events")
                    self.assertEqual((events.returncode, events.stderr), (0, ""))
                daemon.send_signal(signal.SIGTERM)
                self.assertEqual(daemon.wait(20), 0)

    def test_an_answer_of_cgxctl_that_goes_nowhere_is_an_error(self):
        self.serve("")
        for closed in "1>&-", "0<&- 1>&-":
            answer = self.ask("status", closed=closed)
            self.assertEqual((answer.returncode, answer.stderr), (1, "cgxctl: cannot write the answer\n"))


class CheckConfig(unittest.TestCase):
    def check(self, config):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "cgxd.yaml")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(merged({"run_directory": os.path.join(directory, "run")}, config), file)
            return subprocess.run([binary("cgxd"), "--check-config", path], capture_output=True, text=True, timeout=20)

    def test_it_names_all_that_this_machine_lacks(self):
        done = self.check({
            "client": {"socket_group": "nobody-here", "socket": "/nowhere/a.sock"},
            "mesh": {"key_file": "/nowhere/key", "listen": "198.51.100.1:7070"},
            "control": {"operators_group": "nor-here", "audit_file": "/nowhere/audit"},
            "transport": {"devices": ["eth77"]}, "metrics": {"address": "198.51.100.2", "port": 9464}})
        self.assertEqual(done.returncode, 1)
        for key, value in (("client.socket_group", "nobody-here"), ("client.socket", "/nowhere"), ("mesh.key_file", "/nowhere/key"),
                           ("mesh.listen", "198.51.100.1"), ("control.operators_group", "nor-here"),
                           ("control.audit_file", "/nowhere"), ("transport.devices", "eth77"),
                           ("metrics.address", "198.51.100.2")):
            self.assertRegex(done.stderr, rf"(?m)(^|: ){re.escape(key)}: .*{re.escape(value)}")

    def test_a_key_in_a_file_that_everybody_can_read_is_told_and_no_error(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "cgxd.yaml")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"run_directory": os.path.join(directory, "run"), "mesh": {"cluster_key": "0123456789abcdef"}}, file)
            for mode, said in ((0o644, rf"^cgxd: warning: mesh\.cluster_key: every user of this machine can read {path}; .*\n$"),
                               (0o640, "^$")):
                os.chmod(path, mode)
                done = subprocess.run([binary("cgxd"), "--check-config", path], capture_output=True, text=True, timeout=20)
                self.assertEqual(done.returncode, 0)
                self.assertRegex(done.stderr, said)
                self.assertNotIn("0123456789abcdef", done.stdout + done.stderr)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_a_key_file_of_root_is_told_to_root_and_refused_to_the_services_user_with_the_reason(self):
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o755)
            key, run = os.path.join(directory, "key"), os.path.join(directory, "run")
            with open(key, "w", encoding="utf-8") as file:
                file.write("0123456789abcdef\n")
            os.chmod(key, 0o600)
            os.mkdir(run)
            os.chown(run, UNIT_USER, UNIT_USER)
            words = ("--set", f"run_directory={run}", "--set", f"mesh.key_file={key}")
            checked = subprocess.run([binary("cgxd"), "--check-config", *words], capture_output=True, text=True, timeout=20)
            self.assertEqual(checked.returncode, 0)
            self.assertRegex(checked.stderr, rf"^cgxd: warning: mesh\.key_file: root can read {key}; .*\(User=\)\n$")
            user = ("setpriv", f"--reuid={UNIT_USER}", f"--regid={UNIT_USER}", "--clear-groups")
            started = subprocess.run([*user, binary("cgxd"), *words], capture_output=True, text=True, timeout=20)
            self.assertEqual(started.returncode, 1)
            self.assertIn(f"mesh.key_file: user {UNIT_USER} cannot read {key}: Permission denied", started.stderr)

    def refused_at_start(self, config):
        """What it says: the check, and the daemon itself."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "cgxd.yaml")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(merged({"run_directory": os.path.join(directory, "run")}, config), file)
            for words in ("--check-config", path), ("--config", path):
                done = subprocess.run([binary("cgxd"), *words], capture_output=True, text=True, timeout=20)
                self.assertEqual(done.returncode, 1, done.stderr)
                yield done.stderr

    def test_it_refuses_what_the_daemon_refuses_at_its_start(self):
        one_core = min(os.sched_getaffinity(0))
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {one_core})
        self.addCleanup(os.sched_setaffinity, 0, before)
        for config in ({"waiting": {"always_spin": True}}, {"arithmetic": {"threads": 2}}):
            checked, started = self.refused_at_start(config)
            self.assertEqual(checked, started)
            self.assertRegex(checked, r"waiting.always_spin needs at least|arithmetic.threads is 2, but")

    def test_contradictions_of_a_policy_are_named_with_their_keys(self):
        for policy, key in (({"gravac_min": 100, "gravac_max": 10}, "policy.gravac_min: 100 is above gravac_max"),
                            ({"rack_codec": "topk:0.01"}, "policy: rack_codec topk:0.01 leaves values out")):
            done = self.check({"policy": policy})
            self.assertEqual(done.returncode, 1)
            self.assertIn(key, done.stderr)

    def test_an_assignment_that_is_none_names_its_option(self):
        done = subprocess.run([binary("cgxd"), "--print-config", "--set", "foo"], capture_output=True, text=True, timeout=20)
        self.assertEqual((done.returncode, done.stderr), (1, 'cgxd: INVALID_ARGUMENT: --set: "foo" is not key=value\n'))

    def test_a_congestion_control_that_there_is_not_is_named(self):
        done = self.check({"transport": {"congestion_control": "foo"}})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"transport\.congestion_control: foo: No such file or directory; net\.ipv4\.tcp_avail")

    def test_a_port_of_gradients_that_is_taken_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            done = self.check({"transport": {"ports": f"{port}-{port}"}})
        self.assertEqual(done.returncode, 1)
        self.assertIn(str(port), done.stderr)

    def test_what_is_there_is_accepted(self):
        done = self.check({"client": {"socket_group": "daemon"}, "mesh": {"listen": "[::1]:0"}, "metrics": {"port": 9464},
                           "transport": {"devices": ["lo"]}})
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_network_this_machine_is_not_in_is_named_with_its_own_addresses(self):
        done = self.check({"mesh": {"network": ["198.51.100.0/24"]}})
        self.assertEqual(done.returncode, 1)
        self.assertIn("mesh.network: no interface of this machine has an address in 198.51.100.0/24", done.stderr)


class Unit(unittest.TestCase):
    def unit(self):
        with open(os.path.join(ROOT, "deploy", "systemd", "cgxd.service.in"), encoding="utf-8") as file:
            return file.read()

    def test_its_stop_leaves_the_workers_to_the_daemon(self):
        self.assertRegex(self.unit(), r"(?m)^KillMode=mixed$")

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_it_is_closed_as_far_as_it_can_be(self):
        """User and program have to exist for the check, so others stand in."""
        text = re.sub(r"^ExecStart(Pre)?=.*", r"ExecStart\1=/bin/true", self.unit(), flags=re.MULTILINE)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "cgxd.service")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace("User=cgxd", "User=daemon").replace("Group=cgx", "Group=daemon"))
            done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", path], capture_output=True,
                                  text=True, timeout=60)
        self.assertLessEqual(float(re.search(r"exposure level .*?: ([0-9.]+)", done.stdout)[1]), 1.7, done.stdout)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_understands_it_with_each_drop_in(self):
        text = re.sub(r"^(ExecStart|ExecReload)=.*", r"\1=/bin/true", self.unit(), flags=re.MULTILINE)
        for name in ("gpu.conf", "rdma.conf"):
            with self.subTest(name), tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "cgxd.service")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                os.mkdir(path + ".d")
                shutil.copy(os.path.join(ROOT, "deploy", "systemd", name), path + ".d")
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60)
            said = [line for line in done.stderr.splitlines() if name in line or "cgxd.service" in line]
            self.assertEqual(said, [])

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_it_works_without_root_capabilities_and_writable_code(self):
        """What of the unit can be had without systemd: user, no capabilities, no new ones, MemoryDenyWriteExecute."""
        confined = ("setpriv", f"--reuid={UNIT_USER}", f"--regid={UNIT_USER}", "--clear-groups", "--bounding-set=-all",
                    "--inh-caps=-all", "--no-new-privs", "/usr/bin/python3", "-c",
                    "import ctypes, os, sys; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0); "
                    "os.environ['UCX_MEM_EVENTS'] = 'n'; os.execvp(sys.argv[1], sys.argv[1:])")
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as to_end:
            os.chmod(directory, 0o755)
            machines = Machines(2)
            to_end.callback(machines.close)
            for index in range(2):
                os.makedirs(os.path.join(directory, f"machine{index}"))
                os.chown(os.path.join(directory, f"machine{index}"), UNIT_USER, UNIT_USER)
            daemons = [Daemon(machine, directory, RAW, prefix=confined) for machine in machines]
            to_end.callback(lambda: [daemon.process.kill() for daemon in daemons])
            from ranks import Job
            job = Job(daemons, [0, 1])
            to_end.callback(job.close)
            comm = job.join()
            for step in (1, 2, 3):
                job.step(comm, step)
            for daemon in daemons:
                with open(f"/proc/{daemon.process.pid}/status", encoding="utf-8") as file:
                    status = file.read()
                self.assertIn("CapEff:\t0000000000000000", status)
                self.assertIn(f"Uid:\t{UNIT_USER}", status)
                self.assertNotIn("UCX", daemon.log())


if __name__ == "__main__":
    unittest.main()
