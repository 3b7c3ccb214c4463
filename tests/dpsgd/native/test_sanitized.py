"""Native code under AddressSanitizer and UndefinedBehaviorSanitizer, over shapes at the edges.

A library is not loaded here but a program of its own is run, for Python would have to be started
with the sanitizer. What it reads and writes lies in blocks of exactly its size, and between all
members of a record's working memory lie guards that no access may touch.
"""

import functools
import re
import subprocess

import numpy as np
import pytest
import torch
from oracle import clipped, explicit, problem
from torch import nn

from hiddenstate import models
from hiddenstate.dpsgd.clipping import flat_parameters
from hiddenstate.dpsgd.kernels import tiny
from hiddenstate.dpsgd.native import compiling
from hiddenstate.dpsgd.native.network import as_network
from hiddenstate.dpsgd.native.source import c_source

SANITIZED = "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"
HEADERS = sorted(compiling.HEADERS.glob("*.h"))
NARROW = {"-march=haswell": 8, "-march=x86-64": 8}
"""Instruction sets besides the processor's own, and lanes of their vectors."""
READ = """
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
static int64_t number(FILE *f) {
  int64_t n;
  if (fread(&n, sizeof n, 1, f) != 1) exit(2);
  return n;
}
static void *block(FILE *f) {
  const int64_t bytes = number(f);
  void *p = malloc(bytes);
  if (fread(p, 1, bytes, f) != (size_t)bytes) exit(2);
  return p;
}
"""
SUMS = """
int main(int argc, char **argv) {{
  FILE *f = fopen(argv[1], "rb");
  const int64_t n = number(f), sums = number(f);
  const float *w = block(f), *x = block(f), *clip = block(f);
  const int64_t *labels = block(f), *indices = block(f);
  float *sum = calloc(sums, 4), *norms = malloc(4 * n), *losses = malloc(4 * n);
  Scratch *s = aligned_alloc(64, scratch_bytes());
  memset(s, 0, scratch_bytes());
  for (size_t r = 0; r < scratch_bytes() / sizeof(Scratch); r++) {{
  {guards}
  }}
  /* Twice: what is zero around images must be so again. */
  for (int again = 0; again < 2; again++) {{
    for (int64_t i = 0; i < sums; i++) sum[i] = 0;
    if (clipped_sum(w, x, labels, n, indices, n, *clip, sum, norms, losses, s)) return 3;
  }}
  f = fopen(argv[2], "wb");
  fwrite(sum, 4, sums, f);
  fwrite(norms, 4, n, f);
  return fclose(f);
}}
"""
TRAINING = """
int main(int argc, char **argv) {
  FILE *f = fopen(argv[1], "rb");
  const int64_t steps = number(f), p = number(f);
  const float *x = block(f), *added = block(f), *settings = block(f);
  const int64_t *labels = block(f), *indices = block(f), *ends = block(f);
  float *w = block(f), *moved = calloc(2 * p, 4);
  train(x, labels, indices, ends, added, w, moved, steps, settings[0], settings[1]);
  f = fopen(argv[2], "wb");
  fwrite(w, 4, p, f);
  return fclose(f);
}
"""


def flat(*layers: nn.Module, image: tuple[int, ...], classes: int = 4) -> nn.Module:
    """The layers, and a linear one behind them."""
    body = nn.Sequential(*layers, nn.Flatten())
    features = body(torch.zeros(1, *image)).shape[1]
    return nn.Sequential(*body, nn.Linear(features, classes))


def shape(*layers: nn.Module, image: tuple[int, ...], classes: int = 4):
    return functools.partial(flat, *layers, image=image, classes=classes), image, classes


SHAPES = {
    "1 x 1 images": shape(nn.Conv2d(3, 5, 1), nn.Tanh(), image=(3, 1, 1)),
    "1 x 1 images, 3 x 3 taps": shape(nn.Conv2d(16, 5, 3, padding=1), nn.ReLU(), image=(16, 1, 1)),
    "one class": shape(nn.Conv2d(1, 16, 3), nn.Tanh(), image=(1, 5, 5), classes=1),
    "one feature": (lambda: nn.Sequential(nn.Linear(1, 3)), (1,), 3),
    "prime sizes": shape(
        nn.Conv2d(3, 17, (3, 2)), nn.Tanh(), nn.Conv2d(17, 19, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(19, 23, 2), nn.Tanh(), image=(3, 13, 11), classes=7,
    ),
    "15 columns of taps": shape(
        nn.Conv2d(1, 16, (2, 15)), nn.MaxPool2d(2), nn.Tanh(), nn.Conv2d(16, 16, (1, 15)),
        nn.MaxPool2d(2), nn.Tanh(), image=(1, 9, 61),
    ),
    "stride 3": shape(
        nn.Conv2d(2, 16, 4, stride=3, padding=1), nn.Tanh(), nn.Conv2d(16, 20, 2, stride=3),
        image=(2, 17, 16),
    ),
    "5 x 1 taps of stride 1 x 3": shape(
        nn.Conv2d(16, 18, (5, 1), stride=(1, 3)), nn.ReLU(), nn.Conv2d(18, 5, (1, 2)),
        image=(16, 7, 10),
    ),
    "Winograd, 3 x 3 taps, odd": shape(
        nn.Conv2d(3, 16, 1), nn.Conv2d(16, 33, 3, padding=1), nn.Tanh(), nn.Conv2d(33, 16, 3),
        image=(3, 11, 13),
    ),
    "Winograd, 3 x 3 taps, pooled": shape(
        nn.Conv2d(3, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 48, 3, padding=1), nn.MaxPool2d(2),
        nn.Tanh(), nn.Conv2d(48, 16, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2), image=(3, 18, 14),
    ),
    "Winograd, 4 x 4 taps, odd": shape(
        nn.Conv2d(1, 16, 1), nn.Conv2d(16, 16, 4, padding=1), nn.Tanh(), nn.Conv2d(16, 32, 4),
        image=(1, 12, 11),
    ),
    "Winograd, 4 x 4 taps, pooled": shape(
        nn.Conv2d(1, 16, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 4, padding=1),
        nn.Tanh(), nn.MaxPool2d(2), image=(1, 23, 21),
    ),
    "residual": shape(
        nn.Conv2d(1, 6, 3, padding=1), models.ResidualBlock(6, 20, 2, groups=2, first="norm"),
        models.ResidualBlock(20, 20, 1, groups=5, first="conv"), image=(1, 9, 7),
    ),
    "gates": shape(
        nn.Conv2d(1, 20, 3, padding=1), nn.GELU(), nn.Conv2d(20, 6, 3, padding=1), nn.MaxPool2d(2),
        nn.SiLU(), nn.Flatten(), nn.GELU(approximate="tanh"), nn.Linear(6 * 12, 9), nn.GELU(),
        image=(1, 9, 7),
    ),
    "average": shape(
        nn.Conv2d(1, 20, 3), nn.AvgPool2d(3, 2), nn.Tanh(), nn.Conv2d(20, 10, 1),
        nn.AvgPool2d((1, 2), (2, 1)), nn.AdaptiveAvgPool2d((1, None)), image=(1, 12, 13),
    ),
    "wide": (
        lambda: nn.Sequential(nn.Linear(301, 260), nn.Tanh(), nn.Linear(260, 37)), (301,), 37,
    ),
    "records together": shape(
        nn.Conv2d(3, 16, 1), nn.Tanh(), nn.Conv2d(16, 128, 3, padding=1), nn.Tanh(),
        nn.Conv2d(128, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(384, 200), image=(3, 8, 7),
    ),
    "few channels, pooled": shape(
        nn.Conv2d(2, 16, (2, 5), padding=1), nn.MaxPool2d(2), nn.Tanh(), image=(2, 6, 9),
    ),
    "MNIST CNN": (models.mnist_cnn, (1, 28, 28), 10),
}  # fmt: skip
NETWORKS = {"1-2": (1, 2), "8-6-2": (8, 6, 2), "7-5-11-3": (7, 5, 11, 3)}


@pytest.fixture
def run(tmp_path):
    """Runs a program on arrays, and returns the floats that it writes."""

    def run(source: str, flag: str, numbers: list[int], arrays: list, edit=lambda text: text):
        for header in HEADERS:
            (tmp_path / header.name).write_text(edit(header.read_text()))
        (tmp_path / "main.c").write_text(source)
        command = [compiling.compiler(), *SANITIZED, flag, "main.c", "-o", "main", "-lm"]
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        if "sanitizer" in made.stderr or "-lasan" in made.stderr:
            pytest.skip("the compiler has no sanitizers")
        assert not made.returncode, made.stderr
        with (tmp_path / "in").open("wb") as file:
            file.write(np.array(numbers, np.int64).tobytes())
            for array in arrays:
                file.write(np.int64(array.nbytes).tobytes() + array.tobytes())
        # Leaks are not looked for: that needs rights which a container may not have.
        done = subprocess.run(
            ["./main", "in", "out"], cwd=tmp_path, capture_output=True, text=True,
            env={"ASAN_OPTIONS": "detect_leaks=0"},
        )  # fmt: skip
        assert not done.returncode, done.stderr
        return np.fromfile(tmp_path / "out", np.float32)

    return run


def guarded(source: str) -> str:
    """The driver's source with a guard behind each array of Scratch, and a main function."""
    head, body, tail = re.split(r"typedef struct \{|\} Scratch;", source)
    body, scalars = body.rsplit("\n", 2)[0], body.rsplit("\n", 2)[1]
    members = re.findall(r"([\w() ]+) (\w+\[\d+\](?:, \w+\[\d+\])*);", body)
    each = [f"{kind} {name}" for kind, names in members for name in names.split(", ")]
    assert len(each) == body.count("[")
    fields = "".join(f"  {member};\n  char guard{i}[256];\n" for i, member in enumerate(each))
    guards = "\n".join(
        f"  ASAN_POISON_MEMORY_REGION(s[r].guard{i}, 256);" for i in range(len(each))
    )
    whole = f"typedef struct {{\n{fields}{scalars}\n}} Scratch;"
    return f"{head}{whole}{tail}{READ}{SUMS.format(guards=guards)}"


def clipped_sum(run, name: str, flag: str, lanes: int, **edit) -> None:
    """The sum and the norms under the sanitizers are those of float64."""
    make, record, classes = SHAPES[name]
    model, x, y = problem(name, make, record, classes, records=5)
    network = as_network(model, record)
    layouts = [layer.layouts(lanes) for layer in network.layers]
    packed = [
        part
        for layer, (forward, bias, backward, _) in zip(network.layers, layouts, strict=True)
        for part in ((forward, bias, backward) if layer.transposed else (forward, bias))
    ]
    places = np.concatenate([p.ravel() for *_, bias, _, d in layouts for p in (d, bias)])
    gather = np.concatenate([part.ravel() for part in packed])
    theta = flat_parameters(model).numpy()
    gradients = explicit(model, x, y)
    norms = gradients.norm(dim=1).numpy()
    norm = float(np.median(norms)) or 1.0  # one class has no gradient
    arrays = [
        np.concatenate([[np.float32(0)], theta])[gather].astype(np.float32),
        network.prepared(x), np.float32([norm]), y.astype(np.int64), np.arange(5),
    ]  # fmt: skip
    source = guarded(c_source(network))
    found = run(source, flag, [len(x), len(places)], arrays, **edit)
    total = np.zeros(len(theta) + 1, np.float32)
    total[places] = found[: len(places)]
    expected = clipped(gradients, norm).numpy()
    assert np.linalg.norm(total[1:] - expected) <= 5e-6 * np.linalg.norm(expected)
    np.testing.assert_allclose(found[len(places) :], norms, rtol=5e-6)


def instruction_sets() -> dict[str, int]:
    """Flags of those that this processor has, and the lanes of their vectors."""
    if compiling.compiler() is None or compiling.platform.machine() != "x86_64":
        return {}
    has = set(compiling._processor().split())
    own = {"-march=native": 16 if "avx512f" in has else 8}
    return own | {flag: n for flag, n in NARROW.items() if "avx2" in has or "haswell" not in flag}


slow = pytest.mark.slow
sets = pytest.mark.parametrize(
    "flag", instruction_sets() or [pytest.param("", marks=pytest.mark.skip)]
)


@slow
@sets
@pytest.mark.parametrize("name", SHAPES)
def test_clipped_sums_touch_nothing_but_their_own(run, name, flag):
    clipped_sum(run, name, flag, instruction_sets()[flag])


@slow
@sets
@pytest.mark.parametrize("name", NETWORKS)
def test_a_small_networks_training_touches_nothing_but_its_own(run, name, flag):
    network, rng = tiny.Dense(NETWORKS[name]), np.random.default_rng(0)
    x = rng.random((37, network.widths[0]), dtype=np.float32)
    y = rng.integers(network.widths[-1], size=37)
    batches = [rng.permutation(37)[:n] for n in (1, 0, 37, 16, 33)]
    start = network.initial(rng)
    added = rng.normal(size=(5, len(start))).astype(np.float32)
    settings = {"learning_rate": 0.1, "clipping_norm": 0.5}
    trainer = tiny.Trainer(network, x, y, **settings, kernel="numpy")
    expected = trainer.last_iterate(start, batches, added)
    ends = np.cumsum([len(batch) for batch in batches])
    arrays = [x, added, np.float32([0.5, 0.1]), y, np.concatenate(batches), ends, start]
    source = tiny._driver(network) + READ + TRAINING
    found = run(source, flag, [len(batches), len(start)], arrays)
    np.testing.assert_allclose(found, expected, atol=2e-6)


MISTAKES = {
    "writes behind the sum": (
        "MNIST CNN", "i < N; i += LANES) {\n    vec found", "i <= N; i += LANES) {\n    vec found"
    ),
    "writes into the next tensor": (
        "average",
        "store(y + r * y_row + i * C + c, sum * ",
        "store(y + (r + 1) * y_row + i * C + c, sum * ",
    ),
    "transforms a tile too many": (
        "Winograd, 3 x 3 taps, odd", "n * n; k++) store(to", "n * n + 1; k++) store(to"
    ),
    "adds beyond the input's gradient": (
        "Winograd, 4 x 4 taps, odd", "if (k < tile.high + K - 1 &&", "if (k <= tile.high + K &&"
    ),
    "reads behind the record": (
        "MNIST CNN", "row, LANES, windows, x + j", "row, LANES, windows, x + row"
    ),
    "counts beyond 32 bits": (
        "one feature", "for (; i < N; i++) rest",
        "int n = 2147483647 + N;\n  for (; i < N || n > 0; i++) rest",
    ),
}  # fmt: skip


@slow
@pytest.mark.skipif(not instruction_sets(), reason="no C compiler, or another processor")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_code_is_found(run, mistake):
    name, right, wrong = MISTAKES[mistake]
    flag = "-march=native"  # of which all the lines that are changed here are part

    def edit(text: str) -> str:
        return text.replace(right, wrong)

    assert any(right in header.read_text() for header in HEADERS)
    with pytest.raises(AssertionError, match=r"AddressSanitizer|runtime error"):
        clipped_sum(run, name, flag, instruction_sets()[flag], edit=edit)
