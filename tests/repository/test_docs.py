"""The pages of the documentation do what they show."""

import ast
import csv
import json
import math
import re
import shlex
from pathlib import Path

import consoles
import numpy as np
import pytest

from hiddenstate import cli
from hiddenstate.auditing import LowerBound, Verdict
from hiddenstate.streams import stream

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page, language):
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.M)


def shown(code, names):
    """Run a block in these names, and the values of its expressions, as a reader would see them."""
    values = []
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Expr):
            values.append(eval(compile(ast.Expression(statement.value), "docs", "eval"), names))
        else:
            exec(compile(ast.Module([statement], []), "docs", "exec"), names)
    return values


@pytest.mark.whole
def test_the_audits_of_the_documentation_run():
    """Scores with mu = 3 from 100 models in each world, and curves at one noise multiplier."""
    rng = stream(1, "docs")
    names = {"in_scores": rng.normal(size=100) + 3, "out_scores": rng.normal(size=100)}
    bounds, sequential, known = blocks("auditing.md", "python")
    found = shown(bounds.replace("range(40, -20, -1)", "(40, 0)"), names)
    assert [type(value) for value in found] == [LowerBound] * 3
    assert [value.parameter for value in found] == ["epsilon", "mu", "noise multiplier"]
    assert all(value.valid for value in found)
    assert 1.8 < found[1].value < 3
    (verdict,) = shown(sequential, names)
    assert isinstance(verdict, Verdict)
    assert verdict.decision == "refuted"
    (alone,) = shown(known, names)
    assert alone.valid
    assert 1.8 < alone.value < 3


def test_a_number_beside_a_printed_one_is_that_of_the_verdict():
    """In tables such as | 4.4 (3.41) |: ours as it is published, rounded."""
    with (DOCS / "papers/worst_case_init.csv").open() as file:
        evidence = [each for row in csv.DictReader(file) for each in json.loads(row["evidence"])]
    pairs = re.findall(
        r"(?<=\| )([\d.]+) \(([\d.]+)\)(?= \|)", (DOCS / "worst-case-init.md").read_text()
    )
    assert len(pairs) == 20
    for ours, printed in pairs:
        published = [each["measured"] for each in evidence if each["stated"] == printed]
        digits = len(ours.partition(".")[2])
        assert float(ours) in [round(value, digits) for value in published], (ours, printed)


def test_the_audit_from_one_training_runs_as_documented():
    code, _, steps, whole = blocks("one-run.md", "python")
    names = {}
    mu, epsilon, p_value = shown(code, names)
    assert mu.valid and epsilon.valid
    assert 1 < mu.value < 3
    assert epsilon.value > 0
    assert p_value < 0.05
    p_value, bound = shown(steps, names)
    assert f"# {math.ceil(1e4 * p_value) / 1e4:g}," in steps and f"# {bound:g}:" in steps
    known, unknown = shown(whole, names)
    assert known.valid and unknown.valid
    # The truth is 3; 1,000 canaries with a known null law are close to it.
    assert 2.7 < known.value < 3.1
    assert 1 < unknown.value < known.value


def test_the_audit_from_one_training_runs_from_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = stream(3, "docs")
    rows = [f"{w},{x + 3 * (w == 'in')}" for w in ("in", "out") for x in rng.normal(size=60)]
    Path("scores.csv").write_text("\n".join(["world,score", *rows]))
    words, _, of_steps = commands("one-run.md")
    assert cli.main(words) == 1
    assert "mu 1: REFUTED" in capsys.readouterr().out
    Path("steps.csv").write_text("made,right\n" + "20,19\n" * 40)
    assert cli.main(of_steps) == 1
    assert "p-value at most 0.0052" in capsys.readouterr().out


def kit_block():
    """The training with the kit."""
    return next(code for code in blocks("your-own-training.md", "python") if "kit.Run" in code)


@pytest.mark.filterwarnings("ignore")
def test_the_white_box_check_runs_as_documented(capsys):
    pytest.importorskip("opacus")
    names = {}
    exec(compile(kit_block(), "docs", "exec"), names)
    (code,) = (c for c in blocks("your-own-training.md", "python") if "whitebox" in c)
    exec(compile(code, "docs", "exec"), names)
    assert "No fault found in 20 steps" in capsys.readouterr().out


def test_the_table_of_planted_faults_has_every_fault():
    pytest.importorskip("opacus")
    import training_faults as faults

    text = (DOCS / "white-box-faults.md").read_text()
    for fault in faults.FAULTS.values():
        assert f"| {fault.words} | {fault.source} |" in text
    assert "not found**" not in text


@pytest.mark.filterwarnings("ignore")
def test_the_training_with_opacus_runs_as_documented():
    pytest.importorskip("opacus")
    code = kit_block()
    names = {}
    exec(compile(code, "docs", "exec"), names)
    first, again, other = (names["train"](w, 1) for w in ("in", "in", "out"))
    assert first == again != other
    words = next(w for w in commands("your-own-training.md") if "--battery" in w)
    assert set(words[words.index("--battery") + 1 :]) < set(first)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_training_with_opacus_is_audited_as_documented(tmp_path, monkeypatch, capsys):
    """As written, with six models: the check comes first, and the claim is kept."""
    pytest.importorskip("opacus")
    monkeypatch.chdir(tmp_path)
    Path("my_training.py").write_text(kit_block())
    words = next(w for w in commands("your-own-training.md") if "--battery" in w)
    status = cli.main(shortened(words, 6, 3))
    printed = capsys.readouterr()
    assert status == 0 and "check passed: in" in printed.err
    assert "consistent" in printed.out
    assert "after 6 models with the canary and 6 without" in printed.out


@pytest.mark.whole
def test_the_expected_audit_prints_what_is_documented(capsys):
    (code,) = (c for c in blocks("your-own-training.md", "python") if "dpsgd.adjoint" in c)
    exec(compile(code, "docs", "exec"), {})
    assert capsys.readouterr().out in (DOCS / "your-own-training.md").read_text()


@pytest.mark.filterwarnings("ignore")
def test_the_audit_of_one_training_with_opacus_runs_as_written(tmp_path, monkeypatch, capsys):
    pytest.importorskip("opacus")
    monkeypatch.chdir(tmp_path)
    import torch

    torch.manual_seed(0)
    exec(compile(blocks("one-run.md", "python")[1], "docs", "exec"), {})
    _, words, _ = commands("one-run.md")
    # A right training is refuted in one of twenty.
    assert cli.main(words) in (0, 1)
    told = capsys.readouterr().out
    assert "100 guesses right, 200 canaries" in told
    assert "40 steps" in told and " finds canaries whose scores differ" in told


def test_the_guide_to_canaries_is_the_table_that_the_command_prints(capsys):
    assert cli.main(["suggest-canary"]) == 0
    assert capsys.readouterr().out in (DOCS / "your-own-training.md").read_text()


TRAINING = """
import sys
import numpy as np

def train(world, seed):
    return 3.0 * (world == "in") + np.random.default_rng(seed).normal()

if __name__ == "__main__":
    print(train(sys.argv[1], int(sys.argv[2])))
"""


def commands(page):
    """The lines of a page's shell blocks that call the package, their variables filled in."""
    variables = {}
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            name, found, value = line.partition("=")
            if found and name.isupper():
                variables[f"${name}"] = shlex.split(value)[0]
            elif line.startswith("hiddenstate "):
                yield [variables.get(word, word) for word in shlex.split(line)[1:]]


def shortened(words, models, look):
    """The same campaign with fewer models in each world."""
    words = [*words]
    words[words.index("--models") + 1] = str(models)
    if "--looks" in words:
        start = words.index("--looks") + 1
        words[start : start + 4] = [str(look)]
    return words


CAMPAIGNS = [words for words in commands("your-own-training.md") if words[0] == "audit-training"]


def test_the_page_has_its_commands():
    assert [sum(word in words for words in CAMPAIGNS) for word in ("--battery", "--check")] == [
        1
    ] * 2
    assert len(CAMPAIGNS) == 6


@pytest.mark.parametrize("words", [w for w in CAMPAIGNS if "--battery" not in w], ids=" ".join)
def test_the_campaigns_of_the_documentation_run(words, tmp_path, monkeypatch, capsys):
    """With 12 models; a training with mu = 3 that claims 1 is refuted, epsilon 8 is not."""
    monkeypatch.chdir(tmp_path)
    Path("my_training.py").write_text(TRAINING)
    Path("train.sh").write_text('#!/bin/sh\nexec python my_training.py "$1" "$2"\n')
    Path("train.sh").chmod(0o755)
    if "--check" in words:
        assert cli.main(words) == 0
        assert "but the canary; one model takes" in capsys.readouterr().out
        return
    status = cli.main([*shortened(words, 12, 5), "--no-check"])
    printed = capsys.readouterr().out
    claimed = "--claim" in words
    assert status == (0 if claimed else 1), printed
    assert printed.lower().count("refuted") == (0 if claimed else 1)
    assert len(list(tmp_path.glob("*-audit/scores.parquet"))) == 1


@pytest.mark.whole
def test_a_file_of_scores_is_audited_and_planned_as_documented(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = stream(2, "docs")
    rows = [f"in,{x}" for x in rng.normal(size=60) + 1] + [f"out,{x}" for x in rng.normal(size=60)]
    Path("scores.csv").write_text("\n".join(["world,score", *rows]))
    lines = list(commands("auditing.md"))
    assert [words[0] for words in lines] == ["audit", "audit"]
    printed = []
    for words in lines:
        assert cli.main(words) in (0, None)
        printed.append(capsys.readouterr().out)
    assert Path("audit.png").stat().st_size > 10_000
    assert "consistent" in printed[1]
    # What the page says of its plan; test_consoles compares the block with what is printed.
    ((command, stated),) = consoles.pairs(DOCS / "auditing.md")
    assert command.startswith("hiddenstate plan-audit --claim 8 --true 12")
    assert np.all([number in "".join(stated) for number in ("68", "49", "89")])


PUBLIC = {
    "Is a model more private if only its last iterate is published?": "1.28",
    "May I publish the smaller epsilon?": "1.83",
    "Why does epsilon grow with every step, although only the last model is out?": "",
    "How many models does an audit need?": "68",
    "Which canary should I use?": "80",
    "I can train only once. Can I audit?": "1.79",
    "The audit says 0. Is my training private?": "1.93",
    "My estimate is above the accountant's epsilon. Is that a bug?": "5 %",
    "My loader shuffles instead of sampling. Which epsilon is mine?": "--sampler reshuffled",
    "I also publish checkpoints, or an average of iterates. What then?": "2.40",
}
"""Questions of public threads, and a number or an option of each answer."""


def test_the_ten_public_questions_have_answers_in_words_and_numbers():
    answers = re.split(r"^### ", (DOCS / "faq.md").read_text(), flags=re.MULTILINE)[1:]
    found = dict(answer.split("\n", 1) for answer in answers)
    for question, number in PUBLIC.items():
        assert number in found[question] and len(found[question].split()) > 25


def test_an_audit_of_thirty_models_would_have_found_what_the_answers_say():
    from hiddenstate.auditing import GaussianDP, SequentialAudit, claim
    from hiddenstate.auditing.reach import reach

    found = reach(claim.gaussian_dp(1.0), SequentialAudit(GaussianDP(), 1.0, [(30, 30)]))
    assert "mu 1.93 or more" in str(found)


@pytest.mark.whole
def test_the_bound_of_the_guide_appears_where_it_is_put(monkeypatch, capsys):
    from hiddenstate import atlas
    from hiddenstate.atlas import lower

    guide = (DOCS.parent / "CONTRIBUTING.md").read_text().partition("## Adding a bound")[2]
    code = re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1]
    names = dict(vars(lower))
    exec(compile(code.replace("\nBound(", "\nbound = Bound("), "guide", "exec"), names)
    assert "`COUNTEREXAMPLES` of `atlas/lower.py`" in guide
    monkeypatch.setattr(atlas, "COUNTEREXAMPLES", (names["bound"], *lower.COUNTEREXAMPLES))
    setting = ["--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "100"]
    assert cli.main(["atlas", *setting, "--delta", "1e-5", "--runs", "100"]) == 0
    assert re.search(r"linear losses, sign alone +0\.0\d+  last iterate", capsys.readouterr().out)


def test_the_api_names_every_module_with_a_lower_bound():
    """Pages of other packages show the whole of them; this one puts its modules in an order."""
    modules = (DOCS.parent / "src/hiddenstate/auditing").glob("[!_]*.py")
    page = (DOCS / "api/auditing.md").read_text()
    named = re.findall(r"^::: hiddenstate\.auditing\.(\w+)$", page, re.M)
    assert sorted(named) == sorted(path.stem for path in modules)
