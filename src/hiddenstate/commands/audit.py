"""``hiddenstate audit``: what scores of your own prove, and whether they refute a claim."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hiddenstate.commands import claim_options
from hiddenstate.commands.options import check_pictures, status
from hiddenstate.commands.printing import print_json, records
from hiddenstate.errors import InputError, expect
from hiddenstate.rounding import counted, shown

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from hiddenstate.auditing import Verdict
    from hiddenstate.auditing.claim import Claim
    from hiddenstate.auditing.summaries import Interval


CONTINUE = 4
"""Exit status of an audit that is neither refuted nor at its last look."""


def run(options: argparse.Namespace) -> int:
    """Bound epsilon and mu from your own scores, or test a claim.

    Exit status: 0 if no claim is given or the scores are consistent with it, 1 if they refute it, 2
    for bad input, such as scores that point the other way, 3 for any other failure, 4 if --looks
    has a look that takes more scores, and none so far refutes the claim.

    scores FILE: path | CSV or Parquet with the columns world ('in' or 'out') and score (larger:
        more 'in')
    --delta: float! | delta of epsilon, such as 1e-5; 0 for pure DP
    CLAIM
    --confidence: float = 0.95 | confidence of each statement (default 0.95)
    --coins SEED: int | seed for ties and for the halves of 'split' (default: the campaign's, or a
        new one, which is printed)
    --fpr RATE: float+ = 0.01 0.1 | false-positive rates at which the true-positive rate is shown
        (default 0.01 0.1)
    --area SHARE: float | share of the level for the area under the curve, the rest for its ends
        (default 0.5; 0.1 suits epsilon at a delta and 500 scores or more)
    --ignore COLUMN: str+ = | columns to ignore, after you made sure that rows are independent runs
    --threshold SCORE: float | score chosen before you look, for one more bound by the errors of
        this threshold
    --looks MODELS: int+ | numbers of models per data set at which the claim is tested, planned
        before you look; rows in the order of the runs
    --null-law NAME NUMBER: str+ | exactly known law of the scores without the canary: a continuous
        distribution of scipy.stats and its parameters, such as norm 0 1; only scores with the
        canary are audited
    --all: flag | bounds by every method
    NEGATE
    --json: flag | print JSON instead of words
    --figure FILE: path+ | pictures to write: .png, .pdf, .svg
    """
    from hiddenstate.auditing import report, summaries
    from hiddenstate.auditing.averaged import tied
    from hiddenstate.auditing.other_way import other_way

    check_pictures(options.figure)
    claim = claim_options.stated(options)
    into, out = report.read(options.scores, ignore=options.ignore)
    for name, there in (("in", into), ("out", out))[: 1 if options.null_law else 2]:
        if len(there) < 2:
            raise InputError(
                f"{options.scores}: got {counted(len(there), 'score')} {name!r}; "
                "expected 2 at least"
            )
    if options.negate:
        into, out = -into, -out
    if options.null_law:
        return _known_null(options, into, claim)
    # Chance breaks ties, and draws the halves of 'split', which takes four scores.
    by_chance = bool(tied(into, out)) or min(len(into), len(out)) >= 4
    coins = _coins(options)
    delta, confidence = options.delta, options.confidence
    how = {"coins": coins, "area": options.area}
    threshold = options.threshold
    if threshold is not None and options.negate:
        threshold = -threshold
    # First, for they refuse false-positive rates, and take no time.
    intervals = [summaries.auc(into, out, confidence=confidence)] + [
        summaries.tpr(into, out, fpr, confidence=confidence) for fpr in options.fpr
    ]
    looked = _looked(options, claim, into, out, coins)
    judged = None
    if claim and looked is None:
        judged = report.judge(into, out, claim, confidence=confidence, **how)
    table = report.bounds(into, out, delta, confidence, threshold=threshold, **how)
    shown_none = bool((table.loc[table["default"], "value"] == 0).any())
    backwards = other_way(into, out, coins) if judged is None and shown_none else None
    backwards = looked.other_way if looked else judged.other_way if judged else backwards
    found = {
        "scores": {"in": len(into), "out": len(out)},
        "delta": delta,
        "confidence": confidence,
        "coins": coins if by_chance else None,
        "claim": asdict(judged) if judged else None,
        "sequential": asdict(looked) if looked else None,
        "other_way": asdict(backwards) if backwards else None,
        "bounds": records(table),
        "intervals": [asdict(interval) for interval in intervals],
    }
    if options.json:
        print_json(found)
    else:
        if judged:
            print(f"claim: {judged}\n")
        if looked and claim:
            verdict = "no verdict" if looked.other_way else looked.decision
            print(
                f"claim: {claim.words}: {verdict} at look {looked.looks}, after {looked.models[0]} "
                f"scores with and {looked.models[1]} without the canary, p-value at most "
                f"{shown(looked.p_value, 'upper', 2)}\n"
            )
        _tell(found, table, intervals, every=options.all)
    if options.figure:
        from hiddenstate import plotting

        with plotting.style():
            drawn = report.draw(into, out, delta, confidence, **how)
            plotting.save(drawn, options.figure, options.scores.name)
    if looked and looked.decision == "continue":
        return CONTINUE
    refuted = judged.refuted if judged else looked is not None and looked.decision == "refuted"
    return status(refuted, backwards)


def _looked(
    options: argparse.Namespace,
    claim: "Claim | None",
    into: "NDArray[np.float64]",
    out: "NDArray[np.float64]",
    coins: int,
) -> "Verdict | None":
    """The verdict of an audit that looks several times; None if no looks are planned."""
    import numpy as np

    from hiddenstate.auditing import SequentialAudit

    if options.looks is None:
        return None
    if claim is None:
        raise InputError(
            "--looks: a look needs a claim to test; give --claim with --delta, or --claim-mu"
        )
    for world in (into, out):
        steps = np.diff(world)
        # Eight runs in their own order are sorted by chance once in 20,000 times.
        if len(world) >= 8 and np.any(steps) and (np.all(steps >= 0) or np.all(steps <= 0)):
            raise InputError(
                f"{options.scores}: the rows are sorted by score; --looks takes them in the order "
                "of the runs"
            )
    test = SequentialAudit(
        claim.hypotheses, claim.value, options.looks, options.confidence,
        **({} if options.area is None else {"area": options.area}),
    )  # fmt: skip
    for name, world in (("in", into), ("out", out)):
        if len(world) < options.looks[0]:
            raise InputError(
                f"{options.scores}: got {counted(len(world), 'score')} {name!r}; expected "
                f"{options.looks[0]} at least, as many as the first of --looks takes"
            )
    return test.judge(into, out, coins=coins)


def _known_null(
    options: argparse.Namespace, into: "NDArray[np.float64]", claim: "Claim | None"
) -> int:
    """Bounds from the in-scores alone, where the law of the out-scores is known."""
    import numpy as np
    import pandas as pd
    from scipy import stats

    from hiddenstate.auditing import ApproxDP, GaussianDP, known_null_bound, report
    from hiddenstate.auditing.other_way import known_other_way

    name, *numbers = options.null_law
    law: Any = getattr(stats, name, None)
    continuous = isinstance(law, stats.rv_continuous)
    expect(continuous, "--null-law", name, "a continuous law of scipy.stats, such as norm")
    try:
        given = [float(number) for number in numbers]
        with np.errstate(all="ignore"):
            frozen = law(*given)
            known = np.isfinite(given).all() and np.isfinite(frozen.sf(0.0))
    except (TypeError, ValueError) as error:
        raise InputError(f"--null-law: {name} of {numbers}: {error}") from error
    if not known:
        raise InputError(f"--null-law: got {' '.join(numbers)}; expected parameters of {name}")
    others = [claim, options.figure, options.looks, options.threshold, options.area, options.coins]
    if options.all or any(given is not None and given != [] for given in others):
        raise InputError(
            "--null-law: prints the default bounds alone; leave out the claim, --looks, --figure, "
            "--threshold, --area, --coins and --all"
        )

    def exceeded(scores: "NDArray[np.float64]") -> Any:
        """Probability that a score without the canary, or minus it, is as high."""
        return frozen.cdf(-scores) if options.negate else frozen.sf(scores)

    with report.told_by_the_verdict():
        bounds = [
            known_null_bound(into, exceeded, hypotheses, confidence=options.confidence)
            for hypotheses in (ApproxDP(options.delta), GaussianDP())
        ]
    beyond = exceeded(into)  # of a continuous law, whose out-scores reach none exactly
    backwards = known_other_way(beyond, beyond) if bounds[1].value == 0 else None
    table = pd.DataFrame([asdict(bound) for bound in bounds]).drop(columns=["threshold", "coins"])
    if options.json:
        told = {"scores": {"in": len(into)}, "delta": options.delta, "bounds": records(table)}
        print_json(told | {"other_way": asdict(backwards) if backwards else None})
    else:
        _bounds(table, options.delta)
        print(
            f"\n{counted(len(into), 'score')} with the canary, against the law "
            f"{' '.join(options.null_law)}.\n"
            f"Each bound holds alone with {100 * options.confidence:g} % confidence,\n"
            "if scores without the canary have exactly this law by construction."
        )
    return status(False, backwards)


def _coins(options: argparse.Namespace) -> int:
    """Seed of what chance decides: the one given, a campaign's own, or a new one."""
    from hiddenstate.auditing import report
    from hiddenstate.auditing.curve import seed

    return seed(options.coins if options.coins is not None else report.coins(options.scores))


def _bounds(table: "pd.DataFrame", delta: float) -> None:
    words = {
        "epsilon": ("epsilon", f"at delta {delta:g}, for every mechanism"),
        "mu": ("mu", "if Gaussian DP is claimed"),
        "epsilon of mu-GDP": ("epsilon", f"at delta {delta:g}, if Gaussian DP is claimed"),
    }
    for parameter, value in table[["parameter", "value"]].to_numpy():
        name, condition = words.get(parameter, (parameter, ""))
        told = f"{name} >= {shown(value, 'lower', decimals=3)}" if value else f"{name}: no bound"
        print(told.ljust(20) + condition)


def _tell(
    found: dict[str, Any], table: "pd.DataFrame", intervals: "list[Interval]", *, every: bool
) -> None:
    """The default bounds and the attack in words; every method as a table if asked for."""
    import pandas as pd

    sure = f"{100 * found['confidence']:g} %"
    _bounds(table[table["default"]], found["delta"])
    numbers = found["scores"]
    print(
        f"\nEach lower bound holds alone with {sure} confidence, from "
        f"{counted(numbers['in'], 'score')} with "
        f"and {numbers['out']} without the canary."
    )
    for interval in intervals:
        low, high = (
            shown(getattr(interval, end), kind, decimals=3)
            for end, kind in (("low", "lower"), ("high", "upper"))
        )
        print(f"{interval.quantity} of the attack: {interval.value:.3f} ({sure}: {low} to {high})")
    if every:
        kinds = table["direction"].where(table["valid"], "estimate")
        bounds = pd.DataFrame(
            {
                "parameter": table["parameter"],
                "method": table["method"] + table["default"].map({True: " (default)", False: ""}),
                "value": [
                    shown(*row, decimals=3) for row in zip(table["value"], kinds, strict=True)
                ],
                f"holds with {sure}": table["valid"].map({True: "yes", False: "no (estimate)"}),
            }
        )
        print("\n" + bounds.to_markdown(index=False, floatfmt=".3f"))
        print("Choose one method before you look; the largest of several does not hold.")
    else:
        print("Other methods: --all. Choose one before you look.")
    if (coins := found["coins"]) is not None:
        print(f"Ties and the halves of 'split' are drawn by chance; repeat with --coins {coins}.")
