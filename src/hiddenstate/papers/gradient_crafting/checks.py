"""What the claims of gradient_crafting measure, from its estimates.

Audits of five repeats have the errors of their scatter. A single audit's mu has the error of normal
scores; its published epsilon has none.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.gradient_crafting.adversaries import CRAFTED, LOSS, ONE_RANDOM, RANDOM
from hiddenstate.papers.gradient_crafting.cells import NETWORK_SETTING, SETTING
from hiddenstate.papers.gradient_crafting.stated import (
    AUDITED,
    DELTA,
    EVOLUTION,
    EXACT,
    EXACT_AT_BEST,
    GAUSSIAN_MU,
    IDLE,
    IDLE_AUDITS,
    LANDSCAPE_AUDITS,
    NOISE_MULTIPLIERS,
    RATIOS,
)
from hiddenstate.papers.gradient_crafting.summaries import ALONE, KNOWN, WHOLE, drawn
from hiddenstate.pipeline.estimates import largest, plus_minus, select
from hiddenstate.pipeline.evidence import (
    Estimate,
    Evidence,
    Exact,
    Item,
    Share,
    Stated,
    Test,
    Within,
    mean,
    mean_of,
    rarely,
)
from hiddenstate.pipeline.family import Check, Lacking, check, needed
from hiddenstate.pipeline.verification import comparison_power

MODELS = 5000
"""Models per world of our large audits of the housing network; the sources have 5,000 in all."""

INSERTIONS = 250
TIGHT = 0.9
"""The least share of the accountant's mu that is called tight: a reading of ours."""


def _housing(
    estimates: pd.DataFrame, quantity: str, *, every: int = 1, start: str = "fresh"
) -> pd.DataFrame:
    """Audits of the housing network that are judged of their setting; at most one row each."""
    method = {"method": PUBLISHED} if quantity == "epsilon" else {}
    rows = select(estimates, part="housing", quantity=quantity, every=every, start=start, **method)
    return drawn(needed(rows))


def _as_stated(estimates: pd.DataFrame) -> pd.DataFrame:
    """Estimates at the reference's delta, the only one that it has values for."""
    return needed(estimates[estimates["delta"] == DELTA])


def _of(rows: pd.DataFrame, adversary: str, epsilon: float) -> pd.Series:
    return needed(select(rows, adversary=adversary, epsilon=epsilon)["value"])


def _audible(rows: pd.DataFrame) -> list[float]:
    """The epsilons from 4 on: below, an audit of so many models tells little from nothing."""
    found = sorted(epsilon for epsilon in rows["epsilon"].unique() if epsilon >= 4)
    if not found:
        raise Lacking
    return found


def _ratio(rows: pd.DataFrame, over: str = "mu") -> Estimate:
    """Mean of mu over what it is compared with: by scatter of repeats, else by its own error."""
    ratios = rows["value"] / rows[over]
    if len(ratios) > 1:
        return mean(ratios.tolist())
    return Estimate(
        float(ratios.iloc[0]), float(((rows["high"] - rows["value"]) / rows[over]).iloc[0])
    )


def _pooled(values: pd.Series, errors: pd.Series) -> Estimate:
    """Mean weighted by precision."""
    weights = 1 / errors**2
    return Estimate(float((values * weights).sum() / weights.sum()), float(weights.sum() ** -0.5))


# --- sentences of the paper, and of those who read it ---------------------------------------------


@check
def implication1(estimates: pd.DataFrame) -> Evidence:
    """The simulated coordinate of the housing network shows nearly all of the accountant's mu."""
    rows = select(_housing(estimates, "mu"), adversary=CRAFTED)
    published = select(_housing(estimates, "epsilon"), adversary=CRAFTED)
    items, words = [], []
    for epsilon in _audible(rows):
        ratio = _ratio(select(rows, epsilon=epsilon))
        what = f"mu over the accountant's, epsilon {epsilon:g}"
        items.append(Within(what, ratio, low=TIGHT, reason="tight: nine tenths at least"))
        found = _of(published, CRAFTED, epsilon)
        words.append(f"{plus_minus(found.mean(), found.std())} of {epsilon:g}")
    return Evidence(items, f"As published, epsilon {', '.join(words)} is found.")


@check
def networks(estimates: pd.DataFrame) -> Evidence:
    """On ConvNet and ResNet a random coordinate shows nearly all of the accountant's mu."""
    rows = needed(select(_network_mus(estimates), adversary=RANDOM))
    items = [
        Within(
            f"mu over the accountant's, {network}, mean of {len(part)} audits",
            _pooled(part["value"] / part["mu"], part["error"] / part["mu"]),
            low=TIGHT,
            reason="tight: nine tenths at least",
        )
        for network, part in rows.groupby("network", sort=False)
    ]
    published = select(estimates, part="network", quantity="epsilon", method=PUBLISHED)
    words = [
        f"{line['value']:.1f} of {line['epsilon']:g} ({line['network']})"
        for _, line in select(published, adversary=RANDOM, every=1, clipping_norm=1).iterrows()
    ]
    models = int(rows["models"].max())
    return Evidence(
        items, f"As published, with {models} models per world, epsilon {', '.join(words)} is found."
    )


def _shows_more(other: str, words: str, reason: str, *, somewhere: bool = False) -> Check:
    """On the housing network the simulated coordinate shows more than another adversary."""

    @check
    def measure(estimates: pd.DataFrame) -> Evidence:
        rows = _housing(estimates, "epsilon")
        items, shown = [], []
        for epsilon in _audible(rows):
            best, less = (_of(rows, name, epsilon) for name in (CRAFTED, other))
            gap = mean(best.tolist()) - mean(less.tolist())
            what = f"published epsilon, simulated coordinate less {words}, epsilon {epsilon:g}"
            items.append(Within(what, gap, low=0, reason=reason))
            shown.append(f"{best.mean():.2f} and {less.mean():.2f} of {epsilon:g}")
        note = f"Found by the simulated coordinate and by {words}: {'; '.join(shown)}."
        return Evidence(items, note, any_of=somewhere)

    return measure


outperforms = _shows_more(LOSS, "the loss", "outperforms")
simulated_dimension = _shows_more(RANDOM, "a random coordinate", "better", somewhere=True)


@check
def seldom_inserted(estimates: pd.DataFrame) -> Evidence:
    """With an insertion in every 25th step the simulated coordinate is not tight somewhere."""
    rows = select(_housing(estimates, "mu", every=25), adversary=CRAFTED)
    items, words = [], []
    for epsilon in _audible(rows):
        ratio = _ratio(select(rows, epsilon=epsilon))
        what = f"mu over the accountant's, k = 25, epsilon {epsilon:g}"
        items.append(Within(what, ratio, high=TIGHT, reason="not tight: less than nine tenths"))
        words.append(f"{ratio.value:.2f} at epsilon {epsilon:g}")
    return Evidence(items, f"Share of mu: {', '.join(words)}.", any_of=True)


@check
def less_frequent(estimates: pd.DataFrame) -> Evidence:
    """With fewer insertions among the steps the crafted gradient shows less of the same mu."""
    whole = select(estimates, part="housing", quantity="mu", start="fresh", adversary=CRAFTED)
    whole = largest(needed(whole), "models", SETTING)
    items, words = [], []
    for epsilon in _audible(whole):
        own = select(whole, epsilon=epsilon)
        found = {every: _ratio(part) for every, part in own.groupby("every")}
        periods = sorted(found)
        items += [
            Within(
                f"share of mu at k = {few:g} less that at k = {many:g}, epsilon {epsilon:g}",
                found[few] - found[many],
                low=0,
                reason="decreases",
            )
            for few, many in pairwise(periods)
        ]
        listed = ", ".join(f"{found[k].value:.2f} at k = {k:g}" for k in periods)
        words.append(f"epsilon {epsilon:g}: {listed}")
    if not items:
        raise Lacking
    return Evidence(items, f"Share of the accountant's mu, {'; '.join(words)}.")


def _last(
    estimates: pd.DataFrame, method: str, threshold: str = "midpoint"
) -> dict[tuple[float, int], float]:
    """Exact laws of section 6 at the last step, by epsilon and batch size, if of 25 steps."""
    rows = needed(select(estimates, part="single", quantity="epsilon", kind="exact"))
    rows = select(rows, method=method, threshold=threshold, steps=25)
    rows = needed(rows[rows["x"] == rows["steps"]])
    return {
        (float(e), int(b)): float(v)
        for e, b, v in zip(rows["epsilon"], rows["batch_size"], rows["value"], strict=True)
    }


def _large(found: dict[tuple[float, int], float]) -> int:
    """The largest batch size; small ones alone tell nothing of large ones."""
    size = max((b for _, b in found), default=0)
    if size < 128:
        raise Lacking
    return size


@check
def landscape_only(estimates: pd.DataFrame) -> Evidence:
    """Insertions in some steps are tight in Section 6 with large batches, not on the network."""
    found = _last(estimates, "Gaussian-DP reading")
    size = _large(found)
    least = min(value / e for (e, b), value in found.items() if b == size)
    one = min(value / e for (e, b), value in found.items() if b == 1)
    items: list[Item] = [
        Within(
            f"least epsilon over the nominal one, adversarial landscape, B = {size}",
            Exact(least),
            low=TIGHT,
            reason="matches: nine tenths at least",
        ),
        Within(
            "least epsilon over the nominal one, adversarial landscape, B = 1",
            Exact(one),
            high=TIGHT,
            reason="a large batch is needed",
        ),
    ]
    rows = select(estimates, part="housing", quantity="mu", start="fresh", adversary=CRAFTED)
    rows = needed(rows[(rows["every"] > 1) & (rows["epsilon"] >= 4)])
    for every, part in largest(rows, "models", SETTING).groupby("every"):
        errors = (part["high"] - part["value"]) / part["mu"]
        ratio = _pooled(part["value"] / part["mu"], errors)
        what = f"mu over the accountant's, housing network, k = {every:g}"
        items.append(Within(what, ratio, high=TIGHT, reason="does not match"))
    return Evidence(items, "Gaussian-DP reading after 25 steps; audits at epsilon 4 and above.")


@check
def implication2(estimates: pd.DataFrame) -> Evidence:
    """With the largest batches the landscape's epsilon is the nominal one, by Gaussian DP."""
    found = _last(estimates, "Gaussian-DP reading")
    size = _large(found)
    least = min(value / e for (e, b), value in found.items() if b == size)
    mus = select(estimates, part="single", quantity="epsilon", kind="exact")
    mus = mus.groupby("epsilon")["mu"].first()
    large = [value / e for (e, b), value in found.items() if b and b * mus[e] >= 2]
    return Evidence(
        [
            Within(
                f"least epsilon over the nominal one, B = {size}",
                Exact(least),
                low=0.999,
                reason="tight, in the limit of large B / sigma",
            )
        ],
        f"At least {min(large):.4f} wherever B / sigma is 2 or more ({len(large)} settings).",
    )


@check
def implication3(estimates: pd.DataFrame) -> Evidence:
    """With batches of one record some amplification is left where sigma is large."""
    found = _last(estimates, "Gaussian-DP reading")
    ratios = {e: value / e for (e, b), value in found.items() if b == 1}
    if not ratios:
        raise Lacking
    return Evidence(
        [
            Within(
                "least epsilon over the nominal one, B = 1",
                Exact(min(ratios.values())),
                high=TIGHT,
                reason="amplification: less than nine tenths",
            )
        ],
        f"B = 1: {', '.join(f'{ratio:.2f} at epsilon {e:g}' for e, ratio in ratios.items())}.",
    )


@check
def monotone(estimates: pd.DataFrame) -> Evidence:
    """The ratio ascends in the batch size and in epsilon, and is 1 where both are large."""
    found = _last(estimates, "Gaussian-DP reading")
    cells = [(e, b, v / e) for (e, b), v in found.items() if b]
    table = pd.DataFrame(cells, columns=["epsilon", "size", "ratio"])
    square = table.pivot(index="epsilon", columns="size", values="ratio").to_numpy()
    if min(square.shape) < 2:
        raise Lacking
    least = min(np.diff(square, axis=0).min(), np.diff(square, axis=1).min())
    return Evidence(
        [
            Within(
                "least change of the ratio to the next batch size or epsilon",
                Exact(float(least)),
                low=-1e-9,
                reason="ascends, except for rounding",
            ),
            Within(
                "ratio at the largest batch size and epsilon",
                Exact(float(square[-1, -1])),
                low=0.999,
                reason="tight",
            ),
        ],
        f"{square.size} pairs of batch size and epsilon, 25 steps.",
    )


def _distances(estimates: pd.DataFrame, column: str) -> Iterator[tuple[float, pd.Series]]:
    """Distances from the nearest Gaussian curve by steps, for each level of a parameter."""
    rows = select(estimates, part="hidden", quantity="distance", method="nearest Gaussian")
    rows = needed(rows[rows[column].notna()])
    for level, line in rows.groupby(column):
        yield float(level), line.set_index("x")["value"].sort_index()


@check
def gaussian(estimates: pd.DataFrame) -> Evidence:
    """The landscape's curve comes nearer to a Gaussian one with more hidden steps."""
    items: list[Item] = []
    words = []
    for beta, line in _distances(estimates, "beta"):
        after = line[line.index >= 2]
        if beta < 0.5 or len(after) < 2:
            continue
        first, last = after.index[0], after.index[-1]
        what = f"change of the distance from step {first:g} to {last:g}, B / sigma = {beta:g}"
        change = Exact(float(after.iloc[-1] - after.iloc[0]))
        items.append(Within(what, change, high=0, reason="comes nearer"))
        words.append(f"{after.iloc[0]:.4f} to {after.iloc[-1]:.4f}")
    if not items:
        raise Lacking
    return Evidence(items, f"Distances from the nearest Gaussian curve: {', '.join(words)}.")


# --- our own statements: the network --------------------------------------------------------------


@check
def mu(estimates: pd.DataFrame) -> Evidence:
    """mu of the simulated coordinate is that of the insertions."""
    rows = select(_housing(estimates, "mu"), adversary=CRAFTED)
    rows = needed(rows[rows["models"] >= MODELS])
    items = []
    for epsilon, part in rows.groupby("epsilon"):
        ratio = _ratio(part)
        what = f"mu over the accountant's, epsilon {epsilon:g}"
        items.append(Stated(what, ratio, Exact(1.0), rival=1 / math.sqrt(5), digits=3))
    return Evidence(items, "The rival is what an insertion in every fifth step would show.")


@check
def reference(estimates: pd.DataFrame) -> Evidence:
    """The published estimate on the housing network is what an unused coordinate gives."""
    rows = select(_housing(_as_stated(estimates), "epsilon"), adversary=CRAFTED)
    rows = needed(rows[rows["models"] >= MODELS])
    items = [
        Stated(
            f"published epsilon of {epsilon:g}",
            mean(part["value"].tolist()),
            _reference(IDLE[1][epsilon]),
            rival=IDLE[5][epsilon][1],
        )
        for epsilon, part in rows.groupby("epsilon")
        if epsilon in IDLE[1]
    ]
    if not items:
        raise Lacking
    return Evidence(
        items, "The rival is an unused coordinate with an insertion in every fifth step."
    )


def _reference(value: tuple[float, float, float]) -> Estimate:
    _, average, sd = value
    return Estimate(average, sd / math.sqrt(IDLE_AUDITS))


@check
def shared_start(estimates: pd.DataFrame) -> Evidence:
    """With one draw of initial parameters one random coordinate is no longer far below."""
    rows = _housing(estimates, "mu", start="shared")
    items = []
    for epsilon in _audible(rows):
        one, best = (
            needed(select(rows, adversary=name, epsilon=epsilon)) for name in (ONE_RANDOM, CRAFTED)
        )
        shares = one.assign(**one[["value", "high"]] / best["value"].mean(), whole=1.0)
        ratio = _ratio(shares, over="whole")
        what = f"mu of one random over that of the simulated coordinate, epsilon {epsilon:g}"
        items.append(Within(what, ratio, low=0.5, reason="not far below: half, a limit of ours"))
    counts = rows[rows["adversary"] == ONE_RANDOM].groupby("epsilon")["repeat"].nunique()
    return Evidence(items, f"{counts.min()} coordinates at each epsilon.")


@check
def norm(estimates: pd.DataFrame) -> Evidence:
    """The baseline's record reaches the clipping norm in most steps."""
    rows = needed(select(estimates, part="norms", quantity="share clipped"))
    return Evidence(
        [
            Within(
                f"share of steps at the clipping norm, k = {line['every']:g}",
                Exact(float(line["value"])),
                low=0.5,
                reason="most",
            )
            for _, line in rows.iterrows()
        ],
        f"{rows['models'].min():.0f} trainings.",
    )


@check
def idle_law(estimates: pd.DataFrame) -> Evidence:
    """With an insertion in every k-th step the crafted gradient shows at most mu / sqrt(k)."""
    rows = select(estimates, part="housing", quantity="mu", start="fresh", adversary=CRAFTED)
    rows = needed(rows[(rows["every"] > 1) & (rows["epsilon"] >= 4)])
    items = []
    for every, part in largest(rows, "models", SETTING).groupby("every"):
        errors = (part["high"] - part["value"]) / part["idle_mu"]
        ratio = _pooled(part["value"] / part["idle_mu"], errors)
        what = f"mu over mu / sqrt(k), k = {every:g}"
        items.append(Within(what, ratio, high=1, reason="at most the law"))
    return Evidence(items, "Pooled over epsilon 4 and above, one repeat each.")


# --- our own statements: networks on digits -------------------------------------------------------


def _network_audits(estimates: pd.DataFrame) -> pd.DataFrame:
    """Plug-in mu and its standard error of the larger networks, each model with its own start."""
    rows = needed(select(estimates, part="network", quantity="mu"))
    rows = needed(largest(select(rows, start="fresh"), "models", NETWORK_SETTING))
    return rows.assign(error=rows["high"] - rows["value"])


def _network_mus(estimates: pd.DataFrame) -> pd.DataFrame:
    """Those with an insertion in every step that tell something.

    Audits with too few models for a standard error below a fifth of the accountant's mu are left
    out.
    """
    rows = _network_audits(estimates)
    return needed(select(rows[rows["error"] < 0.2 * rows["mu"]], every=1))


@check
def networks_ordering(estimates: pd.DataFrame) -> Evidence:
    """On ConvNet and ResNet crafted gradients show more than the loss, whoever chose them."""
    rows = _network_mus(estimates)
    items: list[Item] = []
    for network, own in rows.groupby("network", sort=False):
        table = own.pivot_table(index="cell", columns="adversary", values=["value", "error", "mu"])
        for adversary in (RANDOM, CRAFTED):
            pair = [("value", adversary), ("value", LOSS)]
            if not set(pair) <= set(table.columns) or (both := table.dropna(subset=pair)).empty:
                continue
            accountant = both["mu", adversary]
            gaps = (both[pair[0]] - both[pair[1]]) / accountant
            errors = np.hypot(both["error", adversary], both["error", LOSS]) / accountant
            what = f"share of mu above the loss, {network}, {adversary}"
            items.append(Within(what, _pooled(gaps, errors), low=0, reason="more"))
    if not items:
        raise Lacking
    return Evidence(items, "Pooled over the audits of a network.")


@check
def clipping_norm(estimates: pd.DataFrame) -> Evidence:
    """At every clipping norm a random coordinate shows the same mu, except for a quarter."""
    rows = select(_network_mus(estimates), adversary=RANDOM)
    items: list[Item] = []
    for (network, epsilon), part in rows.groupby(["network", "epsilon"], sort=False):
        found = {
            norm: _pooled(own["value"] / own["mu"], own["error"] / own["mu"])
            for norm, own in part.groupby("clipping_norm")
        }
        first = min(found)
        items += [
            Within(
                f"share of mu at C = {norm:g} less that at {first:g}, {network}, "
                f"epsilon {epsilon:g}",
                value - found[first],
                -0.25,
                0.25,
                reason="the same except for a quarter, a limit of ours",
            )
            for norm, value in found.items()
            if norm != first
        ]
    if not items:
        raise Lacking
    return Evidence(items, f"{rows['models'].max():.0f} models per world.")


@check
def networks_periodic(estimates: pd.DataFrame) -> Evidence:
    """With k above 1 a random coordinate shows more than the loss."""
    rows = _network_audits(estimates)
    rows = rows[(rows["every"] > 1) & (rows["error"] < 0.35 * rows["idle_mu"])]
    items: list[Item] = []
    notes = []
    for cell, part in rows.groupby("cell", sort=False):
        own = part.set_index("adversary")
        if not {RANDOM, LOSS} <= set(own.index):
            continue
        best, loss = (
            Estimate(own.loc[name, "value"], own.loc[name, "error"]) for name in (RANDOM, LOSS)
        )
        items.append(Within(f"mu above the loss's, {cell}", best - loss, low=0, reason="more"))
        notes.append(f"mu {best.value:.2f}, loss {loss.value:.2f}, mu / sqrt(k) "
                     f"{own.loc[RANDOM, 'idle_mu']:.2f}")  # fmt: skip
    if not items:
        raise Lacking
    return Evidence(items, "; ".join(notes) + ".")


# --- our own statements: validation ---------------------------------------------------------------


@check
def agreement(estimates: pd.DataFrame) -> Evidence:
    """Scores of a small audit, trained here, are distributed as those of the large one."""
    rows = needed(select(estimates, part="housing", quantity="p_value"))
    least = min(1.0, rows["value"].min() * len(rows))
    models = int(rows["models"].min())
    power = comparison_power(models, shift=0.5, level=0.05, worlds=len(rows))
    return Evidence(
        [
            Test(
                f"least of {len(rows)} p-values, times their number",
                least,
                power,
                "a shift of half a standard deviation of all",
            )
        ],
        f"{models} new models per world and adversary.",
    )


@check
def calibration(estimates: pd.DataFrame) -> Evidence:
    """mu and noise multiplier of every epsilon, against the reference."""
    rows = needed(select(_as_stated(estimates), part="ideal", quantity="epsilon"))
    known = needed(rows[rows["epsilon"].isin(GAUSSIAN_MU)].groupby("epsilon")["mu"].first())
    gaps = [abs(found - GAUSSIAN_MU[e]) for e, found in known.items()]
    gaps += [
        abs(math.sqrt(INSERTIONS) / found - NOISE_MULTIPLIERS[e]) for e, found in known.items()
    ]
    return Evidence(
        [
            Within(
                "largest difference from the reference",
                Exact(float(max(gaps))),
                high=6e-4,
                reason="its printed digits",
            )
        ],
        f"{len(known)} epsilons.",
    )


@check
def idle_table(estimates: pd.DataFrame) -> Evidence:
    """The mu / sqrt(k) table: exact values, and means of the published estimate."""
    rows = _as_stated(estimates)
    rows = select(rows, part="ideal", quantity="epsilon", method=PUBLISHED, models=MODELS)
    items: list[Item] = []
    gaps = []
    for _, line in needed(rows).iterrows():
        known = IDLE.get(int(line["every"]), {}).get(line["epsilon"])
        if known is None:
            continue
        gaps.append(abs(line["idle_epsilon"] - known[0]))
        error = (line["high"] - line["low"]) / 2 / math.sqrt(line["audits"])
        what = f"mean published epsilon, k = {line['every']:g}, epsilon {line['epsilon']:g}"
        found = Estimate(line["value"], error)
        items.append(Stated(what, found, _reference(known), 5e-4, known[0], digits=3))
    if not items:
        raise Lacking
    largest_gap = Exact(float(max(gaps)))
    exact = Within(
        "largest difference of exact values", largest_gap, high=1e-4, reason="four decimals"
    )
    return Evidence(
        [exact, *items], "The rival of each mean is the exact value, which it is biased from."
    )


@check
def best_threshold(estimates: pd.DataFrame) -> Evidence:
    """The best threshold on the same scores exceeds the truth too often; a fixed one does not."""
    rows = needed(select(estimates, part="ideal", quantity="share above"))
    rows = select(rows, every=1, models=MODELS)

    def share(method: str) -> Share:
        own = needed(select(rows, method=method))
        return Share(round((own["value"] * own["audits"]).sum()), int(own["audits"].sum()))

    best, fixed = share(PUBLISHED), share("fixed threshold")
    return Evidence(
        [
            Within("share above the truth, best threshold", best, low=0.05, reason="nominal 5 %"),
            Within("share above the truth, fixed threshold", fixed, high=0.05, reason="5 %"),
        ],
        f"{best.trials} audits of ideal scores each.",
    )


@check
def heat_map(estimates: pd.DataFrame) -> Evidence:
    """The Gaussian-DP reading of section 6, every number of the reference."""
    found = _last(_as_stated(estimates), "Gaussian-DP reading")
    gaps = [
        abs(found[e, b] / e - ratio)
        for e, line in RATIOS.items()
        for b, ratio in line.items()
        if (e, b) in found
    ]
    return _table("ratios", gaps)


def _table(what: str, gaps: list[float]) -> Evidence:
    if not gaps:
        raise Lacking
    found = Exact(float(max(gaps)))
    return Evidence(
        [
            Within(
                f"largest difference of {what}", found, high=6e-4, reason="three decimals, rounded"
            )
        ],
        f"{len(gaps)} {what}.",
    )


@check
def evolution(estimates: pd.DataFrame) -> Evidence:
    """The Gaussian-DP reading over the steps at epsilon 4, every number of the reference."""
    rows = needed(select(_as_stated(estimates), part="single", quantity="epsilon", kind="exact"))
    rows = select(rows, method="Gaussian-DP reading", threshold="midpoint", epsilon=4.0)
    values = rows.set_index(["batch_size", "x"])["value"]
    gaps = [
        abs(values[size, step] - value)
        for size, line in EVOLUTION.items()
        for step, value in line.items()
        if (size, step) in values
    ]
    return _table("values", gaps)


@check
def simulated(estimates: pd.DataFrame) -> Evidence:
    """Audits of the simulated process find what the reference's did."""
    rows = _as_stated(estimates)
    rows = select(rows, part="single", quantity="epsilon", method=PUBLISHED, models=MODELS)
    items: list[Item] = []
    for (epsilon, size), part in needed(rows).groupby(["epsilon", "batch_size"]):
        known = AUDITED.get(epsilon, {}).get(int(size))
        if known is None:
            continue
        average, sd = known
        items.append(
            Stated(
                f"mean published epsilon of {epsilon:g}, B = {size:g}",
                Estimate(float(part["value"].mean()), sd / math.sqrt(len(part))),
                Estimate(average, sd / math.sqrt(LANDSCAPE_AUDITS)),
                5e-4,
                RATIOS[epsilon][int(size)] * epsilon,
                digits=3,
            )
        )
    if not items:
        raise Lacking
    return Evidence(items, "The rival of each mean is the exact value, which it is biased from.")


@check
def exact(estimates: pd.DataFrame) -> Evidence:
    """The same landscape's exact epsilon is 23 to 29 % of the nominal one."""
    found = _last(_as_stated(estimates), "exact")
    large = _large(found)
    pairs = [(e, found[e, large], value) for e, value in EXACT.items() if (e, large) in found]
    if not pairs:
        raise Lacking
    ratios = [value / e for e, value, _ in pairs]
    gap = max(abs(value - known) for _, value, known in pairs)
    return Evidence(
        [
            Within("least share", Exact(min(ratios)), 0.225, 0.295, reason="23 to 29 %, rounded"),
            Within("largest share", Exact(max(ratios)), 0.225, 0.295, reason="23 to 29 %, rounded"),
            Within("largest difference from the reference", Exact(gap), high=0.005,
                   reason="its digits, two at epsilon 12"),
        ],
        f"B = {large}, {len(pairs)} epsilons.",
    )  # fmt: skip


@check
def best_landscape(estimates: pd.DataFrame) -> Evidence:
    """With the threshold at h* the exact epsilon is the nominal one for large batches."""
    found = _last(_as_stated(estimates), "exact", "h*")
    large = _large(found)
    ratios = [value / e for (e, b), value in found.items() if b == large]
    gaps = [
        abs(found[e, b] / e - value)
        for e, line in EXACT_AT_BEST.items()
        for b, value in line.items()
        if (e, b) in found
    ]
    items = [Within(f"least ratio, B = {large}", Exact(min(ratios)), low=0.999, reason="equal")]
    if gaps:
        gap = Exact(max(gaps))
        what = "largest difference from the reference"
        items.append(Within(what, gap, high=6e-4, reason="three decimals, rounded"))
    return Evidence(items, f"{len(ratios)} epsilons.")


@check
def plateau(estimates: pd.DataFrame) -> Evidence:
    """A plateau above 0 where B / sigma is at least 0.5; a flat landscape goes on to fall."""
    rows = needed(select(estimates, part="single", quantity="epsilon", kind="exact"))
    rows = select(rows, method="Gaussian-DP reading", threshold="midpoint", steps=25)
    values = rows.set_index(["epsilon", "batch_size", "x"])["value"]
    mus = rows.groupby("epsilon")["mu"].first()
    plateaus, falls, left = [], [], []
    for (epsilon, size), _ in rows.groupby(["epsilon", "batch_size"]):
        ratio = values[epsilon, size, 25] / values[epsilon, size, 15]
        if size == 0:
            falls.append(ratio)
        elif size * mus[epsilon] >= 0.5:
            plateaus.append(ratio)
            left.append(values[epsilon, size, 25] / epsilon)
    if not (plateaus and falls):
        raise Lacking
    return Evidence(
        [
            Within("least of step 25 over step 15", Exact(min(plateaus)), low=0.99,
                   reason="converges: changes by less than 1 %"),
            Within("largest on a flat landscape", Exact(max(falls)), high=0.9,
                   reason="goes on to fall: by more than a tenth"),
            Within("least share of epsilon that is left", Exact(min(left)), low=0.1,
                   reason="above 0: a tenth at least"),
        ],
        "Limits of ours.",
    )  # fmt: skip


@check
def sampled_gaussian(estimates: pd.DataFrame) -> Evidence:
    """The curve of a linear loss with a sampled canary comes near to a Gaussian one."""
    items: list[Item] = []
    for rate, line in _distances(estimates, "sampling_rate"):
        if rate < 1 and line.index[-1] >= 100:
            # A canary that is hardly ever sampled leaks nothing, which is Gaussian too: the
            # distance rises before it falls.
            ratio = Exact(float(line.iloc[-1] / line.max()))
            what = f"last distance over the largest, sampling rate {rate:g}"
            items.append(Within(what, ratio, high=0.1, reason="falls to a tenth, a limit of ours"))
    if not items:
        raise Lacking
    return Evidence(items, "Exact curves.")


@check
def one_run_valid(estimates: pd.DataFrame) -> Evidence:
    """Where the level is attained, bounds from one model exceed the truth in at most 5 %."""
    rows = needed(select(estimates, part="one run validity", quantity="share above"))
    # "imitation" is private in each canary alone, where the stronger hypothesis fails.
    rows = needed(rows[rows["method"] != "imitation"])
    items: list[Item] = [
        Within(
            f"largest probability to exceed the truth, {mechanism}",
            Exact(float(part["value"].max())),
            high=0.05,
            reason="5 %",
        )
        for mechanism, part in select(rows, kind="exact").groupby("method")
    ]
    drawn = select(rows, kind="estimate")
    above, total = round((drawn["value"] * drawn["audits"]).sum()), int(drawn["audits"].sum())
    items.append(rarely("bounds above the truth, normal scores", above, total, 0.05, 0.06))
    return Evidence(items, "Mechanisms that attain the hypothesis, or nearly.")


def _one_run(estimates: pd.DataFrame, **levels: str) -> Iterator[tuple[float, pd.Series, Estimate]]:
    """(epsilon, what one model with the most canaries shows, the bound of 100 models per world)."""
    rows = select(estimates, part="one run", method="unused coordinates", **levels)
    few = needed(select(estimates, part="few", quantity="epsilon", method="valid", models=100))
    for epsilon, part in needed(rows).groupby("epsilon"):
        target = select(few, epsilon=epsilon)["value"]
        if len(target):
            yield float(epsilon), part.loc[part["canaries"].idxmax()], mean(target.tolist())


@check
def one_run(estimates: pd.DataFrame) -> Evidence:
    """Under Gaussian DP of the whole mechanism one model shows as much as 100 per world."""
    items: list[Item] = []
    levels = {"quantity": "epsilon", "hypothesis": WHOLE, "rule": KNOWN}
    for epsilon, best, target in _one_run(estimates, **levels):
        # The median of so many audits, from the middle 80 % of them as if they were normal.
        sd = (best["high"] - best["low"]) / 2.56
        found = Estimate(best["value"], 1.25 * sd / math.sqrt(best["audits"]))
        what = f"{best['canaries']:,.0f} canaries' bound less 100 models', epsilon {epsilon:g}"
        items.append(Within(what, found - target, low=0, reason="as much"))
    if not items:
        raise Lacking
    return Evidence(items, "Simulated unused coordinates, known null law.")


@check
def one_run_networks(estimates: pd.DataFrame) -> Evidence:
    """One training of a larger network shows as much as 100 models per world of the small one."""
    rows = select(estimates, part="one run", quantity="mean epsilon", rule=KNOWN)
    rows = rows[
        ~rows["method"].isin(["unused coordinates", "housing"]) & (rows["canaries"] >= 1000)
    ]
    few = needed(select(estimates, part="few", quantity="epsilon", method="valid", models=100))
    items: list[Item] = []
    words = []
    for (network, epsilon), part in needed(rows).groupby(["method", "epsilon"], sort=False):
        target = select(few, epsilon=epsilon)["value"]
        if target.empty:
            continue
        best = part.loc[part["canaries"].idxmax()]
        # Audits are independent trainings, with a start each.
        found = mean_of(best["value"], best["high"] - best["value"], int(best["audits"]))
        what = f"{network}, {best['canaries']:,.0f} canaries, less 100 models', epsilon {epsilon:g}"
        items.append(Within(what, found - mean(target.tolist()), low=0, reason="as much"))
        words.append(f"{network} {found.value:.2f} of {epsilon:g} ({best['audits']:.0f} audits)")
    if not items:
        raise Lacking
    return Evidence(items, f"Mean bounds: {', '.join(words)}; null law simulated.")


@check
def one_run_alone(estimates: pd.DataFrame) -> Evidence:
    """Under Gaussian DP of each canary alone no bound can show as much at epsilon 24."""
    found = {e: rest for e, *rest in _one_run(estimates, quantity="ceiling", hypothesis=ALONE)}
    if 24.0 not in found:
        raise Lacking
    ceiling, target = found[24.0]
    return Evidence(
        [
            Within(
                f"{ceiling['canaries']:,.0f} canaries' ceiling less 100 models' bound, epsilon 24",
                Estimate(ceiling["value"], 0.0) - target,
                high=0,
                reason="less",
            )
        ],
        "The ceiling is what no valid bound's median exceeds.",
    )
