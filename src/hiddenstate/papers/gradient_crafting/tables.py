"""Tables of gradient_crafting."""

import pandas as pd

from hiddenstate.papers.gradient_crafting.grid import HOUSING
from hiddenstate.pipeline.estimates import plus_minus, select, summarise
from hiddenstate.pipeline.family import Rows, needed, table


def _audits(rows: pd.DataFrame, heads: dict[str, str]) -> Rows:
    """Mean and deviation over repeats in every reading, by the columns that ``heads`` names."""
    for key, part in rows.groupby(list(heads), sort=False):
        levels = zip(heads.values(), key, strict=True)
        record = {head: int(level) if head in _WHOLE else level for head, level in levels}
        record |= {"repeats": part["repeat"].nunique()}
        record |= {"unused coordinate": f"{part['idle_epsilon'].iloc[0]:.3f}"}
        for _, line in summarise(part, "method").iterrows():
            record[line["method"]] = plus_minus(line["mean"], line["sd"])
        yield record


_HEADS = {
    "every": "k", "start": "start", "models": "models per data set", "epsilon": "epsilon",
    "adversary": "adversary",
}  # fmt: skip
_WHOLE = {"k", "models per data set", "insertions", "batch"}
"""Heads of whole numbers."""


@table(
    "Audits of the housing network",
    "Mean and standard deviation over repeats. The published estimate and the plug-in bound "
    "nothing.",
    when=lambda grid: grid.housing is not None,
)
def housing(estimates: pd.DataFrame) -> Rows:
    return _audits(select(estimates, part="housing", quantity="epsilon"), _HEADS)


@table(
    "Audits with the simulated end point taken off",
    "mu by difference of means over deviation, over mu / sqrt(k), with one standard error. Beside "
    "it stands the package's valid lower bound on epsilon, of the same models. Known drift: "
    "deviation of the simulated end points over that of the noise.",
    when=lambda grid: grid.housing is not None and any(s.centred for s in grid.housing.sweeps),
)
def centred(estimates: pd.DataFrame) -> Rows:
    rows = select(estimates, part="centred")
    keys = ["every", "start", "epsilon", "adversary"]
    for (every, *others), part in rows.groupby(keys, sort=False):
        record = {"k": int(every), **dict(zip(keys[1:], others, strict=True))}
        record |= {"models per data set": int(part["models"].max())}
        for reading, own in part.dropna(subset="reading").groupby("reading", sort=False):
            mu = select(own, quantity="mu")
            ratio, error = mu["value"] / mu["idle_mu"], (mu["high"] - mu["value"]) / mu["idle_mu"]
            record[f"mu, {reading}"] = plus_minus(ratio.mean(), error.mean() / len(mu) ** 0.5)
            valid = select(own, quantity="epsilon", method="valid")["value"].mean()
            record[f"valid epsilon, {reading}"] = f"{valid:.2f}"
        drift = select(part, quantity="known drift")["value"]
        record["known drift"] = f"{drift.mean():.3f}" if len(drift) else "-"
        yield record


@table(
    "Audits of ConvNet and ResNet",
    "Mean and standard deviation over repeats. The published estimate and the plug-in bound "
    "nothing. Networks on digits are ours and small; the paper's are on CIFAR-10.",
    when=lambda grid: len(grid.networks) > 0,
)
def networks(estimates: pd.DataFrame) -> Rows:
    heads = {
        "model": "model", "dataset": "data", "clipping_norm": "C", "insertions": "insertions",
        "batch_size": "batch",
    }  # fmt: skip
    rows = needed(select(estimates, part="network", quantity="epsilon"))
    return _audits(rows, heads | _HEADS)


@table(
    "Expected audits of a coordinate",
    "Share of the insertions' mu that audits of many models show on average, ± its standard error. "
    "The adversary knows nothing, the batches, or the start. Who knows both and takes off "
    "where a training without noise ends sees the noise alone. Observed: real audits, ± the "
    "standard error of their mean. An expected audit is no lower bound.",
    when=lambda grid: grid.expected is not None and bool(grid.housing or grid.networks),
)
def expected(estimates: pd.DataFrame) -> Rows:
    mus = select(estimates, quantity="mu", part=["housing", "network"])
    mus = mus.assign(network=mus["network"].fillna(HOUSING))
    keys = ["network", "every", "clipping_norm", "epsilon", "adversary"]
    for key, part in select(estimates, part="expected").groupby(keys, sort=False):
        network, every, norm, epsilon, adversary = key
        record = {"network": network, "k": int(every), "C": norm, "epsilon": epsilon}
        record["adversary"] = adversary
        for line in part.itertuples():
            record[f"{line.knows} known"] = plus_minus(line.value, line.error)
        at = {"every": every, "clipping_norm": norm, "epsilon": epsilon, "adversary": adversary}
        for start in ("fresh", "shared"):
            audits = select(mus, network=network, start=start, **at)
            audits = audits[audits["models"] == audits["models"].max()]
            if len(audits):
                mu, error = audits["mu"].iloc[0], (audits["high"] - audits["value"]).mean()
                words = "observed" if start == "fresh" else "observed, one start"
                record[words] = plus_minus(
                    audits["value"].mean() / mu, error / len(audits) ** 0.5 / mu
                )
        yield record


@table(
    "One insertion, then hidden steps",
    "Epsilon after the last step, over the theoretical one. At the midpoint it is the paper's "
    "reading and the exact one; the exact one also has the threshold at h*.",
    when=lambda grid: grid.single is not None,
    shows="exact laws; no model is trained",
)
def landscape(estimates: pd.DataFrame) -> pd.DataFrame:
    laws = select(estimates, part="single", quantity="epsilon", kind="exact")
    last = laws[(laws["x"] == laws["steps"]) & (laws["batch_size"] > 0)]
    ratios = last.assign(
        ratio=(last["value"] / last["epsilon"]).map("{:.3f}".format),
        reading=last["method"] + ", " + last["threshold"],
    )
    ratios = ratios[ratios["reading"] != "Gaussian-DP reading, h*"]
    shown = ratios.pivot(index=["reading", "epsilon"], columns="batch_size", values="ratio")
    return shown.rename(columns=lambda size: f"B = {size:g}").reset_index()


@table(
    "Unused coordinates",
    "What simulated audits find of a coordinate that only noise and canary move. Beside it stands "
    "the share of audits that claim more than the truth.",
    when=lambda grid: grid.ideal is not None,
    shows="simulated normal scores; no model is trained",
)
def ideal(estimates: pd.DataFrame) -> Rows:
    rows = select(estimates, part="ideal")
    for (every, models, epsilon), part in rows.groupby(["every", "models", "epsilon"]):
        record = {"k": int(every), "models per data set": int(models), "epsilon": epsilon}
        record |= {"exact": f"{part['idle_epsilon'].iloc[0]:.3f}"}
        for method, own in part.groupby("method", sort=False):
            found = select(own, quantity="epsilon").iloc[0]
            above = select(own, quantity="share above").iloc[0]
            record[method] = plus_minus(found["value"], found["high"] - found["value"])
            record[f"{method}: above"] = f"{above['value']:.3f} of {above['audits']:.0f}"
        yield record


@table(
    "Canaries in one model",
    "Lower bounds from one model, valid if what is assumed holds: median over audits with the "
    "middle 80 %. Ceiling: the median of no valid bound is above it if each canary alone is all "
    "that is assumed. A row that takes noise for all that moves a trained network's scores bounds "
    "nothing. It tells what the simulation of the null law costs.",
    when=lambda grid: grid.one_run is not None,
)
def one_run(estimates: pd.DataFrame) -> Rows:
    rows = select(estimates, part="one run", quantity="epsilon")
    above = select(estimates, part="one run", quantity="share above")
    keys = ["method", "epsilon", "canaries", "rule"]
    share = above.set_index(keys)["value"]
    ceilings = select(estimates, part="one run", quantity="ceiling")
    ceiling = ceilings.set_index(["epsilon", "canaries"])["value"]
    for _, line in rows.iterrows():
        place = (line["epsilon"], line["canaries"])
        alone = line["hypothesis"] == "each canary alone" and place in ceiling.index
        yield {
            "canaries in": line["method"],
            "epsilon": line["epsilon"],
            "canaries": int(line["canaries"]),
            "Gaussian DP of": line["hypothesis"],
            "rule": line["rule"],
            "guessed": f"{line['share']:.0%}" if line["share"] else "-",
            "median bound": f"{line['value']:.3f}",
            "middle 80 %": f"{line['low']:.3f} to {line['high']:.3f}",
            "ceiling": f"{ceiling[place]:.2f}" if alone else "-",
            "above the truth": f"{share[tuple(line[keys])]:.3f} of {line['audits']:.0f}",
        }


@table(
    "How often bounds from one model exceed the truth",
    "On mechanisms that attain the level of 5 %, or come near it. Simulated, or exact (no "
    "audits). The imitation is Gaussian DP of each canary alone, so that the bound of the "
    "stronger hypothesis is not valid there.",
    when=lambda grid: grid.one_run is not None and any(m <= 1000 for m in grid.one_run.idle),
    shows="exact and simulated laws; no model is trained",
)
def one_run_validity(estimates: pd.DataFrame) -> pd.DataFrame:
    rows = select(estimates, part="one run validity")
    return pd.DataFrame(
        {
            "Gaussian DP of": rows["hypothesis"],
            "mechanism": rows["method"],
            "epsilon": rows["epsilon"],
            "canaries": rows["canaries"].astype(int),
            "above the truth": rows["value"].map("{:.4f}".format),
            "audits": rows["audits"].astype(int),
        }
    )
