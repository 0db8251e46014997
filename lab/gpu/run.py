"""Runs all parts of the benchmark, each in a process of its own, and writes one JSON; see README.md."""

import argparse
import csv
import importlib
import json
import multiprocessing
import platform
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a plain checkout, nothing installed

import torch

from lab.gpu.setup import Setup

SECONDS = 450  # for everything
_GRACE = 15.0  # seconds for a part to end that is out of time


def _machine(setup: Setup) -> dict[str, Any]:
    machine: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": str(setup.device),
    }
    if setup.on_gpu:
        properties = torch.cuda.get_device_properties(setup.device)
        machine |= {"gpu": properties.name, "memory_bytes": properties.total_memory}
        machine |= {"cudnn": torch.backends.cudnn.version()}
        machine |= {"tf32_convolutions": torch.backends.cudnn.allow_tf32}
    return machine


def _run(part: str, setup: Setup) -> dict[str, Any]:
    """Run a part, whose module is only loaded in its own process."""
    if part == "machine":
        return _machine(setup)
    result: dict[str, Any] = importlib.import_module(f"lab.gpu.{part}").run(setup)
    return result


# Share of the time.
PARTS = {"machine": 0.04, "timing": 0.06, "noise": 0.08, "curves": 0.18, "balancing": 0.2, "at_once": 0.13}


def main() -> int:
    """Run what the command line asks for; 1 if a part failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="Where the results go.")
    parser.add_argument("--csv", type=Path, help="Where the step times go: model,gpu,batch_size,step_time_s.")
    parser.add_argument("--device", default="cuda:0", help="As torch calls it.")
    parser.add_argument("--quick", action="store_true", help="Only see that everything works.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="For everything together.")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()

    device = torch.device(options.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    end = time.monotonic() + options.seconds
    results: dict[str, Any] = {}
    shares = sum(PARTS[name] for name in options.parts)
    for name in options.parts:
        # What earlier parts have not used goes to the later ones.
        budget = (end - time.monotonic()) * PARTS[name] / shares
        shares -= PARTS[name]
        results[name] = _isolated(name, Setup(device, options.quick, time.monotonic() + budget))
        sys.stdout.write(f"{name}: {_said(results[name])}\n")
        sys.stdout.flush()
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    if options.csv is not None:
        _write_csv(options.csv, results)
    return int(any(part["status"] == "failed" for part in results.values()))


def _isolated(part: str, setup: Setup) -> dict[str, Any]:
    """What a part gives in a process of its own, which may fail in any way."""
    begin = time.monotonic()
    if setup.left < 1:
        return {"status": "skipped", "reason": "out of time", "seconds": 0.0}
    # This process has not touched the GPU, and must not: a CUDA context does not survive a fork.
    fork = multiprocessing.get_context("fork")
    near, far = fork.Pipe(duplex=False)
    process = fork.Process(target=_child, args=(far, part, setup))
    process.start()
    far.close()
    try:
        outcome: dict[str, Any] = {"status": "failed", "error": "out of time"}
        if near.poll(max(0.0, setup.left) + _GRACE):
            outcome = near.recv()
    except EOFError:
        process.join(_GRACE)
        outcome = {"status": "failed", "error": f"the process ended with status {process.exitcode}"}
    if outcome.get("error") == "out of time":
        process.terminate()
    process.join(_GRACE)
    process.kill()
    return outcome | {"seconds": round(time.monotonic() - begin, 3)}


def _child(far: Connection, part: str, setup: Setup) -> None:
    try:
        if setup.quick:
            torch.set_num_threads(1)
        outcome: dict[str, Any] = {"status": "ok", "result": _run(part, setup)}
    except Exception as error:  # noqa: BLE001 - a part must not lose the others
        text = f"{type(error).__name__}: {error}"
        outcome = {"status": "failed", "error": text, "traceback": traceback.format_exc()}
    far.send(outcome)


def _said(outcome: dict[str, Any]) -> str:
    why = outcome.get("reason") or outcome.get("error")
    return f"{outcome['status']}{f': {why}' if why else ''} ({outcome['seconds']:.1f} s)"


def _write_csv(path: Path, results: dict[str, Any]) -> None:
    """The curves, in the form that `evenpace lab bench balance` reads."""
    curves = results.get("curves", {}).get("result", {})
    machine = results.get("machine", {}).get("result", {})
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("model", "gpu", "batch_size", "step_time_s"))
        for model, curve in curves.items():
            for row in curve["rows"]:
                gpu = machine.get("gpu", machine.get("device", ""))
                writer.writerow((model, gpu, row["batch_size"], row["step_time_s"]))


if __name__ == "__main__":
    sys.exit(main())
