"""Time and memory of ``hiddenstate audit`` on a million scores, from the file to the verdict.

Prints seconds, processor seconds and peak memory of the command, each run a process of its own, on
a CSV and a Parquet file, with the claim tested and with a figure. Run with OMP_NUM_THREADS=1.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from hiddenstate.streams import stream

COMMAND = [sys.executable, "-c", "import sys; from hiddenstate.cli import main; sys.exit(main())"]


def measured(arguments: list[str]) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak megabytes of the command with these arguments."""
    start = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"exit status {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    seconds = time.perf_counter() - start
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scores", type=int, default=1_000_000, help="in both worlds together")
    n = parser.parse_args().scores // 2
    rng = stream(0, "benchmark", "audit-file")
    frame = pd.DataFrame(
        {
            "world": np.repeat(["in", "out"], n),
            "score": np.concatenate((rng.normal(size=n) + 1, rng.normal(size=n))),
        }
    )
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        frame.to_csv(folder / "scores.csv", index=False)
        frame.to_parquet(folder / "scores.parquet", index=False)
        print(f"{2 * n:,} scores\n\n{'command':62s} {'s':>6s} {'cpu s':>6s} {'MB':>6s}")
        for name in ("scores.csv", "scores.parquet"):
            bounds = ["audit", name, "--delta", "1e-5"]
            claim = [*bounds, "--claim", "8", "--curve", "gdp"]
            for arguments in (bounds, claim, [*claim, "--figure", "audit.png"]):
                placed = [
                    str(folder / a) if a.startswith(("scores.", "audit.")) else a for a in arguments
                ]
                found = measured(placed)
                print(
                    f"{' '.join(arguments):62s} {found[0]:6.1f} {found[1]:6.1f} {found[2]:6.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
