"""The status page as headless Chromium shows it: figures of a live job, at two widths, light and dark.

Screenshots stay in build/page/.
"""

import html
import itertools
import json
import os
import re
import shutil
import struct
import tempfile
import threading
import unittest

from cluster_case import ClusterCase
from daemons import BUILD, ROOT, merged
from ranks import Tensor

PORT = 9464
SHOTS = os.path.join(os.path.dirname(BUILD), "page")
FILES = os.path.join(ROOT, "daemon", "operators", "page")
TENSORS = (Tensor("layer.weight", (512, 400)), Tensor("head.weight", (100, 300)), Tensor("bias", (512,)))
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def size_of(path):
    """Width and height of a PNG."""
    with open(path, "rb") as file:
        return struct.unpack(">II", file.read(24)[16:])


@unittest.skipUnless(CHROMIUM, "no chromium (Debian's package of that name)")
class Page(ClusterCase):
    CONFIG = {"policy": {"codec": "maxmin:4", "rules": [{"match": "head", "codec": "topk:0.01,feedback"}]},
              "timeouts": {"late_warning_ms": 500}}

    @classmethod
    def config_of(cls, machine):
        return merged(cls.CONFIG, {"metrics": {"address": cls.machines[machine].address, "port": PORT, "job_names": True}})

    def browse(self, *options):
        profile = self.enterContext(tempfile.TemporaryDirectory(prefix="cgx-page-"))
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--hide-scrollbars", f"--user-data-dir={profile}", "--virtual-time-budget=2000", *options,
                   f"http://{self.machines[0].address}:{PORT}/"]
        done = self.machines[0].run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def shot(self, width, height, dark):
        os.makedirs(SHOTS, exist_ok=True)
        path = os.path.join(SHOTS, f"page-{width}{'-dark' if dark else ''}.png")
        self.browse(f"--window-size={width},{height}", f"--screenshot={path}",
                    *(["--blink-settings=preferredColorScheme=0"] if dark else []))
        self.assertEqual(size_of(path), (width, height))
        return os.path.getsize(path)

    def in_background(self, train):
        """Runs train(ended) until the test is over."""
        ended = threading.Event()
        thread = threading.Thread(target=train, args=(ended,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(ended.set)

    def start_training(self):
        job = self.job([0, 0, 1, 1])
        comm = job.join(tensors=TENSORS)

        def train(ended):
            step = 0
            while not ended.wait(0.02):
                step += 1
                job.submit(comm, step, list(range(3)) if step == 60 else None)
                if step == 60:
                    ended.wait(1.5)
                    job.submit(comm, step, [3])  # late
                job.must("wait", comm, step)

        self.in_background(train)
        return job

    def test_it_shows_a_live_job_and_fits_its_window(self):
        job = self.start_training()
        self.wait_until(lambda: '"late"' in self.status(), "the mark of a late rank", timeout_s=30)
        shown = html.unescape(self.browse("--window-size=1200,1500", "--dump-dom"))
        for text in (f"{job.name} / grads", "running", "4 ranks on 2 machines", "Time of a step", "maxmin:4", "topk:0.01",
                     "rank 0", "Behind the first rank", "1 of 1", "plan 1 takes force", "x fewer in all", "machine 1", "late"):
            self.assertIn(text, shown)
        self.assertNotIn("undefined", shown)
        self.assertNotIn("NaN", shown)
        lines = re.findall(r'class="line" d="([^"]*)"', shown)
        self.assertEqual(len(lines), 6, "two charts of a job and one of a link, two lines each")
        self.assertTrue(all(line.count("L") >= 1 for line in lines), lines)
        narrow = self.browse("--window-size=400,2400", "--dump-dom")
        for page in (shown, narrow):
            self.assertIn('data-overflow="0"', page, "something is cut off")
        for width, height, dark in ((1200, 1500, False), (1200, 1500, True), (400, 2400, False), (400, 2400, True)):
            self.assertGreater(self.shot(width, height, dark), 20_000, "hardly anything is drawn")

    def test_a_failure_is_a_mark_where_it_happened(self):
        job = self.job([0, 1])
        comm = job.join(tensors=TENSORS)
        job.submit(comm, 1)
        job.must("wait", comm, 1)
        self.assertNotIn('"failed"', self.status())
        job.ranks[1].kill()
        self.wait_until(lambda: '"failed"' in self.status(), "the mark of a failure", timeout_s=10)
        shown = html.unescape(self.browse("--window-size=1200,1500", "--dump-dom"))
        mark, = re.findall(r"<g><title>(failed: [^<]+)</title>(.*?)</g>", shown)
        self.assertRegex(mark[0], r"^failed: [A-Z_]+$")
        self.assertEqual(mark[1].count("var(--bad)"), 2, "its line and its flag")
        self.assertRegex(shown, r'class="state bad">failed<')
        self.assertRegex(shown, r'class="tile bad">.{0,80}Jobs.{0,80}1 failed')

    def test_a_link_is_shown_as_a_share_of_its_line_rate(self):
        job = self.job([0, 1], arena_bytes=64 << 20)
        comm = job.join(tensors=(Tensor("large", (3000, 1003)),))
        step = itertools.count(1)

        def train(ended):
            while not ended.is_set():
                number = next(step)
                job.must("submit", comm, number, 0)
                job.must("end", comm, number)
                job.must("wait", comm, number)

        self.in_background(train)

        def loads():
            """Bytes a second, the busier way, of the last ten seconds."""
            link, = json.loads(self.status())["links"]
            self.assertEqual(link["line_rate"], 10e9 / 8, "what the kernel says of a veth")
            return [max(out, into) for _, out, into in link["samples"][-10:]]

        self.wait_until(lambda: len(loads()) >= 5 and min(loads()[-3:]) > 2e6, "some seconds of traffic", timeout_s=30)
        before = loads()
        shown = html.unescape(self.browse("--window-size=1200,1500", "--dump-dom"))
        after = loads()
        (width, percent), = re.findall(r'<i style="[^"]*width: ([\d.]+)%;?[^"]*"></i></div><span class="quiet">([\d.]+) % of 1\.25 GB/s<', shown)
        low, high = (100 * bound / (10e9 / 8) for bound in (min(before[-3:] + after), max(before + after)))
        rounded = 0.06 if "." in percent else 0.51
        self.assertTrue(low - rounded <= float(percent) <= high + rounded, (low, percent, high))
        self.assertAlmostEqual(float(width), float(percent), delta=rounded)

    def status(self):
        fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"
        url = f"http://{self.machines[0].address}:{PORT}/status.json"
        return self.machines[0].run(["/usr/bin/python3", "-c", fetch, url], capture_output=True, text=True, check=True).stdout


class Files(unittest.TestCase):
    def test_nothing_comes_from_outside_and_no_text_becomes_html(self):
        for name in os.listdir(FILES):
            with open(os.path.join(FILES, name), encoding="utf-8") as file:
                text = file.read().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
            self.assertNotRegex(text, r"https?:|//[a-z]+\.|@import|url\(", name)
            self.assertNotRegex(text, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", name)


if __name__ == "__main__":
    unittest.main()
