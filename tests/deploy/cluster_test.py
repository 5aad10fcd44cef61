"""What clusters are given: Slurm's scripts start and end a job's daemon, the container file copies what is there."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("CGX_BUILD_DIR", os.path.join(ROOT, "build", "release"))
DEPLOY = os.path.join(ROOT, "deploy")
NOBODY = 65534


def read(*names):
    with open(os.path.join(DEPLOY, *names), encoding="utf-8") as file:
        return file.read()


def runs(pid):
    """Not even as a zombie that init has yet to take."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "Slurm runs its prolog as root")
class Slurm(unittest.TestCase):
    def setUp(self):
        self.base = self.enterContext(tempfile.TemporaryDirectory(prefix="cgx-slurm-"))
        os.chmod(self.base, 0o755)
        self.environment = {"PATH": f"{BUILD}/bin:{os.environ['PATH']}", "CGX_SLURM_DIRECTORY": self.base + "/jobs",
                            "CGX_NODE_SOCKET": self.base + "/none", "SLURM_JOB_ID": "17", "SLURM_JOB_UID": str(NOBODY),
                            "SLURM_JOB_GID": str(NOBODY)}
        self.addCleanup(self.run_script, "epilog")

    def run_script(self, name, **more):
        return subprocess.run([os.path.join(DEPLOY, "slurm", name)], env={**self.environment, **more}, text=True,
                              capture_output=True, timeout=60)

    def pid(self):
        with open(self.base + "/jobs/17.pid", encoding="utf-8") as file:
            return int(file.read())

    def wait_for_log(self, words):
        """The daemon opens its socket, for which the prolog waits, before it says so in its log."""
        deadline = time.monotonic() + 20
        while words not in read(self.base + "/jobs/17.log"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def kill(self, pid):
        """Returns when all of it has ended."""
        os.kill(pid, signal.SIGKILL)
        self.wait_for_end(pid)

    def wait_for_end(self, pid):
        deadline = time.monotonic() + 20
        while runs(pid):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_a_job_has_a_daemon_of_its_users_from_prolog_to_epilog(self):
        done = self.run_script("prolog")
        self.assertEqual(done.returncode, 0, done.stderr)
        pid = self.pid()
        self.wait_for_log(" serves ")
        self.assertEqual(os.stat(f"/proc/{pid}").st_uid, NOBODY)
        told = dict(re.findall(r"^export (\w+)=(.*)$", self.run_script("task_prolog").stdout, re.MULTILINE))
        status = subprocess.run([os.path.join(BUILD, "bin", "cgxctl"), "--address", told["CGX_CONTROL"], "status"],
                                capture_output=True, text=True, timeout=20)
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertTrue(os.path.exists(told["CGX_SOCKET"]))
        self.assertEqual(self.run_script("epilog").returncode, 0)
        self.wait_for_end(pid)
        self.assertEqual(os.listdir(self.base + "/jobs"), [])

    def tools(self, **scripts):
        """PATH with these programs first."""
        folder = self.base + "/tools"
        os.makedirs(folder, exist_ok=True)
        for name, text in scripts.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + text)
            os.chmod(os.path.join(folder, name), 0o755)
        return f"{folder}:{self.environment['PATH']}"

    def test_why_a_jobs_daemon_failed_outlives_the_job(self):
        self.environment["PATH"] = self.tools(logger=f'echo "$@" >>{self.base}/told; cat >>{self.base}/told\n')
        for lost in (False, True):
            self.assertEqual(self.run_script("prolog").returncode, 0)
            if lost:
                self.wait_for_log(" serves ")
                self.kill(self.pid())
            self.assertEqual(self.run_script("epilog").returncode, 0)
            self.assertEqual(os.path.exists(self.base + "/told"), lost)
        with open(self.base + "/told", encoding="utf-8") as file:
            self.assertRegex(file.read(), r"-t cgxd-slurm\[17\] [^\n]*\n(?s:.*) serves ")
        self.assertEqual(os.listdir(self.base + "/jobs"), [])

    def test_an_error_in_the_log_outlives_the_job(self):
        line = "2026-11-27T12:00:00.000Z error a job fails cause=RANK_LOST"
        self.environment["PATH"] = self.tools(logger=f"cat >>{self.base}/told\n", noisy=f"echo '{line}'; exec cgxd \"$@\"\n")
        self.assertEqual(self.run_script("prolog", CGXD="noisy").returncode, 0)
        self.assertEqual(self.run_script("epilog").returncode, 0)
        with open(self.base + "/told", encoding="utf-8") as file:
            self.assertIn("cause=RANK_LOST", file.read())

    def node_daemon(self, mode):
        node = self.base + "/node.sock"
        daemon = subprocess.Popen([os.path.join(BUILD, "bin", "cgxd"), "--socket", node, "--set", f"run_directory={self.base}",
                                   "--set", f"client.socket_mode={mode}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(daemon.wait, 20)
        self.addCleanup(daemon.terminate)
        deadline = time.monotonic() + 20
        while not os.path.exists(self.base + "/node-control.sock"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        return node, daemon

    def test_a_socket_that_nobody_serves_is_no_daemon_of_the_node(self):
        node, daemon = self.node_daemon("0666")
        daemon.kill()
        daemon.wait(20)
        self.assertTrue(os.path.exists(node))
        self.assertEqual(self.run_script("prolog", CGX_NODE_SOCKET=node).returncode, 0)
        self.assertTrue(runs(self.pid()))

    def test_a_daemon_that_the_jobs_user_may_not_use_is_none_for_the_job(self):
        node, _ = self.node_daemon("0600")
        self.assertEqual(self.run_script("prolog", CGX_NODE_SOCKET=node).returncode, 0)
        self.assertTrue(runs(self.pid()))

    def test_a_node_with_a_daemon_of_its_own_gets_no_other(self):
        node, _ = self.node_daemon("0666")
        self.assertEqual(self.run_script("prolog", CGX_NODE_SOCKET=node).returncode, 0)
        self.assertFalse(os.path.exists(self.base + "/jobs/17.pid"))
        self.assertEqual(self.run_script("task_prolog").stdout, "")

    def test_a_daemon_that_does_not_start_fails_the_prolog_with_its_reason(self):
        done = self.run_script("prolog", CGX_NETWORK="198.51.100.0/24")
        self.assertEqual(done.returncode, 1)
        self.assertIn("mesh.network: no interface of this machine has an address in 198.51.100.0/24", done.stderr)

    def test_root_opens_nothing_in_the_users_folder(self):
        """A process that the user has on the node already makes links there as soon as the folder is his."""
        victim, tools = self.base + "/victim", self.base + "/tools"
        os.makedirs(tools)
        with open(tools + "/install", "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\n{shutil.which("install")} "$@" || exit 1\n'
                       f'for name in cgxd.log 17.log; do ln -s {victim} {self.base}/jobs/17/$name; done; exit 0\n')
        os.chmod(tools + "/install", 0o755)
        done = self.run_script("prolog", PATH=f"{tools}:{self.environment['PATH']}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(os.path.islink(self.base + "/jobs/17/cgxd.log"))
        self.assertFalse(os.path.exists(victim))
        self.assertEqual(os.stat(self.base + "/jobs/17.log").st_uid, NOBODY)

    def test_an_epilog_ends_only_what_its_prolog_started(self):
        os.makedirs(self.base + "/jobs")
        other = subprocess.Popen(["sleep", "100"])
        self.addCleanup(other.wait, 10)
        self.addCleanup(other.send_signal, signal.SIGKILL)
        with open(self.base + "/jobs/17.pid", "w", encoding="utf-8") as file:
            file.write(str(other.pid))
        self.assertEqual(self.run_script("epilog").returncode, 0)
        self.assertIsNone(other.poll())


class Container(unittest.TestCase):
    def test_what_it_copies_is_there_and_it_runs_as_nobody_special(self):
        text = read("container", "Containerfile")
        for copied in re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE):
            self.assertTrue(os.path.exists(os.path.join(ROOT, copied)), copied)
        self.assertRegex(text, r"(?m)^USER 984:984$")
        self.assertIn("install_packages run", text)

    def test_what_the_shown_command_mounts_is_made_before(self):
        shown = read("container", "Containerfile").split("FROM")[0]
        made = re.findall(r"^# +install -d -o 984 -g 984 -m \d+ (\S+)", shown, re.MULTILINE)
        mounted = re.findall(r"-v ([^:\s]+):", re.search(r"^# +podman run .*", shown, re.MULTILINE)[0])
        self.assertEqual(mounted, made)


if __name__ == "__main__":
    unittest.main()
