"""switch: what a job's steps notice of a new plan.

switch/feedback-100M: a policy with error feedback for 100 million parameters, 800 MB of residuals a machine, takes
force between two steps. 1.5 x the median step / the longest one from then on: residuals are not made at the switch.
The figure is the median of three rounds. Beside it stands the same of as many steps of that job without any change:
what the machine does to a longest step by itself.
switch/every20: the median step alone / with another plan about every 20 steps.
"""

import statistics
import threading
import time

import ours
from machines import Machines

PARAMETERS = 100_000_000
PLAIN = {"codec": "maxmin:4"}
STEP = 64 << 20
CASES = ("feedback-100M", "every20")


def run(options, report):
    if options.peers_only:
        return
    for case, measure in zip(CASES, (feedback, every20)):
        if options.wants(case):
            measure(options, report)


def feedback(options, report):
    size, repetitions = 4 * PARAMETERS, 6 if options.quick else 24
    rounds = [feedback_round(size, repetitions) for _ in range(1 if options.quick else 3)]
    ratios = [1.5 * round_["median"] / round_["longest"] for round_ in rounds]
    middle = rounds[ratios.index(statistics.median_low(ratios))]
    controls = [1.5 * round_["median"] / round_["control"] for round_ in rounds]
    report.add("switch", CASES[0], middle["longest"] / 1e3, "1.5 x median", 1.5 * middle["median"] / 1e3,
               statistics.median_low(ratios), "ms",
               f"rounds {shown(ratios)}; as many steps without a change {shown(controls)}; "
               f"median {middle['before'] / 1e3:.0f} ms before, {middle['during'] / 1e3:.0f} meanwhile, "
               f"{middle['median'] / 1e3:.0f} after")


def feedback_round(size, repetitions):
    """Steps of one job: until the policy with feedback is in force and a few more; then as many without a change."""
    with Machines(2) as machines:
        job = ours.Cgxd(machines, 1, size, PLAIN, {"limits": {"plan_bytes": 8 << 30}})
        try:
            before = job.measure(size, repetitions)["us"]
            during = steps_until_feedback(job, size, repetitions)
            after = job.measure(size, repetitions)["us"]
            control = []
            while len(control) < len(during + after):
                control += job.measure(size, repetitions)["us"]
        finally:
            job.close()
    return {"before": statistics.median(before), "during": statistics.median(during),
            "median": statistics.median(after), "longest": max(during + after),
            "control": max(control[:len(during + after)])}


def steps_until_feedback(job, size, repetitions):
    times, deadline = [], time.monotonic() + 90
    change = Changes(job, [("codec=maxmin:4,feedback",)], 0.0)
    with change:
        while change.failed is None and not residuals_exist(job):
            if time.monotonic() > deadline:
                raise RuntimeError("the policy with feedback did not take force")
            times += job.measure(size, repetitions)["us"]
    return times


def shown(ratios):
    return " ".join(f"{ratio:.2f}" for ratio in ratios)


def every20(options, report):
    rounds, repetitions = (1, 40) if options.quick else (5, 100)
    alone, beside, made = [], [], 0
    with Machines(2) as machines:
        job = ours.Cgxd(machines, 1, STEP, PLAIN)
        try:
            for _ in range(rounds):
                times = job.measure(STEP, repetitions)["us"]
                alone += times
                changes = Changes(job, [("window=3",), ("window=4",)], 20 * statistics.median(times) / 1e6)
                with changes:
                    beside += job.measure(STEP, repetitions)["us"]
                made += changes.made
        finally:
            job.close()
    one, other = statistics.median(alone), statistics.median(beside)
    report.add("switch", CASES[1], other / 1e3, "alone", one / 1e3, one / other, "ms",
               f"{made} plans in {len(beside)} steps")


def residuals_exist(job):
    return any("feedback" in tensor["codec"] for tensor in job.daemons[0].control_tool("tensors")["tensors"])


class Changes:
    """Applies the settings in turn, beside what is inside; every `interval_s`, or each once where that is 0."""

    def __init__(self, job, settings, interval_s):
        self.job, self.settings, self.interval_s = job, settings, interval_s
        self.made, self.failed = 0, None
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.apply)

    def apply(self):
        try:
            while not self.stopped.wait(self.interval_s):
                words = self.settings[self.made % len(self.settings)]
                self.apply_one([word for setting in words for word in ("--set", setting)])
                self.made += 1
                if self.interval_s == 0 and self.made == len(self.settings):
                    return
        except Exception as error:  # pylint: disable=broad-except  the measuring thread raises it
            self.failed = error

    def apply_one(self, words):
        """After the change before, which may be agreed and not in force yet: then this one is refused."""
        while True:
            done = self.job.daemons[0].control_tool("policy", "apply", *words, "--wait", "0", check=False)
            if done.returncode == 0:
                return
            if "BUSY" not in done.stderr:
                raise RuntimeError(done.stderr)
            time.sleep(0.002)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, kind, *_):
        self.stopped.set()
        self.thread.join()
        if self.failed and kind is None:
            raise self.failed
