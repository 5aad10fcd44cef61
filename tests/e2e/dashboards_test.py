"""The alert rules and the Grafana dashboard: every metric they name is there, and a live Prometheus has data for each query."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.parse
from typing import NamedTuple

from cluster_case import ClusterCase
from daemons import ROOT, merged
from ranks import Tensor

PORT, PROMETHEUS_PORT = 9464, 9090
NAMED = 0  # machine
ALERTS = os.path.join(ROOT, "deploy", "prometheus", "alerts.yaml")
DASHBOARD = os.path.join(ROOT, "deploy", "grafana", "cgxd.json")
TENSORS = (Tensor("weight", (300, 411)), Tensor("bias", (41,)))
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"
RESERVED = {"job", "instance", "le", "quantile", "__name__"}


class Query(NamedTuple):
    panel: str
    text: str
    labels: set  # that the panel writes beside the line

    def of(self, instance):
        """For all jobs on one machine."""
        return self._replace(text=self.text.replace("$machine", instance).replace("$job", ".*"))


def read_dashboard():
    with open(DASHBOARD, encoding="utf-8") as file:
        return json.load(file)


def queries():
    dashboard = read_dashboard()
    found = [Query(panel["title"], target["expr"], set(re.findall(r"{{ *(\w+) *}}", target.get("legendFormat", ""))))
             for panel in dashboard["panels"] for target in panel["targets"]]
    return found + [Query("annotation", each["expr"], set()) for each in dashboard["annotations"]["list"]]


def alerts():
    """name -> expression"""
    with open(ALERTS, encoding="utf-8") as file:
        return dict(re.findall(r"- alert: (\w+)\n +expr: (.*)", file.read()))


class Dashboards(ClusterCase):
    """Machine 0 shows the names of jobs (metrics.job_names), machine 1, as by default, does not."""

    CONFIG = {"policy": {"codec": "maxmin:4", "stats_steps": 1, "min_elements": 64}}

    @classmethod
    def config_of(cls, machine):
        return merged(cls.CONFIG, {"metrics": {"address": cls.machines[machine].address, "port": PORT,
                                               "job_names": machine == NAMED}})

    def fetch(self, url):
        return self.machines[0].run(["/usr/bin/python3", "-c", FETCH, url], capture_output=True, text=True, check=True).stdout

    def page(self, machine=0):
        return self.fetch(f"http://{self.machines[machine].address}:{PORT}/metrics")

    def names(self):
        return set(re.findall(r"^# TYPE (cgxd_\w+)", self.page(), re.MULTILINE))

    def assert_known(self, where, text):
        named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bcgxd_\w+", text)}
        self.assertTrue(named, where)
        self.assertEqual(sorted(named - self.names()), [], f"{where} names metrics that there are not")

    def train(self, steps=30):
        job = self.job([0, 1])
        comm = job.join(tensors=TENSORS)
        for step in range(1, steps + 1):
            job.submit(comm, step)
            job.must("wait", comm, step)
        return job, comm, steps

    def test_alerts_and_dashboard_name_metrics_that_there_are(self):
        with open(ALERTS, encoding="utf-8") as file:
            self.assert_known("alerts.yaml", file.read())
        self.assert_known("cgxd.json", " ".join(query.text for query in queries()))
        for each in read_dashboard()["templating"]["list"]:
            if each["type"] == "query":
                self.assert_known("cgxd.json", each["query"])

    def test_each_alert_asks_for_a_metric_that_outlives_what_it_tells_of(self):
        with open(ALERTS, encoding="utf-8") as file:
            self.assertEqual(file.read().count("- alert:"), len(alerts()))
        for name, expression in alerts().items():
            if name != "CgxDaemonDown":  # up is the scraper's own
                self.assert_known(name, expression)
            # Gauges of a job whose last rank has gone are there no more, in the middle of a failure.
            self.assertIsNone(re.search(r"cgxd_(communicator_failed|peer_up)", expression), name)

    def test_each_alert_is_tried_before_and_while_it_holds(self):
        """By promtool, below."""
        with open(os.path.join(os.path.dirname(ALERTS), "alerts_test.yaml"), encoding="utf-8") as file:
            text = file.read()
        for name in alerts():
            tried = re.findall(rf"alertname: {name}\n +exp_alerts:( \[\])?", text)
            self.assertEqual(set(tried), {" []", ""}, name)

    def test_no_label_is_a_scrapers_own(self):
        self.train(2)
        labels = set(re.findall(r'[{,](\w+)="', self.page()))
        self.assertIn("cgx_job", labels)
        self.assertEqual(labels & (RESERVED - {"le"}), set())

    def test_cgxctl_tells_which_job_a_number_is(self):
        job, _, _ = self.train(2)
        for machine in range(2):
            seen, = [each for each in self.daemons[machine].control_tool("jobs", "-j", job.name)["communicators"]]
            shown = (job.name, "grads") if machine == NAMED else (seen["metrics_job"], seen["metrics_communicator"])
            lines = [line for line in self.page(machine).splitlines() if line.startswith("cgxd_communicator_step{")]
            self.assertTrue([line for line in lines if f'cgx_job="{shown[0]}"' in line and f'communicator="{shown[1]}"' in line], lines)

    @unittest.skipUnless(shutil.which("promtool"), "no promtool (Debian's package prometheus)")
    def test_promtool_finds_nothing_wrong(self):
        self.train(2)
        folder = os.path.dirname(ALERTS)
        for command, given in ((["promtool", "check", "rules", "alerts.yaml"], None),
                               (["promtool", "test", "rules", "alerts_test.yaml"], None),
                               (["promtool", "check", "metrics"], self.page())):
            done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=folder, timeout=60)
            self.assertEqual(done.returncode, 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
            self.assertEqual([line for line in done.stderr.splitlines() if line.startswith("cgxd_")], [])

    @unittest.skipUnless(shutil.which("prometheus"), "no prometheus (Debian's package of that name)")
    def test_a_live_prometheus_answers_every_query_of_the_dashboard(self):
        job, comm, step = self.train()
        self.start_prometheus()
        missing = [query.of(f"{machine.address}:{PORT}") for query in queries() for machine in self.machines]
        deadline = time.monotonic() + 60
        while missing and time.monotonic() < deadline:
            step += 1
            job.submit(comm, step)
            job.must("wait", comm, step)
            if step % 300 == 0:  # a plan takes force between two scrapes
                self.daemons[NAMED].control_tool("policy", "apply", "--set", f"window={2 + step // 300 % 2}", "--wait", "0",
                                                 check=False)
            if step % 20 == 0:
                missing = [query for query in missing if not self.has_data(query)]
        self.assertEqual(missing, [], "no data for these")
        self.assert_rules_are_in_force()

    @unittest.skipUnless(shutil.which("prometheus"), "no prometheus (Debian's package of that name)")
    def test_a_live_prometheus_tells_of_a_rank_and_a_daemon_that_are_gone(self):
        self.start_prometheus()
        for machine in self.machines:
            self.wait_until(lambda machine=machine: self.has_data(Query("", self.counter(machine, "sessions_lost"), set())),
                            "the counters before", timeout_s=30)
        job, comm, step = self.train(2)
        job.submit(comm, step + 1, [0])
        job.ranks[1].kill()
        at = {self.address(machine) for machine in self.machines}
        self.wait_until(lambda: self.firing("CgxJobFailed") == at, "the alert of the job that failed", timeout_s=30)
        self.assertEqual(self.firing("CgxLinkDown"), set())
        job.close()
        self.wait_until(lambda: not self.ask("query", query="cgxd_communicator_failed")["result"], "the end of the job's figures",
                        timeout_s=30)
        self.assertEqual(self.firing("CgxJobFailed"), at)
        job, comm, step = self.train(2)
        self.daemons[1].process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.daemons[1].process.send_signal, signal.SIGCONT)
        self.wait_until(lambda: self.address(self.machines[0]) in self.firing("CgxLinkDown"), "the alert of the link",
                        timeout_s=30)

    @staticmethod
    def address(machine):
        return f"{machine.address}:{PORT}"

    def counter(self, machine, name):
        return f'cgxd_{name}_total{{instance="{self.address(machine)}"}}'

    def firing(self, alert):
        """The machines that it is of."""
        return {each["labels"]["instance"] for each in self.ask("alerts")["alerts"]
                if each["labels"]["alertname"] == alert and each["state"] == "firing"}

    def ask(self, what, **arguments):
        url = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/{what}?" + urllib.parse.urlencode(arguments)
        answer = json.loads(self.fetch(url))
        self.assertEqual(answer["status"], "success", answer)
        return answer["data"]

    def has_data(self, query):
        found = self.ask("query", query=query.text)["result"]
        for line in found:
            self.assertLessEqual(query.labels, set(line["metric"]), f"{query.panel} names labels that its lines have not")
        return bool(found)

    def assert_rules_are_in_force(self):
        self.wait_until(lambda: "unknown" not in str(self.ask("rules")), "an evaluation of the rules")
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        self.assertEqual(len(rules), len(alerts()))
        self.assertEqual([rule["name"] for rule in rules if rule["health"] != "ok"], [])

    def start_prometheus(self):
        folder = tempfile.mkdtemp(prefix="prometheus-", dir=self.directory)
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}, "rule_files": [ALERTS],
                  "scrape_configs": [{"job_name": "cgxd", "static_configs": [
                      {"targets": [f"{machine.address}:{PORT}" for machine in self.machines]}]}]}
        with open(os.path.join(folder, "prometheus.yml"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                   f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}", "--log.level=error"]
        with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
            server = self.machines[0].start(command, stdout=log, stderr=log)
        self.addCleanup(lambda: (server.kill(), server.wait()))

        def ready():
            with contextlib.suppress(subprocess.CalledProcessError, socket.error):
                return "Ready" in self.fetch(f"http://127.0.0.1:{PROMETHEUS_PORT}/-/ready")
            return False

        self.wait_until(ready, "Prometheus", timeout_s=30)


if __name__ == "__main__":
    unittest.main()
