"""The alert rules and the Grafana dashboard: every metric they name is there, and a live Prometheus has data for each query."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
import unittest
import urllib.parse

from cluster_case import ClusterCase
from daemons import ROOT, merged
from ranks import Tensor

PORT, PROMETHEUS_PORT = 9464, 9090
ALERTS = os.path.join(ROOT, "deploy", "prometheus", "alerts.yaml")
DASHBOARD = os.path.join(ROOT, "deploy", "grafana", "cgxd.json")
TENSORS = (Tensor("weight", (300, 411)), Tensor("bias", (41,)))
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"
RESERVED = {"job", "instance", "le", "quantile", "__name__"}


def queries():
    """[(panel, query)] of the dashboard, for all jobs and machines."""
    with open(DASHBOARD, encoding="utf-8") as file:
        dashboard = json.load(file)
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]
    found += [("annotation", each["expr"]) for each in dashboard["annotations"]["list"]]
    return [(title, re.sub(r"\$\w+", ".*", query)) for title, query in found]


class Dashboards(ClusterCase):
    CONFIG = {"policy": {"codec": "maxmin:4", "stats_steps": 1, "min_elements": 64}}

    @classmethod
    def config_of(cls, machine):
        return merged(cls.CONFIG, {"metrics": {"address": cls.machines[machine].address, "port": PORT, "job_names": True}})

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
        self.assert_known("cgxd.json", " ".join(query for _, query in queries()))

    def test_no_label_is_a_scrapers_own(self):
        self.train(2)
        labels = set(re.findall(r'[{,](\w+)="', self.page()))
        self.assertIn("cgx_job", labels)
        self.assertEqual(labels & (RESERVED - {"le"}), set())

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
        missing = queries()
        deadline = time.monotonic() + 40
        while missing and time.monotonic() < deadline:
            step += 1
            job.submit(comm, step)
            job.must("wait", comm, step)
            if step % 20 == 0:
                missing = [(title, query) for title, query in missing if not self.has_data(title, query)]
        self.assertEqual(missing, [], "no data for these")

    def has_data(self, title, query):
        url = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        answer = json.loads(self.fetch(url))
        self.assertEqual(answer["status"], "success", answer)
        return bool(answer["data"]["result"]) or title == "annotation"  # which has data when plans change

    def start_prometheus(self):
        folder = os.path.join(self.directory, "prometheus")
        os.makedirs(folder)
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "rule_files": [ALERTS],
                  "scrape_configs": [{"job_name": "cgxd", "static_configs": [
                      {"targets": [f"{machine.address}:{PORT}" for machine in self.machines]}]}]}
        with open(os.path.join(folder, "prometheus.yml"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                   f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}", "--log.level=error"]
        with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
            self.machines[0].start(command, stdout=log, stderr=log)

        def ready():
            with contextlib.suppress(subprocess.CalledProcessError, socket.error):
                return "Ready" in self.fetch(f"http://127.0.0.1:{PROMETHEUS_PORT}/-/ready")
            return False

        self.wait_until(ready, "Prometheus", timeout_s=30)


if __name__ == "__main__":
    unittest.main()
