"""``hiddenstate audit-steps``: what the steps of a training prove of its noise."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hiddenstate.commands.printing import print_json
from hiddenstate.errors import InputError
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    import pandas as pd

MOST = 10**9
"""Guesses of a step: sums of more could overflow."""


def run(options: argparse.Namespace) -> int:
    """Bound the noise multiplier from the steps of one training, or test a claim.

    Exit status: 0 if no claim is given or the steps are consistent with it, 1 if they refute it, 2
    for bad input.

    guesses FILE: path+ | CSV with a row for each step, guesses made and guesses right (made,right);
        which coins are guessed is fixed before the step; several trainings in their order
    --noise-multiplier NUMBER: float | claimed noise multiplier of every step (default: the bound
        alone)
    --confidence: float = 0.95 | confidence of verdict and bound (default 0.95)
    --json: flag | print JSON instead of words
    """
    import pandas as pd

    from hiddenstate.auditing import StepAudit

    every = pd.concat([_read(path) for path in options.guesses])
    audit = StepAudit(every["made"].to_numpy(), every["right"].to_numpy(), options.confidence)
    if options.noise_multiplier is not None and not every["made"].any():
        names = ", ".join(map(str, options.guesses))
        raise InputError(f"{names}: made: got 0 in each row; expected guesses, to test the claim")
    bound = audit.bound if math.isfinite(audit.bound) else None
    claim, level = options.noise_multiplier, 1 - options.confidence
    told: dict[str, Any] = {"steps": len(every)} | every.sum().to_dict()
    told |= {"noise_multiplier_at_most": bound, "claim": claim}
    refuted = False
    if claim is not None:
        values = audit.p_values(claim)
        refuted = bool(values[-1] <= level)
        told |= {"p_value": float(values[-1]), "refuted": refuted}
        told["refuted_at_step"] = int((values <= level).argmax()) + 1 if refuted else None
        told["reach"] = None if refuted else audit.reach(claim)
    if options.json:
        print_json(told)
        return int(refuted)
    print(f"{told['right']} of {told['made']} coins guessed right in {told['steps']} steps.")
    sure = f"with {100 * options.confidence:g} % confidence"
    if bound is not None:
        print(f"Some step has a noise multiplier of at most {bound:g}, {sure}.")
    else:
        print(f"The guesses bound no noise multiplier {sure}.")
    if claim is None:
        return 0
    p_value = f"p-value at most {shown(told['p_value'], 'upper', 2)}"
    if refuted:
        step = told["refuted_at_step"]
        print(f"claim: noise multiplier {claim:g}: REFUTED at step {step}, {p_value}")
        return 1
    print(f"claim: noise multiplier {claim:g}: consistent with the steps, {p_value}")
    if told["reach"]:
        print(
            "So many guesses refute the claim with 90 % probability if the noise multiplier is "
            f"{shown(told['reach'], 'lower', 2)} or less."
        )
    else:
        print("So few guesses cannot refute this claim with 90 % probability; more steps can.")
    return 0


def _read(path: Path) -> "pd.DataFrame":
    import pandas as pd

    from hiddenstate import files

    table = files.table(path, "a CSV file with the columns made and right")
    if list(table.columns) != ["made", "right"]:
        names = ", ".join(map(str, table.columns))
        raise InputError(f"{path}: columns: got {names}; expected made, right")
    read = table.apply(pd.to_numeric, errors="coerce").astype(float)
    for name, most, words in (
        ("made", MOST, f"a whole number from 0 to {MOST:,}"),
        ("right", read["made"], "a whole number from 0 to the guesses made"),
    ):
        fits = (read[name] % 1 == 0) & (read[name] >= 0) & (read[name] <= most)
        if not (fits := fits & (table[name].dtype != bool)).all():
            row = int(fits.argmin())
            got = "nothing" if pd.isna(table[name][row]) else table[name][row]
            line = files.line_of(path, row)
            raise InputError(f"{path}: line {line}: {name}: got {got}; expected {words}")
    return read.astype("int64")
