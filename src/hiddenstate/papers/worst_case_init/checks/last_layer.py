"""Audits of a last layer."""

import pandas as pd

from hiddenstate.papers.worst_case_init.checks import printed
from hiddenstate.papers.worst_case_init.checks.shared import (
    SIGNIFICANT,
    audits_of,
    gaps,
    in_words,
    published,
)
from hiddenstate.pipeline.evidence import Open, Within
from hiddenstate.pipeline.family import Found, Lacking, check

NEARLY_TIGHT = 6.95
"""The least epsilon of 10 that the paper calls nearly tight: CIFAR-10 with 1,000 records."""

SATURATED = 0.75
"""Least mean norm of clipped gradients, over the clipping norm, at which clipping does something.
"""


@check
def last_layer(estimates: pd.DataFrame) -> Found:
    """Worst-case audits of a last layer are nearly tight at epsilon 10, and tighter than at 1."""
    found = {
        at["epsilon"]: (at, values) for at, values in audits_of(estimates, "figure5", case="worst")
    }
    if not {1.0, 10.0} <= set(found):
        raise Lacking
    yield Within(
        "epsilon found at 10",
        published(*found[10.0]),
        low=NEARLY_TIGHT,
        reason="the least that the paper calls nearly tight",
    )
    shares = {e: published(*one).over(e) for e, one in found.items()}
    yield Within(
        "share of epsilon found at 10 less that at 1",
        shares[10.0] - shares[1.0],
        low=0,
        reason="increasingly so for larger epsilon",
    )
    try:
        yield from printed.figure5(estimates)
    except Lacking:
        yield Open("the numbers that are printed for a WRN-28-10")
    return "Found " + ", ".join(f"{in_words(*found[e])} of {e:g}" for e in sorted(found)) + "."


@check
def last_layer_gap(estimates: pd.DataFrame) -> Found:
    """At epsilon 10 initial parameters matter less for a last layer than for whole models."""
    layer = dict(gaps(estimates, "figure5", 10.0))
    whole = dict(gaps(estimates, "figure1", 10.0))
    if not (layer and whole):
        raise Lacking
    for one, gap in layer.items():
        for other, larger in whole.items():
            yield Within(
                f"gap of separations between the cases, {one} less {other}",
                gap - larger,
                high=0,
                reason="not as significantly",
            )
    return (
        "Separation in the worst less the average case: "
        + ", ".join(f"{task} {gap.value:.2f}" for task, gap in (layer | whole).items())
        + "."
    )


@check
def last_layer_factors(estimates: pd.DataFrame) -> Found:
    """Neither clipping norm nor number of records changes a last layer's epsilon significantly."""
    found = audits_of(estimates, "figure7", epsilon=10.0)
    for at, norms in audits_of(estimates, "figure7", "gradient_norm", epsilon=10.0):
        # A clipping norm that no gradient reaches adds noise and clips nothing.
        if norms.mean() < SATURATED * at["clipping_norm"]:
            raise Lacking
    base = [(at, values) for at, values in found if at["clipping_norm"] == 1]
    if len(found) < 2 or not base:
        raise Lacking
    # The sweep over clipping norms tells which number of records the others are compared with.
    swept = {at["records"] for at, _ in found if at["clipping_norm"] != 1}
    reference = next((one for one in base if one[0]["records"] in swept), base[0])
    for at, values in found:
        if at is not reference[0]:
            yield Within(
                f"epsilon at C = {at['clipping_norm']:g}, n = {at['records']:,.0f} less that at "
                f"C = 1, n = {reference[0]['records']:,.0f}",
                published(at, values) - published(*reference),
                -SIGNIFICANT,
                SIGNIFICANT,
                reason="the least difference that the paper calls significant is 2.05, of CIFAR-10",
            )
    words = "; ".join(
        f"C = {at['clipping_norm']:g}, n = {at['records']:,.0f}: {in_words(at, values)}"
        for at, values in found
    )
    return words + "."
