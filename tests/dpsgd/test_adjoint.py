"""Expected audits against finite differences, exact laws, and audits of many models."""

import contextlib
import dataclasses
import itertools
import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from hiddenstate import auditing
from hiddenstate.accounting import gaussian, linear
from hiddenstate.adversaries.canaries import RecordCanary
from hiddenstate.adversaries.gradient_canaries import Coordinate, Inserted, Periodic
from hiddenstate.auditing import GaussianDP, lower_bound
from hiddenstate.auditing.summaries import separation
from hiddenstate.dpsgd.adjoint import Trajectory, expected, hidden, trajectory, vjp
from hiddenstate.dpsgd.clipping import ClippedSum, cross_entropy, flat_parameters
from hiddenstate.dpsgd.ensemble import Ensemble, Run, scores
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.pipeline import scores as score_files
from hiddenstate.sampling import Cyclic, FullBatch, Poisson

STEPS, RECORDS = 12, 20
RNG = np.random.default_rng(3)
X = RNG.normal(size=(RECORDS, 5)).astype(np.float32)
Y = RNG.integers(0, 3, RECORDS)
RECORD = RecordCanary(np.full(5, 1.5, np.float32), 1)


def network(dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def make(canary=RECORD, sigma=1.0, rate=0.2, sampling=None, clipping_norm=0.7, **parts):
    mechanism = Mechanism(
        sampling=sampling or FullBatch(), steps=STEPS, learning_rate=rate,
        clipping_norm=clipping_norm, noise_multiplier=sigma, adjacency="add_or_remove",
        insertions=None if canary.sampled or canary.record is not None else STEPS,
    )  # fmt: skip
    model = parts.get("model", network())
    return Ensemble(model, mechanism, X, Y, canary, flat_parameters(model))


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_the_product_is_the_derivative_of_the_clipped_sum(share):
    model = network(torch.float64)
    gradients = ClippedSum(model, X.astype(float), Y, kernel="explicit")
    theta, chosen = flat_parameters(model), np.array([0, 3, 4, 4, 11, 17])
    norms = gradients.norms(theta, chosen).double().numpy()
    clipping_norm = (
        float(np.quantile(norms, share, method="midpoint")) * [0.9, 1, 1.1][int(2 * share)]
    )
    vector = torch.from_numpy(RNG.normal(size=len(theta)))
    found = vjp(gradients, theta, chosen, clipping_norm, vector)
    for i in RNG.integers(0, len(theta), 8):
        step = torch.zeros_like(theta)
        step[i] = 1e-5
        sums = [gradients(theta + s * step, chosen, clipping_norm) @ vector for s in (1, -1)]
        assert float(found[i]) == pytest.approx(float(sums[0] - sums[1]) / 2e-5, abs=1e-6)


class Recurrent(nn.Module):
    """A model that torch.func does not know."""

    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.GRU(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.cell(x[..., None])[0][:, -1])


class Attentive(nn.Module):
    """A model whose attention torch fuses, and then differentiates once alone."""

    def __init__(self):
        super().__init__()
        self.three, self.last = nn.Linear(1, 6), nn.Linear(2, 3)

    def forward(self, x):
        parts = self.three(x[..., None])[:, None].chunk(3, -1)
        return self.last(nn.functional.scaled_dot_product_attention(*parts)[:, 0].mean(1))


@pytest.mark.whole
@pytest.mark.parametrize("kind", [Recurrent, Attentive])
def test_models_that_torch_differentiates_once_alone_have_a_product(kind):
    torch.manual_seed(0)
    model = kind().double()
    loops = pytest.warns(UserWarning, match="record by record")
    with loops if kind is Recurrent else contextlib.nullcontext():
        gradients = ClippedSum(model, X.astype(float), Y, kernel="explicit")
    compare_with_differences(gradients)


def compare_with_differences(gradients):
    theta, chosen = flat_parameters(gradients.kernel.problem.model), np.arange(4)
    rng = np.random.default_rng(5)
    vector, step = (torch.from_numpy(rng.normal(size=len(theta))) for _ in range(2))
    sums = [gradients(theta + s * step, chosen, 0.5) @ vector for s in (1e-5, -1e-5)]
    found = vjp(gradients, theta, chosen, 0.5, vector) @ step
    assert float(found) == pytest.approx(float(sums[0] - sums[1]) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", ["explicit", "auto"])
def test_norms_that_scale_have_a_product(bias, kernel):
    """torch.func's own is off by a tenth, and all models with a layer norm were refused."""
    torch.manual_seed(0)
    layer = nn.LayerNorm(6, bias=bias)
    instance = nn.InstanceNorm1d(2, affine=True)
    model = nn.Sequential(
        nn.Linear(5, 6), layer, nn.Tanh(), nn.Unflatten(1, (2, 3)), instance, nn.Flatten(),
        nn.Linear(6, 3),
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter in (*layer.parameters(), *instance.parameters()):
            parameter += torch.from_numpy(RNG.normal(size=parameter.shape))
    compare_with_differences(ClippedSum(model, X.astype(float), Y, kernel=kernel))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h.sin()

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("no second derivative")
        return g * ctx.saved_tensors[0].cos()


class Between(nn.Module):
    """Two layers with any function between them."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(5, 8), nn.Linear(8, 3), between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def embedded(**options):
    layers = nn.Embedding(10, 4, **options), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
    return nn.Sequential(*layers)


TOKENS = RNG.integers(0, 10, (RECORDS, 3))


@pytest.mark.filterwarnings("ignore:gradients are computed record by record")
@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (lambda: Between(lambda h: h.tanh() * h.tanh().detach()), X, "by finite differences"),
        (lambda: Between(lambda h: h + (h.round() - h).detach()), X, "by finite differences"),
        (lambda: Between(lambda h: h.relu() * h.detach()), X, "by finite differences"),
        (lambda: embedded(padding_idx=0), TOKENS, "padding_idx 0, which torch forgets"),
        (lambda: Between(Once.apply), X, "torch does not differentiate its gradients"),
    ],
)
def test_a_product_that_is_no_derivative_is_refused(model, x, message):
    torch.manual_seed(0)
    gradients = ClippedSum(model(), x, Y, kernel="explicit")
    theta = flat_parameters(gradients.kernel.problem.model)
    with pytest.raises(InputError, match=message):
        vjp(gradients, theta, np.arange(4), 0.5, torch.ones_like(theta))


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("clipping_norm", [1.0, 1e12, math.inf])
def test_a_product_is_compared_whether_gradients_are_clipped_or_not(clipping_norm, size):
    torch.manual_seed(0)
    model = Between(lambda h: h * (h.detach() ** 2 + 1))
    gradients = ClippedSum(model, X, Y, loss=lambda o, y: size * cross_entropy(o, y))
    theta = flat_parameters(model)
    with pytest.raises(InputError, match="by finite differences"):
        vjp(gradients, theta, np.arange(4), clipping_norm, torch.ones_like(theta))


@pytest.mark.parametrize("clipping_norm", [1.0, 1e12, math.inf])
@pytest.mark.parametrize("fitted", [10, 15, 30])
def test_gradients_that_are_rounding_have_a_product(clipping_norm, fitted):
    """Of records that a model has learnt, whose probabilities are 1 to the last digits."""
    x, y = np.zeros((6, 4), np.float32), np.arange(6) % 2
    x[np.arange(6), np.arange(6) % 4] = np.where(y, 1.0, -1.0)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 4) * fitted)
        model.bias.zero_()
    gradients = ClippedSum(model, x, y)
    theta = flat_parameters(model)
    found = vjp(gradients, theta, np.arange(6), clipping_norm, torch.ones_like(theta))
    assert found.isfinite().all()


class Wrong(torch.autograd.Function):
    """The sine, whose rule for torch.func's vmap alone is wrong."""

    @staticmethod
    def forward(h):
        return h.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()

    @staticmethod
    def vmap(info, in_dims, h):
        return (1.05 * h).sin(), in_dims[0]


def test_a_product_of_other_gradients_than_autograd_s_is_refused():
    """ClippedSum takes such a model record by record."""
    torch.manual_seed(0)
    model = Between(Wrong.apply)
    for kernel in ("torch", "explicit"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gradients = ClippedSum(model, X, Y, kernel=kernel)
        theta = flat_parameters(model)
        with pytest.raises(InputError, match=r"model: torch\.func's gradients .* autograd's"):
            vjp(gradients, theta, np.arange(4), 0.5, torch.ones_like(theta))


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("checked", [False, True])
def test_a_product_is_made_where_gradients_are_off(off, checked):
    gradients, vector = ClippedSum(network(), X, Y), torch.ones(57)
    theta, chosen = flat_parameters(network()), np.arange(4)
    expected_product = vjp(ClippedSum(network(), X, Y), theta, chosen, 0.5, vector)
    if checked:
        vjp(gradients, theta, chosen, 0.5, vector)
    with off():
        found = vjp(gradients, theta, chosen, 0.5, vector)
        made_here = vjp(gradients, theta.clone(), chosen, 0.5, vector.clone())
    assert expected_product.norm() > 0
    assert torch.equal(found, expected_product) and torch.equal(made_here, expected_product)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("canary", [RECORD, Inserted(Coordinate(2))])
def test_an_expected_audit_is_made_where_gradients_are_off(off, canary):
    audit = make(canary)
    with off():
        found = expected(audit), trajectory(audit)
    assert found[0].separation == expected(audit).separation
    assert found[1].deviation == trajectory(audit).deviation


def falls_short(h):
    """Its derivative misses a part where a hidden number is large."""
    return torch.where(h.abs() > 2, h * h.detach() / 2, h)


class Padded(nn.Module):
    """Its padding is known to the function that it calls alone."""

    def __init__(self, look_up, trained=True):
        super().__init__()
        self.table, self.last = nn.Parameter(torch.randn(7, 4)), nn.Linear(4, 3)
        self.look_up = look_up
        self.table.requires_grad_(trained)

    def forward(self, x):
        return self.last(self.look_up(x, self.table).tanh().sum(1))


@pytest.mark.filterwarnings("ignore:no book-keeping rule")
@pytest.mark.parametrize(
    "look_up",
    [
        lambda x, table: nn.functional.embedding(x, table, padding_idx=0),
        lambda x, table: nn.functional.embedding(x, table, -7),
        lambda x, table: torch.embedding(table, x, 0),
        lambda x, table: torch.embedding(table, x, padding_idx=0),
    ],
)
def test_a_padding_that_a_function_is_given_is_refused(look_up):
    """Also where no record that is compared has any."""
    x, vector = TOKENS % 6 + 1, torch.ones(43)
    gradients = ClippedSum(Padded(look_up), x, Y)
    with pytest.raises(InputError, match=r"padding_idx -?\d, which torch forgets"):
        vjp(gradients, torch.zeros(43), np.arange(4), 1.0, vector)
    gradients = ClippedSum(Padded(look_up, trained=False), x, Y)
    vjp(gradients, torch.zeros(15), np.arange(4), 1.0, vector[:15])


def test_a_vector_of_another_length_is_refused_by_its_name():
    gradients = ClippedSum(network(), X, Y, kernel="torch")
    with pytest.raises(InputError, match=r"^vector: got shape \(3,\)"):
        vjp(gradients, flat_parameters(network()), np.arange(4), 1.0, torch.ones(3))


@pytest.mark.parametrize("scale", [1e10, 1e18, 1e19, 1e25])
def test_gradients_whose_squares_overflow_have_a_product(scale):
    model, vector = network(), torch.from_numpy(RNG.normal(size=57)).float()

    def product(loss_scale, model):
        def loss(outputs, labels):
            return loss_scale * cross_entropy(outputs, labels)

        theta = flat_parameters(model)
        gradients = ClippedSum(model, X.astype(model[0].weight.numpy(force=True).dtype), Y,
                               loss=loss, kernel="explicit")  # fmt: skip
        return vjp(gradients, theta, np.arange(5), 1e-9, vector.to(theta))

    found, expected = product(scale, model), product(scale, network(torch.float64))
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("kernel", ["torch", "explicit"])
@pytest.mark.parametrize("at", [1, 7, 17])
def test_a_product_that_is_wrong_on_one_record_alone_is_refused(kernel, at):
    torch.manual_seed(0)
    x = X.copy()
    x[at] *= 8
    gradients = ClippedSum(Between(falls_short), x, Y, kernel=kernel)
    theta = flat_parameters(gradients.kernel.problem.model)
    with pytest.raises(InputError, match="by finite differences"):
        vjp(gradients, theta, np.arange(4), 0.5, torch.ones_like(theta))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (lambda: Between(torch.relu), X),
        (lambda: Between(lambda h: h.unflatten(1, (4, 2)).amax(2).repeat(1, 2)), X),
        (lambda: Between(lambda h: h.round()), X),
        (lambda: Between(nn.functional.gelu), 0 * X),
        (embedded, TOKENS),
        (lambda: nn.Linear(5, 3), X),
    ],
)
def test_a_product_of_a_model_with_kinks_or_jumps_is_made(model, x):
    for seed in range(2):
        torch.manual_seed(seed)
        gradients = ClippedSum(model(), x, Y)
        theta = flat_parameters(gradients.kernel.problem.model)
        assert vjp(gradients, theta, np.arange(4), 0.5, torch.ones_like(theta)).isfinite().all()


@pytest.mark.whole
@pytest.mark.parametrize("sigma", [0.5, pytest.param(2.0, marks=pytest.mark.slow)])
def test_many_models_separate_scores_as_expected(sigma):
    audit = make(sigma=sigma, rate=0.02)
    found = expected(audit, pairs=16, seed=1)
    table = scores(audit, models=1500, seed=2, side_by_side=True)
    into, out = (table.loc[table.world == w, "score"] for w in ("in", "out"))
    seen, error = separation(into, out)
    assert abs(found.separation - seen) < 3 * math.hypot(error, found.error)
    # Ten per cent more would be seen.
    assert abs(1.1 * found.separation - seen) > 3 * error or sigma > 1
    spread = math.sqrt((into.var() + out.var()) / 2)
    assert found.lower <= found.upper
    assert found.lower * 0.94 < spread < found.upper * 1.06
    assert found.differences.mean() == pytest.approx(into.mean() - out.mean(), abs=4 * spread / 38)


def test_a_skewed_score_shows_no_more_than_the_accountant_allows():
    """Of fitted records, whose gradients are rounding alone, and a canary far from them.

    The score is concave, so its mean over its deviation exceeds mu, and no epsilon may.
    """
    x = np.zeros((6, 4), np.float32)
    y = np.arange(6) % 2
    x[np.arange(6), np.arange(6) % 4] = np.where(y, 1.0, -1.0)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-30.0], [30.0]]).expand(2, 4))
        model.bias.copy_(torch.tensor([5.0, -5.0]))
    mechanism = Mechanism(
        sampling=FullBatch(), steps=40, learning_rate=0.2, clipping_norm=1.0, noise_multiplier=1.0,
        adjacency="add_or_remove",
    )  # fmt: skip
    canary = RecordCanary(np.zeros(4, np.float32), 1)
    ensemble = Ensemble(model, mechanism, x, y, canary, flat_parameters(model))
    found = expected(ensemble, pairs=4, seed=4)
    assert found.separation > 1.05 * found.most
    assert found.epsilon(1e-5) <= mechanism.epsilon(1e-5, records=7) * (1 + 1e-9)
    assert "the scores are not normal" in found.explained()


def test_the_separation_is_the_product_of_its_factors_in_first_order():
    found = expected(make(sigma=0.3, rate=1e-3), pairs=3)
    assert found.norm * found.cosine * found.most == pytest.approx(found.separation, rel=2e-2)
    assert found.most == pytest.approx(math.sqrt(STEPS) / 0.3)
    assert 0 < found.norm <= 1 and 0 < found.cosine <= 1
    # Without other steps' help a canary of larger gradients shows more.
    assert found.upper == pytest.approx(found.lower, rel=1e-3)
    assert f"{found.separation:.2f} standard deviations" in found.explained()
    assert found.epsilon(1e-5) == pytest.approx(float(gaussian.epsilon(found.separation, 1e-5)))


def test_a_coordinate_of_a_linear_loss_shows_all_that_the_noise_allows():
    canary = Inserted(Coordinate(2), schedule=Periodic())
    audit = make(canary, sigma=1.5, model=nn.Linear(5, 1, bias=False))
    audit = Ensemble(
        audit.model, audit.mechanism, X, Y, canary, audit.initial,
        loss=lambda outputs, labels: outputs[:, 0],
    )  # fmt: skip
    found = expected(audit, pairs=2)
    assert found.separation == pytest.approx(math.sqrt(STEPS) / 1.5, rel=1e-5)
    assert (found.norm, found.cosine) == pytest.approx((1, 1), rel=1e-5)


def test_a_sampled_gradient_has_its_weight_in_every_step():
    """Also in those that do not use it; its epsilon is then the linear heuristic's."""
    canary = Inserted(Coordinate(2), schedule=None)
    audit = make(canary, sigma=1.5, sampling=Poisson(0.3), model=nn.Linear(5, 1, bias=False))
    audit = Ensemble(
        audit.model, audit.mechanism, X, Y, canary, audit.initial,
        loss=lambda outputs, labels: outputs[:, 0],
    )  # fmt: skip
    found = expected(audit, pairs=2)
    assert 0 < found.used.mean() < 1
    np.testing.assert_allclose(found.weights, 0.2 * 0.7, rtol=1e-5)
    assert (found.norm, found.cosine) == pytest.approx((1, 1), rel=1e-5)
    linear_losses = linear.last_iterate_epsilon(1.5, 0.3, STEPS, 1e-5)
    assert found.epsilon(1e-5) == pytest.approx(linear_losses, rel=1e-3)


@pytest.mark.parametrize("every", [1, 3])
def test_sampling_does_not_amplify_a_canary_that_it_does_not_decide(every):
    """Poisson batches gave the epsilon of a canary that is in a hundredth of the steps."""
    found, used = {}, STEPS // every
    for sampling in (FullBatch(), Poisson(0.01)):
        audit = make(Inserted(Coordinate(7), Periodic(every)), sampling=sampling)
        mechanism = dataclasses.replace(audit.mechanism, insertions=used)
        one = nn.Linear(5, 3, bias=False)
        audit = Ensemble(
            one, mechanism, X, Y, audit.canary, flat_parameters(one),
            loss=lambda outputs, labels: outputs[:, 0],
        )  # fmt: skip
        found[sampling] = expected(audit)
        assert found[sampling].separation == pytest.approx(math.sqrt(used / STEPS * used), rel=1e-5)
        assert found[sampling].used.sum(1).tolist() == [used, used]
        whole = mechanism.epsilon(1e-5, records=RECORDS)
        assert found[sampling].most == pytest.approx(math.sqrt(used))
        assert found[sampling].epsilon(1e-5) <= whole * (1 + 1e-6)
        if every == 1:
            assert found[sampling].epsilon(1e-5) == pytest.approx(whole, rel=1e-3)
        # Steps without the canary have no weight along a trajectory either.
        along = trajectory(audit).epsilon(1.0, 1e-5)
        assert along == pytest.approx(found[sampling].epsilon(1e-5), rel=1e-3)
    one, other = found.values()
    assert one.rate == other.rate == 1
    assert one.cosine == pytest.approx(other.cosine) == pytest.approx(math.sqrt(used / STEPS))
    assert one.epsilon(1e-5) == pytest.approx(other.epsilon(1e-5))


def test_pairs_have_one_start_and_one_draw_of_the_batches():
    audit = make(sigma=0.05, sampling=Poisson(0.3), clipping_norm=100.0)
    drawn = dataclasses.replace(audit, initial=lambda rng: torch.randn(57, generator=_torch(rng)))
    found = expected(drawn, pairs=3)
    assert (found.used == found.used[0]).all()
    # The first step's gradient is that of one start.
    np.testing.assert_array_equal(found.norms[:, 0], found.norms[0, 0])
    assert len({*found.norms[:, 1]}) == 3
    others = expected(drawn, pairs=1, name=("other",))
    assert others.norms[0, 0] != found.norms[0, 0]


def _torch(rng):
    return torch.Generator().manual_seed(int(rng.integers(2**31)))


@pytest.mark.whole
def test_some_records_in_the_pass_back_change_nothing_on_average():
    audit = make(sigma=0.5, rate=0.05)
    whole = expected(audit, pairs=4)
    some = expected(audit, pairs=4, records=8)
    assert some.upper == pytest.approx(whole.upper, abs=4 * some.errors[0])
    assert some.differences == pytest.approx(whole.differences)
    every = expected(audit, pairs=4, records=RECORDS + 1)
    assert every.upper == pytest.approx(whole.upper, rel=1e-6)


@pytest.mark.whole
def test_sampled_steps_have_weights_whether_they_use_the_canary_or_not():
    found = expected(make(sigma=0.5, rate=0.02, sampling=Poisson(0.3)), pairs=3)
    assert 0 < found.used.mean() < 0.7
    assert (found.weights > 0).mean() > 0.9
    each = [one.epsilon(0.3, 1e-5) for one in found.trajectories]
    assert found.epsilon(1e-5) == pytest.approx(np.mean(each)) and len({*each}) == 3
    first = (found.weights * found.used).sum(1)
    assert found.differences == pytest.approx(first, rel=0.1, abs=1e-3)


@pytest.mark.parametrize("step", [1, 6, 11])
def test_a_weight_is_what_the_canary_in_one_step_moves(step):
    """By training on, with the canary's gradient added in this step, in double precision."""
    audit = make(sigma=0.5, rate=0.02, sampling=Poisson(0.3), model=network(torch.float64))
    found = trajectory(audit, seed=4)
    gradients, (run, with_canary) = audit.clipped_sum(), _pair(audit)
    iterates = [run.initial.clone(), *(theta.clone() for theta in run.iterates())]
    steps = [one - next_ for one, next_ in itertools.pairwise(iterates)]
    sums = [gradients(t, b, 0.7) for t, b in zip(iterates, run.trained_on, strict=False)]
    noise = [s / 0.02 - g for s, g in zip(steps, sums, strict=True)]
    canary = gradients(iterates[step], np.array([RECORDS]), 0.7)
    scored = []
    for sign in (1, -1):
        theta = iterates[step] - 0.02 * (sums[step] + noise[step] + sign * 1e-2 * canary)
        for t in range(step + 1, STEPS):
            theta = theta - 0.02 * (gradients(theta, run.trained_on[t], 0.7) + noise[t])
        scored.append(with_canary.score(theta))
    moved = (scored[0] - scored[1]) / 2e-2
    assert found.weights[step] == pytest.approx(moved, rel=1e-2)
    # Weights that are off by three per cent are seen.
    assert found.weights[step] * 1.03 != pytest.approx(moved, rel=1e-2)


def _pair(audit):
    gradients = audit.clipped_sum()
    return [Run(w, 0, 0, audit, gradients, 4, (), paired=True) for w in ("out", "in")]


@pytest.mark.parametrize("steps", [1, 12, 40])
@pytest.mark.parametrize("sigma", [0.6, 2.0])
def test_no_trajectory_shows_more_than_all_iterates(steps, sigma):
    audit = make(sigma=sigma, rate=0.3, sampling=Poisson(0.3))
    audit = dataclasses.replace(audit, mechanism=dataclasses.replace(audit.mechanism, steps=steps))
    found = trajectory(audit)
    most = audit.mechanism.epsilon(1e-5, records=RECORDS + 1)
    assert 0 < found.epsilon(0.3, 1e-5) <= most
    # Over half the noise, or with weights of other adjoints, it would be seen here.
    assert (abs(found.weights) <= found.deviation / sigma * (1 + 1e-6)).all()
    if steps == 1:
        full = Trajectory(np.array([found.deviation / sigma]), found.deviation)
        assert full.epsilon(0.3, 1e-5) == pytest.approx(most, rel=5e-3)


DIRAC = Inserted(Coordinate(40), schedule=None)


@pytest.mark.whole
@pytest.mark.parametrize("canary", [RECORD, DIRAC], ids=["record", "coordinate"])
def test_a_start_s_deviation_is_that_of_the_score_by_its_entries(canary):
    """By training again, in double precision; a coordinate's score is a movement from the start."""
    audit = make(canary, sigma=0.5, sampling=Poisson(0.3), model=network(torch.float64))
    audit = dataclasses.replace(audit, initial=audit.initial.double())

    def score(start):
        run = _pair(dataclasses.replace(audit, initial=start))[0]
        *_, last = run.iterates()
        return run.score(last)

    for i in (0, 17, 40, 50):
        only = torch.zeros(len(audit.initial), dtype=torch.float64)
        only[i] = 1e-3
        slope = (score(audit.initial + only) - score(audit.initial - only)) / 2e-3
        found = trajectory(audit, start=only, seed=4)
        assert found.start == pytest.approx(abs(slope) * 1e-3, rel=1e-3)
        assert found.start * 1.01 != pytest.approx(abs(slope) * 1e-3, rel=1e-3)
    assert trajectory(audit, seed=4).start == 0


@pytest.mark.whole
@pytest.mark.parametrize(
    ("deviation", "rate"),
    [(0.02, 0.5), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((0, 0.5), (0.02, 1)))],
)
def test_hidden_starts_and_batches_spread_scores_as_many_models_show(deviation, rate):
    centre = flat_parameters(network())

    def drawn(rng):
        return centre + deviation * torch.from_numpy(rng.standard_normal(len(centre))).to(centre)

    audit = make(sigma=0.3, rate=0.03, sampling=Poisson(rate))
    audit = dataclasses.replace(audit, initial=drawn)
    start = torch.full_like(centre, deviation)
    law = hidden([trajectory(audit, start=start, name=("own", i)) for i in range(12)])
    table = scores(audit, models=1500, seed=2, side_by_side=True)
    seen = table.loc[table.world == "out", "score"].std()
    assert law.deviation == pytest.approx(seen, rel=0.06)
    assert law.deviation * 1.15 != pytest.approx(seen, rel=0.06)


@pytest.mark.parametrize("shape", [(57, 1), (1,), (56,)])
def test_deviations_of_a_start_of_another_shape_are_refused(shape):
    audit = make(sampling=Poisson(0.3))
    with pytest.raises(InputError, match=rf"^start: got shape \({shape[0]},.*; expected 57"):
        trajectory(audit, start=torch.full(shape, 0.1))


def test_the_hidden_law_has_mean_weights_and_all_three_variances():
    found = [
        Trajectory(np.array([1.0, 3.0]), 3.0, 2.0, 6.0), Trajectory(np.array([2.0, 5.0]), 1.0)
    ]  # fmt: skip
    law = hidden(found)
    assert law.weights.tolist() == [1.5, 4.0]
    assert law.deviation == pytest.approx(5.0)  # of 9 + 4 + 36 and 1
    assert (law.batches, law.start) == (0, 0)


@pytest.mark.parametrize("sigma", [0.6, 2.0])
def test_no_hidden_law_shows_more_than_all_iterates(sigma):
    audit = make(sigma=sigma, rate=0.3, sampling=Poisson(0.3))
    found = [trajectory(audit, name=(i,)) for i in range(4)]
    law, most = hidden(found), audit.mechanism.epsilon(1e-5, records=RECORDS + 1)
    assert 0 < law.epsilon(0.3, 1e-5) <= most
    alone = math.sqrt(np.mean([one.deviation**2 for one in found]))
    assert (abs(law.weights) <= alone / sigma * (1 + 1e-6)).all()


def test_pairs_share_their_noise_and_no_other_run_does():
    again = [expected(make(), pairs=2, seed=1).differences for _ in range(2)]
    np.testing.assert_array_equal(*again)
    table = scores(make(), models=2, seed=1)
    difference = np.subtract(*(table.loc[table.world == w, "score"] for w in ("in", "out")))
    assert not np.isclose(difference[:1], again[0][:1]).any()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"sigma": 0.0}, "noise_multiplier: got 0; expected noise"),
        ({"pairs": 0}, "pairs: got 0"),
        ({"records": 0}, "records: got 0"),
    ],
)
def test_bad_input_is_named(parts, message):
    call = {key: parts.pop(key) for key in ("pairs", "records") if key in parts}
    with pytest.raises(InputError, match=message):
        expected(make(**parts), **call)


class Silent(nn.Module):
    """A model whose outputs are 0 for the record of zeros, whatever its parameters."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        return self.last(x) * (x.abs().sum(1, keepdim=True) > 0)


class Still(Coordinate):
    """A coordinate that is read, whose gradients are all 0."""

    def canary(self, known):
        found = super().canary(known)
        return dataclasses.replace(found, gradients=0 * found.gradients)


@pytest.mark.parametrize(
    "parts",
    [
        {"canary": RecordCanary(np.zeros(5, np.float32), 1), "model": Silent()},
        {
            "canary": RecordCanary(np.zeros(5, np.float32), 1),
            "model": Silent(),
            "sampling": Poisson(0.3),
        },
        {"canary": Inserted(Still(0))},
        {"sampling": Cyclic(1)},  # whose first 12 of 21 batches lack it
    ],
    ids=["no gradient", "no gradient, sampled", "zeros", "no use"],
)
def test_a_canary_that_moves_nothing_separates_nothing(parts):
    found = expected(make(**parts))
    assert not found.differences.any()
    assert found.separation == found.highest == found.error == found.cosine == 0
    assert found.norm == 0
    assert found.epsilon(1e-5) == 0
    assert "separate scores by 0.00 standard deviations" in found.explained()


def test_scores_that_differ_without_noise_show_everything():
    found = dataclasses.replace(expected(make()), upper=0.0, lower=0.0)
    assert found.separation == found.highest == found.error == math.inf
    assert found.epsilon(1e-5) == math.inf


@dataclasses.dataclass(frozen=True, eq=False)
class Otherwise:
    """A canary with another score: of a shape that a factor and a power give."""

    canary: object
    factor: float = 1.0
    power: float = 1.0

    def __getattr__(self, name):
        return getattr(self.canary, name)

    def fixed(self, known):
        fixed = self.canary.fixed(known)

        def score(last):
            found = fixed.score(last)
            return self.factor * math.copysign(abs(found) ** self.power, found)

        return SimpleNamespace(
            record=fixed.record, gradients=fixed.gradients, coordinate=fixed.coordinate, score=score
        )


@pytest.mark.parametrize(
    ("canary", "what"),
    [(RECORD, "minus its record's loss"), (Inserted(Coordinate(2)), "minus the movement")],
)
@pytest.mark.parametrize("change", [{}, {"factor": 100.0}, {"power": 1.5}])
def test_a_canary_with_another_score_is_refused(canary, what, change):
    def found():
        return expected(make(Otherwise(canary, **change)), pairs=1)

    if not change:
        assert found().separation == expected(make(canary), pairs=1).separation
        return
    with pytest.raises(InputError, match=f"canary: gave a model the score .* {what}"):
        found()


def test_no_bound_is_made_of_an_expected_audit():
    """It has no scores; auditing does not know it, and what it writes is refused as scores."""
    found = expected(make(), pairs=4)
    with pytest.raises(InputError):
        lower_bound(found, found, GaussianDP())
    names = {field.name for field in dataclasses.fields(found)} | {*vars(type(found))}
    assert not any("score" in name or "confidence" in name or "bound" in name for name in names)
    for module in (Path(auditing.__file__).parent).glob("*.py"):
        assert "adjoint" not in module.read_text(), module
    with pytest.raises(ValueError, match="scores lack the columns"):
        score_files.write("none.parquet", pd.DataFrame({"difference": found.differences}), {})
