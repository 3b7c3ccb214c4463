"""Campaigns: the same scores whatever happens on the way, and verdicts that hold."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from hiddenstate import cli, scores
from hiddenstate.auditing import ApproxDP, GaussianDP, SequentialAudit, campaign, composed
from hiddenstate.auditing.campaign import CommandLine, Script
from hiddenstate.errors import InputError

TRAINING = """
import os, time, random
from pathlib import Path

def train(world, seed, leak=3.0, pause=0.0, trouble=None):
    print("training", world, seed)
    time.sleep(pause)
    if trouble:
        mark = Path(trouble) / f"{seed}"
        if seed % 3 == 0 and not mark.exists():
            mark.touch()
            if seed % 2:
                os._exit(9)
            raise RuntimeError("out of memory")
    return random.Random(seed).gauss(leak if world == "in" else 0.0, 1.0)

def broken(world, seed):
    if world == "out":
        raise ValueError("no such file")
    return 1.0

def endless(world, seed):
    time.sleep(600)

def undefined(world, seed):
    return float("nan")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my_training.py"
    path.write_text(TRAINING)
    return path


def plan(looks, claim=0.5, hypotheses=None):
    """A test that is simulated quickly."""
    return SequentialAudit(hypotheses or GaussianDP(), claim, looks, simulations=500)


def audit(script, out, looks=(6,), claim=0.5, options=(), **more):
    training = Script(script, options=tuple(options))
    return campaign.run(training, plan(looks, claim), out, **more)


def digest(outcome):
    return scores.digest(scores.read(outcome.scores)[0])


def test_scores_do_not_depend_on_workers_or_crashes(script, tmp_path):
    plain = audit(script, tmp_path / "a")
    marks = tmp_path / "marks"
    marks.mkdir()
    troubled = audit(script, tmp_path / "b", options=[("trouble", str(marks))], workers=3, seed=0)
    assert digest(plain) == digest(troubled)
    assert not plain.crashes
    assert len(troubled.crashes) == len(list(marks.iterdir())) >= 2
    told = "\n".join(troubled.crashes)
    assert "RuntimeError: out of memory" in told and "its process died (exit code 9)" in told
    frame, origin = scores.read(troubled.scores)
    assert list(frame["world"]) == ["in"] * 6 + ["out"] * 6 and frame["seed"].is_unique
    assert origin["crashes"] == troubled.crashes
    assert origin["cell"]["training"]["script"] == "my_training.py"
    assert "training in" in (tmp_path / "b" / "log.txt").read_text()


def test_a_killed_campaign_goes_on_with_identical_scores(script, tmp_path):
    plain = audit(script, tmp_path / "a", looks=(8,), options=[("pause", 0.1)])
    code = (
        "from hiddenstate.auditing import campaign, GaussianDP, SequentialAudit\n"
        "from pathlib import Path\n"
        "if __name__ == '__main__':\n"
        f"    training = campaign.Script(Path({str(script)!r}), options=(('pause', 0.1),))\n"
        "    test = SequentialAudit(GaussianDP(), 0.5, (8,), simulations=500)\n"
        f"    campaign.run(training, test, {str(tmp_path / 'b')!r}, workers=2)\n"
    )
    (tmp_path / "main.py").write_text(code)
    process = subprocess.Popen([sys.executable, str(tmp_path / "main.py")], start_new_session=True)
    runs = tmp_path / "b" / "runs"
    deadline = time.monotonic() + 60
    while len(list(runs.glob("[!.]*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in runs.glob("[!.]*.json")}
    assert 3 <= len(kept) < 16
    resumed = audit(script, tmp_path / "b", looks=(8,), options=[("pause", 0.1)])
    assert digest(plain) == digest(resumed)
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())


def test_a_finished_campaign_trains_nothing_anew(script, tmp_path):
    first = audit(script, tmp_path / "a")
    before = (tmp_path / "a" / "log.txt").read_text()
    assert digest(audit(script, tmp_path / "a")) == digest(first)
    assert (tmp_path / "a" / "log.txt").read_text() == before


def test_stopping_early_does_not_depend_on_workers(script, tmp_path):
    outcomes = [
        audit(script, tmp_path / f"{n}", looks=(5, 10, 40), options=[("leak", 9.0)], workers=n)
        for n in (1, 3)
    ]
    assert [outcome.verdict.decision for outcome in outcomes] == ["refuted"] * 2
    assert outcomes[0].models == outcomes[1].models == outcomes[0].verdict.models[0] <= 10
    assert digest(outcomes[0]) == digest(outcomes[1])
    assert len(scores.read(outcomes[0].scores)[0]) == 2 * outcomes[0].models


@pytest.mark.parametrize(
    "function, more, expected",
    [
        ("broken", {}, r"out-run 0 \(seed \d+\) failed 3 times.*ValueError: no such file"),
        ("undefined", {"retries": 0}, "failed 1 times.*its score is nan"),
        ("endless", {"retries": 0, "timeout": 1.5}, "no score after 1.5 seconds"),
        ("nonesuch", {"retries": 0}, r"has no function nonesuch\(world, seed\)"),
    ],
)
def test_what_always_fails_is_named_and_nothing_is_left_out(
    script, tmp_path, function, more, expected
):
    test = plan((4,))
    with pytest.raises(InputError, match=expected):
        campaign.run(Script(script, function), test, tmp_path / "a", **more)
    assert not (tmp_path / "a" / "scores.parquet").exists()


def test_another_campaigns_directory_is_refused(script, tmp_path):
    audit(script, tmp_path / "a", looks=(3,))
    with pytest.raises(InputError, match="campaign of another test"):
        audit(script, tmp_path / "a", looks=(4,))
    with pytest.raises(InputError, match="campaign of another seed: 0; expected 1"):
        audit(script, tmp_path / "a", looks=(3,), seed=1)
    with pytest.raises(InputError, match="campaign of another test"):
        campaign.run(Script(script), plan((3,), hypotheses=ApproxDP(1e-5)), tmp_path / "a")
    script.write_text(TRAINING + "# edited\n")
    with pytest.raises(InputError, match="campaign of another training"):
        audit(script, tmp_path / "a", looks=(3,))


HELPED = "import helper\ntrain = lambda world, seed: helper.score(world, seed)\n"
HELPER = "def score(world, seed):\n    return float(seed % 97 + 100 * (world == 'in'))\n"
COMMAND = "import sys, helper\nprint(helper.score(sys.argv[1], int(sys.argv[2])))\n"


@pytest.mark.parametrize("kind", ["script", "command"])
@pytest.mark.parametrize("edited", ["training.py", "helper.py", "package/inner.py", "unrelated.py"])
def test_a_training_whose_code_changed_is_another(tmp_path, monkeypatch, kind, edited):
    """A command was told by its text alone, and a script by its own file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training.py").write_text(HELPED if kind == "script" else COMMAND)
    (tmp_path / "helper.py").write_text("from package import inner\n" + HELPER)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text("SCALE = 1\n")
    (tmp_path / "unrelated.py").write_text("")
    line = f"{sys.executable} training.py {{world}} {{seed}}"
    training = Script(Path("training.py")) if kind == "script" else CommandLine(line)
    before = json.dumps(training.identity)
    (tmp_path / edited).write_text((tmp_path / edited).read_text() + "# mended\n")
    assert (json.dumps(training.identity) == before) == (edited == "unrelated.py")


@pytest.mark.parametrize(
    "line",
    ["from . import model", "from .model import f", "from own import model", "import own.model"],
)
def test_a_module_beside_it_in_its_package_tells_a_training_from_others(tmp_path, line):
    package = tmp_path / "own"
    (package / "wandb").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(f"import wandb\n{line}\n")
    (package / "model.py").write_text("def f(): pass\n")
    before = campaign._digests(package / "train.py")
    assert {"own/train.py", "own/model.py"} <= set(before)
    # A folder that happens to have an installed package's name is not what is imported.
    (package / "wandb" / "code.py").write_text("saved = 1\n")
    assert campaign._digests(package / "train.py") == before
    (package / "model.py").write_text("def f(): return 1\n")
    assert campaign._digests(package / "train.py") != before


def test_files_that_a_command_names_tell_it_from_others(tmp_path):
    for name in ("a.sh", "in.txt", "out.txt"):
        (tmp_path / name).write_text("1\n")
    line = f"sh {tmp_path}/a.sh --data={tmp_path}/{{world}}.txt {{seed}} -c '{'x' * 5000}'"
    training = CommandLine(line)
    assert len(training.identity["files"]) == 3
    for name in ("a.sh", "out.txt"):
        before = training.identity
        (tmp_path / name).write_text("2\n")
        assert training.identity != before


def test_the_command_refuses_a_mended_training_and_says_what_it_took_over(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training.py").write_text(HELPER + "import sys\nprint(score(*sys.argv[1:2], 1))\n")
    line = f"{sys.executable} training.py {{world}} {{seed}}"
    again = ("audit-training", line, "--models", 3, "--claim-mu", 0.5, "--out", "a")
    assert "taken from" not in run(capsys, *again)[1]
    assert "6 of 6 finished runs taken from a; nothing was trained" in run(capsys, *again)[1]
    (tmp_path / "training.py").write_text("print(0.0)\n")
    status, _, err = run(capsys, *again)
    assert status == 2 and "campaign of another training: {'files': {'training.py': " in err


@pytest.mark.parametrize("train", [functools.partial(max, 1), max])
def test_a_function_without_a_file_is_refused(tmp_path, train):
    with pytest.raises(InputError, match=r"^training: got .*expected a function of a Python file"):
        campaign.run(train, plan((3,)), tmp_path / "a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ApproxDP(1e-5), ApproxDP(1e-6)),
        (composed([2.0, 1.0], 0.1, 2), composed([2.0, 1.0], 0.2, 2)),
    ],
)
def test_every_detail_of_a_claim_tells_tests_apart(one, other):
    described = campaign._described(plan((9,), 1.0, one))
    assert described != campaign._described(plan((9,), 1.0, other))
    assert json.loads(json.dumps(described)) == described
    judged = plan((9,), 1.0, one)
    judged.judge(range(9), range(9))
    assert campaign._described(judged) == described


@pytest.mark.parametrize(
    "call, expected",
    [
        (
            lambda p: audit(p / "none.py", p, looks=((9, 8),)),
            r"looks: got \(9, 8\); expected as many",
        ),
        (lambda p: CommandLine("train {world}"), r"expected \{seed\}"),
        (lambda p: audit(p / "none.py", p), "none.py: no such file"),
        (lambda p: audit(p / "none.py", p, workers=0), "workers: got 0"),
        (lambda p: audit(p / "none.py", p, retries=-1), "retries: got -1"),
        (lambda p: audit(p / "none.py", p, timeout=0.0), "timeout: got 0.0"),
    ],
)
def test_unusable_input_is_refused(tmp_path, call, expected):
    with pytest.raises(InputError, match=expected):
        call(tmp_path)


def test_a_damaged_run_is_named(script, tmp_path):
    audit(script, tmp_path / "a", looks=(3,))
    (tmp_path / "a" / "runs" / "in-000001.json").write_text("{")
    with pytest.raises(InputError, match=r"in-000001\.json: not readable as JSON"):
        audit(script, tmp_path / "a", looks=(3,))


def test_seeds_are_distinct_and_those_of_a_prefix_its_own():
    tasks = campaign._tasks(7, 3000)
    assert len({task.seed for task in tasks}) == 6000
    assert campaign._tasks(7, 10) == tasks[:20]
    assert all(0 <= task.seed < 2**31 for task in tasks)


def test_a_command_line_is_a_training(tmp_path):
    code = "import sys; print('done'); print(float(sys.argv[2]) % 97 + 100 * (sys.argv[1] == 'in'))"
    line = f'{sys.executable} -c "{code}" {{world}} {{seed}}'
    train = CommandLine(line).load()
    assert train("in", 98) == 101.0 and train("out", 98) == 1.0
    with pytest.raises(RuntimeError, match="exit status 3: sorry"):
        CommandLine(
            f"{sys.executable} -c \"import sys; print('sorry', file=sys.stderr); sys.exit(3)\" "
            "{world} {seed}"
        ).load()("in", 1)
    with pytest.raises(RuntimeError, match="no score: 'in 1'"):
        CommandLine("echo {world} {seed}").load()("in", 1)


def test_an_importable_function_is_a_training(tmp_path, monkeypatch):
    module = tmp_path / "importable.py"
    module.write_text(
        "import random\n"
        "def train(world, seed):\n"
        "    return random.Random(seed).random() + (world == 'in')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    train = importlib.import_module("importable").train
    outcome = campaign.run(train, plan((4,), 0.2), tmp_path / "a")
    assert outcome.models == 4


def run(capsys, *arguments):
    status = cli.main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_command_says_its_verdict_and_exit_status(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base = ("audit-training", script, "--models", 12, "--workers", 2)
    status, out, err = run(capsys, *base, "--claim-mu", 0.2, "--out", "a")
    assert status == 1 and "refuted: mu 0.2, after 12 models in each world" in out
    assert "mu >= " in out and "24/24" in err
    status, out, _ = run(capsys, *base, "--claim", 8, "--delta", 1e-5)
    assert status == 0 and "consistent: epsilon 8 at delta 1e-05" in out
    assert "no scores can refute" in out
    frame = pd.read_parquet(tmp_path / "my_training-audit" / "scores.parquet")
    assert len(frame) == 24
    # The score file is one that `hiddenstate audit` reads.
    status, out, _ = run(
        capsys, "audit", tmp_path / "my_training-audit" / "scores.parquet", "--delta", 1e-5
    )
    assert status == 0 and "12 in-scores" in out


def test_the_command_judges_a_mechanisms_own_curve(script, tmp_path, capsys):
    base = ("audit-training", script, "--looks", 5, "--models", 20, "--sampling-rate", 0.5)
    out_dir = ("--out", tmp_path / "a")
    status, out, _ = run(capsys, *base, "--sigma", 4.0, "--steps", 2, *out_dir)
    assert status == 1 and "refuted: noise multiplier 4, sampling rate 0.5, 2 steps" in out


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--models", "9"], "expected one of --claim with --delta"),
        (["--models", "9", "--claim", "1"], "expected both"),
        (["--models", "9", "--claim-mu", "1", "--claim", "1"], "expected one of"),
        (["--models", "1", "--claim-mu", "1"], "--models: got 1"),
        (["--models", "9", "--claim-mu", "1", "--looks", "10"], "--looks: got 10"),
        (["--models", "9", "--sigma", "1"], "expected all of --noise-multiplier"),
        (["--models", "9", "--sigma", "0", "--q", ".1", "--steps", "9"], "--noise-multiplier"),
        (["--models", "9", "--sigma", "1", "--q", "2", "--steps", "9"], "--sampling-rate: got 2"),
        (["--models", "9", "--sigma", "1", "--q", ".1", "--steps", "0"], "--steps: got 0"),
    ],
)
def test_the_command_refuses_what_is_no_claim(script, capsys, arguments, expected):
    status, _, err = run(capsys, "audit-training", script, *arguments)
    assert status == 2 and expected in err


def test_threads_are_only_chosen_where_the_user_did_not(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with campaign._one_thread():
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with campaign._one_thread():
        assert os.environ["OMP_NUM_THREADS"] == "4"


def test_nothing_is_left_running(script, tmp_path):
    audit(script, tmp_path / "a", looks=(3,), workers=2)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if children.exists():
        # The server that workers are forked from stays; nothing it forked does.
        for child in children.read_text().split():
            below = Path(f"/proc/{child}/task/{child}/children")
            assert not below.exists() or below.read_text().split() == []
