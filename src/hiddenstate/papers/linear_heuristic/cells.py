"""The grid of linear_heuristic, and the simulations of its audits."""

import numpy as np
import pandas as pd
from pydantic import Field

from hiddenstate.accounting import history, pld
from hiddenstate.adversaries.repeaters import AnalogRepeaters, Repeaters, best_threshold
from hiddenstate.dpsgd import linear as simulate
from hiddenstate.papers import Cell, FamilyGrid, Grid
from hiddenstate.streams import stream

Rate = Field(gt=0, le=1, description="probability that a step samples a record")
Delta = Field(gt=0, lt=1, description="probability at which every epsilon of the part is stated")
Noise = Field(gt=0, le=1000, description="noise standard deviation over the clipping norm")
Steps = Field(ge=1, le=100_000, description="steps of DP-SGD")
Runs = Field(ge=10, description="simulated runs of DP-SGD a world")
Resolution = Field(
    default=0.0125,
    gt=0,
    le=0.5,
    description="spacing of the epsilons an audit can report, over the epsilon audited",
)


class Curve(Grid):
    """Numbers of steps, spread evenly on a logarithmic axis."""

    most_steps: int = Field(ge=1, le=100_000, description="largest number of steps")
    points: int = Field(ge=2, le=1000, description="points before rounding to integers")

    @property
    def steps(self) -> list[int]:
        """Distinct integers from 1 to ``most_steps``."""
        return sorted({round(t) for t in np.geomspace(1, self.most_steps, self.points)})


class Figure1(Grid):
    """The heuristic against its baselines."""

    delta: float = Delta
    constant: Curve = Field(description="panel a: q T and sigma^2 T constant")
    calibrated: Curve = Field(description="panel b: standard epsilon constant")
    epsilon: float = Field(default=10.0, gt=0, description="standard epsilon of panel b, in nats")
    fixed: Curve = Field(description="panel c: q and sigma constant")
    sampling_rate: float = Rate
    noise_multiplier: float = Noise
    every_step_up_to: int = Field(
        ge=1, le=10_000, description="section 4.1 looks at each number of steps up to this one"
    )


class Quadratic(Grid):
    """Section 4.2: one setting, all curvatures."""

    delta: float = Delta
    noise_multiplier: float = Noise
    sampling_rate: float = Rate
    steps: int = Steps
    points: int = Field(ge=2, le=1001, description="curvatures from 0 to 1, evenly spaced")


class Figure5(Grid):
    """Curvature 1/2 over a grid of settings, noise set by the epsilon of a single step."""

    delta: float = Delta
    epsilons: list[float] = Field(min_length=1, description="epsilon of one step, one a panel")
    steps: list[int] = Field(min_length=1, description="numbers of steps")
    sampling_rates: list[float] = Field(min_length=1, description="sampling rates")


class History(Grid):
    """Section 4.3: the regulariser that keeps the history."""

    delta: float = Delta
    noise_multiplier: float = Noise
    sampling_rate: float = Rate
    steps: int = Steps
    growths: list[float] = Field(min_length=1, description="factors v > 1 of the regulariser")
    runs: int = Runs
    resolution: float = Resolution


class Audits(Grid):
    """Figures 3 and 6."""

    delta: float = Delta
    epsilon: float = Field(default=8.0, gt=0, description="standard epsilon, in nats")
    sampling_rates: list[float] = Field(min_length=1, description="one panel each")
    steps: list[int] = Field(min_length=1, description="numbers of steps")
    runs: int = Runs
    resolution: float = Resolution
    threshold_delta: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="one-bit repeaters take the threshold with the largest epsilon at this delta, "
        "which, unlike ``delta``, the runs can resolve",
    )


class Row(Grid):
    """A row of Table 1 as printed."""

    batch: int = Field(ge=1, description="expected batch size")
    heuristic: float = Field(gt=0, description="printed heuristic epsilon")
    standard: float = Field(gt=0, description="printed standard epsilon")
    accuracy: str = Field(description="printed test accuracy; not reproduced by this family")


class Table1(Grid):
    """Table 1 and the training run its first row is said to follow."""

    delta: float = Delta
    records: int = Field(ge=1, description="training records")
    rows: list[Row] = Field(min_length=1, description="rows as printed")
    recalled_noise_multiplier: float = Field(gt=0, description="of De et al. 2022, from memory")
    recalled_steps: int = Field(ge=1, description="of De et al. 2022, from memory")


class LinearHeuristicGrid(FamilyGrid):
    """One section a figure."""

    figure1: Figure1
    quadratic: Quadratic
    figure5: Figure5
    history: History
    audits: Audits
    table1: Table1


ATTACKS = {"gradient": "3", "bits": "6", "analog": "6"}
"""Attacks and the figure each belongs to."""


def score_cells(grid: LinearHeuristicGrid) -> list[Cell]:
    """One cell an attack and sampling rate, holding all numbers of steps; one for section 4.3."""
    audits = grid.audits
    common = audits.model_dump(include={"delta", "epsilon", "steps", "runs"})
    own = {"bits": audits.model_dump(include={"threshold_delta"})}
    return [
        Cell(
            f"{attack}_q{rate:g}",
            common | {"attack": attack, "sampling_rate": rate} | own.get(attack, {}),
        )
        for attack in ATTACKS
        for rate in audits.sampling_rates
    ] + [Cell("history", grid.history.model_dump(exclude={"resolution"}) | {"attack": "history"})]


def bound_cells(grid: LinearHeuristicGrid) -> list[Cell]:
    """One cell a panel, and the trade-off functions that the audits are matched to."""
    one, five, audits = grid.figure1, grid.figure5, grid.audits
    cells = [
        Cell("figure1a", {"steps": one.constant.steps, "delta": one.delta}),
        Cell(
            "figure1b",
            {"steps": one.calibrated.steps, "delta": one.delta, "epsilon": one.epsilon},
        ),
        Cell(
            "figure1c",
            one.model_dump(
                include={"delta", "sampling_rate", "noise_multiplier", "every_step_up_to"}
            )
            | {"steps": one.fixed.steps},
        ),
        Cell("quadratic", grid.quadratic.model_dump()),
    ]
    cells += [
        Cell(
            f"figure5_eps{epsilon:g}",
            five.model_dump(exclude={"epsilons"}) | {"epsilon": epsilon},
        )
        for epsilon in five.epsilons
    ]
    cells += [Cell("history", grid.history.model_dump(exclude={"runs"}))]
    cells += [
        Cell(
            f"audits_q{rate:g}",
            audits.model_dump(include={"delta", "epsilon", "steps", "resolution"})
            | {"sampling_rate": rate},
        )
        for rate in audits.sampling_rates
    ]
    cells += [
        Cell(f"table1_batch{row.batch}", _table1_parameters(grid.table1, row))
        for row in grid.table1.rows
    ]
    return cells


def _table1_parameters(table: Table1, row: Row) -> dict:
    first = row == table.rows[0]
    recalled = {"recalled_noise_multiplier", "recalled_steps"} if first else set()
    return table.model_dump(include={"delta", "records", *recalled}) | row.model_dump()


def score(cell: Cell, seed: int) -> pd.DataFrame:
    """Scores of all runs of an attack, for every number of steps (section 4.3: every growth)."""
    p = cell.parameters
    attack, rate, runs = p["attack"], p["sampling_rate"], p["runs"]
    parts = []
    for x in p["growths"] if attack == "history" else p["steps"]:
        if attack == "history":
            noise = history.noise_multipliers(p["noise_multiplier"], p["steps"], x)
            mechanism = {"growth": x, "noise_multiplier": p["noise_multiplier"]}
        else:
            sigma = pld.noise_multiplier(p["epsilon"], p["delta"], rate, x)
            mechanism = {"steps": x, "noise_multiplier": sigma}
        if attack == "bits":
            mechanism["threshold"] = best_threshold(sigma, rate, x, p["threshold_delta"])
        for world in ("in", "out"):
            random = stream(seed, "linear_heuristic", cell.name, f"{x:g}", world)
            drawn = (world == "in", runs, random)
            if attack == "gradient":
                scores = simulate.projections(sigma, rate, x, *drawn)
            elif attack == "bits":
                scores = Repeaters(sigma, rate, x, mechanism["threshold"]).scores(*drawn)
            elif attack == "analog":
                scores = AnalogRepeaters(sigma, rate, x).scores(*drawn)
            else:
                scores = simulate.log_likelihood_ratios(noise, rate, *drawn)
            run = np.arange(runs, dtype=np.int32)
            columns = {"world": world, "repeat": np.int8(0), "run": run, "score": scores}
            parts.append(pd.DataFrame(columns).assign(**mechanism))
    return pd.concat(parts, ignore_index=True)
