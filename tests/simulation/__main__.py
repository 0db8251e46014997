"""Scenarios by their seeds: `python -m tests.simulation FIRST [COUNT] [--with all-reduce] [--shrink]`."""

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation.cluster import EVERY, Scenario, shrink, simulate, virtual_log
from tests.simulation.groups import GroupScenario

_SCENARIOS = {"parameter-server": Scenario, "all-reduce": GroupScenario}


def _say(*lines):
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def main():
    """Run scenarios, and print a line for each; the status is 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("first", type=int, help="Seed of the first scenario.")
    parser.add_argument("count", type=int, nargs="?", default=1, help="Scenarios, of seeds in turn.")
    parser.add_argument("--shrink", action="store_true", help="Leave out faults while it still fails.")
    parser.add_argument("--log", action="store_true", help="Print the log in virtual time.")
    parser.add_argument(
        "--with",
        dest="exchange",
        choices=tuple(_SCENARIOS),
        default="parameter-server",
        help="How workers exchange gradients.  [default: parameter-server]",
    )
    parser.add_argument(
        "--every",
        type=float,
        default=EVERY,
        help=f"Seconds between two faults, on average.  [default: {EVERY:g}]",
    )
    options = parser.parse_args()
    logging.disable(logging.NOTSET if options.log else logging.CRITICAL)
    failed, fired, began = [], Counter(), time.monotonic()
    for seed in range(options.first, options.first + options.count):
        scenario = _SCENARIOS[options.exchange].of(seed, every=options.every)
        if options.log:
            with virtual_log(sys.stdout):
                outcome = simulate(scenario)
        else:
            outcome = simulate(scenario)
        fired += outcome.fired
        _say(outcome)
        if outcome.wrongs:
            failed.append(seed)
            if options.shrink:
                smallest = shrink(scenario)
                _say(*("  " + str(fault) for fault in smallest.faults))
                _say(f"  {simulate(smallest)}")
    total, seconds = sum(fired.values()), time.monotonic() - began
    _say(f"{options.count} scenarios with {total} faults in {seconds:.1f} s, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
