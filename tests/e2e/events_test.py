"""`cgxctl events` on two daemons: what a job does shows on both, as it happens, and to those only who may see it."""

import json
import os
import subprocess
import threading
import unittest

from cluster_case import RAW, ClusterCase
from daemons import binary, merged

HERE, OTHER, SILENT = range(3)  # SILENT records nothing
NOBODY = 65534
PATIENCE_S = 20


class Events(ClusterCase):
    MACHINES = 3

    @classmethod
    def config_of(cls, machine):
        open_to_all = {"control": {"socket_mode": "0666"}}
        return merged(merged(RAW, open_to_all), {"recorder": {"events": 0}} if machine == SILENT else {})

    def events(self, daemon, *arguments):
        return daemon.control_tool("events", "--last", "0", *arguments).get("events", [])

    def steps(self, steps=2):
        job = self.job([HERE, OTHER])
        comm = job.join()
        for step in range(1, steps + 1):
            job.step(comm, step)
        return job, comm

    def test_steps_show_on_both_machines_in_order_and_with_their_peers(self):
        job, _ = self.steps()
        for machine in (HERE, OTHER):
            told = [e for e in self.events(self.daemons[machine], "--job", job.name) if e["step"] == 2]
            kinds = [e["kind"] for e in told]
            for kind in ("arrival", "ended", "begun", "encode", "sent", "received", "completed", "step_completed"):
                self.assertIn(kind, kinds)
            for earlier, later in (("arrival", "begun"), ("begun", "encode"), ("encode", "sent"), ("sent", "completed"),
                                   ("received", "completed"), ("completed", "step_completed")):
                self.assertLess(kinds.index(earlier), len(kinds) - 1 - kinds[::-1].index(later), kinds)
            self.assertEqual({e["rank"] for e in told if e["kind"] in ("arrival", "completed")}, {machine})
            self.assertEqual({e["machine"] for e in told if e["kind"] in ("sent", "received")}, {1 - machine})
            self.assertEqual([e["kind"] for e in told].count("completed"), len(job.tensors))
            self.assertEqual(sorted(told, key=lambda e: e["unix_ns"]), told)
            spans = [v for e in told if e["kind"] == "encode" for v in e["values"] if v["name"] == "ns"]
            self.assertTrue(all(0 < span["value"] < 10**9 for span in spans), spans)

    def test_follow_goes_on_with_what_happens(self):
        job, comm = self.steps(1)
        command = [binary("cgxctl"), "--socket", self.daemons[HERE].control, "events", "--job", job.name, "--follow",
                   "--last", "1"]
        follower = self.machines[HERE].start(command, stdout=subprocess.PIPE, text=True)
        patience = threading.Timer(PATIENCE_S, follower.kill)  # then its lines end
        patience.start()
        try:
            lines = iter(follower.stdout.readline, "")
            self.assertIn("EVENT", next(lines))
            self.assertIn("step_completed", next(lines))
            job.step(comm, 2)
            seen = []
            for line in lines:
                self.assertNotIn("COMMUNICATOR", line)
                seen.append(line.split()[1:4])
                if seen[-1] == [f"{job.name}/grads", "step_completed", "2"]:
                    break
            here = [words[1] for words in seen if words[1] != "received"]  # the other machine may be faster
            self.assertEqual(here[0], "arrival")
            self.assertEqual(sum(words[1] == "completed" for words in seen), len(job.tensors))
        finally:
            patience.cancel()
            follower.kill()
            follower.communicate()

    @unittest.skipUnless(os.geteuid() == 0, "needs root to become another user")
    def test_only_operators_see_another_users_job_and_one_that_is_gone(self):
        job, comm = self.steps(1)
        done = self.machines[HERE].run(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                                        binary("cgxctl"), "--socket", self.daemons[HERE].control, "-o", "json",
                                        "events", "--last", "0"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout).get("events", []), [])
        job.must("close_comm", comm)
        gone = [e for e in self.events(self.daemons[HERE]) if e["kind"] == "closed"]
        self.assertRegex(gone[-1]["communicator"], r"^#\d+$")
        again = self.events(self.daemons[HERE], "--communicator", gone[-1]["communicator"])
        self.assertEqual(again[-1]["number"], gone[-1]["number"])

    def test_a_daemon_that_records_nothing_says_how_to_change_that(self):
        done = self.daemons[SILENT].control_tool("events", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("recorder.events is 0", done.stderr)


if __name__ == "__main__":
    unittest.main()
