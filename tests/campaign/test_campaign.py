"""Campaigns: the same scores whatever happens on the way, and verdicts that hold."""

import contextlib
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hiddenstate import cli
from hiddenstate.auditing import (
    ApproxDP,
    GaussianDP,
    SequentialAudit,
    composed,
    report,
)
from hiddenstate.auditing.sequential import Verdict, jointly
from hiddenstate.campaign import campaign, trainings, workers
from hiddenstate.campaign.campaign import CommandLine, Script
from hiddenstate.errors import InputError
from hiddenstate.files import alone
from hiddenstate.pipeline import scores, sealed

PYTHON = shlex.quote(sys.executable)
"""In a command line; its path may have a space in it."""

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

def helped(world, seed):
    from multiprocessing import Pool, Process
    with Pool(1) as pool:
        pool.map(abs, [1])
    process = Process(target=print, args=("child of", seed))
    process.start()
    process.join()
    return train(world, seed)

def loaded(world, seed):
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    data = DataLoader(TensorDataset(torch.ones(4)), num_workers=1)
    return train(world, seed) + float(sum(x.sum() for (x,) in data))

def forking(world, seed):
    if os.fork() == 0:
        time.sleep(0.1)
        return 999.0
    time.sleep(0.3)
    return train(world, seed)

def several(world, seed, leak=9.0):
    score = train(world, seed, leak)
    return {"blind": random.Random(-seed).gauss(0, 1), "seeing": score, "unused": 0.0}

def same(world, seed):
    return 0.0

def orphaning(world, seed):
    if os.fork() == 0:
        time.sleep(600)
    os._exit(9)
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


EDITED = """
import os, random, sys
from pathlib import Path

SHIFT = 0.0

def train(world, seed):
    done = Path(__file__).with_name("done")
    done.write_text("x" + (done.read_text() if done.exists() else ""))
    if done.read_text() == "xxxx":
        Path(__file__).write_text(Path(__file__).read_text().replace("SHIFT = 0", "SHIFT = 9"))
        if __name__ != "__main__":
            os._exit(1)
    return random.Random(seed).gauss(SHIFT if world == "in" else 0.0, 1.0)

if __name__ == "__main__":
    print(train(sys.argv[1], int(sys.argv[2])))
"""
"""Edits itself in its fourth run, of which a script's process ends."""


@pytest.mark.parametrize("command", [False, True])
def test_a_training_that_is_edited_meanwhile_is_refused(tmp_path, command):
    path, out = tmp_path / "training.py", tmp_path / "out"
    path.write_text(EDITED)
    line = f"{PYTHON} {shlex.quote(str(path))} {{world}} {{seed}}"
    training = CommandLine(line) if command else Script(path)
    with pytest.raises(InputError, match=r"was edited while its models were trained; the 3 runs"):
        campaign.run(training, SequentialAudit(GaussianDP(), 1.0, [4]), out)
    path.write_text(EDITED)
    assert campaign.run(training, SequentialAudit(GaussianDP(), 1.0, [4]), out).taken == 3


@pytest.mark.whole
def test_a_killed_campaign_goes_on_with_identical_scores(script, tmp_path):
    plain = audit(script, tmp_path / "a", looks=(8,), options=[("pause", 0.1)])
    code = (
        "from hiddenstate.auditing import GaussianDP, SequentialAudit\n"
        "from hiddenstate.campaign import campaign\n"
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
        ("orphaning", {"retries": 0}, r"its process died \(exit code 9\)"),
        ("forking", {"retries": 0}, "a child process that the training forked"),
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


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("function", ["helped", "loaded"])
def test_a_training_may_have_children(script, tmp_path, function):
    """Workers were daemons, which may not."""
    plain = audit(script, tmp_path / "a", looks=(2,))
    outcome = campaign.run(Script(script, function), plan((2,)), tmp_path / "b")
    assert not outcome.crashes
    if function == "helped":
        assert digest(outcome) == digest(plain)


def running(word):
    """Processes whose command line has this word in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if word in line]


def still_running(word, seconds=10):
    """The same once it is empty, or so late: a busy machine ends what is killed a moment later."""
    deadline = time.monotonic() + seconds
    while running(word) and time.monotonic() < deadline:
        time.sleep(0.05)
    return running(word)


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    """Its worker was killed, and the command and its children went on."""
    word = f"60.{os.getpid()}1"
    tree = tmp_path / "tree.sh"
    tree.write_text(f"sleep {word} &\nsleep {word}\necho 0.5\n")
    line = CommandLine(f"sh {shlex.quote(str(tree))} {{world}} {{seed}}")
    with pytest.raises(InputError, match="no score after 1 second"):
        campaign.run(line, plan((2,)), tmp_path / "a", timeout=1.0, retries=1, workers=2)
    assert still_running(word) == []


def test_a_command_that_starts_as_its_worker_ends_is_ended_too(monkeypatch):
    """The worker's end came between the start of the command and its entry in the list."""

    def end():
        with trainings.commands_ended():
            pass

    popen, ending = subprocess.Popen, threading.Thread(target=end)

    def start(*arguments, **options):
        process = popen(*arguments, **options)
        ending.start()
        ending.join(0.5)
        return process

    monkeypatch.setattr(trainings.subprocess, "Popen", start)
    with pytest.raises(RuntimeError, match="exit status -9"):
        CommandLine("sh -c 'sleep 20; echo {world} {seed}'").load()("in", 1)
    ending.join()


def test_what_a_command_leaves_in_the_background_ends_with_it_and_is_not_waited_for(tmp_path):
    word = f"61.{os.getpid()}1"
    train = CommandLine(f"sh -c 'sleep {word} & echo {{world}} {{seed}} >&2; echo 0.5'").load()
    start = time.monotonic()
    assert train("in", 1) == 0.5
    assert time.monotonic() - start < 30 and still_running(word) == []


def test_a_killed_campaign_leaves_nothing_running(tmp_path):
    word = f"62.{os.getpid()}1"
    code = (
        "from hiddenstate.auditing import GaussianDP, SequentialAudit\n"
        "from hiddenstate.campaign import campaign\n"
        "if __name__ == '__main__':\n"
        f"    line = campaign.CommandLine('sh -c \"sleep {word}; echo {{world}} {{seed}}\"')\n"
        "    test = SequentialAudit(GaussianDP(), 0.5, (8,), simulations=500)\n"
        f"    campaign.run(line, test, {str(tmp_path / 'b')!r})\n"
    )
    (tmp_path / "main.py").write_text(code)
    process = subprocess.Popen([sys.executable, str(tmp_path / "main.py")])
    deadline = time.monotonic() + 240
    while not running(f"sleep {word}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(f"sleep {word}")
    process.kill()
    process.wait()
    assert still_running(f"sleep {word}", 240) == []


def test_the_log_has_what_a_command_prints(tmp_path):
    code = "import sys; print('fine'); print('sorry', file=sys.stderr); print(1.5)"
    line = CommandLine(f'{PYTHON} -c "{code}" {{world}} {{seed}}')
    campaign.run(line, plan((2,)), tmp_path / "a")
    log = tmp_path / "a" / "log.txt"
    assert log.read_text().count("fine") == log.read_text().count("sorry") == 4
    assert log.stat().st_mode & 0o111 == 0


def test_a_run_that_is_not_of_the_campaign_is_refused(script, tmp_path):
    audit(script, tmp_path / "a", looks=(3,))
    run = tmp_path / "a" / "runs" / "in-000001.json"
    entry = json.loads(run.read_text())
    del entry["digest"]
    for wrong in ({"seed": 7}, {"run": 99}, {"score": None}, {"world": "off"}):
        changed = entry | wrong
        run.write_text(json.dumps(changed | {"digest": sealed.of(changed)}))
        with pytest.raises(InputError, match=r"in-000001\.json: got world, run, seed and score"):
            audit(script, tmp_path / "a", looks=(3,))
    run.write_text("{}")
    with pytest.raises(InputError, match=r"in-000001\.json: has no digest of its values"):
        audit(script, tmp_path / "a", looks=(3,))


@pytest.mark.parametrize(
    ("name", "key", "advice"),
    [("runs/in-000001.json", "score", "remove it"), ("campaign.json", "coins", "use --out")],
)
def test_a_file_of_the_campaign_that_was_edited_is_refused(script, tmp_path, name, key, advice):
    before = audit(script, tmp_path / "a", looks=(3,))
    path = tmp_path / "a" / name
    written = path.read_text()
    value = json.loads(written)[key]
    for change in ({key: value + 1e-9}, {"digest": None}):
        path.write_text(json.dumps(json.loads(written) | change))
        with pytest.raises(InputError, match=rf"{name}: has no digest of.*; {advice}"):
            audit(script, tmp_path / "a", looks=(3,))
    path.write_text(written)
    assert digest(audit(script, tmp_path / "a", looks=(3,))) == digest(before)


def test_a_directory_is_of_one_campaign_at_a_time(script, tmp_path):
    with (
        alone(tmp_path / "a", ""),
        pytest.raises(InputError, match="another process runs this campaign"),
    ):
        audit(script, tmp_path / "a", looks=(3,))
    # Whose coins would be lost if both wrote their own.
    assert not list(tmp_path.glob("a/campaign.json"))


def test_coins_are_drawn_once_and_kept_beside_the_scores(script, tmp_path):
    """Constant scores at a number of them at which one set of coins always refuted the claim."""
    kept = set()
    for name in ("a", "b"):
        test = plan((19,), claim=0.02)
        for _ in range(2):
            outcome = campaign.run(Script(script, "same"), test, tmp_path / name)
            kept.add((name, outcome.verdict.p_value, report.coins(outcome.scores)))
    assert len(kept) == 2
    assert len({coins for _, _, coins in kept}) == 2


def test_another_campaigns_directory_is_refused(script, tmp_path):
    audit(script, tmp_path / "a", looks=(3,))
    with pytest.raises(InputError, match="holds an audit of another test"):
        audit(script, tmp_path / "a", looks=(4,))
    with pytest.raises(InputError, match=r"holds an audit of another seed \(0\); you asked for 1"):
        audit(script, tmp_path / "a", looks=(3,), seed=1)
    with pytest.raises(InputError, match="holds an audit of another test"):
        campaign.run(Script(script), plan((3,), hypotheses=ApproxDP(1e-5)), tmp_path / "a")
    script.write_text(TRAINING + "# edited\n")
    with pytest.raises(InputError, match="holds an audit of another training"):
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
    line = f"{PYTHON} training.py {{world}} {{seed}}"
    training = Script(Path("training.py")) if kind == "script" else CommandLine(line)
    before = json.dumps(training.identity)
    (tmp_path / edited).write_text((tmp_path / edited).read_text() + "# changed\n")
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
    before = trainings._digests(package / "train.py")
    assert {"own/train.py", "own/model.py"} <= set(before)
    # A folder that happens to have an installed package's name is not what is imported.
    (package / "wandb" / "code.py").write_text("saved = 1\n")
    assert trainings._digests(package / "train.py") == before
    (package / "model.py").write_text("def f(): return 1\n")
    assert trainings._digests(package / "train.py") != before


def test_files_that_a_command_names_tell_it_from_others(tmp_path):
    for name in ("a.sh", "in.txt", "out.txt"):
        (tmp_path / name).write_text("1\n")
    here = shlex.quote(str(tmp_path))
    line = f"sh {here}/a.sh --data={here}/{{world}}.txt {{seed}} -c '{'x' * 5000}'"
    training = CommandLine(line)
    assert len(training.identity["files"]) == 3
    for name in ("a.sh", "out.txt"):
        before = training.identity
        (tmp_path / name).write_text("2\n")
        assert training.identity != before


def test_the_command_refuses_a_changed_training_and_says_what_it_took_over(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training.py").write_text(HELPER + "import sys\nprint(score(*sys.argv[1:2], 1))\n")
    line = f"{PYTHON} training.py {{world}} {{seed}}"
    again = ("audit-training", line, "--models", 3, "--claim-mu", 0.5, "--out", "a", "--no-check")
    assert "already had" not in run(capsys, *again)[1]
    assert "a already had 6 of 6 runs; nothing was trained" in run(capsys, *again)[1]
    (tmp_path / "training.py").write_text("print(0.0)\n")
    status, _, err = run(capsys, *again)
    assert status == 2 and "holds an audit of another training (files training.py " in err


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
            r"looks: got \(9, 8\); give as many",
        ),
        (lambda p: CommandLine("train {world}"), r"expected \{seed\}"),
        (lambda p: CommandLine("none {world} {seed}"), "program 'none' was not found"),
        (lambda p: CommandLine("'none {world} {seed}"), "No closing quotation"),
        (lambda p: audit(p / "none.py", p), "none.py: no such file"),
        (lambda p: audit(p / "none.py", p, workers=0), "workers: got 0"),
        (lambda p: audit(p / "none.py", p, retries=-1), "retries: got -1"),
        (lambda p: audit(p / "none.py", p, timeout=0.0), "timeout: got 0.0"),
    ],
)
def test_unusable_input_is_refused(tmp_path, call, expected):
    with pytest.raises(InputError, match=expected):
        call(tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize(("more", "status"), [(0, 0), (1, 2)])
def test_a_folder_that_is_too_long_for_sockets_is_refused(script, tmp_path, more, status):
    """As clusters have it; the campaign ended with a traceback after its check."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        place = Path(short, "x" * (workers.LONGEST + more - len(short) - 1))
        place.mkdir()
        arguments = ["--models", "2", "--claim-mu", "9", "--no-check", "--out", tmp_path / "a"]
        done = subprocess.run(
            [sys.executable, "-m", "hiddenstate", "audit-training", script, *arguments],
            env=os.environ | {"TMPDIR": str(place)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == status, done.stderr
    assert (f"TMPDIR: got '{place}'; expected a path of at most 70 bytes" in done.stderr) == more


def test_a_damaged_run_is_named(script, tmp_path):
    audit(script, tmp_path / "a", looks=(3,))
    (tmp_path / "a" / "runs" / "in-000001.json").write_text("{")
    with pytest.raises(InputError, match=r"in-000001\.json: not readable as JSON"):
        audit(script, tmp_path / "a", looks=(3,))


def test_a_second_file_of_a_run_is_refused(script, tmp_path):
    """As services that synchronise folders make them; the last in the alphabet was taken."""
    audit(script, tmp_path / "a", looks=(3,))
    runs = tmp_path / "a/runs"
    entry = json.loads((runs / "in-000001.json").read_text())
    del entry[sealed.DIGEST]
    campaign._write_json(runs / "in-000001~laptop.json", entry | {"score": 99.0})
    with pytest.raises(
        InputError, match=r"in-000001~laptop\.json: .* expected it in in-000001\.json"
    ):
        audit(script, tmp_path / "a", looks=(3,))


def test_seeds_are_distinct_and_those_of_a_prefix_its_own():
    tasks = campaign._tasks(7, 3000)
    assert len({task.seed for task in tasks}) == 6000
    assert campaign._tasks(7, 10) == tasks[:20]
    assert all(0 <= task.seed < 2**31 for task in tasks)


def test_a_command_line_is_a_training(tmp_path):
    code = "import sys; print('done'); print(float(sys.argv[2]) % 97 + 100 * (sys.argv[1] == 'in'))"
    line = f'{PYTHON} -c "{code}" {{world}} {{seed}}'
    train = CommandLine(line).load()
    assert train("in", 98) == 101.0 and train("out", 98) == 1.0
    with pytest.raises(RuntimeError, match="exit status 3: sorry"):
        CommandLine(
            f"{PYTHON} -c \"import sys; print('sorry', file=sys.stderr); sys.exit(3)\" "
            "{world} {seed}"
        ).load()("in", 1)
    with pytest.raises(RuntimeError, match="not a score: 'in 1'"):
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


@pytest.mark.whole
def test_the_command_says_its_verdict_and_exit_status(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base = ("audit-training", script, "--models", 12, "--workers", 2, "--no-check")
    status, out, err = run(capsys, *base, "--claim-mu", 0.2, "--out", "a")
    assert status == 1 and "refuted: mu 0.2, after 12 models with the canary and 12 without" in out
    assert "mu >= " in out and "24/24" in err
    status, out, err = run(capsys, *base, "--claim", 8, "--delta", 1e-5)
    assert status == 0 and "consistent: epsilon 8 at delta 1e-05" in out
    assert "no scores of 12 models per data set can refute" in err
    frame = pd.read_parquet(tmp_path / "my_training-audit" / "scores.parquet")
    assert len(frame) == 24
    # The score file is one that `hiddenstate audit` reads.
    status, out, _ = run(
        capsys, "audit", tmp_path / "my_training-audit" / "scores.parquet", "--delta", 1e-5
    )
    assert status == 0 and "from 12 scores with and 12 without" in out


def test_the_command_judges_a_mechanisms_own_curve(script, tmp_path, capsys):
    base = (
        "audit-training",
        script,
        "--looks",
        5,
        "--models",
        20,
        "--sampling-rate",
        0.5,
        "--no-check",
    )
    out_dir = ("--out", tmp_path / "a")
    status, out, _ = run(capsys, *base, "--sigma", 4.0, "--steps", 2, *out_dir)
    assert status == 1 and "refuted: noise multiplier 4, sampling rate 0.5, 2 steps" in out


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--models", "9"], "give one of --claim with --delta"),
        (["--models", "9", "--claim", "1"], "--claim needs --delta"),
        (["--models", "9", "--claim-mu", "1", "--claim", "1"], "give one of"),
        (["--models", "1", "--claim-mu", "1"], "--models: got 1"),
        (["--models", "9", "--claim-mu", "1", "--looks", "10"], "--looks: got 10"),
        (["--models", "9", "--sigma", "1"], "give all of --noise-multiplier"),
        (["--models", "9", "--sigma", "0", "--q", ".1", "--steps", "9"], "noise multiplier: got 0"),
        (["--models", "9", "--sigma", "1", "--q", "2", "--steps", "9"], "sampling rate: got 2"),
        (["--models", "9", "--sigma", "1", "--q", ".1", "--steps", "0"], "steps: got 0"),
    ],
)
def test_the_command_refuses_what_is_no_claim(script, capsys, arguments, expected):
    status, _, err = run(capsys, "audit-training", script, *arguments)
    assert status == 2 and expected in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--workers", "0"], "workers: got 0; expected a whole number, at least 1"),
        (["--workers", "-1"], "workers: got -1"),
        (["--retries", "-1"], "retries: got -1; expected a whole number, at least 0"),
        (["--timeout", "nan"], "timeout: got nan; expected seconds above 0"),
        (["--timeout", "inf"], "timeout: got inf"),
        (["--timeout", "0"], "timeout: got 0.0"),
        (["--timeout", "-5"], "timeout: got -5.0"),
        (["--check", "--models", "-5"], "--models: got -5"),
        (["--check", "--sigma", "nan"], "noise multiplier: got nan; expected a number above 0"),
        (["--check", "--steps", "0"], "steps: got 0"),
    ],
)
def test_numbers_out_of_range_are_refused_before_a_model_is_trained(
    tmp_path, capsys, arguments, expected
):
    script, out = tmp_path / "training.py", tmp_path / "a"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef train(world, seed): return 1.5\n")
    asked = ["--models", 9, "--claim-mu", 1] if arguments[0] != "--check" else []
    status, _, err = run(capsys, "audit-training", script, "--out", out, *asked, *arguments)
    assert status == 2 and expected in err
    assert [path.name for path in tmp_path.iterdir()] == ["training.py"]


def test_threads_are_only_chosen_where_the_user_did_not(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with workers._environment({"PYTHONHASHSEED": "1"}):
        assert os.environ["OMP_NUM_THREADS"] == os.environ["PYTHONHASHSEED"] == "1"
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with workers._environment({}):
        assert os.environ["OMP_NUM_THREADS"] == "4"


def test_nothing_is_left_running(script, tmp_path):
    def below(parent):
        children = Path(f"/proc/{parent}/task/{parent}/children")
        return children.read_text().split() if children.exists() else []

    def forked():
        return {child for server in below(os.getpid()) for child in below(server)}

    # The server that workers are forked from stays, as other tests' servers do.
    before = forked()
    audit(script, tmp_path / "a", looks=(3,), workers=2)
    assert forked() <= before


def test_the_scores_of_a_campaign_that_stopped_are_not_judged_as_if_their_number_had_been_fixed(
    script, tmp_path, capsys
):
    """A bound from them was above the truth in 7.8 % of simulated audits."""
    leak = [("leak", 9.0)]
    outcome = audit(script, tmp_path / "a", looks=(5, 10, 40), options=leak)
    assert outcome.models < 40
    status, _, err = run(capsys, "audit", outcome.scores, "--delta", 1e-5, "--claim", 1)
    assert status == 2
    assert f"stopped after {outcome.models} of 40 planned models per data set, refuted: mu" in err
    # At its last look nothing was chosen.
    whole = audit(script, tmp_path / "b", looks=(5, 10), options=[("leak", 0.0)])
    assert whole.models == 10
    assert run(capsys, "audit", whole.scores, "--delta", 1e-5)[0] == 0


@pytest.mark.whole
def test_a_failure_of_the_tool_accuses_no_training(script, tmp_path, capsys):
    """Python's status after a traceback is 1, as that of a refuted claim."""
    (tmp_path / "file").touch()
    base = ("audit-training", script, "--models", 3, "--claim-mu", 0.5, "--no-check", "--out")
    for out in (tmp_path / "file", tmp_path / "file" / "x"):
        status, _, err = run(capsys, *base, out)
        assert status == 2 and "cannot be written" in err
    path = tmp_path / "scores.csv"
    path.write_text("world,score\nin,1\nin,2\nout,0\nout,-1\n")
    command = ["audit", str(path), "--delta", "1e-5", "--claim", "8"]
    code = "import sys; from hiddenstate.cli import main; sys.exit(main())"
    full = [sys.executable, "-c", code, *command]
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as out:
            done = subprocess.run(full, stdout=out, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 3 and "No space left" in done.stderr


@pytest.mark.parametrize(
    "text, expected",
    [
        ("{python} none.py {{world}} config.py", r"expected {seed} in it"),
        ("{python} none.py", "expected {world} in it"),
        ("none.py", "none.py: no such file; expected a Python file"),
        ("no-such-program {{world}} {{seed}}", "program 'no-such-program' was not found"),
    ],
)
def test_a_file_is_told_from_a_command_line(tmp_path, capsys, text, expected):
    command = text.format(python=PYTHON)
    status, _, err = run(capsys, "audit-training", command, "--models", 3, "--claim-mu", 0.5)
    assert status == 2 and expected in err


def test_a_script_may_lie_at_a_path_with_a_space(tmp_path, capsys):
    script = tmp_path / "my own" / "training.py"
    script.parent.mkdir()
    script.write_text(HELPER.replace("score", "train"))
    out = tmp_path / "my audit"
    arguments = ("--models", 3, "--claim-mu", 0.5, "--no-check", "--json", "--out", out)
    status, printed, _ = run(capsys, "audit-training", script, *arguments)
    found = json.loads(printed)
    assert status == 0 and found["decision"] == "consistent" and found["models"] == 3
    page = Path(found["page"]).read_text()
    assert page.count("data:image/png;base64,") == 1 and "Nothing was checked" in page
    assert "mu 0.5" in page and "3 per data set, of 3 planned" in page
    assert "http" not in page


def test_a_battery_finds_what_one_of_its_scores_finds_at_one_level(script, tmp_path):
    names = ("blind", "seeing")
    training, looks = Script(script, "several"), (5, 10, 40)
    outcome = campaign.run(training, plan(looks), tmp_path / "a", battery=names)
    assert outcome.verdict.decision == "refuted" and outcome.models <= 10
    frame, _ = scores.read(outcome.scores)
    assert len(frame) == 4 * outcome.models and set(frame["adversary"]) == set(names)
    # Each score by itself, at half the level.
    half = plan(looks).shared(2)
    assert half.confidence == pytest.approx(0.975)
    alone = {}
    for name, rows in frame.groupby("adversary"):
        worlds = [rows.loc[rows["world"] == w, "score"] for w in ("in", "out")]
        alone[name] = half.judge(*worlds)
    assert alone["seeing"].decision == "refuted" and alone["blind"].decision != "refuted"
    assert outcome.verdict.p_value == pytest.approx(2 * alone["seeing"].p_value)
    with pytest.raises(InputError, match="holds an audit of another battery"):
        campaign.run(training, plan(looks), tmp_path / "a", battery=("seeing",))


def test_two_verdicts_without_a_refutation_are_one_with_twice_the_p_value():
    fine = [Verdict("continue", 1, (5, 5), p) for p in (0.3, 0.2)]
    assert jointly(fine) == Verdict("continue", 1, (5, 5), 0.4)
    late, early = Verdict("refuted", 3, (9, 9), 0.001), Verdict("refuted", 2, (7, 7), 0.02)
    assert jointly([late, early, *fine]) == Verdict("refuted", 2, (7, 7), 0.08)


@pytest.mark.parametrize(
    ("function", "battery", "expected"),
    [
        ("several", (), "gives the scores blind, seeing, unused; expected one"),
        ("several", ("blind", "loss"), "gives blind, seeing, unused; expected scores blind, loss"),
        ("train", ("blind",), "gives one number; expected scores blind"),
    ],
)
def test_a_training_gives_the_scores_that_are_asked_for(
    script, tmp_path, function, battery, expected
):
    training = Script(script, function)
    with pytest.raises(InputError, match=expected):
        campaign.run(training, plan((2,)), tmp_path / "a", battery=battery, retries=0)


def test_a_command_may_print_several_scores():
    code = "import json; print(json.dumps({'a': 1, 'b': 2.5}))"
    assert CommandLine(f'{PYTHON} -c "{code}" {{world}} {{seed}}').load()("in", 1) == {
        "a": 1.0,
        "b": 2.5,
    }


LOSSES = """
import random

def train(world, seed):
    return random.Random(seed).gauss(-4.0 if world == "in" else 0.0, 1.0)

def fine(world, seed):
    return random.Random(seed).gauss(0.0, 1.0)

def both(world, seed):
    size = train(world, seed)
    return {"size": size, "smaller": -size}
"""


@pytest.mark.whole
def test_a_campaign_whose_scores_point_the_other_way_has_no_verdict(tmp_path, capsys):
    script = tmp_path / "losses.py"
    script.write_text(LOSSES)
    base = ("audit-training", script, "--claim-mu", 1, "--models", 20, "--no-check", "--out")
    for looks in ((), ("--looks", 10)):
        status, printed, error = run(capsys, *base, tmp_path / f"a{len(looks)}", *looks)
        assert status == 2 and "the scores point the other way" in error
        assert "no verdict: mu 1" in printed and "consistent" not in printed
    page = (tmp_path / "a0" / "audit.html").read_text()
    assert "<b>no verdict</b>" in page and "do not support the claim" in page
    assert "<b>consistent</b>" not in page
    status, printed, _ = run(capsys, *base, tmp_path / "a0", "--json")
    assert status == 2 and json.loads(printed)["decision"] == "other way"
    # Judged in both directions, the same scores refute.
    battery = ("--function", "both", "--battery", "size", "smaller")
    assert run(capsys, *base, tmp_path / "b", *battery)[0] == 1


@pytest.mark.whole
@pytest.mark.parametrize(
    ("claim", "looks"),
    [
        (("--claim-mu", 1), ("--looks", 10)),
        (("--sigma", 0.6, "--q", 0.1, "--steps", 20), ()),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (("--claim-mu", 1), ()),
                (("--sigma", 0.6, "--q", 0.1, "--steps", 20), ("--looks", 10)),
            )
        ),
    ],
)
def test_a_consistent_campaign_says_what_it_would_have_found(tmp_path, capsys, claim, looks):
    script = tmp_path / "fine.py"
    script.write_text(LOSSES)
    base = ("audit-training", script, "--function", "fine", "--models", 20, "--no-check", "--out")
    out = tmp_path / "a"
    status, printed, _ = run(capsys, *base, out, *claim, *looks)
    assert status == 0 and "With 95 % confidence" in printed
    assert "with probability 90 %, if its score is optimal" in printed
    page = (out / "audit.html").read_text()
    assert "An audit of this size finds" in page and "Lower bound" in page
    status, printed, _ = run(capsys, *base, out, *claim, *looks, "--json")
    found = json.loads(printed)
    assert found["reach"]["power"] == 0.9 and found["bound"]["value"] >= 0


TWO = """
import random

def two(world, seed):
    drawn, shift = random.Random(seed), 2.0 * (world == "in")
    last = drawn.gauss(0.4 * shift, 1.0)
    return {"likelihood": drawn.gauss(shift, 1.0), "last iterate": last}
"""


@pytest.mark.whole
def test_all_iterates_and_the_last_have_a_bound_each(tmp_path, capsys):
    script = tmp_path / "two.py"
    script.write_text(TWO)
    base = ("audit-training", script, "--function", "two", "--models", 60, "--no-check")
    command = (*base, "--claim-mu", 4, "--battery", "likelihood", "last iterate", "--out")
    status, printed, _ = run(capsys, *command, tmp_path / "a")
    assert status == 0 and "all iterates: mu >= 1" in printed
    assert "the last iterate: mu >= 0." in printed and "An audit of this size finds" in printed
    page = (tmp_path / "a" / "audit.html").read_text()
    assert "the last iterate: mu" in page
    status, printed, _ = run(capsys, *command, tmp_path / "a", "--json")
    bounds = json.loads(printed)["bounds"]
    assert bounds["likelihood"]["value"] > bounds["last iterate"]["value"] >= 0


def test_a_complex_score_is_refused_and_not_cut():
    for score in (np.complex128(1 + 2j), np.array(1j), {"a": np.complex64(1)}, 1j):
        with pytest.raises(TypeError):
            workers._numbers(score)
    assert workers._numbers({"a": np.float32(1), "b": True}) == {"a": 1.0, "b": 1.0}
