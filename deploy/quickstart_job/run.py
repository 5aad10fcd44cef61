"""The quickstart's main job: the same training over gloo and over cgxd on two machines, compared and checked.

Two machines with two ranks each; as root they are network namespaces joined by a 1 Gbit/s link, otherwise daemons on
loopback addresses. Prints progress, a table and what was checked; exits 1 if any check fails.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "e2e")]
sys.dont_write_bytecode = True

from daemons import Daemon  # noqa: E402
from job import Job  # noqa: E402
from machines import Machines  # noqa: E402
from plot import picture, points_of  # noqa: E402

LINK = "1gbit"
MACHINES, RANKS_PER_MACHINE = 2, 2
CHECK_STEP = 8        # where the fp32 run is compared with the reference, bit for bit
LIVE_STEPS = 40       # length of the run whose policy changes half way


@dataclass
class Run:
    name: str
    exchange: str
    codec: str = None
    loss_tolerance: float = None  # against fp32 through cgxd
    codec_later: str = None       # what the operator changes it to, half way
    mode: str = "fixed"           # auto: the codec is the strongest that is tried


RUNS = {
    "gloo": Run("gloo", "gloo"),
    "fp32": Run("cgxd fp32", "cgxd", "fp32"),
    "4bit": Run("cgxd 4 bits", "cgxd", "maxmin:4,bucket=512,stochastic", 0.02),
    "8bit": Run("cgxd 8 bits", "cgxd", "maxmin:8,bucket=512,stochastic", 0.005),
    "live": Run("cgxd 8 -> 4 bits", "cgxd", "maxmin:8,bucket=512,stochastic",
                codec_later="maxmin:4,bucket=512,stochastic"),
    "auto": Run("cgxd mode auto", "cgxd", "maxmin:4,bucket=512,stochastic", 0.02, mode="auto"),
}


class Quickstart:
    def __init__(self, machines, directory, arguments):
        self.machines, self.directory, self.steps = machines, directory, arguments.steps
        self.outcomes, self.failures = {}, []
        self.plans_shown = 0

    def say(self, text):
        print(text, flush=True)

    def check(self, passed, text):
        self.say(f"  {'ok  ' if passed else 'FAIL'} {text}")
        if not passed:
            self.failures.append(text)

    def start_daemons(self, run):
        directory = tempfile.mkdtemp(dir=self.directory)
        os.chmod(directory, 0o755)
        config = {"policy": {"codec": run.codec, "mode": run.mode}}
        return [Daemon(machine, directory, config) for machine in self.machines]

    def run(self, key):
        run = RUNS[key]
        steps = LIVE_STEPS if run.codec_later else self.steps
        self.say(f"\n== {run.name}: {steps} steps, {MACHINES} machines x {RANKS_PER_MACHINE} ranks")
        daemons = self.start_daemons(run) if run.exchange == "cgxd" else []
        job = Job(self.machines, RANKS_PER_MACHINE, run.exchange, steps, daemons,
                  check_step=CHECK_STEP if key == "fp32" else 0)
        try:
            outcome = job.run(lambda line: self.on_step(run, line, steps, daemons))
        finally:
            for daemon in daemons:
                daemon.process.terminate()
                daemon.process.wait(10)
        self.outcomes[key] = outcome
        self.check(outcome.ranks_agree(), "parameters are bit-equal on all ranks")
        return outcome

    def on_step(self, run, line, steps, daemons):
        if line["step"] % 10 == 0 or line["step"] == steps - 1:
            self.say(f"  step {line['step']:4}/{steps}  loss {line['loss']:.3f}  step {line['step_ms']:4.0f} ms  "
                     f"exchange {line['exchange_ms']:4.0f} ms")
        if run.codec_later and line["step"] == steps // 2:
            self.change_policy(run, daemons)
        if run.mode == "auto":
            self.show_plans(daemons)

    def show_plans(self, daemons):
        """What mode auto has found out since the last look."""
        for communicator in daemons[0].control_tool("jobs").get("communicators", []):
            notes = communicator.get("plan_notes", [])
            for note in notes[self.plans_shown:]:
                if note["plan"] == "search":
                    self.say(f"  looks for another plan at step {note['step']}: {note['verdict']}")
                    continue
                measured = f", a step takes {100 * note['measured']:.0f} % of what it took" if note.get("measured") else ""
                self.say(f"  tried from step {note.get('step', '-')} on: {note['plan']}{measured}: {note['verdict']}")
            self.plans_shown = len(notes)

    def change_policy(self, run, daemons):
        """What an operator types while the job runs."""
        path = os.path.join(self.directory, "policy.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'codec: "{run.codec_later}"\n')
        self.say(f"  $ cgxctl policy apply policy.yaml      # codec: {run.codec_later}")
        change = daemons[0].control_tool("policy", "apply", path)
        self.switch_step = int(change["switch_step"])
        self.say(f"  policy version {change['policy_version']} took effect at step {self.switch_step} everywhere")

    def compare_with_reference(self):
        self.say(f"\n== reference: {CHECK_STEP} steps, every rank gathers all gradients and adds them in the stated order")
        self.machines.shape("unshaped")  # it moves twice as much as gloo does
        outcome = Job(self.machines, RANKS_PER_MACHINE, "reference", self.steps, stop_after=CHECK_STEP,
                      check_step=CHECK_STEP).run()
        self.machines.shape(LINK)
        expected = set(outcome.parameters[CHECK_STEP])
        got = set(self.outcomes["fp32"].parameters[CHECK_STEP])
        self.check(expected == got, f"fp32 through cgxd: parameters after {CHECK_STEP} steps are bit-equal to the "
                   f"reference ({', '.join(sorted(got))} and {', '.join(sorted(expected))})")

    def check_losses(self):
        exact = self.outcomes["fp32"].final_loss
        for key, run in RUNS.items():
            if run.loss_tolerance and key in self.outcomes:
                loss = self.outcomes[key].final_loss
                self.check(abs(loss / exact - 1) <= run.loss_tolerance,
                           f"{run.name}: final loss {loss:.4f} is within {100 * run.loss_tolerance:g} % of fp32's "
                           f"{exact:.4f} ({100 * (loss / exact - 1):+.3f} %)")

    def check_switch(self):
        switched = self.outcomes["live"].switch_steps()
        for rank, step in switched.items():
            self.say(f"  rank {rank}: first step under the new policy: {step}")
        self.check(set(switched.values()) == {self.switch_step}, "every rank switched at the announced step")

    def table(self):
        base = self.outcomes.get("gloo")
        self.say(f"\n{'':18}{'step':>10}{'exchange':>12}{'wire/step':>12}{'final loss':>12}"
                 f"{'step':>9}{'exchange':>10}{'wire':>8}")
        for key, outcome in self.outcomes.items():
            wire = outcome.wire_bytes_per_step
            row = (f"{RUNS[key].name:18}{outcome.step_ms():>7.0f} ms{outcome.exchange_ms():>9.0f} ms"
                   f"{'-' if wire is None else f'{wire / 1e6:.2f} MB':>12}{outcome.final_loss:>12.4f}")
            if base:
                ratio = None if None in (wire, base.wire_bytes_per_step) else base.wire_bytes_per_step / wire
                row += (f"{base.step_ms() / outcome.step_ms():>8.2f}x{base.exchange_ms() / outcome.exchange_ms():>9.2f}x"
                        f"{'-' if ratio is None else f'{ratio:.2f}x':>8}")
            self.say(row)
        self.say("wire/step: bytes machine 0 sent; ratios: how many times better than gloo")


    def plot(self, path):
        """Of the runs that made all steps."""
        runs = {RUNS[key].name: points_of(outcome.steps) for key, outcome in self.outcomes.items() if not RUNS[key].codec_later}
        if not runs:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(picture(runs, f"Loss over time, {MACHINES} machines x {RANKS_PER_MACHINE} ranks, {self.steps} steps"))
        self.say(f"loss over time: {os.path.relpath(path)}")


def rows(quickstart):
    for key, outcome in quickstart.outcomes.items():
        yield {"run": RUNS[key].name, "step_ms": outcome.step_ms(), "exchange_ms": outcome.exchange_ms(),
               "wire_bytes_per_step": outcome.wire_bytes_per_step, "final_loss": outcome.final_loss}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", default=",".join(RUNS), help=f"comma-separated: {', '.join(RUNS)}")
    parser.add_argument("--plot", default=os.path.join(ROOT, "build", "quickstart.svg"), metavar="FILE",
                        help="where the picture of the loss over time goes (default build/quickstart.svg)")
    parser.add_argument("--json", action="store_true", help="also print one JSON line per run")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    with tempfile.TemporaryDirectory(prefix="cgx-quickstart-") as directory, \
            Machines(MACHINES, shape=LINK) as machines:
        os.chmod(directory, 0o755)
        quickstart = Quickstart(machines, directory, arguments)
        print(f"{machines.describe()}{', each link shaped to 1 Gbit/s' if machines.isolated else ''}")
        for key in chosen:
            quickstart.run(key)
        if "fp32" in chosen:
            quickstart.compare_with_reference()
        quickstart.table()
        quickstart.plot(arguments.plot)
        print()
        if "fp32" in chosen:
            quickstart.check_losses()
        if "live" in chosen:
            quickstart.check_switch()
        if arguments.json:
            for row in rows(quickstart):
                print(json.dumps(row))
    print("\nall checks passed" if not quickstart.failures else f"\n{len(quickstart.failures)} checks failed")
    return 1 if quickstart.failures else 0


if __name__ == "__main__":
    sys.exit(main())
