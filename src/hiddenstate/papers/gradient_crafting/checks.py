"""What the claims of gradient_crafting measure, from its estimates."""

import math

import numpy as np
import pandas as pd

from hiddenstate.estimates import largest, plus_minus, select, summarise
from hiddenstate.family import Measurement, check, furthest, needed
from hiddenstate.papers.gradient_crafting.cells import NETWORK_SETTING, SETTING, THREE
from hiddenstate.papers.gradient_crafting.stated import (
    AUDITED,
    DELTA,
    EVOLUTION,
    EXACT,
    EXACT_AT_BEST,
    GAUSSIAN_MU,
    IDLE,
    NOISE_MULTIPLIERS,
    RATIOS,
)

PAPER_MODELS = 5000
"""Models per world of the paper's audits of the housing network."""

INSERTIONS = 250


def _housing(
    estimates: pd.DataFrame, method: str = "as published", *, models: int = PAPER_MODELS
) -> pd.DataFrame:
    """Audits in every step from fresh initial parameters, with at least so many models."""
    rows = needed(select(estimates, part="housing", quantity="epsilon", method=method))
    rows = select(rows, every=1, start="fresh")
    return rows[rows["models"] >= models]


def _as_stated(estimates: pd.DataFrame) -> pd.DataFrame:
    """Estimates at the delta of the reference, whose values are of no other."""
    return needed(estimates[estimates["delta"] == DELTA])


def _means(rows: pd.DataFrame, *adversaries: str) -> pd.DataFrame:
    """Mean of each epsilon from 4 on (rows) by each of these adversaries (columns)."""
    rows = select(needed(rows[rows["epsilon"] >= 4]), adversary=adversaries)
    means = rows.pivot_table(index="epsilon", columns="adversary", values="value", aggfunc="mean")
    return needed(means.reindex(columns=list(adversaries)).dropna())


@check
def no_amplification(estimates: pd.DataFrame) -> Measurement | None:
    """The simulated coordinate nearly reaches the accountant's epsilon from 4 on."""
    rows = select(_housing(estimates), adversary="simulated coordinate")
    rows = needed(rows[rows["epsilon"] >= 4])
    found = summarise(rows, "epsilon")
    ratios = found["mean"] / found["epsilon"]
    words = ", ".join(
        f"{plus_minus(line['mean'], line['sd'])} at {line['epsilon']:g} ({line['n']:g} repeats)"
        for _, line in found.iterrows()
    )
    return Measurement(
        words,
        "at least 0.85 epsilon in the mean, at epsilon 4 and above",
        bool(ratios.min() >= 0.85),
    )


@check
def plug_in(estimates: pd.DataFrame) -> Measurement | None:
    """mu of the simulated coordinate is that of the insertions: the mechanism itself."""
    rows = needed(select(estimates, part="housing", quantity="mu"))
    rows = select(rows, every=1, start="fresh", adversary="simulated coordinate")
    rows = needed(rows[rows["models"] >= PAPER_MODELS])
    error = rows["high"] - rows["value"]
    signed = (rows["value"] - rows["mu"]) / error
    off = signed.abs()
    ratio = rows["value"] / rows["mu"]
    return Measurement(
        f"mu / accountant's from {ratio.min():.3f} to {ratio.max():.3f}; at most {off.max():.1f} "
        f"standard errors off ({len(rows)} audits)",
        "within 4 standard errors, or at least 0.95 of it",
        bool(((off <= 4) | ((ratio >= 0.95) & (ratio <= 1))).all()),
        furthest(signed),
    )


@check
def reference(estimates: pd.DataFrame) -> Measurement | None:
    """The published estimate on the housing network is what an idle coordinate gives."""
    rows = select(_housing(_as_stated(estimates)), adversary="simulated coordinate")
    words, holds, off = [], True, []
    for _, line in summarise(rows, "epsilon").iterrows():
        _, mean, sd = IDLE[1].get(line["epsilon"], (0.0, math.nan, math.nan))
        if line["epsilon"] <= 12 and not math.isnan(mean):
            holds &= bool(abs(line["mean"] - mean) <= 3 * sd)
            off.append((line["mean"] - mean) / (sd / math.sqrt(line["n"])))
            words.append(f"{line['mean']:.2f} at {line['epsilon']:g} (reference {mean:.2f})")
    if not words:
        return None
    return Measurement("; ".join(words), "3 standard deviations of one audit", holds, furthest(off))


@check
def ordering(estimates: pd.DataFrame) -> Measurement | None:
    """The simulated coordinate nearly tight; a random one and the loss far below."""
    means = _means(_housing(estimates), *THREE)
    best = means["simulated coordinate"]
    others = means[["random coordinate", "loss-based"]].max(axis=1)
    words = "; ".join(
        f"epsilon {epsilon:g}: {line['simulated coordinate']:.2f} simulated, "
        f"{line['random coordinate']:.2f} random, {line['loss-based']:.2f} loss"
        for epsilon, line in means.iterrows()
    )
    return Measurement(
        words, "the others below half of the simulated one", bool((others < best / 2).all())
    )


@check
def shared_start(estimates: pd.DataFrame) -> Measurement | None:
    """With one draw of initial parameters one random coordinate is no longer far below."""
    rows = needed(select(estimates, part="housing", quantity="epsilon", method="as published"))
    rows = select(rows, start="shared", every=1)
    means = _means(rows, "one random coordinate", "simulated coordinate")
    ratio = means["one random coordinate"] / means["simulated coordinate"]
    words = ", ".join(f"{value:.2f} at {epsilon:g}" for epsilon, value in ratio.items())
    return Measurement(
        f"one random over simulated coordinate: {words}",
        "above one half",
        bool((ratio > 0.5).all()),
    )


@check
def loss_norm(estimates: pd.DataFrame) -> Measurement | None:
    """The baseline's record does not reach the clipping norm throughout."""
    rows = needed(select(estimates, part="norms", quantity="share clipped"))
    words = ", ".join(
        f"{line['value']:.0%} of steps at k = {line['every']:g}" for _, line in rows.iterrows()
    )
    return Measurement(
        f"norm at the clipping norm in {words}", "less than half", bool((rows["value"] < 0.5).all())
    )


@check
def periodic(estimates: pd.DataFrame) -> Measurement | None:
    """With k above 1: at most the idle law, falling in k, and above the loss.

    Where an audit can tell the idle law from nothing; else only the first.
    """
    rows = needed(select(estimates, part="housing", quantity="epsilon", method="as published"))
    rows = largest(select(rows, start="fresh"), "models", SETTING)
    rows = rows[(rows["models"] >= 500) & (rows["epsilon"] >= 4)]
    best, others = (
        needed(select(rows, adversary=name)) for name in ("simulated coordinate", "loss-based")
    )
    means, loss = (
        part.pivot_table(index="epsilon", columns="every", values="value", aggfunc="mean")
        for part in (best, others)
    )
    means = needed(means.where(loss.reindex_like(means).notna()).dropna())
    if means.shape[1] < 2:
        return None
    holds, words = True, []
    for every in means.columns:
        for epsilon, value in means[every].items():
            truth = best.loc[
                (best["every"] == every) & (best["epsilon"] == epsilon), "idle_epsilon"
            ].iloc[0]
            models = best.loc[best["every"] == every, "models"].max()
            # One audit's deviation, about that of mu's plug-in carried over to epsilon.
            sd = 0.2 * max(1.0, truth / 8) * math.sqrt(PAPER_MODELS / models)
            holds &= bool(value <= truth + 3 * sd)
            holds &= bool(truth <= 3 * sd or value > loss.loc[epsilon, every])
            words.append(f"k = {every:g}, epsilon {epsilon:g}: {value:.2f} of {truth:.2f}")
    holds &= bool((np.diff(means.to_numpy(), axis=1) < 0).all())
    return Measurement(
        "; ".join(words),
        "at most mu / sqrt(k) + 3 sd, falling in k; above the loss where mu / sqrt(k) is 3 sd",
        holds,
    )


def _network_audits(estimates: pd.DataFrame) -> pd.DataFrame:
    """Plug-in mu and its standard error of the larger networks, each model with its own start."""
    rows = needed(select(estimates, part="network", quantity="mu"))
    rows = largest(select(rows, start="fresh"), "models", NETWORK_SETTING)
    return rows.assign(error=rows["high"] - rows["value"])


def _network_mus(estimates: pd.DataFrame) -> pd.DataFrame:
    """Those with an insertion in every step that tell something.

    Audits with too few models for a standard error below a fifth of the accountant's mu are left
    out.
    """
    rows = _network_audits(estimates)
    return needed(select(rows[rows["error"] < 0.2 * rows["mu"]], every=1))


def _pooled(values: pd.Series, errors: pd.Series) -> tuple[float, float]:
    """Mean weighted by precision, and its standard error."""
    weights = 1 / errors**2
    return float((values * weights).sum() / weights.sum()), float(weights.sum() ** -0.5)


@check
def networks_tight(estimates: pd.DataFrame) -> Measurement | None:
    """On ConvNet and ResNet a random coordinate shows nearly all of the insertions' mu."""
    rows = _network_mus(estimates)
    rows = needed(select(rows, adversary="random coordinate"))
    words, holds = [], True
    for network, part in rows.groupby("network", sort=False):
        ratio, error = _pooled(part["value"] / part["mu"], part["error"] / part["mu"])
        holds &= ratio >= 0.85
        words.append(f"{network}: {ratio:.2f} ± {error:.2f} ({len(part)} audits)")
    return Measurement(
        "; ".join(words),
        "at least 0.85 of the accountant's mu, mean over all audits of a network",
        bool(holds),
    )


@check
def networks_order(estimates: pd.DataFrame) -> Measurement | None:
    """On ConvNet and ResNet crafted gradients show more than the loss, whoever chose them."""
    rows = _network_mus(estimates)
    table = rows.pivot_table(
        index=["network", "cell"], columns="adversary", values=["value", "error", "mu"], sort=False
    )
    words, holds = [], True
    for network, part in table.groupby(level="network", sort=False):
        for adversary in ("random coordinate", "simulated coordinate"):
            pair = [("value", adversary), ("value", "loss-based")]
            if not set(pair) <= set(part.columns) or (own := part.dropna(subset=pair)).empty:
                continue
            mu = own["mu", adversary]
            gap = (own[pair[0]] - own[pair[1]]) / mu
            both = np.hypot(own["error", adversary], own["error", "loss-based"]) / mu
            mean, error = _pooled(gap, both)
            holds &= mean > 3 * error and bool((gap > -3 * both).all())
            words.append(f"{network}, {adversary}: {mean:.2f} ± {error:.2f} of mu above the loss")
    if not words:
        return None
    return Measurement(
        "; ".join(words), "above by 3 standard errors in the mean, nowhere below by 3", bool(holds)
    )


@check
def clipping_norm(estimates: pd.DataFrame) -> Measurement | None:
    """At every clipping norm a random coordinate shows the same mu."""
    from scipy import stats

    rows = _network_mus(estimates)
    rows = select(rows, adversary="random coordinate")
    words, least, comparisons = [], 1.0, 0
    for (network, epsilon), part in rows.groupby(["network", "epsilon"], sort=False):
        norms = part.groupby("clipping_norm")
        if len(norms) < 2:
            continue
        found = [(norm, *_pooled(own["value"], own["error"])) for norm, own in norms]
        values, errors = (pd.Series(column) for column in list(zip(*found, strict=True))[1:])
        mean, _ = _pooled(values, errors)
        p_value = stats.chi2.sf((((values - mean) / errors) ** 2).sum(), len(values) - 1)
        least, comparisons = min(least, float(p_value)), comparisons + 1
        of_mu = ", ".join(f"{value / part['mu'].iloc[0]:.2f} at C = {c:g}" for c, value, _ in found)
        words.append(
            f"{network}, epsilon {epsilon:g}: {of_mu} of mu (± {errors.max() / mean:.2f}, "
            f"p = {p_value:.2g})"
        )
    if not words:
        return None
    return Measurement(
        "; ".join(words),
        f"equal: chi-squared test of all C, p-value at least 0.01 / {comparisons}",
        least >= 0.01 / comparisons,
    )


@check
def networks_periodic(estimates: pd.DataFrame) -> Measurement | None:
    """With k above 1 a random coordinate shows at most mu / sqrt(k), and more than the loss."""
    rows = _network_audits(estimates)
    rows = rows[(rows["every"] > 1) & (rows["error"] < 0.35 * rows["idle_mu"])]
    words, holds = [], True
    for cell, part in rows.groupby("cell", sort=False):
        own = part.set_index("adversary")
        if not {"random coordinate", "loss-based"} <= set(own.index):
            continue
        best, loss = own.loc["random coordinate"], own.loc["loss-based"]
        holds &= bool(best["value"] <= best["idle_mu"] + 3 * best["error"])
        holds &= bool(best["value"] > loss["value"])
        words.append(
            f"{cell}: mu {best['value']:.2f} ± {best['error']:.2f} of {best['idle_mu']:.2f}, "
            f"loss {loss['value']:.2f}"
        )
    if not words:
        return None
    return Measurement(
        "; ".join(words), "at most mu / sqrt(k) + 3 standard errors, above the loss", holds
    )


@check
def five_is_tight(estimates: pd.DataFrame) -> Measurement | None:
    """Whether an insertion in every fifth step still reaches the accountant's epsilon."""
    rows = needed(select(estimates, part="housing", quantity="epsilon", method="as published"))
    rows = select(rows, every=5, adversary="simulated coordinate")
    # The published estimate lies above the truth with few models, so 500 favour the statement.
    rows = needed(rows[(rows["epsilon"] >= 4) & (rows["models"] >= 500)])
    found = summarise(rows, "epsilon")
    words = ", ".join(
        f"{a:.2f} at {b:g}" for a, b in zip(found["mean"], found["epsilon"], strict=True)
    )
    ratios = found["mean"] / found["epsilon"]
    return Measurement(words, "at least 0.85 epsilon", bool((ratios >= 0.85).all()))


@check
def agreement(estimates: pd.DataFrame) -> Measurement | None:
    """Scores of a small audit, trained here, are distributed as those of the large one."""
    rows = needed(select(estimates, part="housing", quantity="p_value"))
    least = rows["value"].min()
    return Measurement(
        f"smallest of {len(rows)} p-values {least:.3g} ({rows['models'].min():.0f} new models per "
        "world and adversary)",
        f"at least 0.001 / {len(rows)}",
        bool(least >= 1e-3 / len(rows)),
    )


@check
def calibration(estimates: pd.DataFrame) -> Measurement | None:
    """mu and noise multiplier of every epsilon, against the reference."""
    rows = needed(select(_as_stated(estimates), part="ideal", quantity="epsilon"))
    worst = 0.0
    known = needed(rows[rows["epsilon"].isin(GAUSSIAN_MU)].groupby("epsilon")["mu"].first())
    for epsilon, mu in known.items():
        worst = max(worst, abs(mu - GAUSSIAN_MU[epsilon]))
        worst = max(worst, abs(math.sqrt(INSERTIONS) / mu - NOISE_MULTIPLIERS[epsilon]))
    return Measurement(
        f"largest difference {worst:.1e} ({len(known)} epsilons)", "0.001", bool(worst <= 1e-3)
    )


@check
def idle_table(estimates: pd.DataFrame) -> Measurement | None:
    """The mu / sqrt(k) table: exact values, and mean and deviation of the published estimate."""
    rows = _as_stated(estimates)
    rows = needed(select(rows, part="ideal", quantity="epsilon", method="as published"))
    rows = select(rows, models=PAPER_MODELS)
    exact, means, count = 0.0, 0.0, 0
    for _, line in rows.iterrows():
        known = IDLE.get(int(line["every"]), {}).get(line["epsilon"])
        if known is not None:
            truth, mean, sd = known
            exact = max(exact, abs(line["idle_epsilon"] - truth))
            means = max(means, abs(line["value"] - mean) / sd)
            count += 1
    if not count:
        return None
    return Measurement(
        f"exact values within {exact:.1e}, means within {means:.2f} sd ({count} settings)",
        "0.001 (the printed digits; 0.01 from 10 on), and one sd of a single audit",
        bool(exact <= 0.001 and means <= 1),
    )


@check
def best_threshold(estimates: pd.DataFrame) -> Measurement | None:
    """The best threshold on the same scores exceeds the truth too often; a fixed one does not."""
    rows = needed(select(estimates, part="ideal", quantity="share above"))
    rows = select(rows, every=1, models=PAPER_MODELS)
    best, fixed = (
        needed(select(rows, method=name)["value"]) for name in ("as published", "fixed threshold")
    )
    return Measurement(
        f"above the truth in {best.min():.1%} to {best.max():.1%} of the audits, "
        f"with a fixed threshold in {fixed.min():.1%} to {fixed.max():.1%}",
        "some above 5 %, the mean in 2 to 20 %; fixed at most 4 %",
        bool(best.max() > 0.05 and 0.02 <= best.mean() <= 0.2 and fixed.max() <= 0.04),
    )


def _last(
    estimates: pd.DataFrame, method: str, threshold: str = "midpoint"
) -> dict[tuple[float, int], float]:
    """Exact laws of section 6 at the last step, by epsilon and batch size, if of 25 steps."""
    rows = needed(select(estimates, part="single", quantity="epsilon", kind="exact"))
    rows = select(rows, method=method, threshold=threshold, steps=25)
    rows = rows[rows["x"] == rows["steps"]]
    return {
        (float(e), int(b)): float(v)
        for e, b, v in zip(rows["epsilon"], rows["batch_size"], rows["value"], strict=True)
    }


@check
def heat_map(estimates: pd.DataFrame) -> Measurement | None:
    """The Gaussian-DP reading of section 6, every number of the reference."""
    found = _last(_as_stated(estimates), "Gaussian-DP reading")
    gaps = [
        abs(found[e, b] / e - ratio)
        for e, line in RATIOS.items()
        for b, ratio in line.items()
        if (e, b) in found
    ]
    if not gaps:
        return None
    return Measurement(
        f"largest difference {max(gaps):.1e} ({len(gaps)} ratios)", "0.0006", max(gaps) <= 6e-4
    )


@check
def evolution_table(estimates: pd.DataFrame) -> Measurement | None:
    """The Gaussian-DP reading over the steps at epsilon 4, every number of the reference."""
    if "epsilon" not in estimates:
        return None
    rows = _as_stated(estimates)
    rows = needed(select(rows, part="single", quantity="epsilon", kind="exact", epsilon=4.0))
    rows = select(rows, method="Gaussian-DP reading", threshold="midpoint")
    values = rows.set_index(["batch_size", "x"])["value"]
    gaps = [
        abs(values[size, step] - value)
        for size, line in EVOLUTION.items()
        for step, value in line.items()
        if (size, step) in values
    ]
    if not gaps:
        return None
    return Measurement(
        f"largest difference {max(gaps):.1e} ({len(gaps)} values)", "0.0006", max(gaps) <= 6e-4
    )


@check
def simulated_audits(estimates: pd.DataFrame) -> Measurement | None:
    """Audits of the simulated process find what the reference's did."""
    rows = _as_stated(estimates)
    rows = needed(select(rows, part="single", quantity="epsilon", method="as published"))
    rows = select(rows, models=5000)
    worst, count = 0.0, 0
    for _, line in summarise(rows, ["epsilon", "batch_size"]).iterrows():
        known = AUDITED.get(line["epsilon"], {}).get(int(line["batch_size"]))
        if known:
            worst = max(worst, abs(line["mean"] - known[0]) / known[1])
            count += 1
    if not count:
        return None
    return Measurement(
        f"means within {worst:.2f} sd of the reference ({count} settings)",
        "3 sd of a single audit",
        worst <= 3,
    )


@check
def tight_with_large_batches(estimates: pd.DataFrame) -> Measurement | None:
    """Implication 2 in the paper's reading: at least 0.99 where B / sigma is 2 or more."""
    found = _last(estimates, "Gaussian-DP reading")
    rows = select(estimates, part="single", quantity="epsilon", kind="exact")
    if not found:
        return None
    mus = rows.groupby("epsilon")["mu"].first()
    large = [v / e for (e, b), v in found.items() if b and b * mus[e] >= 2]
    if not large:
        return None
    return Measurement(
        f"ratio at least {min(large):.4f} where B / sigma >= 2 ({len(large)} settings)",
        "0.99",
        min(large) >= 0.99,
    )


@check
def exact_is_lower(estimates: pd.DataFrame) -> Measurement | None:
    """The same landscape's exact epsilon is 23 to 29 % of the nominal one."""
    found = _last(_as_stated(estimates), "exact")
    large = max((b for _, b in found), default=0)
    pairs = [(e, found[e, large], value) for e, value in EXACT.items() if (e, large) in found]
    if not pairs or large < 128:
        return None
    ratios = [value / e for e, value, _ in pairs]
    # The reference at 12 has two decimals.
    gap = max(abs(value - known) for _, value, known in pairs)
    return Measurement(
        f"{min(ratios):.1%} to {max(ratios):.1%} of epsilon at B = {large}; "
        f"within {gap:.4f} of the reference",
        "23 to 29.5 %, and 0.005 of the reference",
        bool(min(ratios) >= 0.225 and max(ratios) <= 0.295 and gap <= 0.005),
    )


@check
def best_landscape(estimates: pd.DataFrame) -> Measurement | None:
    """With the threshold at h* the exact epsilon is the nominal one for large batches."""
    found = _last(_as_stated(estimates), "exact", "h*")
    large = max((b for _, b in found), default=0)
    if large < 128:
        return None
    ratios = [value / e for (e, b), value in found.items() if b == large]
    gaps = [
        abs(found[e, b] / e - value)
        for e, line in EXACT_AT_BEST.items()
        for b, value in line.items()
        if (e, b) in found
    ]
    return Measurement(
        f"ratio at least {min(ratios):.5f} at B = {large}; within {max(gaps, default=0):.4f} of "
        "the reference",
        "0.999, and 0.0006 of the reference",
        bool(min(ratios) >= 0.999 and max(gaps, default=0) <= 6e-4),
    )


@check
def converges(estimates: pd.DataFrame) -> Measurement | None:
    """Implication 3: a plateau above 0 with small batches; a flat landscape goes on to fall."""
    rows = needed(select(estimates, part="single", quantity="epsilon", kind="exact"))
    rows = select(rows, method="Gaussian-DP reading", threshold="midpoint", steps=25)
    values = rows.set_index(["epsilon", "batch_size", "x"])["value"]
    mus = rows.groupby("epsilon")["mu"].first()
    plateaus, falls, amplified = [], [], []
    for (epsilon, size), _ in rows.groupby(["epsilon", "batch_size"]):
        ratio = values[epsilon, size, 25] / values[epsilon, size, 15]
        if size == 0:
            falls.append(ratio)
        elif size * mus[epsilon] >= 0.5:
            plateaus.append(ratio)
        if size and size * mus[epsilon] < 1:
            amplified.append(values[epsilon, size, 25] / epsilon)
    if not (plateaus and falls and amplified):
        return None
    return Measurement(
        f"step 25 over step 15: at least {min(plateaus):.4f} where B / sigma >= 0.5, at most "
        f"{max(falls):.2f} on a flat landscape; {min(amplified):.2f} to {max(amplified):.2f} of "
        "epsilon is left where B / sigma < 1",
        "above 0.99, and less than 0.85; something, less than all",
        bool(min(plateaus) > 0.99 and max(falls) < 0.85 and 0 < min(amplified) < 0.99),
    )


@check
def monotone(estimates: pd.DataFrame) -> Measurement | None:
    """The ratio ascends in the batch size and in epsilon."""
    found = _last(estimates, "Gaussian-DP reading")
    if not found:
        return None
    cells = [(e, b, v / e) for (e, b), v in found.items() if b]
    table = pd.DataFrame(cells, columns=["epsilon", "size", "ratio"])
    square = table.pivot(index="epsilon", columns="size", values="ratio").to_numpy()
    least = min(np.diff(square, axis=0).min(initial=0), np.diff(square, axis=1).min(initial=0))
    return Measurement(f"smallest step {least:.1e}", "no step below -1e-9", bool(least >= -1e-9))


@check
def becomes_gaussian(estimates: pd.DataFrame) -> Measurement | None:
    """Appendix E: distances vanish for a sampled linear loss, and stay for the landscape."""
    rows = needed(select(estimates, part="hidden", quantity="distance", method="nearest Gaussian"))
    if rows["x"].max() < 100:
        return None
    ends = {}
    for column in ("sampling_rate", "beta"):
        for level, line in rows[rows[column].notna()].groupby(column):
            values = line.sort_values("x")["value"]
            # A canary that is hardly ever sampled leaks nothing, which is Gaussian too: the
            # distance rises before it falls.
            ends[column, level] = (values.max(), values.iloc[-1])
    sampled = [end for (column, q), end in ends.items() if column == "sampling_rate" and q < 1]
    kept = [end for (column, beta), end in ends.items() if column == "beta" and beta >= 0.5]
    if not (sampled and kept):
        return None
    return Measurement(
        f"sampled: {max(a for a, _ in sampled):.3f} to {max(b for _, b in sampled):.4f}; "
        f"landscape with beta >= 0.5: {min(b for _, b in kept):.3f} is left",
        "sampled: falls to a tenth of its largest; landscape: at least 0.01 is left",
        bool(all(b < a / 10 for a, b in sampled) and all(b >= 0.01 for _, b in kept)),
    )


@check
def one_run_valid(estimates: pd.DataFrame) -> Measurement | None:
    """Bounds from one model exceed the truth in at most 5 % of the audits, but for chance."""
    rows = needed(select(estimates, part="one run", quantity="share above"))
    above = float((rows["value"] * rows["audits"]).sum())
    total = float(rows["audits"].sum())
    error = math.sqrt(0.05 * 0.95 * total)
    return Measurement(
        f"{above:.0f} of {total:.0f} bounds above the truth",
        "at most 5 % plus 3 standard deviations",
        above <= 0.05 * total + 3 * error,
        (above - 0.05 * total) / error,
    )


@check
def one_run_reaches(estimates: pd.DataFrame) -> Measurement | None:
    """From how many canaries on one model shows as much as 100 per world."""
    rows = needed(select(estimates, part="one run", quantity="epsilon", method="idle coordinates"))
    few = needed(select(estimates, part="few", quantity="epsilon", method="valid"))
    words, holds, seen = [], True, 0
    for epsilon, part in rows.groupby("epsilon"):
        target = select(few, epsilon=epsilon, models=100)["value"]
        if target.empty:
            continue
        seen += 1
        enough = part.loc[part["value"] >= target.mean(), "canaries"]
        holds &= bool(len(enough))
        reached = f"from {enough.min():,.0f} canaries on" if len(enough) else "not reached"
        words.append(f"epsilon {epsilon:g}: {target.mean():.2f} {reached}")
    if not seen:
        return None
    return Measurement("; ".join(words), "reached with the canaries simulated", holds)
