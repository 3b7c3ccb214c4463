"""The digest of code covers what is imported, and nothing that cannot change a result."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hiddenstate
from hiddenstate import code, papers
from hiddenstate.pipeline.family import late
from hiddenstate.study import config

ROOT = Path(__file__).parents[1]

MODULE = "hiddenstate.papers.encoding_loss.estimates"


def forget():
    for cached in (code._parsed, code._read, code.digest_of):
        cached.cache_clear()


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the package's sources that may be edited."""
    root = tmp_path / "hiddenstate"
    shutil.copytree(Path(hiddenstate.__file__).parent, root, dirs_exist_ok=True)
    monkeypatch.setattr(code, "_ROOT", root)
    forget()
    yield root
    forget()


def after(root, file, old, new):
    path = root / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    forget()
    return code.digest(MODULE)


def test_the_locale_does_not_count():
    script = f"from hiddenstate import code; print(code.digest({MODULE!r}))"
    places = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    # Without `site`, which cannot read the path of this tree in such a locale if it is not ASCII.
    places["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-S", "-c", script]
    done = subprocess.run(command, env=os.environ | places, capture_output=True, text=True)
    assert done.stdout.strip() == code.digest(MODULE), done.stderr


def test_comments_docstrings_and_layout_do_not_count(copy):
    before = code.digest(MODULE)
    assert after(copy, "auditing/rules.py", "\n\n\n", "\n\n\n# A remark.\n\n") == before
    edited = after(copy, "papers/encoding_loss/estimates.py", '"""', '"""Edited. ')
    assert edited == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("papers/encoding_loss/estimates.py", "0.01", "0.02"),
        # Imported by what it imports.
        ("auditing/intervals.py", "def ", "def _other():\n    return 1\n\n\ndef "),
        ("accounting/tradeoff.py", "import ", "import math as _m\nimport "),
    ],
)
def test_code_that_is_imported_counts(copy, file, old, new):
    before = code.digest(MODULE)
    assert after(copy, file, old, new) != before


def follows(file, root, change="OTHER = 1\n"):
    """Whether a work that its package imports late changes with a file."""
    run = late("papers.gradient_crafting.training.follow")
    before = code.digest_of(run)
    path = root / file
    path.write_text(path.read_text() + change)
    forget()
    return code.digest_of(run) != before


def test_a_work_follows_the_code_that_it_imports_late(copy):
    assert follows("papers/gradient_crafting/training.py", copy)
    assert follows("dpsgd/mechanism.py", copy)
    assert not follows("papers/gradient_crafting/figures/housing.py", copy)
    assert not follows("papers/gradient_crafting/__init__.py", copy)
    assert not follows("papers/gradient_crafting/training.py", copy, "# A remark.\n")


def test_what_judges_draws_and_counts_results_is_not_of_their_code(copy):
    """Nor does it matter how a package hands on what others of its modules define."""
    grid = config.read(ROOT / "workflow/config/scales/smoke.yaml")
    every = [
        job
        for name in papers.names()
        for jobs in papers.load(name).jobs(getattr(grid, name)).values()
        for job in jobs.values()
        if "code" in job.identity
    ]
    before = [job.identity for job in every]
    for file in ("evidence.py", "costs.py", "family.py", "cache.py"):
        path = copy / "pipeline" / file
        path.write_text(path.read_text() + "OTHER = 1\n")
    for path in (*copy.glob("papers/*/figures*/*.py"), *copy.glob("papers/*/costs.py")):
        path.write_text(path.read_text() + "OTHER = 1\n")
    plots = copy / "plotting.py"
    plots.write_text(plots.read_text() + "OTHER = 1\n")
    handed_on = copy / "auditing/__init__.py"
    handed_on.write_text(handed_on.read_text() + "from hiddenstate.auditing import planning\n")
    forget()
    assert len(every) > 50 and [job.identity for job in every] == before


@pytest.mark.parametrize(
    "change",
    [
        "lower_bound = functools.partial(lower_bound, alpha=0.1)\n",
        "def divergence():\n    pass\n",
        "from hiddenstate.auditing.sequential import lower_bound\n",
    ],
    ids=["changes it", "defines", "takes it from elsewhere"],
)
def test_a_package_that_does_more_than_hand_on_counts(copy, change):
    before = code.digest(MODULE)
    assert after(copy, "auditing/__init__.py", "__all__", f"{change}\n__all__") != before


def test_a_table_beside_a_module_that_names_it_counts(copy):
    before = code.digest("hiddenstate.atlas.trained")
    table = copy / "atlas/trained.csv"
    table.write_text(table.read_text().replace("5000", "5001"))
    assert code.digest("hiddenstate.atlas.trained") != before


@pytest.mark.parametrize(
    ("module", "beside"),
    [("hiddenstate.study.page", "page.html"), ("hiddenstate.study.claims", "levels.json")],
)
def test_a_page_or_a_list_beside_a_module_that_names_it_counts(copy, module, beside):
    before = code.digest(module)
    path = copy / "study" / beside
    path.write_text(path.read_text() + " ")
    assert code.digest(module) != before


@pytest.mark.parametrize(
    ("module", "header"), [("tiny", "tiny.h"), ("tiny", "vectors.h"), ("native", "winograd.h")]
)
def test_a_header_of_the_native_code_counts(copy, module, header):
    before = code.digest(f"hiddenstate.dpsgd.kernels.{module}")
    path = copy / "dpsgd/native" / header
    path.write_text(path.read_text() + "/* another */\n")
    assert code.digest(f"hiddenstate.dpsgd.kernels.{module}") != before


def test_only_what_takes_seconds_follows_its_code():
    grid = config.read(ROOT / "workflow/config/scales/smoke.yaml")
    for name in papers.names():
        for kind, jobs in papers.load(name).jobs(getattr(grid, name)).items():
            for job in jobs.values():
                assert ("code" in job.identity) == (kind in ("simulate", "bound"))
                assert ("revision" in job.identity) == (kind in ("start", "train"))


@pytest.mark.parametrize(
    "file", ["papers/encoding_loss/figures.py", "papers/estimators/estimates.py", "plotting.py"]
)
def test_code_that_is_not_imported_does_not_count(copy, file):
    before = code.digest(MODULE)
    assert after(copy, file, "import ", "import math as _m\nimport ") == before


@pytest.mark.whole
def test_no_import_that_runs_is_overlooked_wherever_it_stands():
    for path in Path(hiddenstate.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            # Never run.
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
        everywhere = [node for node in ast.walk(tree) if isinstance(node, kinds)]
        statements = [node for node in code.statements(tree) if isinstance(node, kinds)]
        assert sorted(map(ast.dump, statements)) == sorted(map(ast.dump, everywhere)), path


def test_what_a_function_does_is_its_essence_and_no_docstring_or_place():
    def compiled(source):
        space = {}
        exec(compile(source, source, "exec"), space)
        return code.essence(space["f"].__code__)

    plain = compiled('def f(x):\n    "One."\n    return x + 1')
    assert plain == compiled('\n\ndef f(x):\n    "Other."\n    # A remark.\n    return x + 1')
    assert plain != compiled('def f(x):\n    "One."\n    return x + 2')
    # A text that is first in a comprehension or used by the code is no docstring.
    for source in ("def f(x):\n    return {'%s' for _ in x}", "def f(x):\n    return x['%s']"):
        assert compiled(source % "a") != compiled(source % "b")
    # So is what a function catches, where it does.
    calls = "def f(x, y):\n%s    except OSError:\n        y()"
    one = compiled(calls % "    try:\n        x()\n        y()\n")
    assert one != compiled(calls % "    x()\n    try:\n        y()\n")


@pytest.mark.whole
def test_digests_are_the_same_in_every_version_of_python_that_is_here(copy):
    script = (
        "import sys, types; from pathlib import Path; root = Path(sys.argv[1]); "
        "package = types.ModuleType('hiddenstate'); package.__path__ = [str(root)]; "
        "package.__file__ = str(root / '__init__.py'); sys.modules['hiddenstate'] = package; "
        "from hiddenstate import code; code._KEPT = root / 'none/here'; "
        f"print(code.digest({MODULE!r}))"
    )
    others = [p for v in ("3.11", "3.12", "3.13") if (p := shutil.which(f"python{v}"))]
    for python in [sys.executable, *others]:
        done = subprocess.run([python, "-c", script, copy], capture_output=True, text=True)
        # A shim of a version that is not installed says so.
        if python == sys.executable or not done.returncode:
            assert done.stdout.strip() == code.digest(MODULE), (python, done.stderr)


@pytest.mark.whole
def test_kept_digests_are_of_the_content_and_not_of_the_file(copy, monkeypatch):
    monkeypatch.setattr(code, "_KEPT", copy / "digests.json")
    code._kept.cache_clear()
    before = code.digest(MODULE)
    assert len(code._kept()) > 10 and (copy / "digests.json").exists()
    code._kept.cache_clear()
    forget()
    monkeypatch.setattr(code, "_said", lambda tree: "not asked for")
    assert code.digest(MODULE) == before
    assert after(copy, "papers/encoding_loss/estimates.py", "0.01", "0.02") != before
    code._kept.cache_clear()
