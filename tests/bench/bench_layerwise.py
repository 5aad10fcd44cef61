"""layerwise: how many bytes do bits that differ by layer save, at no larger error?

layerwise/MODEL: bytes that machines send under 4 bits for all layers / under `ceilings: layerwise`, while two ranks train a model of
`convergence`. The trainers themselves measure on their gradients what both lose (torch, not our kernels); a larger error is a ratio of 0.
"""

import json
import tempfile

import trained
from machines import Machines

MODELS = ("transformer", "conv")
POLICY = {"codec": "maxmin:4,stochastic", "ceilings": "layerwise", "stats_steps": 10, "replica_check_steps": 0}
WITHIN = 1.02  # a bound on a mean of noisy steps
SETTLED_AFTER = 60


def run(options, report):
    if options.peers_only:
        return
    for model in MODELS:
        if options.wants(model):
            measure(model, options, report)


def measure(model, options, report):
    rounds, steps = (1, 10) if options.quick else (3, 30)
    ours, uniform, errors, notes = 0, 0, [0.0, 0.0], []
    with Machines(2, isolate=False) as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        job = trained.Job(machines, folder, model, POLICY)
        try:
            for _ in range(rounds):
                job.apply("ceilings=layerwise")
                job.say(f"steps {SETTLED_AFTER}")
                notes.append(job.note() or "nothing to gain")
                bits = bits_of(job)
                sent = job.bytes_sent()
                for rank in job.say(f"errors {steps} {json.dumps(bits)}"):
                    errors = [have + new for have, new in zip(errors, rank)]
                ours += job.bytes_sent() - sent
                job.apply("ceilings=policy")
                job.say("steps 4")
                sent = job.bytes_sent()
                job.say(f"steps {steps}")
                uniform += job.bytes_sent() - sent
        finally:
            job.close()
    error = errors[1] / errors[0]
    ratio = uniform / ours if error <= WITHIN else 0.0
    counted = ", ".join(f"{list(bits.values()).count(each)} x {each} bits" for each in sorted(set(bits.values())))
    report.add("layerwise", model, ours / rounds / steps, "uniform", uniform / rounds / steps, ratio, "B/step",
               f"{error:.2f} of the error; {counted}; {notes[-1]}")


def bits_of(job):
    """Of tensors whose codec neither a rule nor their size decides."""
    found = {}
    for tensor in job.tensors():
        if tensor["reason"].startswith(("default", "ceilings: layerwise", "guard: ")):
            codec = tensor["codec"]
            found[tensor["name"]] = int(codec.split(":")[1].split(",")[0]) if ":" in codec else 32
    return found
