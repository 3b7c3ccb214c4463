"""``hiddenstate device-check``: whether an accelerator trains what the processor does."""

import argparse
import dataclasses

from hiddenstate.commands.printing import print_json
from hiddenstate.errors import expect


def run(options: argparse.Namespace) -> int:
    """Compare an accelerator's sums and scores with the processor's; status 1 if one is off.

    --device: str = cuda | device: cuda (default), cuda:1, mps, cpu
    --network NAME: str+ | networks of the papers to compare (default all)
    --json: flag | print JSON instead of a table
    """
    import pandas as pd
    import torch
    from tqdm import tqdm

    from hiddenstate.commands import comparing

    networks = comparing.NETWORKS
    for name in options.network or ():
        expect(name in networks, "--network", name, f"some of {', '.join(networks)}")
    if options.network:
        networks = {name: networks[name] for name in options.network}
    torch.set_num_threads(1)  # the processor's times are of one core
    rows = list(tqdm(comparing.rows(options.device, networks), unit="check"))
    wrong = [row for row in rows if not row.passed]
    if options.json:
        print_json([{**dataclasses.asdict(row), "passed": row.passed} for row in rows])
    else:
        shown = [
            {
                "check": row.check,
                "network": row.network,
                "kernel": row.kernel,
                "off": row.problem or f"{row.off:.1e}",
                "allowed": f"{row.most:.0e}" if row.most else "0",
                "times one core": "" if row.ratio != row.ratio else f"{row.ratio:.2g}",
                "": "ok" if row.passed else "WRONG",
            }
            for row in rows
        ]
        print(pd.DataFrame(shown).to_markdown(index=False, disable_numparse=True))
        print(
            f"\n{len(rows) - len(wrong)} of {len(rows)} checks passed: "
            + (
                f"do not trust scores of {options.device!r}, and please report this table"
                if wrong
                else f"{options.device!r} trains what the processor does"
            )
        )
    return int(bool(wrong))
