"""Made-up estimates of gradient_crafting, by check and outcome."""

from functools import cache, partial

import pandas as pd
from made_up import agreement, count, once, repeats

from hiddenstate.accounting import gaussian
from hiddenstate.papers.gradient_crafting import stated

mu_of = cache(gaussian.mu)
CRAFTED, RANDOM, LOSS = "simulated coordinate", "random coordinate", "loss-based"
GOOD = {CRAFTED: 0.98, RANDOM: 0.2, LOSS: 0.1}


def housing(shares, *, every=1, start="fresh", models=5000, sd=0.02, n=5, epsilons=(4.0, 8.0)):
    """Audits whose mu and published epsilon are shares of the accountant's, by adversary.

    Of 5,000 models per world a share scatters by 0.02 at epsilon 4, and less above.
    """
    found = []
    for adversary, share in shares.items():
        for epsilon in epsilons:
            mu = mu_of(epsilon, 1e-5)
            shared = {
                "part": "housing", "cell": "x", "delta": 1e-5, "every": every, "start": start,
                "models": models, "epsilon": epsilon, "adversary": adversary, "mu": mu,
                "idle_mu": mu / every**0.5,
            }  # fmt: skip
            for repeat, found_share in enumerate(repeats(share, sd, n)):
                value = found_share * mu
                found += [
                    shared
                    | {"quantity": "mu", "method": "plug-in", "repeat": repeat}
                    | {"value": value, "high": value + sd * mu},
                    shared
                    | {"quantity": "epsilon", "method": "as published", "repeat": repeat}
                    | {"value": found_share * epsilon},
                ]
    return pd.DataFrame(found)


def periods(five, sd=0.02, every=5, **changes):
    """Insertions in every step, and in every k-th one; one repeat of the latter."""
    less = GOOD | {CRAFTED: five}
    return pd.concat([housing(GOOD | changes), housing(less, every=every, n=1, sd=sd)])


def networks(shares, *, every=1, error=0.03, norms=(1.0, 2.0)):
    """Audits of two networks whose mu is a share of the accountant's, by adversary."""
    mu = mu_of(24.0, 1e-5)
    shared = {"part": "network", "start": "fresh", "models": 100, "repeat": 0, "epsilon": 24.0}
    shared |= {"mu": mu, "idle_mu": mu / every**0.5, "every": every}
    found = []
    for network in ("convnet", "resnet"):
        for norm in norms:
            for adversary, share in shares.items():
                at = {"network": network, "clipping_norm": norm, "adversary": adversary}
                at |= {"cell": f"{network} C{norm:g}"}
                value = once(share[norm] if isinstance(share, dict) else share, error)
                mus = {"quantity": "mu", "method": "plug-in", "value": value * mu}
                mus |= {"high": (value + error) * mu}
                published = {"quantity": "epsilon", "method": "as published", "value": value * 24}
                found += [shared | at | mus, shared | at | published]
    return pd.DataFrame(found)


def expected(share, least=1.0, error=0.005, **levels):
    """Expected audits: what one random coordinate and the simulated one show, and that of each."""
    shown = {RANDOM: share, "one random coordinate": share, CRAFTED: least}
    rows = [
        {"network": network, "clipping_norm": 1.0, "every": 1, "knows": knows, "starts": 8}
        | {"adversary": adversary, "epsilon": epsilon, "value": once(value, error), "error": error}
        | levels
        for network in ("housing", "convnet", "resnet")
        for epsilon in (4.0, 24.0)
        for knows in ("nothing", "start")
        for adversary, value in shown.items()
    ]
    return pd.DataFrame(rows).assign(part="expected", quantity="share of mu", kind="expected")


def seldom(five, error=0.005):
    return pd.concat([expected(1.0, least=1.0), expected(1.0, five, error, every=5)])


def laws(values, method="Gaussian-DP reading", threshold="midpoint", step=25):
    """Exact laws of section 6 at a step, by epsilon and batch size."""
    return pd.DataFrame(
        {
            "part": "single", "quantity": "epsilon", "kind": "exact", "method": method,
            "threshold": threshold, "steps": 25, "x": step, "epsilon": epsilon,
            "batch_size": size, "value": value, "mu": mu_of(epsilon, 1e-5), "delta": 1e-5,
        }
        for (epsilon, size), value in values.items()
    )  # fmt: skip


def ratios(**changes):
    """The reference's ratios with batches of 128 as the largest; some changed, "e4_b1" so."""
    table = {(e, b): r for e, line in stated.RATIOS.items() for b, r in line.items()}
    table |= {(e, 128): 1.0 for e in stated.RATIOS}
    for name, ratio in changes.items():
        epsilon, size = name.removeprefix("e").split("_b")
        table[float(epsilon), int(size)] = ratio
    return laws({(e, b): e * r for (e, b), r in table.items()})


def one_record(small=3.599):
    """A batch of one record at epsilon 4, and larger ones."""
    return laws({(4.0, 1): small, (4.0, 2): 4.0, (4.0, 128): 4.0})


def landscape_only(five, sd=0.02, **changes):
    return pd.concat([ratios(**changes), periods(five, sd)])


def steps(small, flat, at_15=1.0):
    """A landscape and a flat one at steps 15 and 25."""
    first = laws({(4.0, 1): at_15 * 3.0, (4.0, 0): 2.0}, step=15)
    return pd.concat([first, laws({(4.0, 1): small * 3.0, (4.0, 0): flat * 2.0}, step=25)])


def evolution(off=0.0):
    parts = [
        laws({(4.0, size): value + off}, step=step)
        for size, line in stated.EVOLUTION.items()
        for step, value in line.items()
    ]
    return pd.concat(parts)


def distances(column, level, *values):
    """Distances from the nearest Gaussian curve after 1, 2, 25 and 100 steps."""
    return pd.DataFrame(
        {"part": "hidden", "quantity": "distance", "method": "nearest Gaussian", "x": x,
         "value": value, "beta": None, "sampling_rate": None} | {column: level}
        for x, value in zip((1, 2, 25, 100), values, strict=True)
    )  # fmt: skip


def published(shift, sd=0.1, **options):
    """Housing audits that publish the reference's values, a shift beside them."""
    frame = housing({CRAFTED: 1.0}, **options)
    frame = frame[frame["quantity"] == "epsilon"]
    means = frame["epsilon"].map({e: line[1] for e, line in stated.IDLE[1].items()})
    off = frame.groupby("epsilon")["repeat"].transform(lambda one: repeats(shift, sd, len(one)))
    return frame.assign(value=means + off)


def norms(share, sd=0.3, runs=40):
    row = {"part": "norms", "quantity": "share clipped", "every": 1, "models": runs}
    return pd.DataFrame([row | {"value": value} for value in repeats(share, sd, runs)])


def p_values(shift, models=300):
    row = {"part": "housing", "quantity": "p_value", "models": models}
    return pd.DataFrame([row | {"value": agreement(shift, models, 0.4)} for _ in range(2)])


def calibration(off):
    rows = [
        {"part": "ideal", "quantity": "epsilon", "epsilon": epsilon, "mu": mu + off, "delta": 1e-5}
        for epsilon, mu in ((4.0, stated.GAUSSIAN_MU[4.0]), (24.0, stated.GAUSSIAN_MU[24.0]))
    ]
    return pd.DataFrame(rows)


def idle(off=0.0, biased=True, noise=1.0, audits=200):
    """Ideal audits whose means are the reference's, or the exact values, or something beside."""
    return pd.DataFrame(
        {"part": "ideal", "quantity": "epsilon", "method": "as published", "models": 5000,
         "delta": 1e-5, "every": every, "epsilon": epsilon, "idle_epsilon": exact,
         "audits": audits, "low": -noise * sd, "high": noise * sd,
         "value": once((mean if biased else exact) + off, noise * sd / audits**0.5)}
        for every, line in stated.IDLE.items()
        for epsilon, (exact, mean, sd) in line.items()
    )  # fmt: skip


def above(best, fixed, audits=600):
    return pd.DataFrame(
        {"part": "ideal", "quantity": "share above", "every": 1, "models": 5000,
         "method": method, "value": count(share, audits) / audits, "audits": audits}
        for method, share in (("as published", best), ("fixed threshold", fixed))
    )  # fmt: skip


def simulated(off=0.0, biased=True, n=5):
    return pd.DataFrame(
        {"part": "single", "quantity": "epsilon", "method": "as published", "models": 5000,
         "delta": 1e-5, "epsilon": epsilon, "batch_size": size, "value": value}
        for epsilon, line in stated.AUDITED.items()
        for size, (mean, sd) in line.items()
        if (epsilon, size) in ((1, 1), (1, 4), (2, 2), (4, 1), (4, 4), (8, 1))
        for value in repeats(
            off + (mean if biased else epsilon * stated.RATIOS[epsilon][size]), sd, n
        )
    )  # fmt: skip


def exact(factor=1.0):
    return laws({(e, 128): factor * v for e, v in stated.EXACT.items()}, "exact")


def best_landscape(ratio=1.0):
    return laws({(4.0, 128): 4 * ratio}, "exact", "h*")


def one_run_above(normal, audits=8000, responding=0.04):
    """How often bounds exceed the truth: of normal scores, and of exact laws."""
    shared = {"part": "one run validity", "quantity": "share above"}
    rows = [
        {
            "method": "normal scores",
            "kind": "estimate",
            "value": count(normal, audits) / audits,
            "audits": audits,
        },
        {"method": "randomised response", "kind": "exact", "value": responding, "audits": 0},
        {"method": "imitation", "kind": "estimate", "value": 0.5, "audits": audits},
    ]
    return pd.DataFrame([shared | row for row in rows])


def one_run(found, few=3.0, sd=0.2, epsilon=24.0):
    """One model's bound or ceiling beside those of five audits of 100 models."""
    one = {"part": "one run", "method": "unused coordinates", "epsilon": epsilon, "canaries": 3000}
    bound = {"quantity": "epsilon", "hypothesis": "whole mechanism", "rule": "known null law"}
    # The median of 20 audits, whose middle 80 % are 2.56 deviations wide.
    error = 1.25 * (2 * sd / 2.56) / 20**0.5
    bound |= {"value": once(found, error), "low": found - sd, "high": found + sd, "audits": 20}
    ceiling = {"quantity": "ceiling", "hypothesis": "each canary alone", "value": found}
    many = {"part": "few", "quantity": "epsilon", "method": "valid", "epsilon": epsilon}
    many |= {"models": 100}
    return pd.DataFrame(
        [one | bound, one | ceiling, *(many | {"value": x} for x in repeats(few, sd))]
    )


def one_run_networks(found, few=3.0, sd=0.2, audits=5):
    """The mean bound of five trainings of a larger network beside those of 100 models."""
    one = {"part": "one run", "method": "mnist_cnn", "epsilon": 24.0, "canaries": 3000}
    one |= {"quantity": "mean epsilon", "rule": "known null law", "audits": audits}
    values = repeats(found, sd, audits)
    value = sum(values) / audits
    many = {"part": "few", "quantity": "epsilon", "method": "valid", "epsilon": 24.0}
    spread = one | {"value": value, "high": value + pd.Series(values).std()}
    return pd.DataFrame([spread, *(many | {"models": 100, "value": x} for x in repeats(few, sd))])


def both(one, other):
    """What contradicts and what is undecided besides."""
    return {"agrees": one, "contradicts": other}


CASES = {
    "implication1": {
        "agrees": partial(housing, GOOD),
        "contradicts": partial(housing, GOOD | {CRAFTED: 0.8}),
        "undecided": partial(housing, GOOD | {CRAFTED: 0.91}),
    },
    "networks": {
        "agrees": partial(expected, 0.99),
        "contradicts": partial(expected, 0.8),
        "undecided": partial(expected, 0.91),
    },
    "outperforms": {
        "agrees": partial(housing, GOOD),
        "contradicts": partial(housing, GOOD | {CRAFTED: 0.02}),
        "undecided": partial(housing, GOOD | {CRAFTED: 0.101}),
    },
    "simulated_dimension": {
        "agrees": partial(expected, 0.8),
        "contradicts": partial(expected, 1.0, least=0.8),
        "undecided": partial(expected, 0.99, least=1.0),
    },
    # An audit by a coordinate that nothing else moves shows a fifth of mu.
    "seldom_inserted": {
        "agrees": partial(periods, 0.2, every=25, sd=0.06),
        "contradicts": partial(periods, 0.99, every=25, sd=0.01),
        "undecided": partial(periods, 0.9, every=25, sd=0.06),
    },
    "five_is_tight": {
        "agrees": partial(periods, 0.99, sd=0.01),
        "contradicts": partial(periods, 0.45, sd=0.06),
        "undecided": partial(periods, 0.9, sd=0.06),
    },
    "less_frequent": {
        "agrees": partial(seldom, 0.44),
        "contradicts": partial(seldom, 1.2),
        "undecided": partial(seldom, 0.95, error=0.1),
    },
    "landscape_only": {
        "agrees": partial(landscape_only, 0.44),
        "contradicts": partial(landscape_only, 0.99),
        "undecided": partial(landscape_only, 0.85, sd=0.1),
    },
    "implication2": both(partial(ratios, e4_b128=0.9991), partial(ratios, e4_b128=0.9989)),
    "implication3": both(one_record, partial(one_record, 3.601)),
    "monotone": both(ratios, partial(ratios, e4_b8=0.9999)),
    "gaussian": both(
        partial(distances, "beta", 1.0, 0.0, 0.02, 0.03, 0.0199),
        partial(distances, "beta", 1.0, 0.0, 0.02, 0.01, 0.0201),
    ),
    "mu": {
        "agrees": partial(housing, GOOD | {CRAFTED: 1.0}),
        "contradicts": partial(housing, GOOD | {CRAFTED: 0.9}),
        "undecided": partial(housing, GOOD | {CRAFTED: 1.0}, sd=0.6),
    },
    "reference": {
        "agrees": partial(published, 0.0, sd=0.02),
        "contradicts": partial(published, 1.0),
        "undecided": partial(published, 0.0, sd=4.0),
    },
    "shared_start": {
        "agrees": partial(expected, 0.8),
        "contradicts": partial(expected, 0.3),
        "undecided": partial(expected, 0.51),
    },
    "norm": {
        "agrees": partial(norms, 0.75),
        "contradicts": partial(norms, 0.25),
        "undecided": partial(norms, 0.5),
    },
    "idle_law": {
        "agrees": partial(periods, 0.36),
        "contradicts": partial(periods, 0.60),
        "undecided": partial(periods, 0.447),
    },
    "networks_ordering": {
        "agrees": partial(networks, {RANDOM: 0.9, LOSS: 0.1}),
        "contradicts": partial(networks, {RANDOM: 0.1, LOSS: 0.9}),
        "undecided": partial(networks, {RANDOM: 0.12, LOSS: 0.1}),
    },
    "clipping_norm": {
        "agrees": partial(networks, {RANDOM: {1.0: 1.0, 2.0: 0.98}}),
        "contradicts": partial(networks, {RANDOM: {1.0: 1.0, 2.0: 0.5}}),
        "undecided": partial(networks, {RANDOM: {1.0: 1.0, 2.0: 0.8}}),
    },
    "networks_periodic": {
        "agrees": partial(networks, {RANDOM: 0.44, LOSS: 0.1}, every=5),
        "contradicts": partial(networks, {RANDOM: 0.1, LOSS: 0.44}, every=5),
        "undecided": partial(networks, {RANDOM: 0.12, LOSS: 0.1}, every=5),
    },
    "agreement": {
        "agrees": partial(p_values, 0),
        "contradicts": partial(p_values, 0.5),
        "undecided": partial(p_values, 0, models=20),
    },
    "calibration": both(partial(calibration, 0.0), partial(calibration, 1e-4)),
    "idle_table": {
        "agrees": partial(idle, audits=20_000),
        "contradicts": partial(idle, biased=False),
        "undecided": partial(idle, noise=10),
    },
    "best_threshold": {
        "agrees": partial(above, 0.13, 0.0),
        "contradicts": partial(above, 0.01, 0.0),
        "undecided": partial(above, 0.06, 0.0),
    },
    "heat_map": both(partial(ratios, e4_b4=0.9995), partial(ratios, e4_b4=0.9993)),
    "evolution": both(partial(evolution, 0.0005), partial(evolution, 0.0007)),
    "simulated": {
        "agrees": partial(simulated, n=100),
        "contradicts": partial(simulated, biased=False),
        "undecided": partial(simulated, n=1),
    },
    "exact": both(partial(exact, 1.001), partial(exact, 1.002)),
    "best_landscape": both(partial(best_landscape, 0.9991), partial(best_landscape, 0.9989)),
    "plateau": both(partial(steps, 0.9901, 0.75), partial(steps, 0.9899, 0.75)),
    "sampled_gaussian": both(
        partial(distances, "sampling_rate", 0.1, 0.03, 0.05, 0.01, 0.00499),
        partial(distances, "sampling_rate", 0.1, 0.03, 0.05, 0.01, 0.00501),
    ),
    "one_run_valid": {
        "agrees": partial(one_run_above, 0.047),
        "contradicts": partial(one_run_above, 0.065),
        "contradicts, computed": partial(one_run_above, 0.05, responding=0.0501),
        "undecided": partial(one_run_above, 0.05, audits=200),
    },
    "one_run": {
        "agrees": partial(one_run, 4.0),
        "contradicts": partial(one_run, 2.0),
        "undecided": partial(one_run, 3.0),
    },
    "one_run_networks": {
        "agrees": partial(one_run_networks, 4.0),
        "contradicts": partial(one_run_networks, 2.0),
        "undecided": partial(one_run_networks, 3.0),
    },
    "one_run_alone": {
        "agrees": partial(one_run, 2.0),
        "contradicts": partial(one_run, 4.0),
        "undecided": partial(one_run, 3.0),
    },
}
