"""deploy/two-machines.md on two machines: clean roots in which systemd runs, packages, one line each, a job on both.

usage: two_machines.py PACKAGES_FOLDER

The page's blocks that say so are run word for word, by an ordinary user, with the addresses of the machines made here; then
the service is looked at as systemd has it. Needs root, mmdebstrap and systemd-nspawn; what cannot be had is skipped and said.
The last line is "N passed, N failed, N skipped".
"""

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
sys.dont_write_bytecode = True

from commands_test import MAKES_PACKAGES, ON_ONE, PACKAGES, blocks, commands_that  # noqa: E402
from machines import Machines, isolation_possible  # noqa: E402
from roots import Skipped, make_root  # noqa: E402

PAGE, SUITE, USER, UID = "deploy/two-machines.md", "bookworm", "alice", 1000
INCLUDED = "systemd,systemd-sysv,dbus,sudo,adduser,iproute2,python3,python3-numpy,python3-torch"
HOME = f"/home/{USER}"
COMMANDS_MAX, SECONDS_MAX = 5, 180  # on each machine; of machine time, once the packages are there
BOOT_S, COMMAND_S = 60, 120
EXPOSURE_MAX = 1.7  # of systemd-analyze security


def inside(root, *command):
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
                           'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"', root, *command],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=COMMAND_S)


def make_base(packages, root):
    """What both machines have before anybody types: a user, and every package that is going to be installed."""
    make_root(SUITE, root, INCLUDED)
    inside(root, "useradd", "--create-home", "--uid", str(UID), "--shell", "/bin/bash", USER)
    for path, text in (("etc/sudoers.d/user", f"{USER} ALL=(ALL) NOPASSWD: ALL\n"),
                       ("etc/apt/apt.conf.d/yes", 'APT::Get::Assume-Yes "true";\n')):
        with open(os.path.join(root, path), "w", encoding="utf-8") as file:
            file.write(text)
    for package in glob.glob(os.path.join(packages, "*.deb")):
        shutil.copy(package, root + HOME)
    try:
        done = inside(root, "sh", "-c", f"apt-get install --download-only -q {HOME}/*.deb")
    except subprocess.TimeoutExpired:
        raise Skipped(f"the packages that cgxd needs do not come within {COMMAND_S} s") from None
    if done.returncode:
        raise Skipped("the packages that cgxd needs cannot be had: " + done.stderr.strip()[-200:])


class Booted:
    """A machine: a copy of the base, booted, in the network of a test's machine."""

    def __init__(self, machine, base, folder):
        self.machine, self.name = machine, f"machine{machine.index}"
        parts = {part: os.path.join(folder, self.name, part) for part in ("upper", "work", "root")}
        for path in parts.values():
            os.makedirs(path)
        self.root, self._log = parts["root"], os.path.join(folder, self.name, "boot.log")
        mounted = subprocess.run(["mount", "-t", "overlay", "overlay", "-o",
                                  f"lowerdir={base},upperdir={parts['upper']},workdir={parts['work']}", self.root],
                                 capture_output=True, text=True, check=False)
        if mounted.returncode:
            raise Skipped("no overlay file system here: " + mounted.stderr.strip())
        for name, text in (("hostname", self.name), ("hosts", f"127.0.0.1 localhost\n127.0.1.1 {self.name}")):
            with open(os.path.join(self.root, "etc", name), "w", encoding="utf-8") as file:
                file.write(text + "\n")
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--console=read-only",
                 f"--directory={self.root}",
                 f"--network-namespace-path=/run/netns/{machine.netns}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._init = None

    def wait_for_systemd(self):
        deadline = time.monotonic() + BOOT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with open(f"/proc/{self._process.pid}/task/{self._process.pid}/children", encoding="utf-8") as file:
                children = file.read().split()
            self._init = children[0] if children else None
            if self._init and self.run("systemctl is-system-running", "root").stdout.strip() in ("running", "degraded"):
                return
            time.sleep(0.2)
        with open(self._log, encoding="utf-8", errors="replace") as file:
            raise Skipped(f"systemd does not boot in a container here: {file.read().strip()[-300:]}")

    def run(self, text, user=USER):
        """As if that user logged in and typed it."""
        enter = ["nsenter", "--target", self._init, "--all", "--root", "--"]
        login = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", "-i", f"USER={user}",
                 "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "sh", "-c"]
        home = HOME if user == USER else "/"
        return subprocess.run([*enter, *login, f"cd {home} && {text}"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=COMMAND_S)

    def end(self):
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        subprocess.run(["umount", "--lazy", self.root], check=False)


class Failed(Exception):
    pass


def must(machine, text, user=USER):
    done = machine.run(text, user)
    if done.returncode:
        raise Failed(f"{machine.name}$ {text}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def until(happened, what, seconds=30):
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise Failed(f"{what} did not happen within {seconds} s")
        time.sleep(0.2)


class Steps:
    """What is tried, in order."""

    def __init__(self, booted):
        self.booted, self.said, self.seconds = booted, [[], []], 0.0
        self.commands = [self.commands_of(place) for place in (0, 1)]

    def commands_of(self, place):
        """The page's, for one machine, in this network."""
        found = [block.text for block in blocks(PAGE) if block.how.startswith("run on each")]
        text = "".join(found).replace("10.1.0.0/24", "10.77.0.0/24").replace("10.1.0.2", self.booted[0].machine.address)
        lines = [line.split("  #")[0].strip() for line in text.splitlines() if line.strip()]
        return [line.replace("--machine 0", f"--machine {place}") for line in lines]

    def _type(self, place):
        for command in self.commands[place]:
            began = time.monotonic()
            done = self.booted[place].run(command)
            self.said[place].append((command, done.returncode, done.stdout + done.stderr, time.monotonic() - began))
            if done.returncode:
                return

    def a_job_trains_on_both_after_what_the_page_says(self):
        if not 1 < len(self.commands[0]) <= COMMANDS_MAX:
            raise Failed(f"{len(self.commands[0])} commands: {self.commands[0]}")
        began = time.monotonic()
        people = [threading.Thread(target=self._type, args=(place,)) for place in (0, 1)]
        for each in people:
            each.start()
        for each in people:
            each.join()
        self.seconds = time.monotonic() - began
        for place in (0, 1):
            for command, status, said, _ in self.said[place]:
                if status:
                    raise Failed(f"machine{place}$ {command}\nexit {status}\n{said[-3000:]}")
        trained = self.said[0][-1][2]
        with open(os.path.join(ROOT, PAGE), encoding="utf-8") as file:
            promised, = re.findall(r"`(cgx: [^`]+)`", file.read())
        for part in ("all ranks have the same parameters", promised):
            if part not in trained:
                raise Failed(f"'{part}' was not said:\n{trained}")
        losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", trained)]
        if losses[-1] > losses[0] / 2:
            raise Failed(f"it does not learn: {losses}")
        if self.seconds > SECONDS_MAX:
            raise Failed(f"it took {self.seconds:.0f} s")
        slowest = ", ".join(f"{seconds:.1f}" for *_, seconds in self.said[0])
        return f"{len(self.commands[0])} commands a machine, {self.seconds:.1f} s in all ({slowest})"

    def the_doctor_finds_nothing_and_sees_the_other_one(self):
        said = must(self.booted[0], f"cgxctl doctor {self.booted[1].machine.address}")
        if f"{self.booted[1].machine.address}:7070" not in said:
            raise Failed(said)
        # What only the daemon may read is no mistake of hers who asks.
        for command in commands_that(ON_ONE):
            must(self.booted[0], command)
        must(self.booted[0], "sudo sh -c 'cp /etc/cgxd/cgxd.yaml /tmp/good; "
                             "sed -i \"s/^mesh: {/mesh: {key_file: \\/etc\\/cgxd\\/cluster.key, /\" "
                             "/etc/cgxd/cgxd.yaml; systemctl restart cgxd'")
        must(self.booted[0], "! cat /etc/cgxd/cluster.key && cgxctl doctor")
        must(self.booted[0], "sudo sh -c 'rm /etc/cgxd/cluster.key; cp /tmp/good /etc/cgxd/cgxd.yaml; systemctl restart cgxd'")

    def whoever_is_not_in_the_group_is_told(self):
        must(self.booted[0], "useradd bob", "root")
        done = self.booted[0].run("python3 -m cgx.example --steps 1", "bob")
        if done.returncode == 0 or "be a member of its group cgx" not in done.stderr:
            raise Failed(done.stdout + done.stderr)

    def systemd_holds_the_service_as_closed_as_it_says(self):
        shown = must(self.booted[0], "systemctl show cgxd -p Type,ActiveState,SubState,NRestarts,User,Group,WatchdogUSec")
        for line in ("Type=notify", "ActiveState=active", "SubState=running", "NRestarts=0", "User=cgxd", "Group=cgx",
                     "WatchdogUSec=30s"):
            if line not in shown.splitlines():
                raise Failed(f"{line}\n{shown}")
        said = must(self.booted[0], "systemd-analyze security --no-pager cgxd.service", "root")
        exposure = float(re.search(r"exposure level .*?: ([0-9.]+)", said)[1])
        if exposure > EXPOSURE_MAX:
            raise Failed(said)
        return f"exposure {exposure}"

    def a_reload_takes_over_and_a_wrong_file_changes_nothing(self):
        machine = self.booted[0]
        must(machine, "sudo sh -c 'cp /etc/cgxd/cgxd.yaml /tmp/good; echo \"log: {level: debug}\" >>/etc/cgxd/cgxd.yaml'")
        must(machine, "sudo systemctl reload cgxd")
        self._wait_for_line(machine, "reload changes a key key=log.level")
        must(machine, "sudo sh -c 'echo \"polcy: {}\" >>/etc/cgxd/cgxd.yaml' && sudo systemctl reload cgxd")
        self._wait_for_line(machine, "reload refused, nothing is changed")
        must(machine, "systemctl is-active cgxd && sudo cp /tmp/good /etc/cgxd/cgxd.yaml")

    def _wait_for_line(self, machine, text):
        until(lambda: text in must(machine, "journalctl -u cgxd --no-pager -o cat", "root"), f"the line '{text}'")

    def a_daemon_that_stands_still_is_started_anew(self):
        machine = self.booted[1]
        must(machine, "mkdir -p /etc/systemd/system/cgxd.service.d && printf '[Service]\nWatchdogSec=2\n' "
                      ">/etc/systemd/system/cgxd.service.d/soon.conf && systemctl daemon-reload && systemctl restart cgxd", "root")
        before = must(machine, "systemctl show cgxd -p MainPID --value")
        must(machine, "systemctl kill --kill-who=main -s STOP cgxd", "root")
        until(lambda: "NRestarts=1" in must(machine, "systemctl show cgxd -p NRestarts"), "the restart")
        until(lambda: "ActiveState=active" in must(machine, "systemctl show cgxd -p ActiveState"), "the start")
        if must(machine, "systemctl show cgxd -p MainPID --value") == before:
            raise Failed("it is the same process")
        must(machine, "cgxctl status")

    def it_ends_and_is_gone_when_it_is_removed(self):
        machine = self.booted[0]
        must(machine, "sudo systemctl stop cgxd")
        self._wait_for_line(machine, "stopped drained=yes")
        must(machine, "sudo apt-get purge -q cgxd libcgx0 python3-cgx")
        must(machine, "! systemctl cat cgxd.service 2>/dev/null && ! test -e /etc/cgxd && ! test -e /run/cgxd/cgxd.sock")

    def it_is_installed_from_a_tree_as_the_readmes_say(self):
        """What makes the packages has run, as they show it, before this program."""
        machine = self.booted[0]
        must(machine, "mkdir -p build/packages && mv *.deb build/packages/")
        for command in commands_that(PACKAGES):
            if not command.startswith(MAKES_PACKAGES):
                must(machine, command)
        must(machine, "systemctl is-active cgxd && cgxctl status && cgxsim --version")

    def all(self):
        return [self.a_job_trains_on_both_after_what_the_page_says, self.the_doctor_finds_nothing_and_sees_the_other_one,
                self.whoever_is_not_in_the_group_is_told, self.systemd_holds_the_service_as_closed_as_it_says,
                self.a_reload_takes_over_and_a_wrong_file_changes_nothing, self.a_daemon_that_stands_still_is_started_anew,
                self.it_ends_and_is_gone_when_it_is_removed, self.it_is_installed_from_a_tree_as_the_readmes_say]


def try_steps(booted):
    passed = failed = 0
    steps = Steps(booted)
    for step in steps.all():
        name = step.__name__.replace("_", " ")
        try:
            said = step()
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"FAILED two machines: {name}\n{error}", flush=True)
            failed += 1
            if step == steps.all()[0]:
                break  # nothing of the rest can work
            continue
        passed += 1
        print(f"ok: two machines: {name}" + (f": {said}" if said else ""), flush=True)
    return passed, failed


def main(packages):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was made is removed
    passed = failed = skipped = 0
    try:
        if not isolation_possible() or not shutil.which("systemd-nspawn"):
            raise Skipped("needs root, network namespaces and systemd-nspawn (Debian's package systemd-container)")
        with contextlib.ExitStack() as to_end:
            folder = to_end.enter_context(tempfile.TemporaryDirectory(prefix="cgx-two-", ignore_cleanup_errors=True))
            os.chmod(folder, 0o755)
            base = os.path.join(folder, "base")
            make_base(packages, base)
            machines = to_end.enter_context(Machines(2))
            booted = []
            for machine in machines:
                booted.append(Booted(machine, base, folder))
                to_end.callback(booted[-1].end)
            for each in booted:
                each.wait_for_systemd()
            passed, failed = try_steps(booted)
    except Skipped as reason:
        print(f"skipped: two machines: {reason}")
        skipped = 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
