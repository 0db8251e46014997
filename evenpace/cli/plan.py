"""`evenpace plan`: the best split over devices of known profiles, before anything runs."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchsize_manager.planning_config import Task
from evenpace.cli.options import example, json_path, user_mistakes
from evenpace.cli.settings import configured
from evenpace.cli.values import positive_number

if TYPE_CHECKING:
    from batchsize_manager.learning.profiles import Profile
    from batchsize_manager.planning import Forecast, Recommendation


@click.command()
@example("evenpace plan --total 8192 --micro-batch 64 --profiles profiles V100=2 P100=4")
@configured(Task, "task")
@click.option(
    "--profiles",
    "paths",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="A file from `evenpace profile`, or a folder of them; may be repeated.",
)
@json_path
@click.argument("devices", nargs=-1, required=True, metavar="DEVICE[=COUNT]...")
def plan(task: Task, paths: tuple[Path, ...], json_path: Path | None, devices: tuple[str, ...]) -> None:
    """Split a batch over devices by their profiles, and say how fast an iteration will be.

    A DEVICE is a profile's, or a part of its name that no other has. Where devices of one kind alone are
    faster than all together, the split is over these.
    """
    from rich.console import Console

    from batchsize_manager.learning.profiles import read_profiles
    from batchsize_manager.planning import recommend
    from evenpace.reports import files

    with user_mistakes():
        chosen = _choose(read_profiles(paths), devices)
        found = recommend(chosen, task)
        _print(Console(), found, task)
        if json_path is not None:
            files.write_json(_figures(found), json_path)


def _choose(profiles: "Sequence[Profile]", devices: Sequence[str]) -> "list[tuple[Profile, int]]":
    """Return the profile and the number of each kind of device that was named.

    Raises:
        ValueError: A name is of no profile, or of several, or comes twice; or a number is none.
    """
    known = [profile.device for profile in profiles]
    chosen: dict[str, tuple[Profile, int]] = {}
    for text in devices:
        name, equals, number = text.rpartition("=")
        if not equals or not number.isdigit():  # a kind's name may have "=" in it
            name, number = text, "1"
        found = [p for p in profiles if p.device == name] or [
            p for p in profiles if name.lower() in p.device.lower()
        ]
        if len(found) != 1:
            raise ValueError(
                f"device {name!r}: must be a part of one profile's device; there are "
                f"{', '.join(map(repr, known))}"
            )
        if found[0].device in chosen:
            raise ValueError(f"device {name!r}: {found[0].device!r} comes twice; give its number at once")
        chosen[found[0].device] = (found[0], positive_number(number))
    return list(chosen.values())


def _print(console: Any, found: "Recommendation", task: Task) -> None:
    from evenpace.local.terminal import make_table

    best = found.best
    if best is None:
        console.print(f"A batch of {task.total} samples does not fit: give --micro-batch, or more devices.")
        return
    in_waves = any(share.at_once is not None for share in best.shares)
    headings = ["devices", "samples each"]
    headings += ["micro-\nbatches"] if task.micro_batch is not None else []
    headings += ["at once", "waves"] if in_waves else []
    table = make_table(
        f"{task.total} samples{_in_micro_batches(task)}", "device", *headings, "seconds", no_wrap=True
    )
    for device, group in groupby(best.shares, key=lambda share: share.device):
        shares = list(group)
        row = [str(len(shares)), _range([share.samples for share in shares])]
        if task.micro_batch is not None:
            row.append(_range([share.micro_batches or 0 for share in shares]))
        if in_waves:
            row += [_range([share.at_once or 0 for share in shares])]
            row += [_range([share.waves or 0 for share in shares])]
        table.add_row(device, *row, f"{max(share.seconds for share in shares):.4g}")
    console.print(table)
    console.print(f"An iteration takes {best.seconds:.4g} s: {best.throughput:.4g} samples per second.")
    if best.left_out:
        units = "samples" if task.micro_batch is None else "micro-batches"
        console.print(
            f"{best.left_out} of the devices are left out: a batch of {task.parts} {units} is too small for "
            f"more, since the manager gives each worker one at least."
        )
    if best is not found.balanced:
        rest = "do not fit" if found.balanced is None else f"would take {found.balanced.seconds:.4g} s"
        console.print(f"{found.fastest_alone} alone is the fastest: all devices together {rest}.")
    alone = ((f"{device} alone", forecast) for device, forecast in found.alone.items())
    for what, forecast in [("An even split over all", found.even), *alone]:
        if forecast is None:
            console.print(f"{what}: does not fit.")
        elif forecast is not best:
            gain = forecast.seconds / best.seconds
            console.print(f"{what}: {forecast.seconds:.4g} s, {gain:.2f} times as long.")


def _in_micro_batches(task: Task) -> str:
    return "" if task.micro_batch is None else f" in micro-batches of {task.micro_batch}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _figures(found: "Recommendation") -> dict[str, Any]:
    return {
        "best": _forecast(found.best),
        "balanced": _forecast(found.balanced),
        "even": _forecast(found.even),
        "alone": {device: _forecast(forecast) for device, forecast in found.alone.items()},
    }


def _forecast(forecast: "Forecast | None") -> dict[str, Any] | None:
    if forecast is None:
        return None
    return {
        "seconds": forecast.seconds,
        "samples_per_second": forecast.throughput,
        "left_out": forecast.left_out,
        "shares": [asdict(share) for share in forecast.shares],
    }
