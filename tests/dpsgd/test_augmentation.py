"""Augmentation multiplicity against explicit autograd on views made by numpy."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from hiddenstate import models
from hiddenstate.adversaries.canaries import blank
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.ensemble import Ensemble, Run, last_iterate, last_iterates, scores
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.sampling import Poisson
from hiddenstate.streams import stream

THREE = Augmentation(views=3, shift=2)
CLIP = 0.7
KERNELS = "auto", "explicit"


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        models.ResidualBlock(4, 8, 2, groups=2, first="norm"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


class Rows(nn.Module):
    """Reads an image row by row."""

    def __init__(self):
        super().__init__()
        self.memory, self.last = nn.GRU(8, 4, batch_first=True), nn.Linear(4, 10)

    def forward(self, x):
        return self.last(self.memory(x.squeeze(1))[0].mean(1))


def problem(build, records=7):
    rng = stream(0, "augmentation", build.__name__)
    model = build()
    theta = average_case(model, rng)
    # Half of the gradients are clipped.
    x = rng.standard_normal((records, 1, 8, 8)).astype(np.float32)
    return model, 1.5 * theta, x, rng.integers(10, size=records), rng


def view(image, down, right, mirrored):
    """By slicing: the padded image's window, turned left to right."""
    padded = np.pad(image, ((0, 0), (2, 2), (2, 2)), mode="reflect")
    window = padded[:, down : down + 8, right : right + 8]
    return window[:, :, ::-1] if mirrored else window


def expected(model, theta, x, y, drawn, clip_first=False):
    """Sum of the clipped means of each record's gradients, one view at a time in float64."""
    model = model.double()
    nn.utils.vector_to_parameters(theta.double(), model.parameters())
    total = 0
    clipped = 0
    for image, label, views in zip(x, y, drawn, strict=True):
        rows = []
        for one in views:
            model.zero_grad()
            seen = torch.tensor(view(image, *one).copy()).double()
            nn.functional.cross_entropy(model(seen[None]), torch.tensor([label])).backward()
            row = torch.cat([p.grad.flatten() for p in model.parameters()])
            rows.append(row * min(1, CLIP / float(row.norm())) if clip_first else row)
        mean = torch.stack(rows).mean(0)
        clipped += float(mean.norm()) > CLIP
        total = total + mean * min(1, CLIP / float(mean.norm()))
    return total.float(), clipped


@pytest.mark.parametrize(
    ("build", "kernel"),
    [
        *((build, kernel) for build in (models.digits_cnn, residual) for kernel in KERNELS),
        (Rows, "auto"),
    ],
)
def test_a_record_counts_with_its_clipped_mean_over_the_views(build, kernel):
    model, theta, x, y, rng = problem(build)
    drawn = THREE.draw(len(x), rng)
    gradients = ClippedSum(model, x, y, kernel=kernel, augmentation=THREE)
    assert gradients.kind == ("torch" if kernel == "auto" else "explicit")
    found = gradients(theta, np.arange(len(x)), CLIP, drawn)
    truth, clipped = expected(model, theta, x, y, drawn)
    assert clipped > 0
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)
    # Clipping each view, or other views, is something else.
    wrong, _ = expected(model, theta, x, y, drawn, clip_first=True)
    assert float((found - wrong).norm() / truth.norm()) > 1e-2
    others, _ = expected(model, theta, x, y, drawn[:, :, [1, 0, 2]])
    assert float((found - others).norm() / truth.norm()) > 1e-2


def test_in_blocks_and_without_views_it_is_the_same_sum():
    model, theta, x, y, rng = problem(models.digits_cnn)
    drawn = THREE.draw(len(x), rng)
    gradients = ClippedSum(model, x, y, augmentation=THREE)
    whole = gradients(theta, np.arange(len(x)), CLIP, drawn)
    gradients.block = 2
    torch.testing.assert_close(gradients(theta, np.arange(len(x)), CLIP, drawn), whole)
    plain = ClippedSum(model, x, y, kernel="torch")
    same = np.full((len(x), 3, 3), (2, 2, 0))  # neither shifted nor mirrored
    torch.testing.assert_close(
        gradients(theta, np.arange(len(x)), CLIP, same), plain(theta, np.arange(len(x)), CLIP)
    )


def test_every_view_is_as_likely_as_any_other():
    """1,800 views of 18 kinds: chi-squared, false-positive rate 1e-6."""
    drawn = Augmentation(views=9, shift=1).draw(200, stream(1, "views")).reshape(-1, 3)
    kinds = np.ravel_multi_index(drawn.T, (3, 3, 2))
    assert stats.chisquare(np.bincount(kinds, minlength=18)).pvalue > 1e-6
    assert not Augmentation(views=9, shift=1, mirror=False).draw(200, stream(1, "v"))[:, :, 2].any()


def audit(**changes) -> Ensemble:
    model, theta, x, y, _ = problem(models.digits_cnn, 12)
    mechanism = Mechanism(
        sampling=Poisson(0.5),
        steps=3,
        learning_rate=0.3,
        clipping_norm=CLIP,
        noise_multiplier=0.0,
        adjacency="add_or_remove",
    )
    canary = blank((1, 8, 8), 3)
    return Ensemble(model, mechanism, x, y, canary, theta, augmentation=THREE, **changes)


def test_every_step_draws_views_of_its_own_the_same_alone_and_side_by_side():
    ensemble = audit()
    gradients = ensemble.clipped_sum()
    runs = [Run("in", 0, index, ensemble, gradients, 5, ("views",)) for index in range(3)]
    first, second, _ = list(runs[0].views())
    assert len(first) == len(runs[0].trained_on[0]) and first.shape[1:] == (3, 3)
    assert not np.array_equal(first[:3], second[:3])
    # The first step by hand, the blank record among the others.
    theta = next(iter(runs[0].iterates())).clone()
    x = np.concatenate((ensemble.x, np.zeros((1, 1, 8, 8), np.float32)))
    y = np.append(ensemble.y, 3)
    batch = runs[0].trained_on[0]
    truth, _ = expected(models.digits_cnn(), ensemble.initial, x[batch], y[batch], first)
    torch.testing.assert_close((ensemble.initial - theta) / 0.3, truth, rtol=1e-4, atol=1e-5)
    together = last_iterates(runs)
    for one, side in zip(map(last_iterate, runs), together, strict=True):
        torch.testing.assert_close(side, one, rtol=1e-4, atol=1e-5)


def test_a_simulation_is_as_far_from_a_training_with_the_canary_as_without():
    """The canary moves models little here, so what a simulation misses are the views alone."""
    ensemble = audit()
    quiet = dataclasses.replace(ensemble.mechanism, learning_rate=0.01)
    ensemble = dataclasses.replace(ensemble, mechanism=quiet)
    gradients, apart = ensemble.clipped_sum(), {"in": [], "out": []}
    for world, found in apart.items():
        for index in range(12):
            run = Run(world, 0, index, ensemble, gradients, 5, ("views",))
            last = last_iterate(run).numpy()
            found.append(np.linalg.norm(run.known().simulated().last - last))
    with_canary, without = (np.median(found) for found in apart.values())
    assert with_canary < 2 * without


def test_what_has_no_views_is_refused():
    model, _, x, y, _ = problem(models.digits_cnn)
    for kernel in ("native", "linear"):
        with pytest.raises(InputError, match=f"kernel: got '{kernel}' with an augmentation"):
            ClippedSum(model, x, y, kernel=kernel, augmentation=THREE)
    with pytest.raises(InputError, match="shift: got 8; expected less than 8"):
        ClippedSum(model, x, y, augmentation=Augmentation(2, shift=8))
    with pytest.raises(InputError, match=r"augmentation: got records of shape \(64,\)"):
        ClippedSum(models.fcnn(64, 4, 10), x.reshape(7, 64), y, augmentation=THREE)
    with pytest.raises(InputError, match="views: got 0"):
        Augmentation(0)


def test_a_checkpoint_knows_the_augmentation(tmp_path):
    scores(audit(), models=1, seed=0, checkpoint=tmp_path)
    with pytest.raises(InputError, match="another audit"):
        other = dataclasses.replace(audit(), augmentation=Augmentation(2))
        scores(other, models=1, seed=0, checkpoint=tmp_path)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64])
def test_images_of_any_type_have_views(kind):
    rng = np.random.default_rng(0)
    images, views = rng.integers(2, size=(4, 1, 6, 5)), Augmentation(3, shift=2)
    drawn = torch.from_numpy(views.draw(4, rng))
    found = views.apply(torch.from_numpy(images.astype(kind)), drawn)
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    for i, own in enumerate(drawn.tolist()):
        for j, (down, right, mirrored) in enumerate(own):
            # Mirrored within the padded image that the shift cuts out.
            columns = (np.arange(5)[::-1] if mirrored else np.arange(5)) + right
            expected = padded[i][:, down : down + 6][:, :, columns]
            np.testing.assert_array_equal(found[3 * i + j].numpy(), expected.astype(kind))


def test_labels_of_several_numbers_go_with_their_views():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 1, 6, 6)).astype(np.float32)
    y = rng.normal(size=(6, 2)).astype(np.float32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    ways = Augmentation(2, shift=1)
    total = ClippedSum(model, x, y, augmentation=ways, loss=lambda o, t: ((o - t) ** 2).mean(1))
    theta = torch.zeros(total.parameters)
    drawn = ways.draw(6, rng)
    found = total(theta, np.arange(6), 0.1, drawn)
    one = [total(theta, np.array([i]), 0.1, drawn[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(found, sum(one))
