"""Tables of linear_heuristic."""

import pandas as pd

from hiddenstate.estimates import select
from hiddenstate.family import table
from hiddenstate.papers.linear_heuristic.cells import ATTACKS
from hiddenstate.papers.linear_heuristic.estimates import curve


@table(
    "Table 1: heuristic and standard epsilon",
    "Printed and computed epsilons at delta 1e-5. The paper states neither steps nor noise "
    "multipliers: those of the first row are recalled from De et al. 2022, the others are "
    "our reconstruction, solved so that both columns come out as printed.",
)
def table1(estimates: pd.DataFrame) -> pd.DataFrame:
    """Heuristic and standard columns of Table 1, printed and ours."""
    origins = {"recalled": "recalled from De et al. 2022", "reconstructed": "our reconstruction"}
    records = []
    for (_, origin), part in estimates.groupby(["batch", "origin"], sort=False):
        ours, first = part.set_index("method")["value"], part.iloc[0]
        records.append(
            {
                "batch size": f"{first['batch']:g}",
                "parameters": origins[origin],
                "noise multiplier": f"{first['noise_multiplier']:.4f}",
                "steps": f"{first['steps']:g}",
                "epochs": f"{first['steps'] * first['batch'] / first['records']:.1f}",
                "heuristic, printed": f"{first['printed_heuristic']:g}",
                "heuristic, ours": f"{ours['heuristic']:.3f}",
                "standard, printed": f"{first['printed_standard']:g}",
                "standard, ours": f"{ours['standard']:.3f}",
                "full batch, ours": f"{ours['full batch']:.3f}",
                "accuracy, printed": first["accuracy"],
            }
        )
    return pd.DataFrame(records)


@table(
    "Figures 3 and 6 in numbers",
    "Every audit by every estimator. Without further words: matched to the family the "
    'attack calls for. "standard": matched to composition, which does not fit the '
    'gradient attack. "direct": no family at all. Only lower bounds hold, with 95 % '
    "confidence: on the heuristic epsilon for the gradient attack, on the standard one for "
    "the others.",
)
def audits(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every audit by every estimator."""
    rows = estimates.assign(attack=estimates["cell"].str.split("_").str[0])
    index = ["attack", "sampling_rate", "steps", "noise_multiplier"]
    shown = select(rows, attack=list(ATTACKS)).pivot_table(
        index=index, columns="method", values="value", sort=False
    )
    records = []
    for (attack, rate, steps, noise), values in shown.iterrows():
        baselines = {
            method: curve(estimates, f"audits_q{rate:g}", method)[steps]
            for method in ("heuristic", "standard")
        }
        records.append(
            {
                "attack": attack,
                "sampling rate": f"{rate:g}",
                "steps": f"{steps:g}",
                "noise multiplier": f"{noise:.4f}",
                **{name: f"{value:.3f}" for name, value in {**baselines, **values}.items()},
            }
        )
    return pd.DataFrame(records)
