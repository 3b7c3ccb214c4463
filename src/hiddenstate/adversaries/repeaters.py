"""The malicious data set: records that write the whole history into the last iterate.

Appendix C of *The Last Iterate Advantage* (arXiv 2410.06186), Algorithms 2 to 4. The model has one
coordinate a step. The canary moves coordinate i in step i; the other records, the repeaters, are
in every batch, read the model and write it again: they clear what is still to come, turn the
coordinate of the step before into a large value or its negative, by a threshold, and refresh
older coordinates, so that noise cannot wear them away.

The published signs do not survive in the text. Here the update subtracts, the canary's gradient
is -e_i, and the repeaters' gradient is minus the value they want to see in the model. The
constants are not stated either; the ones below keep every promise of the algorithm: the
repeaters' gradients are never clipped and noise never turns a written value over.

``Repeaters`` is our reading of Algorithm 3: one bit a step. ``AnalogRepeaters`` is ours, not the
paper's: no threshold, the coordinate of the step before is amplified and then left alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from hiddenstate.accounting import arguments, binomial, linear
from hiddenstate.dpsgd.linear import log_likelihood_ratio, log_likelihood_ratios
from hiddenstate.errors import expect

# Departure linear_heuristic.repeaters: signs are lost, constants are not stated.
_QUIET = 8.0
"""Noise beyond this many standard deviations does not occur (probability 6e-16 a draw)."""


@dataclass(frozen=True)
class Repeaters:
    """Repeaters that keep one bit a step (Algorithm 3), and the canary they amplify.

    threshold: t_last, what the coordinate of the step before must reach to count as sampled; the
    threshold t_past for older coordinates is zero.

    Reduction. In step i coordinate i is cleared and receives A_i + sigma z. In step i + 1 it is
    replaced by +-V + sigma z, V = 30 sigma, with + if it had reached the threshold; afterwards it
    is replaced by +-V + sigma z with the sign it has. The sign changes with probability
    Phi(-30) < 1e-197 a step, so the last iterate tells the bits b_i = 1[A_i + sigma z >= threshold]
    of the steps before the last, and the last step's A + sigma z, which no repeater has seen; the
    rest of it is noise added after that. The bits are independent and identically distributed, so
    their number K is sufficient: K ~ Binomial(T - 1, p), p = Phi(-threshold/sigma) without the
    canary and (1 - q) Phi(-threshold/sigma) + q Phi((1 - threshold)/sigma) with it.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    threshold: float

    def __post_init__(self) -> None:
        arguments.check_mechanism(self.noise_multiplier, self.sampling_rate, self.steps)
        expect(math.isfinite(self.threshold), "threshold", self.threshold, "a finite number")

    @property
    def bit_rates(self) -> tuple[float, float]:
        """Probability that a step's bit is one, without and with the canary; exact.

        But at least 1e-300 and below 1, so that they have logarithms.
        """
        sigma, rate = self.noise_multiplier, self.sampling_rate
        out, sampled = (float(ndtr((a - self.threshold) / sigma)) for a in (0, 1))
        least, most = 1e-300, math.nextafter(1.0, 0.0)
        return min(max(out, least), most), min(max(out + rate * (sampled - out), least), most)

    def scores(self, present: bool, runs: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Log-likelihood ratios of ``runs`` last iterates, by the reduction, shape (runs,)."""
        bits = random.binomial(self.steps - 1, self.bit_rates[present], runs)
        last = self.noise_multiplier * random.standard_normal(runs)
        if present:
            last += random.random(runs) < self.sampling_rate
        return self.loss(bits) + log_likelihood_ratio(
            last, self.noise_multiplier, self.sampling_rate
        )

    def loss(self, bits: NDArray[np.int64]) -> NDArray[np.float64]:
        """Log-likelihood ratio of that many bits."""
        out, in_ = self.bit_rates
        zeros = self.steps - 1 - bits
        return bits * math.log(in_ / out) + zeros * (math.log1p(-in_) - math.log1p(-out))

    def delta(self, epsilon: float) -> float:
        """Exact delta at ``epsilon`` of this last iterate, the larger of both directions.

        Given K the last step is a subsampled Gaussian, whose delta at epsilon - loss(K) counts
        with the probability of K.
        """
        pair = linear.last_iterate(self.noise_multiplier, self.sampling_rate, 1)
        bits = np.arange(self.steps)
        out, in_ = (np.exp(binomial.log_binomial(self.steps - 1, r)) for r in self.bit_rates)
        occur = np.maximum(out, in_) > 1e-30
        bits, out, in_ = bits[occur], out[occur], in_[occur]
        with_canary = in_ @ pair.delta(epsilon - self.loss(bits), null="out")
        without = out @ pair.delta(epsilon + self.loss(bits), null="in")
        return max(float(with_canary), float(without))

    def epsilon(self, delta: float) -> float:
        """Exact epsilon at ``delta`` of this last iterate."""
        from scipy.optimize import brentq

        if self.delta(0.0) <= delta:
            return 0.0
        high = 1.0
        while self.delta(high) > delta:
            high *= 2

        def excess(epsilon: float) -> float:
            # Beyond the largest loss delta is 0, which has no logarithm.
            return math.log(max(self.delta(epsilon), 1e-300)) - math.log(delta)

        return float(brentq(excess, 0.0, high, xtol=1e-10))

    def run(self, present: bool, runs: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Last iterates of Algorithm 4 step by step, shape (runs, steps): the test of the above.

        Raises ArithmeticError if a repeater would be clipped.
        """
        large = 30 * self.noise_multiplier
        # One coordinate goes from A + noise to +-large, the others lose a step's noise.
        noise = _QUIET * self.noise_multiplier
        count = math.ceil(large + 1 + math.sqrt(self.steps) * noise)

        def gradients(model: NDArray[np.float64], i: int) -> NDArray[np.float64]:
            wanted = np.zeros_like(model)
            wanted[:, : max(i - 1, 0)] = large * (2 * (model[:, : max(i - 1, 0)] >= 0) - 1)
            if i > 0:
                wanted[:, i - 1] = large * (2 * (model[:, i - 1] >= self.threshold) - 1)
            return (model - wanted) / count

        return _run(self, gradients, count, present, runs, random)


@dataclass(frozen=True)
class AnalogRepeaters:
    """Repeaters without a threshold: ours, not the paper's.

    They multiply the coordinate of the step before by ``gain`` and leave older ones alone. So
    coordinate i ends as gain x (A_i + sigma z_i) + sigma x sum of the T - 1 - i later noises, which
    over the gain is A_i + N(0, sigma^2 (1 + (T - 1 - i)/gain^2)), independent over i (the last
    coordinate is not multiplied): all iterates except for noise that a large gain makes negligible.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    gain: float = 1e5

    def __post_init__(self) -> None:
        arguments.check_mechanism(self.noise_multiplier, self.sampling_rate, self.steps)
        expect(0 < self.gain < math.inf, "gain", self.gain, "a number above 0")

    @property
    def noise_multipliers(self) -> NDArray[np.float64]:
        """Noise on each step's A_i in the last iterate, shape (steps,)."""
        later = np.arange(self.steps)[::-1]
        return self.noise_multiplier * np.sqrt(1 + later / self.gain**2)

    def scores(self, present: bool, runs: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Log-likelihood ratios of ``runs`` last iterates, by the reduction, shape (runs,)."""
        return log_likelihood_ratios(
            self.noise_multipliers, self.sampling_rate, present, runs, random
        )

    def run(self, present: bool, runs: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Last iterates step by step, shape (runs, steps), over the gain where it was applied."""
        noise = _QUIET * self.noise_multiplier
        # So many repeaters share the largest change that no gradient is clipped.
        count = math.ceil(self.gain * (1 + noise) + math.sqrt(self.steps) * noise)

        def gradients(model: NDArray[np.float64], i: int) -> NDArray[np.float64]:
            wanted = model.copy()
            wanted[:, i:] = 0
            if i > 0:
                wanted[:, i - 1] *= self.gain
            return (model - wanted) / count

        model = _run(self, gradients, count, present, runs, random)
        model[:, :-1] /= self.gain
        return model


def _run(
    attack: "Repeaters | AnalogRepeaters",
    gradients: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
    count: int,
    present: bool,
    runs: int,
    random: np.random.Generator,
) -> NDArray[np.float64]:
    """Algorithm 4: ``count`` repeaters in every batch, the canary in a batch at random."""
    model = np.zeros((runs, attack.steps))
    for i in range(attack.steps):
        repeater = gradients(model, i)
        if np.max(np.linalg.norm(repeater, axis=1)) > 1:
            raise ArithmeticError(f"a repeater's gradient would be clipped in step {i}")
        update = count * repeater
        if present:
            update[:, i] -= random.random(runs) < attack.sampling_rate
        update += attack.noise_multiplier * random.standard_normal(model.shape)
        model = model - update
    return model


def best_threshold(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """Threshold at which one-bit repeaters leak most: the best of a grid, then refined."""
    from scipy.optimize import minimize_scalar

    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    arguments.check_delta(delta)

    def leak(threshold: float) -> float:
        return Repeaters(noise_multiplier, sampling_rate, steps, threshold).epsilon(delta)

    step = noise_multiplier / 4
    # From 2 deviations below the mean without the canary to 6 above the one with it.
    grid = np.arange(-2.0, 6.0 + 1 / noise_multiplier, 0.25) * noise_multiplier
    best = grid[np.argmax([leak(threshold) for threshold in grid])]
    found = minimize_scalar(
        lambda threshold: -leak(threshold),
        bounds=(best - step, best + step),
        method="bounded",
        options={"xatol": 1e-3 * noise_multiplier},
    )
    return float(found.x)
