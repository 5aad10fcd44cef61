"""Shares: what one user takes leaves a reserve to others, is named when it is refused, and shown to operators.

Users who share an id (root in several containers or services) are told apart by their control group.
"""

import contextlib
import itertools
import os
import subprocess
import sys
import time
import unittest

from cluster_case import RAW, ClusterCase, figure
from daemons import binary
from ranks import Job, Rank

ROOT = os.geteuid() == 0
MIB = 1 << 20
OTHER = 65534            # another user
HALF_OPEN = 300
SERVED_S = 2.0           # a page, beside those
METRICS_PORT = 9466
LARGE = 2 << 30          # an arena
OPENED_S = 0.3           # a session, while that is mapped
TRIES = 3                # of which one keeps it: others may have the core, but who waits for the mapping does so each time
CROWD = f"""
import socket, sys
crowd = []
for i in range({HALF_OPEN}):
    link = socket.create_connection(("127.0.0.1", {METRICS_PORT}), timeout=5)
    link.sendall(b"GET /metr")
    crowd.append(link)
print("crowded", flush=True)
sys.stdin.read()
"""
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"


class Shares(ClusterCase):
    CONFIG = {**RAW, "client": {"socket_mode": "0666"}, "metrics": {"port": METRICS_PORT},
              "limits": {"sessions": 40, "links": 16, "shared_bytes": "256 MiB"}}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.start_bystander(arena_bytes=4 * MIB)

    def tearDown(self):
        self.bystander_steps()

    def rank(self, **options):
        rank = Rank(self.daemons[0], **options)
        self.addCleanup(rank.end)
        return rank

    def shares(self):
        return {share["name"]: share for share in self.daemons[0].control_tool("status")["shares"]}

    def assert_refused(self, answer, limit, taken_by="uid 0"):
        self.assert_status(answer, "RESOURCE_EXHAUSTED", f"{limit} is ", f"by {taken_by}", "left for", "raise it")

    def control_group(self, name):
        """A new one in whichever hierarchy tells the daemon (daemon/base/holder.h)."""
        for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
            path = os.path.join(root, f"cgx-e2e-{os.getpid()}-{name}")
            with contextlib.suppress(OSError):
                os.mkdir(path)
                self.addCleanup(os.rmdir, path)
                return path
        self.skipTest("no control groups can be made here")

    def in_group(self, group):
        return ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")


class Taking(Shares):
    @unittest.skipUnless(ROOT, "another user needs root")
    def test_links_leave_a_reserve_and_are_refused_with_who_has_them(self):
        jobs = []
        while True:
            jobs.append(self.job([0, 1], arena_bytes=MIB))
            answers = jobs[-1].all("create", "grads", "%d", 2, 1, 60000, jobs[-1].folder)
            if not all(answer.ok for answer in answers):
                break
            self.assertLess(len(jobs), 20, "nobody was refused")
        self.assertEqual(len(jobs), 14)  # beside the bystander's, of 16 less an eighth
        self.assertTrue(any("limits.links is 16: 14 taken" in answer.text for answer in answers), answers)
        other = Job(self.daemons, [0, 1], uid=OTHER, arena_bytes=MIB)
        self.addCleanup(other.close)
        other.step(other.join(), 1)
        shown = self.shares()["limits.links"]
        self.assertEqual((int(shown["limit"]), int(shown["used"])), (16, 15))
        self.assertEqual((shown["holders"][1]["who"], int(shown["holders"][1]["used"])),
                         (self.holder(other.ranks[0]), 1))

    @unittest.skipUnless(ROOT, "another user needs root")
    def test_shared_memory_leaves_a_reserve_and_is_refused_with_who_has_it(self):
        greedy = self.rank()
        greedy.must("open", "greedy", "-", MIB)
        answers = [greedy.ask("alloc", 40 * MIB)]
        while answers[-1].ok:
            answers.append(greedy.ask("alloc", 40 * MIB))
            self.assertLess(len(answers), 10, "nobody was refused")
        self.assert_refused(answers[-1], "limits.shared_bytes")
        other = self.rank()
        other.must("become", OTHER)
        other.must("open", "modest", "-", MIB)
        other.must("alloc", 4 * MIB)
        shown = self.shares()["limits.shared_bytes"]
        self.assertGreater(int(shown["used"]), int(shown["limit"]) // 2)
        self.assertEqual(sum(int(one["used"]) for one in shown["holders"]), int(shown["used"]))

    @unittest.skipUnless(ROOT, "control groups need root")
    def test_root_in_one_control_group_leaves_sessions_to_root_in_another(self):
        groups = [self.control_group(name) for name in "ab"]
        crowd, refused = [], None
        while refused is None:
            crowd.append(self.rank(prefix=self.in_group(groups[0])))
            answer = crowd[-1].ask("open", f"crowd{len(crowd)}", "-", MIB)
            refused = None if answer.ok else answer
            self.assertLess(len(crowd), 41, "nobody was refused")
        here = os.path.basename(groups[0])
        self.assert_refused(refused, "limits.sessions", f"uid 0 in /{here}")
        self.rank(prefix=self.in_group(groups[1])).must("open", "other", "-", MIB)
        holders = {one["who"] for one in self.shares()["limits.sessions"]["holders"]}
        self.assertLessEqual({f"uid 0 in /{os.path.basename(group)}" for group in groups}, holders)
        for rank in crowd:  # the groups have to be empty before they go
            rank.kill()
            rank.process.wait()

    def holder(self, rank):
        with open(f"/proc/{rank.process.pid}/status", encoding="utf-8") as file:
            uid = next(line.split()[1] for line in file if line.startswith("Uid:"))
        shown = [one["who"] for one in self.shares()["limits.links"]["holders"] if one["who"].split()[1] == uid]
        self.assertEqual(len(shown), 1, shown)
        return shown[0]

    def test_others_see_totals_only(self):
        shown = subprocess.run([sys.executable, "-c", "import os, sys; os.setgid(65534); os.setuid(65534);"
                                "os.execv(sys.argv[1], sys.argv[1:])", *self.status_words()],
                               capture_output=True, text=True, check=False)
        if shown.returncode != 0:
            self.skipTest(shown.stderr)
        self.assertNotIn("uid 0", shown.stdout)

    def status_words(self):
        os.chmod(self.daemons[0].control, 0o666)
        return [binary("cgxctl"), "--socket", self.daemons[0].control, "-o", "json", "status"]


class Weights(Shares):
    def test_above_the_operators_limit_are_refused_by_name(self):
        job = self.job([0, 1], arena_bytes=4 * MIB)
        job.step(job.join(), 1)
        target = ("-j", job.name, "-c", "grads", "--set")
        for action in ("check", "apply"):
            refused = self.daemons[0].control_tool("policy", action, *target, "weight=17", check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("weight: 17 is above limits.weight, 16", refused.stderr)
        self.daemons[0].control_tool("policy", "apply", *target, "weight=16", "--wait", "0")


class Doors(Shares):
    def fetch(self, path):
        return self.machines[0].run([sys.executable, "-c", FETCH, f"http://127.0.0.1:{METRICS_PORT}{path}"],
                                    capture_output=True, text=True, check=True).stdout

    def test_half_open_requests_keep_nobody_from_the_pages(self):
        if not self.machines.isolated:
            self.skipTest("both daemons would have the same page")
        crowd = self.machines[0].start([sys.executable, "-c", CROWD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self.assertEqual(crowd.stdout.readline(), b"crowded\n")
            for path, text in (("/healthz", "ok"), ("/metrics", "cgxd_sessions"), ("/", "status")):
                began = time.monotonic()
                self.assertIn(text, self.fetch(path))
                seconds = time.monotonic() - began
                figure(f"{path} beside {HALF_OPEN} half-open requests", seconds, SERVED_S)
                self.assertLess(seconds, SERVED_S)
            files = len(os.listdir(f"/proc/{self.daemons[0].process.pid}/fd"))
            self.assertLess(files, HALF_OPEN, "each is held open")
        finally:
            crowd.communicate(b"", timeout=10)


class LargeArenas(ClusterCase):
    MACHINES = 1

    def test_are_mapped_while_others_step_and_come(self):
        with open("/proc/meminfo", encoding="utf-8") as file:
            available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
        if available < 3 * LARGE:
            self.skipTest("too little memory")
        job = self.job([0, 0], arena_bytes=4 * MIB)
        comm = job.join()
        job.step(comm, 1)
        steps = itertools.count(2)
        for _ in range(TRIES):
            slowest, opened = self.longest_while_mapping(job, comm, steps)
            if slowest < 1.0 and opened < OPENED_S:
                break
        figure(f"longest of {next(steps) - 1} steps while 2 GiB are mapped", slowest, 1.0)
        figure("longest opening of a session meanwhile", opened, OPENED_S)
        self.assertLess(slowest, 1.0)
        self.assertLess(opened, OPENED_S)
        longest = self.daemons[0].control_tool("status")["data_thread"].get("longest_lately") or {"wall_ns": 0}
        figure("longest round of the data thread meanwhile", int(longest["wall_ns"]) / 1e9, 0.5)
        self.assertNotEqual(longest.get("what"), "a new arena")

    def longest_while_mapping(self, job, comm, steps):
        """Seconds of a step, and of an opening, while somebody's large arena is mapped; it is gone afterwards."""
        large, late = Rank(self.daemons[0]), Rank(self.daemons[0])
        for rank in (large, late):
            self.addCleanup(rank.end)
        large.must("open", "large", "-", MIB)
        large.send("alloc", LARGE)
        slowest, opened, began = 0.0, 0.0, time.monotonic()
        while not large_is_mapped(self.daemons[0]):
            step = next(steps)
            job.fill(comm, step)
            submitted = time.monotonic()
            for words in (("submit", comm, step, 0, 1, 2), ("end", comm, step), ("wait", comm, step)):
                job.must(*words)
            slowest = max(slowest, time.monotonic() - submitted)
            opened = max(opened, late.must("open", f"late{step}", "-", MIB).seconds)
            late.must("close")
            self.assertLess(time.monotonic() - began, 60)
        large.receive()
        large.must("close")
        self.wait_until(lambda: not large_is_mapped(self.daemons[0]), "the end of the large arena")
        return slowest, opened


def large_is_mapped(daemon):
    return int(daemon.control_tool("status").get("arena_bytes", 0)) >= LARGE


if __name__ == "__main__":
    unittest.main()
