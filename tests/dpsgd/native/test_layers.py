"""The native kernel's layers against float64 gradients, record by record."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from oracle import check, explicit, problem
from torch import nn

from hiddenstate import models
from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters
from hiddenstate.dpsgd.native import compiling
from hiddenstate.dpsgd.native.calls import GROUP
from hiddenstate.dpsgd.native.convolutions import Winograd
from hiddenstate.dpsgd.native.kernel import Kernel, _compiled
from hiddenstate.dpsgd.native.network import as_network
from hiddenstate.dpsgd.native.source import c_source, passes_of
from hiddenstate.errors import InputError

pytestmark = pytest.mark.skipif(compiling.compiler() is None, reason="no C compiler")


class Stems(nn.Module):
    """Two layers read the record, three the first one's output, and nothing has a last linear."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 12, 5, padding=2), nn.Conv2d(3, 12, 1)
        self.side, self.strided = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 5, 2, stride=2)
        self.other = nn.Conv2d(12, 5, (1, 3), stride=(2, 3))

    def forward(self, x):
        h = self.wide(x)
        g = torch.tanh(h) + self.side(h) + self.narrow(x) + h
        return self.strided(g).mean((2, 3)) + self.other(torch.relu(h)).mean((2, 3))


def strided() -> nn.Module:
    """Strides of either side, sizes that they do not divide, rows that no tap reads."""
    return nn.Sequential(
        nn.Conv2d(3, 20, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(20, 24, (3, 2), stride=(1, 2), padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(24, 33, (2, 1), stride=(3, 2)),
        nn.Tanh(),
        nn.Conv2d(33, 7, 1, stride=2),
        nn.Flatten(),
        nn.Linear(7, 4),
    )


def averaged() -> nn.Module:
    """Windows that overlap, that leave places out, that are a whole image."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 3),
        nn.AvgPool2d(3, 2),
        nn.Tanh(),
        nn.Conv2d(20, 10, 1),
        nn.AvgPool2d((1, 2), (2, 1)),
        nn.Conv2d(10, 18, 3, padding=1),
        nn.AdaptiveAvgPool2d((1, None)),
        nn.Tanh(),
        nn.Conv2d(18, 12, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 4),
    )


def normed() -> nn.Module:
    """Few and many channels a group, channels that fill no vector, no gain, a vector."""
    return nn.Sequential(
        nn.Conv2d(2, 18, 3),
        nn.GroupNorm(9, 18),
        nn.ReLU(),
        nn.Conv2d(18, 20, 3, bias=False),
        nn.GroupNorm(20, 20, eps=0.03),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 36, 2),
        nn.GroupNorm(1, 36, affine=False),
        nn.Flatten(),
        nn.ReLU(),
        nn.Linear(36, 10),
        nn.GroupNorm(2, 10),
        nn.Tanh(),
        nn.Linear(10, 4),
    )


def pooled() -> nn.Module:
    """Max-pooling behind an activation and a norm, of an odd side; activations in a row."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 2),
        nn.GroupNorm(4, 16),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Tanh(),
        nn.Linear(16, 4),
        nn.Tanh(),
        nn.Tanh(),
    )


def before() -> nn.Module:
    """Blocks with the norm first."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        models.ResidualBlock(6, 20, 2, groups=2, first="norm"),
        models.ResidualBlock(20, 20, 1, groups=5, first="norm"),
        nn.GroupNorm(4, 20),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(20, 4),
    )


class Tiled(nn.Module):
    """Convolutions by Winograd's algorithm: every padding, pooled or not, inputs of several.

    Their numbers of channels are no multiples of a vector's.
    """

    def __init__(self):
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 32, 1), nn.Conv2d(32, 33, 3, padding=1, bias=False)
        self.second, self.inner = nn.Conv2d(32, 33, 3, padding=1), nn.Conv2d(32, 40, 3)
        self.outer = nn.Conv2d(33, 64, 3, padding=2)
        self.padded, self.bare = nn.Conv2d(33, 40, 3, padding=1), nn.Conv2d(64, 40, 3, bias=False)
        self.last = nn.Linear(40, 5)

    def forward(self, x):
        h = torch.tanh(self.stem(x))
        g = self.first(h) + torch.tanh(self.second(h))
        one = nn.functional.max_pool2d(torch.tanh(self.padded(g)), 2)
        other = nn.functional.max_pool2d(self.bare(torch.tanh(self.outer(g))), 2)
        return self.last(one.mean((2, 3)) + other.mean((2, 3)) + self.inner(h).mean((2, 3)))


def tiled() -> nn.Module:
    """Convolutions by Winograd's algorithm, one of the record itself."""
    return nn.Sequential(
        nn.Conv2d(32, 32, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32 * 63, 4),
    )


def four_taps() -> nn.Module:
    """Tiles of seven points: not pooled, pooled, and with places beyond the image."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 1),
        nn.Tanh(),
        nn.Conv2d(16, 33, 4, padding=2),
        nn.Tanh(),
        nn.Conv2d(33, 40, 4, bias=False),
        nn.MaxPool2d(2),
        nn.Tanh(),
        nn.Conv2d(40, 20, 4, padding=3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(20 * 16, 4),
    )


def stripped() -> nn.Module:
    """A pooled image that the sparse weight gradient takes in unlike strips, by some channels."""
    return nn.Sequential(
        nn.Conv2d(1, 48, 1),
        nn.Tanh(),
        nn.Conv2d(48, 5, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(5 * 11 * 12, 4),
    )


def together() -> nn.Module:
    """Layers with so many weights that a group of records takes them at once."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 1),
        nn.Tanh(),
        nn.Conv2d(16, 128, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(128, 32, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 12, 325),
        nn.Tanh(),
        nn.Linear(325, 5),
    )


NETWORKS = {
    "digits_resnet": (models.digits_resnet, (1, 8, 8), 10),
    "wide_resnet": (lambda: models.wide_resnet(10, 1, classes=4), (3, 9, 8), 4),
    "before": (before, (1, 7, 5), 4),
    "stems": (Stems, (3, 7, 9), 5),
    "strided": (strided, (3, 13, 12), 4),
    "averaged": (averaged, (1, 12, 11), 4),
    "normed": (normed, (2, 9, 9), 4),
    "pooled": (pooled, (1, 8, 7), 4),
    "tiled": (tiled, (32, 7, 9), 4),
    "tiled, odd sides": (Tiled, (3, 17, 19), 5),
    "tiled, even sides": (Tiled, (3, 14, 10), 5),
    "tiled, four taps": (four_taps, (3, 13, 15), 4),
    "few channels, pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 20, (3, 5), padding=2),
            nn.MaxPool2d(2),
            nn.Tanh(),
            nn.Conv2d(20, 33, 2, padding=1),
            nn.MaxPool2d(2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(33 * 9, 4),
        ),
        (2, 8, 11),
        4,
    ),
    "stripped": (stripped, (1, 22, 24), 4),
    "together": (together, (3, 8, 7), 5),
    "channels": (lambda: models.logistic_regression(48, 5), (3, 4, 4), 5),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", NETWORKS)
def test_sums_and_norms_are_those_of_float64_gradients(name):
    model, x, y = problem(name, *NETWORKS[name])
    x, y = steady(model, x, y)
    total = ClippedSum(model, x, y, kernel="native")
    check(total, model, x, y)


def steady(model: nn.Module, x, y):
    """The records whose gradient float32 may not turn: no ReLU or pooling is at its edge."""
    near = explicit(model, x * (1 + 1e-6), y)
    keep = ((explicit(model, x, y) - near).norm(dim=1) <= 1e-4 * near.norm(dim=1)).numpy()
    assert keep.mean() >= 0.75
    return x[keep], y[keep]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-mno-avx512f",), ("-O1", "-mno-avx", "-mno-fma")])
def test_code_for_narrower_vectors_agrees_too(flags, monkeypatch):
    """Compiles, for x86 alone, what machines without AVX-512 would run."""
    if compiling.platform.machine() != "x86_64":
        pytest.skip("flags of another architecture")
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, *flags))
    _compiled.cache_clear()
    for name in NETWORKS:
        test_sums_and_norms_are_those_of_float64_gradients(name)
    _compiled.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("first", ["conv", "norm"])
def test_the_papers_residual_networks_agree_with_float64(first):
    make = models.resnet18 if first == "conv" else models.wide_resnet
    model, x, y = problem(first, make, (3, 32, 32), 10, records=3)
    # Their 200,000 ReLUs leave no record without one at its edge.
    check(ClippedSum(model, x, y, kernel="native"), model, x, y, tolerance=3e-4)


def test_zeros_around_images_stay_zero_from_record_to_record():
    # An image with borders, written by one record and read by the next.
    model, x, y = problem("before", *NETWORKS["before"], records=6)
    total, theta = ClippedSum(model, x, y, kernel="native"), flat_parameters(model)
    alone = sum(total(theta, np.array([i]), 0.5).double() for i in range(6))
    for _ in range(3):
        together = total(theta, np.arange(6), 0.5)
        assert (together - alone).norm() <= 1e-6 * alone.norm()


def test_records_have_the_same_gradients_alone_and_in_a_group():
    """Norms bit for bit, of whole groups and of what is left of nine records."""
    model, x, y = problem("together", *NETWORKS["together"], records=9)
    text = c_source(as_network(model, (3, 8, 7)))
    for name in ("linear", "add_outer", "add_scaled", "winograd_forward", "winograd_back"):
        assert f"{name}({GROUP}, APART" in text
    total, theta = ClippedSum(model, x, y, kernel="native"), flat_parameters(model)
    alone = torch.cat([total.norms(theta, np.array([i])) for i in range(9)])
    assert torch.equal(total.norms(theta, np.arange(9)), alone)
    in_turns = sum(total(theta, np.array([i]), 0.5).double() for i in range(9))
    assert (total(theta, np.arange(9), 0.5) - in_turns).norm() <= 1e-6 * in_turns.norm()


@pytest.mark.parametrize("name", ["digits_resnet", "wide_resnet", "tiled, even sides"])
def test_a_blank_record_has_the_gradient_that_torch_has(name):
    # Without a bias every channel is constant before a norm, whose variance is 0; and with the
    # norm's own bias at 0 every ReLU is at its edge.
    make, shape, classes = NETWORKS[name]
    torch.manual_seed(0)
    model, x, y = make(), np.zeros((1, *shape), np.float32), np.array([classes - 1])
    check(ClippedSum(model, x, y, kernel="native"), model, x, y)


def random_network(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, int, int]]:
    """One to three convolutions of any kind that the kernel knows, and its records' shape."""
    shape = int(rng.choice([1, 2, 3, 5, 16])), *(int(side) for side in rng.integers(7, 25, size=2))
    layers, channels = [], shape[0]
    for _ in range(rng.integers(1, 4)):
        high, wide = (
            nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[2:] if layers else shape[1:]
        )
        square = rng.random() < 0.5  # of which Winograd's algorithm takes many
        kernel = (int(rng.integers(3, 5)),) * 2 if square else tuple(rng.integers(1, 6, 2).tolist())
        padding = int(rng.integers(min(kernel)))
        if min(high, wide) + 2 * padding < max(kernel) + 1:
            break
        outputs = int(rng.choice([3, 16, 17, 32]))
        stride = 1 if square or rng.random() < 0.5 else tuple(rng.integers(1, 3, size=2).tolist())
        conv = nn.Conv2d(channels, outputs, kernel, stride, padding, bias=bool(rng.random() < 0.8))
        pool = [nn.MaxPool2d(2)] if rng.random() < 0.6 else []
        act = [nn.Tanh() if rng.random() < 0.6 else nn.ReLU()] if rng.random() < 0.9 else []
        after = [*pool, *act] if rng.random() < 0.5 else [*act, *pool]
        if min(nn.Sequential(*layers, conv)(torch.zeros(1, *shape)).shape[2:]) < 2:
            break
        layers, channels = [*layers, conv, *after], outputs
    layers = layers or [nn.Conv2d(shape[0], 16, 3), nn.MaxPool2d(2)]
    features = nn.Sequential(*layers, nn.Flatten())(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 4)), shape


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 40))]
)
def test_random_networks_agree_with_float64(seed):
    rng = np.random.default_rng(seed)
    made, shape = random_network(rng)
    model, x, y = problem(f"random {seed}", lambda: made, shape, 4, records=24)
    for record in x[::2]:  # ink in a part of the image
        (top, left), (bottom, right) = rng.integers(4, size=(2, 2))
        record[:, :top] = record[:, :, :left] = 0
        record[:, shape[1] - bottom :] = record[:, :, shape[2] - right :] = 0
    x, y = steady(model, x, y)
    assert as_network(model, shape) is not None
    check(ClippedSum(model, x, y, kernel="native"), model, x, y)


@pytest.mark.parametrize("channels", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_windows_without_ink_are_found(channels):
    """One record for each place of a single pixel, one blank, and one of negative zeros."""
    shape, kernel = (channels, 9, 13), (3, 4)
    body = nn.Conv2d(channels, 5, kernel, padding=1), nn.MaxPool2d(2), nn.Tanh(), nn.Flatten()
    made = nn.Sequential(*body, nn.Linear(5 * 4 * 6, 3))
    model, x, y = problem("ink", lambda: made, shape, 3, records=math.prod(shape) + 2)
    x *= np.eye(len(x), math.prod(shape), dtype=np.float32).reshape(-1, *shape)
    x[-1] = -0.0
    norms = ClippedSum(model, x, y, kernel="native").norms(
        flat_parameters(model), np.arange(len(x))
    )
    np.testing.assert_allclose(norms, explicit(model, x, y).norm(dim=1), rtol=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_number_hides_among_zeros(value):
    """In a pixel, and in a weight that meets zeros alone."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.MaxPool2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)
    )
    known, theta = as_network(model, (1, 8, 8)), flat_parameters(model).numpy().copy()
    x, y = np.zeros((2, 1, 8, 8), np.float32), np.zeros(2, np.int64)
    x[1, 0, 5, 5] = value
    _, norms, losses = Kernel(known, x, y)(theta, np.arange(2), 1.0)
    assert np.isfinite([norms[0], losses[0]]).all()
    assert np.isnan(norms[1]) or np.isinf(norms[1])
    theta[4] = value
    total, norms, losses = Kernel(known, x, y)(theta, np.arange(1), 1.0)
    assert np.isnan(total).any() and np.isnan([norms[0], losses[0]]).all()


MISTAKES = {
    "a group's variance counts padding channels": (
        "normed", "over_groups(CR, SIZE, n, scale);", "over_groups(CR, SIZE, n * C / CR, scale);"),
    "the mean stays in": ("normed", "sum += d * d;", "sum += (d + m) * (d + m);"),
    "eps is left out": ("normed", "sqrtf(scale[c] + eps)", "sqrtf(scale[c])"),
    "no gradient through the deviation": ("before", "- q - u * p)", "- q)"),
    "no gradient through the mean": ("before", "- q - u * p)", "- u * p)"),
    "a second reader's gradient is in place of the first's": (
        "before", "if (add) v += load(p);", ""),
    "a strided convolution starts a row below": (
        "strided", "x + y * R * down, w,", "x + (y * R * down ? y * R * down - row : 0), w,"),
    "an input of Winograd's has another sign": (
        "tiled", "b[5] = d[1] + d[5] - both", "b[5] = d[1] - d[5] - both"),
    "an input of Winograd's is left out where there are seven points": (
        "tiled, four taps", "b[6] = a[1][i] + a[5][i]", "b[6] = a[1][i]"),
    "a value of Winograd's is of another point": (
        "tiled", "odd_near = near * a[1][i];", "odd_near = far * a[1][i];"),
    "a gradient of Winograd's has another sign": (
        "tiled", "odd_far += far * far", "odd_far -= far * far"),
    "a value of Winograd's at the seventh point has another sign": (
        "tiled, four taps", "a[0][i] - a[1][i] + a[2][i]", "a[0][i] + a[1][i] + a[2][i]"),
    "weights of Winograd's are scaled by another point": (
        "tiled, four taps", "/ (K == 3 ? 1 : x + 1)", "/ (K == 3 ? 1 : p + 1)"),
    "an input's gradient of Winograd's has another sign": (
        "tiled", "b[1] = a[5][i] - far * odd_near", "b[1] = a[5][i] + far * odd_near"),
    "an input's gradient of Winograd's lacks the seventh point": (
        "tiled, four taps", "b[3] -= both * a[6][i];", ""),
    "a product of Winograd's does not count for the last of four places": (
        "tiled", "b[n - 1] += a[5][i];", "if (n == 3) b[2] += a[5][i];"),
    "a product of Winograd's does not count for the last of three taps": (
        "tiled", "b[n - 1] += a[5][i];", "if (n == 4) b[3] += a[5][i];"),
    "a product of Winograd's counts otherwise for the last of four taps": (
        "tiled, four taps", "far * far * far * odd_far;", "far * far * odd_far;"),
    "a tile writes into the next row": (
        "tiled", "l >= tile.wide) continue", "l > tile.wide) continue"),
    "a tile writes into the row below the last": (
        "tiled", "(k >= tile.high || l", "(k > tile.high || l"),
    "a tile's gradient lacks its last column": (
        "tiled", "&& l < tile.wide + K - 1)", "&& l < tile.wide)"),
    "a patch of weights that another place won": (
        "few channels, pooled", "(1 - (which >> 1)) * row", "(which >> 1) * row"),
    "a loser's gradient": ("tiled, even sides", "== k % 2 * 2 + l % 2,", "== k % 2 + l % 2 * 2,"),
    "the winners of a strip of windows alone": (
        "stripped", "high, y > 0, y + S >= PH", "high, 0, y + S >= PH"),
    "a norm without the last strip of windows": (
        "stripped", "high, y > 0, y + S >= PH", "high, y > 0, 0"),
    "a norm with what lies behind a row of taps": (
        "few channels, pooled", "pick(lanes < (float)taps, found, splat(0))", "found"),
    "another output channel's winners": (
        "few channels, pooled", "const float *p = x + at[q];", "const float *p = x + at[0];"),
    "the last tiles are forgotten": (
        "tiled, odd sides", "first < tiles; first += S", "first + S <= tiles; first += S"),
    "a mean of another window": ("averaged", "d = load(dy + r * y_row + i * C + c) * (1.0f",
                                 "d = load(dy + r * y_row + i * C + c) * (1.01f"),
}  # fmt: skip


def change_header(monkeypatch, folder, right: str, wrong: str) -> None:
    """Compile with headers in which one line is another, hardly optimised, which is fastest."""
    monkeypatch.setattr(compiling, "_FLAGS", ("-O1", *compiling._FLAGS[1:]))
    headers = {h.name: h.read_text() for h in compiling.HEADERS.glob("*.h")}
    assert any(right in text for text in headers.values())
    for name, text in headers.items():
        (folder / name).write_text(text.replace(right, wrong))
    monkeypatch.setattr(compiling, "HEADERS", folder)


QUICK = (
    "the mean stays in",
    "no gradient through the mean",
    "a strided convolution starts a row below",
    "a gradient of Winograd's has another sign",
    "a mean of another window",
    "a second reader's gradient is in place of the first's",
    "a patch of weights that another place won",
    "the winners of a strip of windows alone",
    "a value of Winograd's at the seventh point has another sign",
)
"""Mistakes of `whole`, of each kind of layer: each is compiled, in seconds."""


@pytest.mark.whole
@pytest.mark.parametrize(
    "mistake",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in MISTAKES],
)
def test_a_wrong_detail_is_seen_and_refused(mistake, monkeypatch, tmp_path):
    name, right, wrong = MISTAKES[mistake]
    change_header(monkeypatch, tmp_path, right, wrong)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _compiled.cache_clear()
    model, x, y = problem(name, *NETWORKS[name], records=9)
    x, y = steady(model, x, y)
    known = as_network(model, x.shape[1:])
    theta, first = flat_parameters(model).numpy(), np.arange(9)[:1]
    found, norms, _ = Kernel(known, x, y)(theta, first, 1e9)
    right = explicit(model, x[:1], y[:1])[0].numpy()
    norm = np.linalg.norm(right)
    assert max(np.linalg.norm(found - right), abs(norms[0] - norm)) > 1e-4 * norm
    _compiled.cache_clear()


@pytest.mark.whole
def test_wrong_native_code_is_refused(monkeypatch, tmp_path):
    change_header(monkeypatch, tmp_path, "- q - u * p)", "- q)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _compiled.cache_clear()
    model, x, y = problem("before", *NETWORKS["before"], records=9)
    with pytest.raises(InputError, match="its gradients of the model are wrong"):
        ClippedSum(model, x, y, kernel="native")
    with pytest.warns(UserWarning, match="its gradients of the model are wrong"):
        assert ClippedSum(model, x, y).kind == "torch"
    _compiled.cache_clear()


def test_sums_of_many_records_round_no_more_than_those_of_few():
    def network():
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))

    model, x, y = problem("long sums", network, (4,), 2, records=9)
    total = ClippedSum(model, x, y, kernel="native")
    theta = flat_parameters(model)
    few, many = (total(theta, np.arange(9).repeat(n), 0.5).double() for n in (1, 20_000))
    assert (many - 20_000 * few).norm() <= 2e-6 * many.norm()


@pytest.mark.parametrize("pooled", [False, True])
def test_what_is_no_number_stays_none_through_layers(pooled):
    """An overflow shows in the sum, as with every other kernel."""
    parts = [nn.Conv2d(1, 3, 3), nn.ReLU(), *[nn.MaxPool2d(2)] * pooled, nn.Flatten()]
    size = 12 if pooled else 48
    model, x, y = problem(
        "overflow", lambda: nn.Sequential(*parts, nn.Linear(size, 2)), (1, 6, 6), 2, records=9
    )
    theta = flat_parameters(model)
    theta[:27] *= 1e38
    for kernel in ("native", "torch"):
        total = ClippedSum(model, torch.as_tensor(x) * 1e3, y, kernel=kernel)
        assert not bool(total(theta, np.arange(1), 1.0).isfinite().all()), kernel


def test_equal_calls_are_compiled_once():
    text = c_source(as_network(models.resnet18(), (3, 32, 32)))
    definitions = re.findall(r"^static NOINLINE .*\{\n(.*)\n\}", text, re.MULTILINE)
    assert len(definitions) == len(set(definitions))
    # Seventeen convolutions of 3 x 3 and three projections, of eleven shapes.
    gradients = "conv_weights", "winograd_gradient"
    assert sum(name in line for line in definitions for name in gradients) == 11
    assert len(re.findall(f"squares \\+= ({'|'.join(gradients)})", text)) == 20


def test_winograds_algorithm_is_taken_for_large_images_alone():
    def taken(name, shape):
        layers = as_network(models.build(name), shape).layers
        return sum(isinstance(layer, Winograd) for layer in layers)

    # All but the first, whose record has few channels.
    assert taken("cifar_cnn", (3, 32, 32)) == 5
    assert taken("mnist_cnn", (1, 28, 28)) == 1
    # Nor in small images.
    assert not any(taken(f"digits_{name}", (1, 8, 8)) for name in ("cnn", "mlp", "resnet"))


def test_layers_that_the_kernel_does_not_know_go_to_torch():
    class Own(nn.GroupNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    def norm(layer):
        return nn.Sequential(nn.Conv2d(2, 4, 3), layer, nn.Flatten(), nn.Linear(64, 3))

    frozen, hooked = nn.GroupNorm(2, 4), nn.GroupNorm(2, 4)
    frozen.bias.requires_grad_(False)
    hooked.register_forward_hook(lambda module, inputs, output: 2 * output)
    known = norm(nn.GroupNorm(2, 4))
    assert as_network(known, (2, 6, 6)) is not None
    others = (Own(2, 4), frozen, hooked, nn.LayerNorm((4, 4, 4)), nn.InstanceNorm2d(4, affine=True))
    for layer in others:
        assert as_network(norm(layer), (2, 6, 6)) is None
    twice = copy.deepcopy(known)
    twice.insert(1, twice[1])
    assert as_network(twice, (2, 6, 6)) is None
    # A record's own channels fill no vector, so that only convolutions and linear layers read it.
    for first in (nn.GroupNorm(1, 2), nn.AvgPool2d(2), nn.ReLU(), nn.MaxPool2d(2)):
        model = nn.Sequential(first, nn.Flatten(), nn.LazyLinear(3))
        model(torch.zeros(1, 2, 6, 6))
        assert as_network(model, (2, 6, 6)) is None
    grouped = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 3))
    assert as_network(grouped, (2, 6, 6)) is None
    # Groups of a flattened image are others than the image's.
    flat = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.GroupNorm(2, 64), nn.Linear(64, 3))
    assert as_network(flat, (2, 6, 6)) is None


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        # Five taps a side, pooled: dense forward, winners alone back. Then 4 tiles of 49 products
        # of 16 x 32 channels both ways, 16 winners of 16 taps, and linear layers of 512 x 32 and
        # 32 x 10.
        (
            "mnist_cnn",
            (1, 28, 28),
            25 * 16 * 24**2 + 25 * 16 * 12**2 + 2 * 4 * 49 * 512 + 16 * 16 * 512 + 3 * 16_704,
        ),
        # A dense 3 x 3 convolution of 8 x 8 places and a linear layer.
        ("small", (2, 8, 8), 2 * 9 * 2 * 4 * 64 + 2 * 256 * 5 + 256 * 5),
    ],
)
def test_layers_state_the_products_that_they_execute(name, shape, expected):
    small = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(256, 5))
    model = small if name == "small" else models.build(name)
    calls = [call for calls in passes_of(as_network(model, shape)) for call in calls]
    assert sum(call.products for call in calls) == expected


@pytest.mark.parametrize("name", ["before", "together"])
def test_guesses_are_those_of_the_model(name):
    """Of records other than those of the sum, alone and in groups, and of models that diverged."""
    model, x, y = problem(name, *NETWORKS[name], records=9)
    total, theta = ClippedSum(model, x[:5], y[:5], kernel="native"), flat_parameters(model)
    classes = model(torch.from_numpy(x)).shape[1]
    for factor in (1.0, 30.0, math.inf):
        moved = theta * factor
        with torch.no_grad():
            nn.utils.vector_to_parameters(moved, model.parameters())
            expected = model(torch.from_numpy(x)).argmax(1)
        assert torch.equal(total.kernel.guesses(moved, torch.from_numpy(x)), expected)
        assert total.accuracy(moved, x, expected.numpy()) == 1
        assert total.accuracy(moved, x, (expected.numpy() + 1) % classes) == 0
    kept = total(theta, np.arange(5), 0.5)
    total.accuracy(theta, x, y)
    assert torch.equal(total(theta, np.arange(5), 0.5), kept)


def test_guesses_of_images_of_another_size_are_the_model_s_own():
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)
    )
    rng = np.random.default_rng(0)
    x, larger = (rng.normal(size=(7, 1, n, n)).astype(np.float32) for n in (8, 11))
    total = ClippedSum(model, x, np.zeros(7, int), kernel="native")
    found = total.kernel.guesses(flat_parameters(model), torch.from_numpy(larger))
    assert torch.equal(found, model(torch.from_numpy(larger)).argmax(1))
