"""Every layer that has a book-keeping rule, against each record's gradient in float64."""

import numpy as np
import pytest
import torch
from oracle import clipped, explicit
from torch import nn

from hiddenstate.dpsgd import rules
from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters
from hiddenstate.dpsgd.rules import RULES, EmbeddingRule, Product
from hiddenstate.streams import stream

IMAGE, ROW, VOLUME = (4, 6, 5), (4, 7), (2, 4, 4, 3)
TOKENS = (6,)

LAYERS = {
    "linear": (lambda: nn.Linear(5, 3), IMAGE),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), IMAGE),
    "same": (lambda: nn.Conv2d(4, 6, (2, 3), padding="same", dilation=(1, 2)), IMAGE),
    "valid": (lambda: nn.Conv2d(4, 6, 3, padding="valid"), IMAGE),
    "reflected": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMAGE),
    "circular": (lambda: nn.Conv2d(4, 6, 3, padding=(1, 0), padding_mode="circular"), IMAGE),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), IMAGE),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4, bias=False), IMAGE),
    "two outputs a channel": (lambda: nn.Conv2d(4, 8, (3, 2), groups=4, dilation=(2, 1)), IMAGE),
    "grouped, same": (lambda: nn.Conv2d(4, 4, 2, padding="same", groups=4), IMAGE),
    "sequence": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2), ROW),
    "sequence, same": (lambda: nn.Conv1d(4, 6, 4, padding="same"), ROW),
    "sequence, depthwise": (lambda: nn.Conv1d(4, 4, 3, padding=1, groups=4), ROW),
    "volume": (lambda: nn.Conv3d(2, 3, (2, 3, 2), padding=1, stride=(1, 2, 1)), VOLUME),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        IMAGE,
    ),
    "transposed, dilated": (lambda: nn.ConvTranspose2d(4, 3, (2, 3), dilation=(2, 1)), IMAGE),
    "sequence, transposed": (lambda: nn.ConvTranspose1d(4, 3, 4, stride=3, bias=False), ROW),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "layer norm": (lambda: nn.LayerNorm(IMAGE[1:]), IMAGE),
    "layer norm without bias": (lambda: nn.LayerNorm(5, bias=False), IMAGE),
    "root mean squares": (lambda: nn.RMSNorm((6, 5)), IMAGE),
    "batch norm": (lambda: learned(nn.BatchNorm2d(4)), IMAGE),
    "batch norm of rows": (lambda: learned(nn.BatchNorm1d(4)), ROW),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "instance norm, learned": (
        lambda: learned(nn.InstanceNorm1d(4, affine=True, track_running_stats=True)),
        ROW,
    ),
    "slope": (nn.PReLU, IMAGE),
    "slopes": (lambda: nn.PReLU(4), IMAGE),
    "tokens": (lambda: nn.Embedding(5, 3), TOKENS),
    "padded tokens": (lambda: nn.Embedding(5, 3, padding_idx=1), TOKENS),
}


def learned(norm):
    """In eval mode, with statistics of its own."""
    rng = stream(0, "statistics")
    norm.running_mean.copy_(torch.from_numpy(rng.normal(size=4)))
    norm.running_var.copy_(torch.from_numpy(1 + rng.random(4)))
    return norm.eval()


def network(name: str, first: bool) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    """The layer before a linear one; behind another layer unless it is the first."""
    make, shape = LAYERS[name]
    rng = stream(0, "rules", name)
    layers = [make()]
    embeds = isinstance(layers[0], nn.Embedding)
    if not (first or embeds):
        layers.insert(0, nn.Linear(shape[-1], shape[-1]))
    x = rng.integers(5, size=(7, *shape)) if embeds else rng.normal(size=(7, *shape))
    with torch.no_grad():
        inside = nn.Sequential(*layers)(torch.as_tensor(x if embeds else x.astype(np.float32)))
    model = nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(inside[0].numel(), 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=p.shape) / 3))
    return model.double(), x, rng.integers(3, size=7)


def gradients(model: nn.Module, theta: torch.Tensor, x, y) -> torch.Tensor:
    trained = [p for p in model.parameters() if p.requires_grad]
    nn.utils.vector_to_parameters(theta, trained)
    if np.issubdtype(x.dtype, np.floating):
        return explicit(model, x, y)
    rows = []
    for record, label in zip(torch.as_tensor(x), torch.as_tensor(y), strict=True):
        loss = nn.functional.cross_entropy(model(record[None]), label[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)]))
    return torch.stack(rows)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("first", [True, False])
def test_sums_of_one_model_and_of_three_are_those_of_float64_gradients(name, first):
    model, x, y = network(name, first)
    total = ClippedSum(model, x, y, kernel="torch")
    assert total.kind == "torch"
    theta = flat_parameters(model).clone()
    thetas = torch.stack([theta, 1.2 * theta, -theta])
    expected = [gradients(model, each.clone(), x, y) for each in thetas]
    norm = float(expected[0].norm(dim=1).median())
    expected = torch.stack([clipped(rows, norm) for rows in expected])
    alone = torch.stack([total(each, np.arange(7), norm) for each in thetas])
    together = total.side_by_side(thetas, torch.arange(7), None, norm)
    for found in (alone, together):
        assert bool(((found - expected).norm(dim=1) <= 1e-9 * expected.norm(dim=1)).all())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", ["grouped", "transposed", "layer norm", "batch norm", "same"])
@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_layer_may_have_one_of_its_parameters_frozen(name, frozen):
    model, x, y = network(name, True)
    model[0].get_parameter(frozen).requires_grad_(False)
    total = ClippedSum(model, x, y, kernel="torch")
    assert total.kind == "torch"
    theta = flat_parameters(model).clone()
    expected = clipped(gradients(model, theta.clone(), x, y), 0.5)
    found = total(theta, np.arange(7), 0.5)
    assert (found - expected).norm() <= 1e-9 * expected.norm()


def test_every_type_with_a_rule_is_tested():
    assert {type(make()) for make, _ in LAYERS.values()} | {
        nn.BatchNorm3d, nn.InstanceNorm3d, nn.ConvTranspose3d,  # as in fewer dimensions
        nn.LSTM, nn.GRU, nn.RNN,  # in test_recurrent.py
    } == set(RULES)  # fmt: skip


# Squared norms by products of places, which may cancel


class Centred(nn.Module):
    """A layer whose outputs are centred over their places: gradients by these add up to 0."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.last = layer, nn.Linear(64, 4)

    def forward(self, x):
        h = self.layer(x)
        return self.last((h - h.mean(1, keepdim=True)).tanh().square().mean(1))


@pytest.fixture(params=["read back", "not read back"])
def flags(request, monkeypatch):
    """As on a CPU, and as on an accelerator."""
    if request.param == "not read back":
        monkeypatch.setattr(rules, "_READ_BACK", set())


@pytest.mark.parametrize("offset", [0, 1000, 10000])
def test_squared_norms_that_cancel_are_those_of_the_gradients(offset, flags):
    rng = stream(0, "centred")
    a = torch.from_numpy(offset + rng.normal(size=(1, 6, 8, 64))).float().expand(3, -1, -1, -1)
    g = torch.from_numpy(rng.normal(size=(3, 6, 8, 64)))
    g[:, :4] -= g[:, :4].mean(2, keepdim=True)  # those of the last records do not cancel
    g = g.float()
    expected = (g.double().mT @ a.double()).square().sum((-2, -1))
    found = Product.squared_norms(nn.Linear(64, 64, bias=False), a, g)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


def test_squared_norms_that_do_not_cancel_are_the_sums_of_products_bit_for_bit(flags):
    rng = stream(0, "apart")
    a, g = (torch.from_numpy(rng.normal(size=(3, 6, 8, 64))).float() for _ in range(2))
    found = Product.squared_norms(nn.Linear(64, 64, bias=False), a, g)
    assert torch.equal(found, ((a @ a.mT) * (g @ g.mT)).sum((-2, -1)))


@pytest.mark.parametrize("offset", [0, 1000, 10000])
def test_sums_of_gradients_whose_norms_cancel_are_those_of_a_loop(offset, flags):
    rng = stream(0, "centred")
    x = (offset + rng.normal(size=(12, 8, 64))).astype(np.float32)
    torch.manual_seed(0)
    model = Centred(nn.Linear(64, 64))
    sums = [
        ClippedSum(model, x, np.zeros(12, int), kernel=kernel)(
            flat_parameters(model), np.arange(12), 0.01
        )
        for kernel in ("torch", "explicit")
    ]
    # Both round records and gradients to float32, which alone moves sums by 1e-7 of the offset.
    assert float((sums[0] - sums[1]).norm() / sums[1].norm()) < 1e-6 + 2e-7 * offset


def test_squared_norms_of_embeddings_do_not_cancel(flags):
    rng = stream(0, "tokens")
    a = torch.zeros(1, 2, 4, dtype=torch.int64)
    g = torch.from_numpy(rng.normal(size=(1, 2, 4, 3)))
    g = (1000 * torch.tensor([1, -1, 1, -1])[:, None] * g[:, :, :1] + g).float()
    expected = g.double().sum(2).square().sum(-1)
    found = EmbeddingRule.squared_norms(nn.Embedding(5, 3), a, g)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
