"""Interleaved rounds: every contestant runs in every round, so that a noisy minute hits all of them."""

import statistics


def interleave(contestants, size, rounds, repetitions, warmup=2, calibration=None):
    """{name: {"us": median over rounds of each round's median, "all_us", "cpu_s_per_gib", ...}}."""
    samples = {c.name: [] for c in contestants}
    for _ in range(rounds):
        if calibration:
            calibration.sample()
        for contestant in contestants:
            samples[contestant.name].append(contestant.measure(size, repetitions, warmup))
    return {c.name: summarize(samples[c.name], size, c.ranks) for c in contestants}


def summarize(samples, size, ranks):
    per_round = [statistics.median(s["us"]) for s in samples]
    operations = sum(len(s["us"]) for s in samples)
    gib = operations * ranks * size / (1 << 30)
    return {
        "us": statistics.median(per_round),
        "rounds_us": per_round,
        "spread": (min(per_round), max(per_round)),
        "all_us": sorted(x for s in samples for x in s["us"]),
        "cpu_s_per_gib": sum(s["cpu_s"] for s in samples) / gib,
        "operations": operations,
        "daemon_faults": max((s.get("daemon_faults", 0) for s in samples), default=0),
    }


def percentile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def better_of(results, names):
    """(name, result) of the fastest of the peers that ran."""
    return min(((n, results[n]) for n in names if n in results), key=lambda pair: pair[1]["us"])
