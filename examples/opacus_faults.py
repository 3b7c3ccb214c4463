"""Which faults in a training with Opacus an audit finds, and after how many models: a table.

    python examples/opacus_faults.py DIR --workers 2

One campaign for the right training and one for each fault of ``opacus_training.py``, all with the
same claim, score and planned looks; a killed run goes on when started again with the same DIR.
"""

import argparse
import time
from pathlib import Path

from opacus_training import FAULTS, NOISE_MULTIPLIER, SAMPLING_RATE, STEPS

from hiddenstate.auditing import SequentialAudit, composed
from hiddenstate.campaign import campaign

LOOKS = (5, 10, 20, 40, 80)


def main(arguments: list[str] | None = None) -> list[dict[str, object]]:
    """Run all campaigns and print the table; return its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--looks", type=int, nargs="+", default=LOOKS)
    parser.add_argument("--faults", nargs="+", choices=["none", *FAULTS], default=["none", *FAULTS])
    options = parser.parse_args(arguments)
    claims = composed([2 * NOISE_MULTIPLIER, NOISE_MULTIPLIER], SAMPLING_RATE, STEPS)
    test = SequentialAudit(claims, NOISE_MULTIPLIER, tuple(options.looks))
    script = Path(__file__).with_name("opacus_training.py")
    print("| fault | verdict | models per data set | seconds |\n|---|---|---|---|")
    rows: list[dict[str, object]] = []
    for fault in options.faults:
        function = "train" if fault == "none" else fault
        start = time.perf_counter()
        outcome = campaign.run(
            campaign.Script(script, function),
            test,
            options.out / fault,
            seed=options.seed,
            workers=options.workers,
        )
        seconds = time.perf_counter() - start
        row = {"fault": fault, "verdict": outcome.verdict.decision, "models": outcome.models}
        rows.append(row)
        what = FAULTS.get(fault, "none: the right training")
        print(f"| {what} | {row['verdict']} | {row['models']} | {seconds:.0f} |", flush=True)
    return rows


if __name__ == "__main__":
    main()
