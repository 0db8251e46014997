"""Which planted findings the simulation finds: `python -m tests.simulation.planted [ROW...] --out FILE`.

Findings of `tests/planted/findings.toml` whose changes are in simulated modules are planted in a copy of the
checkout, several at once, where seeds are run from 0 on. Where one fails that does not fail without them,
they are planted one by one, until that seed fails again. The file has for each finding the seeds run with it
under each exchange, and what found it; with it, a search goes on.

Where seeds fail now and then without any change, one that changes times alone may seem to be found: what went
wrong must fit the finding.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from tests import ROOT
from tests.planted.test_planted import PLANTED, apply, copy_checkout
from tests.simulation.cluster import EVERY
from tests.simulation.product import FRAMEWORKS, SIMULATED_ROOMS

_SECONDS = 120.0  # of real time for one seed, the start of its process included
_SEEDS_AT_ONCE = 20  # for one process
_TOGETHER = 8  # findings in one checkout
_NOT_RUN = *FRAMEWORKS, "worker.resources"  # modules
_LINE = re.compile(r"seed (\d+): .*?(?: WRONG: (.*))?\n")
_WITHOUT = {
    "parameter-server": "all_reduce|regrouping",
    "all-reduce": r"\bps/|shard|parameter_server|job_recovery",
}
"""Paths of code that jobs with an exchange do without."""


def is_simulated(finding):
    """Return whether the simulation runs the modules that a finding changes."""
    modules = [change["path"].replace("/", ".") for change in finding["changes"]]
    return all(
        name.partition(".")[0] in SIMULATED_ROOMS and name.endswith(".py") and not name.startswith(_NOT_RUN)
        for name in modules
    )


def exchanges(finding):
    """Return the ways to exchange gradients under which the code of a finding is used."""
    paths = " ".join(change["path"] for change in finding["changes"])
    return tuple(name for name, without in _WITHOUT.items() if not re.search(without, paths))


async def first_wrong(checkout, exchange, seeds, every=EVERY):
    """Run seeds, a range, on a checkout's own packages; return the first that fails and how, or None."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.simulation", str(seeds[0]), str(len(seeds))),
        *("--with", exchange, "--every", str(every)),
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=2**20,  # bytes of a line
    )
    seed, said = seeds[0], "it has ended"
    try:
        while seed < seeds.stop:
            if not (line := (await asyncio.wait_for(process.stdout.readline(), _SECONDS)).decode()):
                return seed, said
            said = line.strip()
            if found := _LINE.fullmatch(line):
                if found[2]:
                    return int(found[1]), found[2]
                seed = int(found[1]) + 1
    except TimeoutError:
        return seed, f"no end within {_SECONDS:g} s"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    return None


class Search:
    """A search for planted findings.

    Args:
        out: The file of results, of JSON.
        most: Seeds for each finding and exchange.
        every: Seconds between two faults, on average.
    """

    def __init__(self, out, most, every=EVERY):
        self._out, self._most, self._every = out, most, every
        self._known = json.loads(out.read_text()) if out.exists() else {}

    def begin(self, finding):
        """Return what is known of a finding, which may be that it was not looked for yet."""
        new = {"seeds": dict.fromkeys(exchanges(finding), 0), "found": None}
        return self._known.setdefault(finding["row"], new)

    async def search(self, findings, checkout):
        """Look for findings that were looked for with the same seeds, in a copy of the checkout."""
        while left := [finding for finding in findings if not self.begin(finding)["found"]]:
            seeds = self.begin(left[0])["seeds"]
            exchange = min(seeds, key=seeds.get)
            if not (part := range(seeds[exchange], min(seeds[exchange] + _SEEDS_AT_ONCE, self._most))):
                break
            if (wrong := await self._planted(left, checkout, exchange, part)) is None:
                done = part.stop
            else:
                done, _ = wrong
                one = range(done, done + 1)
                is_new = not await first_wrong(ROOT, exchange, one, self._every)
                for finding in left if is_new else ():
                    if alone := await self._planted([finding], checkout, exchange, one):
                        self.begin(finding)["found"] = [exchange, done, alone[1][:200]]
                        break
                if not any(self.begin(finding)["found"] for finding in left):
                    done += 1  # it fails anyway, or by several of them together
            for finding in left:
                self.begin(finding)["seeds"][exchange] = done
            self._save()

    async def _planted(self, findings, checkout, exchange, seeds):
        changes = [change for finding in findings for change in finding["changes"]]
        for change in changes:
            apply(change, checkout)
        try:
            return await first_wrong(checkout, exchange, seeds, self._every)
        finally:
            for change in changes:
                shutil.copy2(ROOT / change["path"], checkout / change["path"])

    def _save(self):
        new = self._out.with_name(f"{self._out.name}.new")
        new.write_text(json.dumps(self._known, indent=1))
        new.replace(self._out)


def together(findings, search):
    """Return groups of findings to plant at once: of unlike files, with the same seeds behind them."""
    groups = []
    for finding in findings:
        known, paths = search.begin(finding), {change["path"] for change in finding["changes"]}
        if known["found"]:
            continue
        for group in groups:
            taken = {change["path"] for other in group for change in other["changes"]}
            alike = search.begin(group[0])["seeds"] == known["seeds"]
            if len(group) < _TOGETHER and alike and not taken & paths:
                group.append(finding)
                break
        else:
            groups.append([finding])
    return groups


async def search_all(findings, search, jobs):
    """Look for findings, with so many processes at once."""
    groups = together(findings, search)

    async def work(checkout):
        copy_checkout(ROOT, checkout)
        while groups:
            await search.search(groups.pop(0), checkout)

    with tempfile.TemporaryDirectory(prefix="evenpace-planted-") as folder:
        await asyncio.gather(*(work(Path(folder) / str(job)) for job in range(jobs)))


def main():
    """Look for the findings whose rows begin as was asked, or for all; print what is known of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="How the row of a finding begins.")
    parser.add_argument("--out", type=Path, required=True, help="File of results, with which it goes on.")
    parser.add_argument("--seeds", type=int, default=2000, help="Seeds for each.  [default: 2000]")
    parser.add_argument("--every", type=float, default=EVERY, help="Seconds between faults.  [default: 1]")
    parser.add_argument("--jobs", type=int, default=2, help="Processes at once.  [default: 2]")
    options = parser.parse_args()
    beginnings = tuple(options.rows) or ("",)
    findings = [one for one in PLANTED if one["row"].startswith(beginnings) and is_simulated(one)]
    search = Search(options.out, options.seeds, options.every)
    asyncio.run(search_all(findings, search, options.jobs))
    for finding in findings:
        known = search.begin(finding)
        seeds = ", ".join(f"{count} {name}" for name, count in known["seeds"].items())
        sys.stdout.write(f"{finding['row']:52}  {known['found'] or f'not found in {seeds}'}\n")


if __name__ == "__main__":
    main()
