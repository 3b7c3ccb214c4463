"""Faults to plant in a copy of this tree, one at a time, to see that the tests find them.

    python tests/faults.py                  the fast tests, on each fault
    python tests/faults.py --tier whole     every test
    python tests/faults.py rdp clip         these faults alone
    python tests/faults.py --table          the table of tests/README.md

The tests that should find a fault run first. The last line counts what was found. A missed fault
takes as long as its tier.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIERS = {"fast": "not slow and not whole", "whole": "not slow"}
NEEDED = {"fast": 22, "whole": 25}
"""How many of the faults each tier has to find."""


@dataclass(frozen=True)
class Fault:
    """One replacement in one file, what it does, and which tests should find it."""

    name: str
    room: str
    file: str
    right: str
    wrong: str
    does: str
    tests: str


FAULTS = [
    Fault(
        *("rdp", "accounting", "src/hiddenstate/accounting/rdp.py"),
        "loss = (z - 0.5 / sigma) / sigma",
        "loss = (z - 0.505 / sigma) / sigma",
        "a Rényi divergence is one percent too small in its exponent",
        "tests/accounting/test_rdp.py",
    ),
    Fault(
        *("linear", "accounting", "src/hiddenstate/accounting/linear.py"),
        "support.astype(float), log_weights[support], noise_multiplier * math.sqrt(steps)",
        "support.astype(float), log_weights[support], noise_multiplier * math.sqrt(steps + 1)",
        "the last iterate of linear losses has the noise of one step more",
        "tests/accounting/test_linear.py",
    ),
    Fault(
        *("pld", "accounting", "src/hiddenstate/accounting/pld.py"),
        "mixed = (1 - rate) * absent + rate * present",
        "mixed = (1 - rate) * absent + 0.999 * rate * present",
        "one step's delta is too small by a thousandth of the sampling rate",
        "tests/accounting/test_pld.py",
    ),
    Fault(
        *("envelope", "accounting", "src/hiddenstate/accounting/tradeoff.py"),
        "fnr = heights[kept[:-1]] - slopes[kept[:-1]] * fpr",
        "fnr = 0.1 + 0.9 * heights[kept[:-1]] - slopes[kept[:-1]] * fpr",
        "a trade-off curve lies above what its deltas imply",
        "tests/accounting/test_tradeoff.py tests/accounting/test_pld.py",
    ),
    Fault(
        *("adjacency", "accounting", "src/hiddenstate/dpsgd/mechanism.py"),
        "effective = self.noise_multiplier / sensitivity",
        "effective = self.noise_multiplier",
        "replacing a record is accounted for as adding one",
        "tests/dpsgd/test_mechanism.py",
    ),
    Fault(
        *("clopper-pearson", "auditing", "src/hiddenstate/auditing/intervals.py"),
        "bound = betainccinv(np.minimum(count, n - 1) + 1, np.maximum(n - count, 1), level)",
        "bound = betainccinv(np.minimum(count, n - 1) + 0.5, np.maximum(n - count, 1), level)",
        "an upper confidence bound is half an error too low",
        "tests/auditing/test_intervals.py",
    ),
    Fault(
        *("ties", "auditing", "src/hiddenstate/auditing/one_run.py"),
        'order = order[np.argsort(observed[order], kind="stable")]',
        'order = np.argsort(observed, kind="stable")',
        "ties of an audit in one run are broken in the order of the canaries",
        "tests/auditing/test_one_run.py",
    ),
    Fault(
        *("looks", "auditing", "src/hiddenstate/auditing/sequential.py"),
        "self._largest[-allowed_rank(1 - self.confidence, self.simulations)]",
        "self._largest[-allowed_rank(2 * (1 - self.confidence), self.simulations)]",
        "a sequential audit refutes right claims twice as often as it says",
        "tests/auditing/test_sequential.py",
    ),
    Fault(
        *("known-null", "auditing", "src/hiddenstate/auditing/known_null.py"),
        "Averaged().sized((len(scores), 0), hypotheses, level)",
        "Averaged().sized((len(scores), 0), hypotheses, 2 * level)",
        "a bound without out-models has half its confidence's errors left out",
        "tests/auditing/test_known_null.py",
    ),
    Fault(
        *("dkw", "auditing", "src/hiddenstate/auditing/intervals.py"),
        "np.sqrt(np.log(1 / level) / (2 * n))",
        "np.sqrt(np.log(1 / level) / (3 * n))",
        "a band on all rates is too narrow",
        "tests/auditing/test_intervals.py",
    ),
    Fault(
        *("noise", "engine", "src/hiddenstate/dpsgd/mechanism.py"),
        "return self.noise_multiplier * self.clipping_norm if",
        "return self.noise_multiplier if",
        "noise is right at a clipping norm of 1 alone",
        "tests/dpsgd/test_mechanism.py tests/dpsgd/test_audit.py tests/dpsgd/test_ensemble.py",
    ),
    Fault(
        *("sampling", "engine", "src/hiddenstate/sampling.py"),
        "np.flatnonzero(rng.random(records) < self.rate)",
        "np.flatnonzero(rng.random(records) < 0.95 * self.rate)",
        "Poisson sampling takes fewer records than its rate says",
        "tests/test_sampling.py tests/dpsgd/test_ensemble.py tests/dpsgd/test_audit.py",
    ),
    Fault(
        *("clip", "engine", "src/hiddenstate/dpsgd/kernels/base.py"),
        "(clipping_norm / norms).clamp(max=1)",
        "(clipping_norm / norms).clamp(max=1.01)",
        "gradients below the clipping norm grow by a percent",
        "tests/dpsgd/test_clipping.py",
    ),
    Fault(
        *("repeat", "engine", "src/hiddenstate/dpsgd/run.py"),
        "path = (*self.name, world, self.repeat, index, purpose)",
        "path = (*self.name, world, index, purpose)",
        "repeats of an audit have the same random numbers",
        "tests/dpsgd/test_ensemble.py tests/dpsgd/test_audit.py",
    ),
    Fault(
        *("scalar", "engine", "src/hiddenstate/dpsgd/scalar.py"),
        "total += canary * np.clip(gradient(1.0, theta), -clip, clip)",
        "total += canary * np.clip(gradient(1.0, theta), -clip, 1.05 * clip)",
        "the canary of a simulated training is clipped at more than the norm",
        "tests/dpsgd/test_scalar.py",
    ),
    Fault(
        *("inputs", "workflow", "workflow/rules/jobs.smk"),
        'for kind in ("train", "simulate", "bound")',
        'for kind in ("train", "simulate")',
        "estimates do not wait for bounds",
        "tests/workflow/test_failures.py tests/workflow/test_plans.py",
    ),
    Fault(
        *("identity", "workflow", "workflow/rules/family.smk"),
        'identities=[{"seed": SEED, **job.identity} for job in CELLS],',
        "",
        "changed code or parameters are no reason to compute again",
        "tests/workflow/test_failures.py tests/workflow",
    ),
    Fault(
        *("seed", "workflow", "src/hiddenstate/pipeline/scores.py"),
        'found = {"seed": origin.get("seed"), **_flat(origin.get("cell", {}))}',
        'found = {"seed": seed, **_flat(origin.get("cell", {}))}',
        "a cached file of another seed is taken",
        "tests/pipeline/test_scores.py",
    ),
    Fault(
        *("imports", "workflow", "src/hiddenstate/code.py"),
        "            waiting += imports(file)",
        "            pass",
        "a digest of code leaves out what the code imports",
        "tests/test_code.py",
    ),
    Fault(
        *("litter", "workflow", "src/hiddenstate/files.py"),
        "        temporary.replace(path)\n    except OSError as error:",
        "        path.write_bytes(temporary.read_bytes())\n    except OSError as error:",
        "a file is written in place, so that a kill leaves half of it",
        "tests/test_files.py tests/pipeline/test_scores.py",
    ),
    Fault(
        *("decoding", "papers", "src/hiddenstate/adversaries/encoding_loss.py"),
        "return self.spacing * np.rint(scale * ratio) - residual",
        "return self.spacing * np.rint(scale * ratio) - 0.99 * residual",
        "the encoding loss leaves a part of each residual",
        "tests/adversaries/test_encoding_loss.py",
    ),
    Fault(
        *("algorithm-2", "papers", "src/hiddenstate/papers/encoding_loss/estimates.py"),
        "counted = (np.minimum(fpr, fnr) >= rare)",
        "counted = (np.maximum(fpr, fnr) >= rare)",
        "Algorithm 2 counts thresholds with one rare error",
        "tests/papers/test_encoding_loss.py",
    ),
    Fault(
        *("starts", "papers", "src/hiddenstate/papers/worst_case_init/starts.py"),
        'draw = partial(stream, seed, NAME, "start", p.dataset, p.model, repeat)',
        'draw = partial(stream, seed, NAME, "start", p.dataset, p.model, 0)',
        "repeats of an audit begin at the same initial parameters",
        "tests/papers/worst_case_init/test_starts.py",
    ),
    Fault(
        *("learning-rate", "papers", "src/hiddenstate/papers/linear_heuristic/training.py"),
        "learning_rate=p.learning_rate / (p.sampling_rate * p.records)",
        "learning_rate=p.learning_rate / p.records",
        "a learning rate is of the full batch, not of the expected one",
        "tests/papers/test_linear_heuristic_training.py",
    ),
    Fault(
        *("student", "papers", "src/hiddenstate/pipeline/evidence.py"),
        "special.stdtrit(self.freedom, (1 + confidence) / 2)",
        "special.stdtrit(self.freedom, confidence)",
        "verdicts use one-sided intervals as two-sided ones",
        "tests/pipeline/test_evidence.py",
    ),
]  # fmt: skip


def copied(place):
    """The files of this tree as they are, in another place."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def tested(place, tier, *tests):
    """The first test that fails in a tree, or "" if all pass."""
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-m", TIERS[tier], *tests],
        cwd=place, capture_output=True, text=True,
        env=os.environ
        | {"PYTHONPATH": str(place / "src"), "OMP_NUM_THREADS": "1"}
        | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    if done.returncode in (0, 5):
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else done.stdout[-500:] + done.stderr[-500:]


def found(place, fault, tier):
    """The test that finds a fault planted in a tree, or ""; the tree is mended afterwards."""
    path = place / fault.file
    right = path.read_text()
    if right.count(fault.right) != 1:
        print(f"{fault.name}: {fault.file} has changed; plant it elsewhere", file=sys.stderr)
        return ""
    path.write_text(right.replace(fault.right, fault.wrong))
    try:
        by = tested(place, tier, *fault.tests.split())
        by = by or tested(place, tier, "--numprocesses=auto")
    finally:
        path.write_text(right)
    # A test that fails without the fault too has found something else.
    return by if by and not tested(place, tier, by.partition("[")[0]) else ""


def table():
    """The faults as rows of Markdown."""
    rows = ["| fault | room | in | what it does |", "|---|---|---|---|"]
    return "\n".join([*rows, *(f"| {f.name} | {f.room} | `{f.file}` | {f.does} |" for f in FAULTS)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="FAULT", help="of these alone")
    parser.add_argument("--tier", choices=TIERS, default="fast")
    parser.add_argument("--table", action="store_true", help="print the table of tests/README.md")
    asked = parser.parse_args()
    if asked.table:
        print(table())
        return 0
    wanted = [f for f in FAULTS if not asked.names or f.name in asked.names]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        copied(place)
        for fault in wanted:
            begin = time.monotonic()
            by = found(place, fault, asked.tier)
            missed += not by
            print(
                f"{fault.name:16} {time.monotonic() - begin:5.0f} s  {by or 'MISSED'}", flush=True
            )
    print(f"{len(wanted) - missed} of {len(wanted)} found by the tests of the tier {asked.tier}")
    return int(missed > len(FAULTS) - NEEDED[asked.tier])


if __name__ == "__main__":
    sys.exit(main())
