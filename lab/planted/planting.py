"""`evenpace lab planted`: plants each finding, and says which tests find it."""

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from evenpace.local.terminal import make_table
from evenpace.reports import files
from lab.planted.config import PlantedConfig
from lab.planted.findings import PLANTED
from lab.planted.trial import Outcome, plant


def run(config: PlantedConfig, json_path: Path | None) -> bool:
    """Plant findings one at a time, and print what their tests say.

    Returns:
        Whether all were found.

    Raises:
        ValueError: There is no such finding, or the checkout is none.
        OSError: The figures cannot be written.
    """
    chosen = [each for each in PLANTED if config.only in each.symptom]
    if not chosen:
        raise ValueError(f"only {config.only!r}: no finding's symptom contains it")
    console = Console()
    outcomes: dict[str, Outcome] = {}
    stopping = threading.Event()
    with ThreadPoolExecutor(config.jobs) as threads:
        trials = [threads.submit(plant, each, config, stopping) for each in chosen]
        try:
            for trial in as_completed(trials):
                outcome = trial.result()
                outcomes[outcome.symptom] = outcome
                count = f"{len(outcomes)}/{len(chosen)}"
                console.print(f"{count} {outcome.verdict}: {escape(outcome.symptom)}", soft_wrap=True)
                for detail in (*outcome.tests, *filter(None, [outcome.why])):
                    console.print(f"  {escape(detail)}", soft_wrap=True)
        finally:
            stopping.set()
            threads.shutdown(cancel_futures=True)
    ordered = [outcomes[each.symptom] for each in chosen]
    _show(console, ordered)
    if json_path is not None:
        files.write_json({"findings": [asdict(each) for each in ordered]}, json_path)
    return all(each.verdict == "found" for each in ordered)


def _show(console: Console, outcomes: list[Outcome]) -> None:
    table = make_table("Findings that were planted", "symptom", "verdict", "failed tests", "s")
    for each in outcomes:
        table.add_row(escape(each.symptom), each.verdict, str(len(each.tests)), f"{each.seconds:.0f}")
    console.print(table)
