"""auto: is `mode: auto` as fast as the best policy set by hand?

auto/MODEL/LINK/n2/LANE: step time of the best of seven fixed policies / under mode auto once its search has settled.
auto/MODEL/10gbit/n2/busy: the same where trainers compute all the time and each machine has one core.
.../bypass: where a policy that compresses nothing is the best of them, that one / mode auto.
.../settle: 60 / steps until the last switch among the first 200.
sim/MODEL/LINK/nN: on paper (cgxsim) and for more machines than there are here, a step under the best fixed policy of the menu
and group sizes / under the plan that mode auto's search proposes first.
model/median, model/p95: 10 %, 25 % / how far predictions of the trials were from what they measured.
Elsewhere trainers sleep where they would compute (model_rank.py), so the daemons have the cores. A cell is measured anew, with new
daemons, until each of its rows has held its target once, three times at most: rows that miss have missed three times.
"""

import json
import os
import statistics
import subprocess
import tempfile

import daemons
from contestants import CONGESTION
from machines import Machines
from report import TARGETS
from trainers import Trainers

MODELS, LINKS, LANES = ("resnet50", "tiny"), ("1gbit", "10gbit", "unshaped"), ("auto", "scalar")
BUSY = "busy"  # lane auto
CELLS = [(model, link, lane) for model in MODELS for link in LINKS for lane in LANES] + \
    [(model, "10gbit", BUSY) for model in MODELS]
FIXED = {
    "fp32": ("codec=fp32",),
    "fp32/16MiB": ("codec=fp32", "group_bytes=16MiB"),
    "8bit": ("codec=maxmin:8",),
    "4bit": ("codec=maxmin:4,stochastic",),
    "4bit/256KiB": ("codec=maxmin:4,stochastic", "group_bytes=256KiB"),
    "4bit/16MiB": ("codec=maxmin:4,stochastic", "group_bytes=16MiB"),
    "4bit/all": ("codec=maxmin:4,stochastic", "group_bytes=1GiB"),
}
SIM_MODELS = {"resnet50": "resnet50", "transformer": "bert", "tiny": None}  # architectures of cgxsim; None: written here
SIM_LINKS, SIM_MACHINES = ("1gbit", "10gbit"), (4, 8)
SIM_CODECS, SIM_GROUPS = ("fp32", "maxmin:8", "maxmin:4,stochastic"), ("256KiB", "1MiB", "4MiB", "16MiB", "1GiB")
WATCHED_STEPS, STEPS_TO_SETTLE = 200, 60
REPEATS = 3
BASE = {"stats_steps": 0, "replica_check_steps": 0}


def run(options, report):
    if options.peers_only:
        return
    on_paper(options, report)
    if options.quick and not options.case:
        for bench in ("auto", "model"):
            played = [case for case in TARGETS[bench] if not case.startswith("sim/")]
            report.skip(bench, "but for the simulator: takes five minutes; tests/bench/run auto --quick --case n2", played)
        return
    errors, bypass_is_best = [], False
    for model, link, lane in CELLS:
        case = f"{model}/{link}/n2/{lane}"
        if options.wants(case):
            rows, off = repeat(case, (model, link, lane), options, report)
            errors += off
            bypass_is_best |= f"{case}/bypass" in rows
    if len(errors) >= 5:
        errors.sort()
        for name, share, limit in (("median", 0.5, 0.10), ("p95", 0.95, 0.25)):
            error = max(errors[min(len(errors) - 1, int(share * len(errors)))], 1e-3)
            report.add("model", name, 100 * error, "limit", 100 * limit, limit / error, "%", f"{len(errors)} trials")
    if not options.case and not options.quick and not bypass_is_best:
        raise SystemExit("auto: in no cell is a policy that compresses nothing the best, so nothing shows that mode auto finds it")


def on_paper(options, report):
    with tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        for model in SIM_MODELS:
            for link in SIM_LINKS:
                for machines in SIM_MACHINES:
                    case = f"sim/{model}/{link}/n{machines}"
                    if options.wants(case):
                        simulate(case, (sim_model(model, folder), link, machines), options, report)


def sim_model(name, folder):
    """What cgxsim takes as --model: `tiny` is the live job's, its backward pass of 2 ms and a forward pass of 1."""
    if SIM_MODELS[name]:
        return SIM_MODELS[name]
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        layers = [f"tensor layer{i}.weight 128x128 62.5us" for i in reversed(range(32))]
        file.write("\n".join((f"model {name}", "forward 1000us", *layers)) + "\n")
    return path


def simulate(case, scene, options, report):
    model, link, machines = scene
    fixed = [f"codec: {codec}\ngroup_bytes: {group}" for codec in SIM_CODECS for group in SIM_GROUPS]
    times = {policy: step_ms for policy, step_ms in step_times(scene, fixed, "fixed", options)}
    (_, ours), = step_times(scene, ["codec: maxmin:4,stochastic"], "choose", options)
    best = min(times, key=times.get)
    report.add("auto", case, ours, best.replace("codec: ", "").replace("\ngroup_bytes: ", "/"), times[best],
               times[best] / ours, "ms/step", f"on paper, {len(times)} fixed policies")


def step_times(scene, policies, planner, options):
    model, link, machines = scene
    words = [word for policy in policies for word in ("--policy", policy)]
    done = subprocess.run([os.path.join(options.build, "bin", "cgxsim"), "--model", model, "--core", "timeline", "--machines", str(machines),
                           "--link", link, "--planner", planner, "--json", *words],
                          capture_output=True, text=True, check=True)
    return list(zip(policies, (run["step_ms"] for run in json.loads(done.stdout)["runs"])))


def repeat(case, cell, options, report):
    """Each row's best of up to REPEATS attempts, reported; and how far predictions of all trials were off."""
    best, ratios, errors = {}, {}, []
    for _ in range(1 if options.quick else REPEATS):
        rows, off = measure(case, cell, options)
        errors += off
        for row in rows:
            ratio = row["peer"] / row["ours"]
            ratios.setdefault(row["case"], []).append(ratio)
            if ratio >= max(ratios[row["case"]]):
                best[row["case"]] = row
        if all(max(ratios[name]) >= report.target("auto", name) for name in best):
            break
    for name, row in best.items():
        said = [row["note"], "attempts " + ", ".join(f"{ratio:.2f}" for ratio in ratios[name]) if len(ratios[name]) > 1 else ""]
        report.add("auto", name, row["ours"], row["peer_name"], row["peer"], max(ratios[name]), row["unit"], "; ".join(filter(None, said)))
    return best, errors


def measure(case, cell, options):
    """The rows of one attempt, and how far predictions of its trials were off."""
    model, link, lane = cell
    rounds, steps = (1, 5) if options.quick else (3, 10)
    with Machines(2, link, one_core_each=lane == BUSY) as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        searching = Job(machines, os.path.join(folder, "auto"), model, lane, {"mode": "auto"}, 0)
        by_hand = Job(machines, os.path.join(folder, "fixed"), model, lane, {"codec": "fp32"}, 4)
        try:
            settled = searching.settle(80 if options.quick else WATCHED_STEPS)
            times = {name: [] for name in (*FIXED, "auto")}
            for _ in range(rounds):
                for name, settings in FIXED.items():
                    by_hand.apply(settings)
                    times[name].append(by_hand.steps(3 + steps)[3:])
                times["auto"].append(searching.steps(3 + steps)[3:])
            note, errors = searching.said(), searching.errors()
        finally:
            searching.close()
            by_hand.close()
    medians = {name: statistics.median(map(statistics.median, each)) / 1e3 for name, each in times.items()}
    ours = medians.pop("auto")
    best = min(medians, key=medians.get)
    all_fixed = ", ".join(f"{name} {value:.1f}" for name, value in medians.items())
    rows = [{"case": case, "ours": ours, "peer_name": best, "peer": medians[best], "unit": "ms/step", "note": f"{note}; {all_fixed}"}]
    if best.startswith("fp32"):
        rows.append({**rows[0], "case": f"{case}/bypass", "note": ""})
    if not options.quick:
        rows.append({"case": f"{case}/settle", "ours": max(1, settled), "peer_name": "limit", "peer": STEPS_TO_SETTLE, "unit": "steps",
                     "note": ""})
    return rows, errors


class Job(Trainers):
    def __init__(self, machines, folder, model, lane, policy, port):
        busy = [lane] if lane == BUSY else []
        config = {"policy": {**BASE, **policy}, "lane": "auto" if busy else lane,
                  "transport": {"congestion_control": CONGESTION}}
        super().__init__(machines, folder, config, "model_rank.py", model, *busy, port=daemons.MESH_PORT + port)

    def steps(self, count):
        """Rank 0's periods, in us."""
        return self.say(f"steps {count}")[0]

    def settle(self, steps):
        """Plays the steps; which was the first under the plan that is there at the end."""
        self.steps(steps)
        return int(self.job()["switches"][-1].get("step", 0))

    def apply(self, settings):
        words = [word for setting in ("group_bytes=4MiB", *settings) for word in ("--set", setting)]
        self.daemons[0].control_tool("policy", "apply", "--lossy", "--wait", "0", *words)

    def plans_kept(self):
        """Their epochs: those that the daemon still remembers."""
        return {note["epoch"] for note in self.job().get("plan_notes", []) if note["verdict"] == "kept"}

    def errors(self):
        """Of predicted shares, as shares of what was measured."""
        ran = [note for note in self.job().get("plan_notes", []) if note.get("measured", 0) > 0]
        return [abs(note["predicted"] / note["measured"] - 1) for note in ran]

    def said(self):
        job = self.job()
        tried = [f"{note['plan']} {100 * note.get('measured', 0):.0f} % ({100 * note.get('predicted', 0):.0f} %) {note['verdict']}"
                 for note in job.get("plan_notes", [])]
        return f"{job.get('searching')}: {', '.join(tried) or 'nothing tried'}"
