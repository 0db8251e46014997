"""Reports of the demo with made-up numbers, for the tests of its pages and pictures."""

import math


def make_run(policy: str, speeds: dict[str, float], sizes: dict[str, int], count: int) -> dict:
    """Make a run of `count` iterations of workers that process `speeds` samples per second."""
    records = []
    for number in range(count):
        jitter = 1 + 0.05 * math.sin(number)
        times = {w: jitter * sizes[w] / speeds[w] for w in speeds}
        duration = max(times.values())
        workers = {
            w: {
                "batch_size": sizes[w],
                "batch_processing_time": times[w],
                "waiting_time": duration - times[w],
                "cpu_usage": 0.5,
                "memory_usage": 0.2,
            }
            for w in speeds
        }
        total = sum(sizes.values())
        records.append(
            {
                "iteration": number,
                "epoch": 0,
                "total": total,
                "duration": duration,
                "workers": workers,
            }
        )
    pace = records[0]["duration"]
    return {
        "policy": policy,
        "iteration_s_median": pace,
        "waiting_share": 0.6125 if policy == "even" else 0.0375,
        "accuracy": 0.9725,
        "wall_s": pace * count,
        "batch_sizes": sizes,
        "iterations": records,
        "progress": [
            {
                "time_s": pace * number,
                "iteration": number,
                "loss": 2.3 * 0.97**number,
                "accuracy": 1 - 0.9 * 0.97**number,
            }
            for number in range(0, count, 5)
        ],
    }


def make_report(workers: int = 4, count: int = 40, first_name: str = "worker-0") -> dict:
    """Make a report of workers of which each has half the share of the one before."""
    names = [first_name, *(f"worker-{i}" for i in range(1, workers))]
    shares = {name: 0.8 / 2 ** (i % 4) for i, name in enumerate(names)}
    speeds = {name: 800 * share for name, share in shares.items()}
    whole = sum(shares.values())
    balanced = {name: max(1, round(128 * workers * share / whole)) for name, share in shares.items()}
    return {
        "shares": shares,
        "iterations": count,
        "total_batch_size": 128 * workers,
        "data": "digits",
        "limit_kind": "cgroup v1",
        "seed": 1,
        "speedup": 3.456,
        "ideal_speedup": 3.75,
        "parameters_max_abs_diff": 2.1e-6,
        "runs": {
            "even": make_run("even", speeds, dict.fromkeys(names, 128), count),
            "balanced": make_run("balanced", speeds, balanced, count),
        },
    }
