import importlib
import inspect
import os
import pkgutil
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import ROOT, SMOKE, parsers, run

import hiddenstate
from hiddenstate import cli, commands
from hiddenstate.commands import options
from hiddenstate.study import config

COMMANDS = parsers()
PEOPLES = [name for name in COMMANDS if not name.startswith("job ")]
JOBS = [name.removeprefix("job ") for name in COMMANDS if name not in PEOPLES]


def listed(*words, capsys):
    """Names and titles that a help lists, of which options are no names."""
    _, out, _ = run(capsys, *words, "--help")
    titles = re.findall(r"^(.*):$", out, flags=re.MULTILINE)
    return re.findall(r"^  ([a-z][\w-]+) ", out, flags=re.MULTILINE), titles


def test_every_function_whose_docstring_states_options_is_a_command():
    """It is listed once, or a user never finds it."""
    modules = [
        importlib.import_module(f"{commands.__name__}.{module.name}")
        for module in pkgutil.iter_modules(commands.__path__)
        if module.name != "comparing"  # it imports torch
    ]
    stated = [
        function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if list(inspect.signature(function).parameters) == ["options"] and name[0] != "_"
        if function.__module__ == module.__name__ and "\n\n" in (function.__doc__ or "")
    ]
    listed = [run for group in (*cli.GROUPS.values(), cli.JOBS) for run in group.values()]
    assert len(stated) > 30 and sorted(stated, key=id) == sorted(listed, key=id)


def test_the_help_lists_commands_in_two_groups_and_jobs_in_one_line(capsys):
    names, titles = listed(capsys=capsys)
    assert names == [*PEOPLES, "job"]
    assert titles == ["options", *cli.GROUPS, "The workflow"] and len(cli.GROUPS) == 2
    assert listed("job", capsys=capsys) == (JOBS, ["options", "Jobs"])


def test_the_rules_call_jobs_and_every_job_is_called():
    """A person starts `plan` alone, and `gather` after a run in parts."""
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    rules = rules.replace("{params.kind:q}", "simulate") + '"hiddenstate job bound'
    called = set(re.findall(r'"hiddenstate ((?:job )?\w+)', rules))
    assert called - {"plan"} == {f"job {job}" for job in JOBS if job != "gather"}


@pytest.mark.parametrize("job", JOBS)
def test_the_spelling_of_version_0_4_means_the_job(job, capsys):
    assert run(capsys, job, "--help") == run(capsys, "job", job, "--help")


def test_the_package_runs_as_a_module(capsys):
    done = subprocess.run(
        [sys.executable, "-m", "hiddenstate", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{hiddenstate.__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_explains_itself(capsys, name):
    status, out, _ = run(capsys, *name.split(), "--help")
    assert status == 0
    options = re.findall(r"^  (?:-h, )?(--[\w-]+|\w+)(?:[ ,].*)?$", out, flags=re.MULTILINE)
    assert len(options) >= 1
    summary = out.split("\n\n")[1]
    assert re.fullmatch(r"[A-Z].* .*\.", summary, flags=re.DOTALL), "no summary sentence"


TEXT = """
    scores FILE: path | numbers, one a line; the help
        goes on
    --noise-multiplier, --sigma NUMBER: float! | noise
    --beyond LOW HIGH: float2 | two ends
    --fpr RATE: float+ = 0.01 0.1 | rates (default 0.01 0.1)
    --curve: str(dp,gdp) = dp | meaning (default dp)
    --ignore COLUMN: str+ = | columns
    either --check: flag | check alone
    or --no-check: flag | audit without the check
    CELL
"""


def read(*words):
    parser = cli._Parser()
    options.add_options(parser, TEXT)
    return vars(parser.parse_args(["s.csv", "--cell", "c", *words]))


def test_options_are_what_their_text_says(capsys):
    assert read("--sigma", "2") == {
        **{"scores": Path("s.csv"), "noise_multiplier": 2.0, "beyond": None, "fpr": [0.01, 0.1]},
        **{"curve": "dp", "ignore": [], "check": False, "no_check": False, "cell": "c"},
    }
    given = read("--sigma", "2", "--beyond", "0", "1", "--fpr", "0.5", "--curve", "gdp", "--check")
    assert (given["beyond"], given["fpr"]) == ([0.0, 1.0], [0.5])
    assert (given["curve"], given["check"]) == ("gdp", True)
    for words, message in (
        ([], "missing --noise-multiplier/--sigma"),
        (["--sigma", "x"], "--noise-multiplier/--sigma: got 'x'; expected a number"),
        (["--sigma", "2", "--curve", "rdp"], "--curve: got 'rdp'; expected one of 'dp', 'gdp'"),
        (["--sigma", "2", "--check", "--no-check"], "not allowed with argument --check"),
    ):
        with pytest.raises(SystemExit):
            read(*words)
        assert message in capsys.readouterr().err


WORDS = {
    "import-features": "the size of a file and its digest",
    "schema": "JSON in any case",
    "new-paper": "what to do next",
}
"""What commands print that print no numbers."""


def prints(run):
    """Whether a command prints: in its module, or in its function if it shares the module."""
    alone = run.__name__ == "run"
    code = inspect.getsource(sys.modules[run.__module__] if alone else run)
    return re.search(r"\b_?print\w*\(", code) is not None


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_prints_numbers_prints_them_as_json_too(name):
    parser = COMMANDS[name]
    printing = prints(parser.get_default("run")) and name not in WORDS
    assert printing == ("--json" in parser._option_string_actions)


def test_printing_is_seen():
    printing = {name for name, parser in COMMANDS.items() if prints(parser.get_default("run"))}
    jobs = {"job verify", "job collect"}
    assert set(WORDS) | {"epsilon", "audit", "digest", "plan"} | jobs <= printing
    silent = {f"job {job}" for job in ("train", "figures", "report", "restore")}
    assert not printing & {*silent, "gallery"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["simulate", "nonesuch", "--config", SMOKE, "--cell", "x", "--out", "o"], "encoding_loss"),
        (
            ["simulate", "encoding_loss", "--config", "none.yaml", "--cell", "x", "--out", "o"],
            "none.yaml: no such file",
        ),
        (
            ["simulate", "encoding_loss", "--config", SMOKE, "--cell", "x", "--out", "o"],
            "no cell 'x' to simulate; expected one of",
        ),
        (
            ["bound", "encoding_loss", "--config", SMOKE, "--cell", "x", "y", "--out", "o"],
            "--out: got 1 files for 2 cells; expected one for each cell",
        ),
        (
            ["figures", "encoding_loss", "f9", "--config", SMOKE, "--estimates", "e", "--out", "o"],
            "unknown encoding_loss figure 'f9'; expected one of figure1",
        ),
        (
            ["figures", "encoding_loss", "--config", SMOKE, "--estimates", "e.csv", "--out", "o"],
            "e.csv: no such file",
        ),
        (["digest", "none.parquet"], "none.parquet: no such file"),
        (
            ["collect", "c.csv", "--config", SMOKE, "--out", "o"],
            "c.csv: no such file; expected verdicts written by `hiddenstate job claims`",
        ),
        (
            ["verdicts", "c.csv", "--config", SMOKE],
            "c.csv: no such file; expected verdicts written by `hiddenstate job claims`",
        ),
    ],
)
def test_bad_input_gets_one_clear_message(capsys, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert err.startswith("hiddenstate: error: ")
    assert expected in err
    assert list(tmp_path.iterdir()) == []


def test_no_command_loads_torch():
    code = "import sys, hiddenstate.cli, hiddenstate.plotting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_help_loads_neither_tables_nor_scale_files():
    code = "import sys; from hiddenstate import cli; cli.parser(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"pandas", "pydantic", "yaml"} & set(run.stdout.split())


COSTLY = {"torch", "sklearn", "matplotlib", "scipy.stats", "scipy.optimize", "dp_accounting"}


@pytest.mark.whole
def test_a_job_loads_what_it_needs_and_no_more():
    """Hundreds of jobs load a family, each of these takes them up to a second."""
    code = "import sys, hiddenstate.cli\nfrom hiddenstate import papers\n"
    code += "for name in papers.names(): papers.load(name)\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not COSTLY & set(run.stdout.split())


def test_an_interrupted_command_says_so_in_a_line(capsys, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    interrupt.__doc__ = cli.digest.schema.__doc__
    monkeypatch.setitem(cli.GROUPS["The papers and their runs"], "schema", interrupt)
    assert run(capsys, "schema") == (130, "", "hiddenstate: interrupted\n")


WAITING = """
import sys, time
from hiddenstate import cli
schema = lambda options: (print("on", flush=True), time.sleep(60))
schema.__doc__ = cli.digest.schema.__doc__
cli.GROUPS["The papers and their runs"]["schema"] = schema
sys.exit(cli.main(["schema"]))
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_job_ends_with_the_driver_of_its_run(ignored):
    """At once, also of a run that a script started in the background: it ignores SIGINT."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None
    try:
        ends_with_its_driver()
    finally:
        if ignored:
            signal.signal(signal.SIGINT, handler)


def ends_with_its_driver():
    with subprocess.Popen(["sleep", "60"]) as driver:
        environment = os.environ | {"HIDDENSTATE_DRIVER": str(driver.pid)}
        command = [sys.executable, "-c", WAITING]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as job:
            assert job.stdout.readline() == "on\n"
            assert job.poll() is None
            driver.kill()
            killed = time.monotonic()
            assert job.wait(timeout=30) == 130
            # Not by the deadline of one that does not listen.
            assert time.monotonic() - killed < 9
            assert job.stderr.read() == "hiddenstate: interrupted\n"


def test_training_without_its_libraries_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    family, grid, _ = config.section(SMOKE, "gradient_crafting")
    cell = next(iter(family.jobs(grid)["train"]))
    arguments = ("train", "gradient_crafting", "--config", SMOKE, "--cell", cell, "--out", tmp_path)
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert err == (
        "hiddenstate: error: this needs torch, which is not installed; "
        "pip install 'hiddenstate[train]'\n"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("epsilon --steps 1e3", "--steps: got '1e3'; expected a whole number"),
        ("epsilon --delta small", "--delta: got 'small'; expected a number"),
        ("epsilon --sampler none", "--sampler: got 'none'; expected one of 'poisson', "),
        ("epsilon --delta", "--delta: expected one argument"),
        ("plan-audit --claim 8", "missing --true"),
        ("audit scores.csv", "missing --delta"),
        ("audit scores.csv --delta 1 --nois 2 3", "unrecognized arguments: 3"),
        ("nonsense", "COMMAND: got 'nonsense'; expected one of "),
        ("job nonsense", "JOB: got 'nonsense'; expected one of "),
    ],
)
def test_a_line_that_cannot_be_read_is_answered_in_one_line(line, said, capsys):
    """The option, what was given and what is expected; no usage, no Python type."""
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    err = capsys.readouterr().err
    assert ended.value.code == 2 and err.count("\n") == 1
    assert err.startswith(f"hiddenstate: error: {said}") and err.endswith(" --help\n")
    assert " int " not in err and "float" not in err


@pytest.fixture
def shell(tmp_path):
    """Run a command with redirections of a shell's; its status, output and errors."""
    rows = [f"{world},{world == 'in':d}.{i:02}" for world in ("in", "out") for i in range(50)]
    (tmp_path / "scores.csv").write_text("\n".join(["world,score", *rows, ""]))

    def run(command, **environment):
        done = subprocess.run(
            ["sh", "-c", f'"{sys.executable}" -m hiddenstate {command}'],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.whole
def test_closed_streams_change_no_verdict(shell):
    """Status 1 is that of a refuted claim; it was that of a closed output."""
    audit = "audit scores.csv --delta 1e-5 --claim"
    for streams in (">&-", "2>&-", "<&- >&- 2>&-"):
        assert shell(f"{audit} 100 {streams}")[0] == 0, streams
        assert shell(f"{audit} 0.01 {streams}")[0] == 1, streams
    status, out, _ = shell("audit nowhere.csv --delta 1e-5 2>&-")
    assert (status, out) == (2, "")


@pytest.mark.whole
def test_a_file_written_with_closed_streams_holds_nothing_else(shell, tmp_path):
    """Of a closed stream the next file that is opened gets the number."""
    audit = "audit scores.csv --delta 1e-5 --coins 1 --figure"
    assert shell(f"{audit} a.pdf")[0] == 0
    assert shell(f"{audit} b.pdf <&- >&- 2>&-")[0] == 0
    assert (tmp_path / "b.pdf").read_bytes() == (tmp_path / "a.pdf").read_bytes()


@pytest.mark.whole
def test_processes_of_a_campaign_have_streams_where_it_has_none(shell, tmp_path):
    (tmp_path / "train.py").write_text(
        "def train(world, seed):\n    print(seed)\n    return seed\n"
    )
    campaign = "audit-training train.py --claim 1 --delta 1e-5 --models 2 --no-check"
    assert shell(f"{campaign} <&- >&- 2>&-")[0] == 0


@pytest.mark.whole
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_is_told_in_one_line(shell):
    status, _, err = shell("audit scores.csv --delta 1e-5 >/dev/full")
    assert status == cli.FAILED
    assert err == (
        "hiddenstate: error: the output, or a temporary file: cannot be written: "
        "No space left on device\n"
    )


@pytest.mark.whole
def test_letters_that_the_output_lacks_are_escaped(shell):
    epsilon = "epsilon --noise-multiplier 1 --sampling-rate 0.01 --steps 9 --delta 1e-5"
    for words, said in ((epsilon, "R\\xe9nyi"), (f"{epsilon} --help", "H\\xf6lder")):
        status, out, err = shell(words, PYTHONIOENCODING="ascii")
        assert (status, err) == (0, "") and said in out


def test_words_that_are_no_text_are_refused_before_any_work(capsys, tmp_path):
    """Files of results hold texts in UTF-8; an audit failed after its last training."""
    name = os.fsdecode(b"non\xff")
    for words in (["epsilon", "--delta", name], ["audit-training", "t.py", f"--out={name}"]):
        status, _, err = run(capsys, *words)
        said = f"got {words[-1]!r}; expected text in UTF-8; see hiddenstate --help"
        assert (status, err) == (2, f"hiddenstate: error: {said}\n")
