// The accounting of Poisson-sampled DP-SGD in a browser, written after
// src/hiddenstate/accounting/{mixture,binomial,composition}.py; tests/repository/test_explorer.py
// compares both. One function, because a page read from disk starts a worker from source text.
function accounting() {
  "use strict";
  const { exp, log, log1p, expm1, sqrt, abs, min, max, floor, ceil, round, atan2, PI } = Math;
  const INF = Infinity, U = Number.EPSILON;

  // --- the normal distribution ---
  const ERFCX = [
    0.57703373861646945, 0.35543692127049847, 0.065095158828786526, 0.0036711423958364856,
    -0.0011128447433527084, -0.00016075829915401143, 3.2780315741813908e-05,
    5.442441645275915e-06, -1.5154665552463052e-06, -1.4297608197183139e-07,
    8.2346088323886013e-08, -1.2962848213511019e-09, -4.1547216050641134e-09,
    6.3470551917048495e-10, 1.4320835261025252e-10, -6.1604133613261238e-11,
    2.0611661022661784e-12, 3.5715463772577131e-12, -8.5888255248524651e-13,
    -6.116070232222498e-14, 7.4255020088128654e-14, -1.2586248998972668e-14,
    -2.586531904376035e-15, 1.8629188120803589e-15, -4.9267274369067349e-16,
  ];
  // e^(x^2) erfc(x): a Chebyshev series in 2 / (2 + x), fitted to SciPy's.
  function erfcx(x) {
    if (x < 0) return 2 * exp(x * x) - erfcx(-x);
    const t = 2 / (2 + x), u = 4 * t - 2;
    let b = 0, c = 0;
    for (let i = ERFCX.length - 1; i > 0; i--) {
      const d = u * b - c + ERFCX[i];
      c = b;
      b = d;
    }
    return t * ((u * b) / 2 - c + ERFCX[0]);
  }
  const cdf = (x) => (x <= 0 ? 0.5 * erfcx(-x / Math.SQRT2) * exp((-x * x) / 2) : 1 - cdf(-x));
  const logCdf = (x) => (x < 0 ? log(0.5 * erfcx(-x / Math.SQRT2)) - (x * x) / 2 : log1p(-cdf(-x)));
  const logMills = (x) => (x > 37 ? (x * x) / 2 + Math.LN2 : log(erfcx(-x / Math.SQRT2)));
  function quantile(p) {
    let x = -sqrt(-2 * log(p));
    for (let i = 0; i < 50; i++) x -= ((logCdf(x) - log(p)) * erfcx(-x / Math.SQRT2)) / sqrt(2 / PI);
    return x;
  }

  // Where a function that is positive at one end alone changes its sign; [end like low, end like high].
  function between(positive, low, high) {
    const at = positive(low);
    for (let i = 0; i < 200; i++) {
      const middle = (low + high) / 2;
      if (middle === low || middle === high) break;
      if (positive(middle) === at) low = middle;
      else high = middle;
    }
    return [low, high];
  }

  // --- linear losses: Binomial(steps, rate) + noise against noise ---
  const STIRLING = [INF];
  for (let n = 1, factorial = 1; n < 16; factorial *= ++n)
    STIRLING.push(log(factorial) - (n + 0.5) * log(n) + n - 0.5 * log(2 * PI));
  function stirling(n) {
    const inverse = 1 / (n * n);
    return n < 16 ? STIRLING[n] : (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse / 1680))) / n;
  }
  function logMass(k, trials, rate) {
    const deviance = (above, mean) => {
      const u = max(above / mean, -1);
      return mean * ((u > -1 ? (1 + u) * log1p(u) : 0) - u);
    };
    const above = k - trials * rate;
    const mass = -deviance(above, trials * rate) - deviance(-above, trials * (1 - rate));
    if (k === 0 || k === trials) return mass;
    const errors = stirling(trials) - stirling(k) - stirling(trials - k);
    return mass + errors - 0.5 * log((2 * PI * k * (trials - k)) / trials);
  }
  class Mixture {
    constructor(sigma, rate, steps) {
      this.s = sigma * sqrt(steps);
      this.shifts = [];
      this.logWeights = [];
      for (let k = rate === 1 ? steps : 0; k <= steps; k++) {
        const mass = rate === 1 ? 0 : logMass(k, steps, rate);
        if (mass < -745) continue;
        this.shifts.push(k);
        this.logWeights.push(mass);
      }
      this.scratch = new Float64Array(this.shifts.length);
    }
    // Log of the sum of exp(term), without what is bounded by e^-100 of the largest.
    sum(bound, term) {
      const { scratch } = this;
      let peak = -INF, total = 0;
      for (let k = 0; k < scratch.length; k++) peak = max(peak, (scratch[k] = bound(k)));
      for (let k = 0; k < scratch.length; k++)
        if (scratch[k] > peak - 100) total += exp((term ? term(k) : scratch[k]) - peak);
      return peak + log(total);
    }
    ratio(y, k) {
      return this.logWeights[k] + ((y - this.shifts[k] / 2) * this.shifts[k]) / this.s ** 2;
    }
    loss(y) {
      return this.sum((k) => this.ratio(y, k));
    }
    // The output of this loss, by Newton's method from the right; start: an output below it.
    threshold(epsilon, start) {
      if (this.shifts[0] === 0 && epsilon <= this.logWeights[0]) return -INF;
      let y = start ?? INF;
      if (start === undefined)
        for (let k = 0; k < this.shifts.length; k++)
          if (this.shifts[k] > 0)
            y = min(y, (this.s ** 2 * (epsilon - this.logWeights[k])) / this.shifts[k] + this.shifts[k] / 2);
      for (let i = 0; i < 200; i++) {
        const value = this.loss(y);
        let mean = 0;
        for (let k = 0; k < this.shifts.length; k++) mean += exp(this.scratch[k] - value) * this.shifts[k];
        const step = ((value - epsilon) * this.s ** 2) / mean;
        y -= step;
        if (abs(step) <= 1e-14 * max(abs(y), this.s)) break;
      }
      return y;
    }
    logDeltaAt(y, side) {
      const { shifts, logWeights, s } = this, nothing = (-side * y) / s;
      const share = (x) => log(-expm1(-abs(logMills(nothing) - logMills(x))));
      const at = (k) => (side * (shifts[k] - y)) / s;
      if (side > 0)
        return this.sum(
          (k) => (shifts[k] > 0 ? logWeights[k] - min(at(k), 0) ** 2 / 2 : -INF),
          (k) => logWeights[k] + logCdf(at(k)) + share(at(k)));
      return this.sum(
        (k) => (shifts[k] > 0 ? this.ratio(y, k) : -INF),
        (k) => this.ratio(y, k) + logCdf(nothing) + share(at(k))) - this.loss(y);
    }
    epsilon(delta, side) {
      if (side === undefined) return max(this.epsilon(delta, 1), this.epsilon(delta, -1));
      const y = this.threshold(0), positive = (at) => this.logDeltaAt(at, side) > log(delta);
      if (!positive(y)) return 0;
      let step = side * this.s;
      while (positive(y + step)) step *= 2;
      return abs(this.loss(between(positive, y, y + step)[1]));
    }
  }

  // --- composition: certified brackets ---
  const MOST_POINTS = 2 ** 23, ROUGH_WORK = 2 ** 25, FINE_WORK = 2 ** 23;
  const allowed = (epsilon, width) => width ?? max(1e-3, 0.01 * epsilon);

  // Some steps whose sum alone is released; one step is a block of its own.
  class Block {
    constructor(sigma, rate, every) {
      Object.assign(this, { sigma, every, s: sigma * sqrt(every), logNone: every * log1p(-rate), pair: null });
      this.rate = -expm1(this.logNone);
      this.odds = log(this.rate) - this.logNone;
      this.shifts = [1];
      this.weights = [1];
      this.leftOut = 0;
      if (every === 1) return;
      this.pair = new Mixture(sigma, rate, every);
      [this.shifts, this.weights] = [[], []];
      this.pair.shifts.forEach((shift, k) => {
        const logWeight = this.pair.logWeights[k] - log(this.rate);
        if (shift > 0 && logWeight > -90) {
          this.shifts.push(shift);
          this.weights.push(exp(logWeight));
        } else if (shift > 0) this.leftOut += exp(logWeight);
      });
    }
    spread() {
      let square = 0;
      this.shifts.forEach((one, i) => this.shifts.forEach((other, j) => {
        square += this.weights[i] * this.weights[j] * expm1(min((one * other) / this.s ** 2, 50));
      }));
      return this.rate * sqrt(min(square, 1e4));
    }
    // A loss above log(1 - rate) that P exceeds with at most this probability.
    top(tail) {
      let last = this.shifts.length, beyond = 0;
      while (last > 0 && beyond + this.weights[last - 1] <= tail / 2) beyond += this.weights[--last];
      const y = this.shifts[max(last - 1, 0)] - this.s * quantile(max(last === 1 ? tail : tail / 2, 1e-300));
      if (this.pair) return this.pair.loss(y) - this.logNone;
      const x = this.odds + (y - 0.5) / this.s ** 2;
      return max(x, 0) + log1p(exp(-abs(x)));
    }
    // The output whose loss is so far above log(1 - rate); before: that of a smaller loss.
    output(above, before) {
      if (this.pair) return this.pair.threshold(above + this.logNone, before);
      return 0.5 + this.s ** 2 * (above + log(-expm1(-above)) - this.odds);
    }
  }

  // Standard normal probabilities between neighbours of the ascending x, times a weight, added to sum.
  function addCells(sum, edges, shift, s, weight) {
    const tail = (x) => (x === -INF ? 0 : cdf(-abs(x)));
    let low = (edges[0] - shift) / s, lowTail = tail(low);
    for (let i = 0; i < sum.length; i++) {
      const high = (edges[i + 1] - shift) / s, highTail = tail(high), w = high - low, m = (high + low) / 2;
      if (w * max(1, abs(m)) < 2e-3) {
        const series = 1 + (w ** 2 * (m ** 2 - 1)) / 24 + (w ** 4 * (m ** 4 - 6 * m ** 2 + 3)) / 1920;
        sum[i] += (weight * w * exp((-m * m) / 2) * series) / sqrt(2 * PI);
      } else sum[i] += weight * (low > 0 ? lowTail - highTail : (high > 0 ? 1 - highTail : highTail) - lowTail);
      low = high;
      lowTail = highTail;
    }
  }

  // The half bins of a block, without and with the record.
  class Step {
    constructor(block, h, tail) {
      const n = max(2, ceil(block.top(tail) / h)), edges = new Float64Array(2 * n + 1);
      Object.assign(this, { logNone: block.logNone, rate: block.rate, odds: block.odds, h, n });
      edges[0] = -INF;
      for (let i = 1; i <= 2 * n; i++)
        edges[i] = max(block.output((h / 2) * i, i > 1 ? edges[i - 1] : undefined), edges[i - 1]);
      this.absent = new Float64Array(2 * n);
      this.present = new Float64Array(2 * n);
      addCells(this.absent, edges, 0, block.s, 1);
      const end = edges[2 * n];
      this.topAbsent = cdf(-end / block.s);
      this.topPresent = block.leftOut;
      block.shifts.forEach((shift, k) => {
        addCells(this.present, edges, shift, block.s, block.weights[k]);
        this.topPresent += block.weights[k] * cdf((shift - end) / block.s);
      });
    }
    above(absent, present) {
      const odds = log(present) - log(absent) + this.odds;
      return absent > 0 ? max(odds, 0) + log1p(exp(-abs(odds))) : 0;
    }
    // Masses of a pair that dominates the step's: each bin's at its two ends.
    upper(side) {
      const { n, h, rate } = this, masses = new Float64Array(n + 1);
      for (let i = 0; i < n; i++) {
        const absent = this.absent[2 * i] + this.absent[2 * i + 1];
        const present = this.present[2 * i] + this.present[2 * i + 1];
        const mixed = (1 - rate) * absent + rate * present;
        let within = min(max(this.above(absent, present) - i * h, 0), h);
        if (side > 0 && absent === 0) within = h;
        const mass = side > 0 ? mixed : absent;
        const moved = mass * min(expm1(-side * within) / expm1(-side * h), 1);
        masses[i] += mass - moved;
        masses[i + 1] += moved;
      }
      const infinite = side > 0 ? (1 - rate) * this.topAbsent + rate * this.topPresent : 0;
      if (side > 0) return { masses, first: this.logNone, h, infinite };
      masses[n] += this.topAbsent;
      return { masses: masses.reverse(), first: -this.logNone - h * n, h, infinite };
    }
    // Masses of a pair that the step's dominates, and by how much their losses are off.
    lower(side) {
      const { n, h, rate } = this, masses = new Float64Array(n), residuals = new Float64Array(n);
      for (let i = 0; i < n; i++) {
        const absent = this.absent[2 * i] + (i ? this.absent[2 * i - 1] : 0);
        const present = this.present[2 * i] + (i ? this.present[2 * i - 1] : 0);
        masses[i] = side > 0 ? (1 - rate) * absent + rate * present : absent;
        const off = min(max(this.above(absent, present) - i * h, -h / 2), h / 2);
        residuals[i] = side < 0 ? -off : absent > 0 ? off : -h / 2;
      }
      if (side > 0) return { masses, first: this.logNone, h, infinite: 0, residuals };
      residuals.reverse();
      return { masses: masses.reverse(), first: -this.logNone - h * (n - 1), h, infinite: 0, residuals };
    }
  }

  // Log moment generating function, mean and variance of the sum of all steps, from 4,096 blocks.
  function cumulants({ masses, first, h }, steps) {
    const kept = masses.reduce((count, mass) => count + (mass > 0), 0), size = max(1, floor(kept / 4096));
    const where = [], logs = [];
    let total = 0, moment = 0, count = 0;
    const close = () => {
      where.push(moment / total);
      logs.push(log(total));
      total = moment = count = 0;
    };
    masses.forEach((mass, i) => {
      if (!(mass > 0)) return;
      if (count === size) close();
      total += mass;
      moment += mass * (first + h * i);
      count++;
    });
    if (count) close();
    return (tilt) => {
      let peak = -INF, sum = 0, mean = 0;
      for (let i = 0; i < logs.length; i++) peak = max(peak, logs[i] + tilt * where[i]);
      for (let i = 0; i < logs.length; i++) {
        const weight = exp(logs[i] + tilt * where[i] - peak);
        sum += weight;
        mean += weight * where[i];
      }
      return [steps * (peak + log(sum)), (steps * mean) / sum];
    };
  }

  // Chernoff: sums of so many draws of mean zero exceed this with at most the probability.
  function reach(weights, value, steps, probability) {
    let furthest = -INF, variance = 0;
    for (let i = 0; i < weights.length; i++) {
      const x = value(i);
      furthest = max(furthest, x);
      variance += weights[i] * x * x;
    }
    let best = steps * max(furthest, 0);
    const need = -log(probability);
    if (best === 0 || variance === 0) return best;
    let theta = sqrt((2 * need) / (steps * variance));
    for (let i = 0; i < 12; i++, theta /= 1.5) {
      if (theta * furthest >= 600) continue;
      let grown = 0;
      for (let j = 0; j < weights.length; j++) grown += weights[j] * expm1(theta * value(j));
      const logMgf = log1p(grown), before = best;
      best = min(best, (steps * logMgf + need) / theta);
      if (steps * logMgf < need && best === before) break;
    }
    return best;
  }

  // In place, of a power of two; the inverse is not divided by the length.
  function transform(re, im, sign) {
    const n = re.length, cosines = new Float64Array(n / 2), sines = new Float64Array(n / 2);
    for (let i = 0; i < n / 2; i++) {
      cosines[i] = Math.cos((2 * PI * i) / n);
      sines[i] = sign * Math.sin((2 * PI * i) / n);
    }
    for (let i = 1, j = 0; i < n; i++) {
      let bit = n >> 1;
      for (; j & bit; bit >>= 1) j ^= bit;
      j ^= bit;
      if (i < j) {
        [re[i], re[j]] = [re[j], re[i]];
        [im[i], im[j]] = [im[j], im[i]];
      }
    }
    for (let half = 1; half < n; half *= 2) {
      const stride = n / (2 * half);
      for (let start = 0; start < n; start += 2 * half)
        for (let k = 0; k < half; k++) {
          const a = start + k, b = a + half, c = cosines[k * stride], s = sines[k * stride];
          const x = re[b] * c - im[b] * s, y = re[b] * s + im[b] * c;
          re[b] = re[a] - x;
          im[b] = im[a] - y;
          re[a] += x;
          im[a] += y;
        }
    }
  }
  // In place: probabilities of the sum of so many draws, modulo a power of two. Pairs of real numbers
  // go as complex ones. Returns the sum of |z|^(2 (steps - 1)) over the Fourier coefficients z.
  function convolved(masses, steps) {
    const m = masses.length / 2, re = masses.filter((_, i) => i % 2 === 0), im = masses.filter((_, i) => i % 2);
    transform(re, im, -1);
    let norm = 0, share;
    const powered = ([x, y]) => {
      const modulus = sqrt(x * x + y * y), power = modulus ** steps;
      if (power > 0) norm += share * (power / modulus) ** 2;
      if (power < 1e-60) return [0, 0];
      const angle = steps * atan2(y, x);
      return [power * Math.cos(angle), power * Math.sin(angle)];
    };
    for (let k = 0; k <= m / 2; k++) {
      const j = (m - k) % m, c = Math.cos((PI * k) / m), s = Math.sin((PI * k) / m);
      const ex = (re[k] + re[j]) / 2, ey = (im[k] - im[j]) / 2, ox = (im[k] + im[j]) / 2, oy = (re[j] - re[k]) / 2;
      const wx = ox * c + oy * s, wy = oy * c - ox * s;
      share = k === 0 || k === j ? 1 : 2;
      const [px, py] = powered([ex + wx, ey + wy]), [qx, qy] = powered([ex - wx, wy - ey]);
      const fx = (px + qx) / 2, fy = (py - qy) / 2, gx = (px - qx) / 2, gy = (py + qy) / 2;
      const hx = gx * c - gy * s, hy = gy * c + gx * s;
      [re[k], im[k]] = [fx - hy, fy + hx];
      if (j !== k && k > 0) [re[j], im[j]] = [fx + hy, hx - fy];
    }
    transform(re, im, 1);
    for (let i = 0; i < m; i++) {
      masses[2 * i] = re[i] / m;
      masses[2 * i + 1] = im[i] / m;
    }
    return norm;
  }
  // The length that SciPy would take: a product of 2, 3 and 5.
  function fast(length) {
    let best = INF;
    for (let five = 1; five < 2 * length; five *= 5)
      for (let three = five; three < 2 * length; three *= 3)
        best = min(best, three * 2 ** max(0, ceil(Math.log2(length / three))));
    return best;
  }

  // Epsilon of the composition, rounded up, or down with residuals; null where the guess is too large.
  function composed(losses, steps, delta, guess, share, work) {
    const { masses, h, residuals } = losses;
    work.spend(masses.length);
    const at = cumulants(losses, steps);
    const decreasing = (x) => guess - at(exp(x))[1] > 0, ends = [log(1e-6), log(1e9)];
    const tilt = !decreasing(ends[0]) ? 1e-6 : decreasing(ends[1]) ? 1e9 : exp(between(decreasing, ...ends)[0]);
    const scale = at(tilt)[0] - tilt * guess - log1p(tilt);
    const lost = max(exp(min(log(delta) - scale, 0)) * share, 1e-30);

    let peak = -INF, total = 0, mean = 0;
    for (let i = 0; i < masses.length; i++) peak = max(peak, log(masses[i]) + tilt * h * i);
    const kept = [], tilted = [];
    for (let i = 0; i < masses.length; i++) {
      const exponent = log(masses[i]) + tilt * h * i - peak;
      if (!(exponent > -100)) continue;
      kept.push(i);
      tilted.push(exp(exponent));
      total += tilted[tilted.length - 1];
    }
    for (let i = 0; i < kept.length; i++) mean += (tilted[i] /= total) * kept[i];
    const centre = round(mean), drift = steps * (mean - centre);
    const logScale = steps * (peak + log(total) - tilt * h * centre) - tilt * h * drift;

    const right = drift + reach(tilted, (i) => kept[i] - mean, steps, lost);
    const from = floor(drift - reach(tilted, (i) => mean - kept[i], steps, lost)) - 1;
    if (right - from > 2 * MOST_POINTS) return null;
    const length = fast(ceil(right) + 2 - from), size = 2 ** ceil(Math.log2(length));
    work.spend(length);
    const sums = new Float64Array(size), wrap = (i) => ((i % size) + size) % size;
    kept.forEach((k, i) => (sums[wrap(k - centre)] += tilted[i]));
    const error = 3 * lost + steps * (8 * Math.log2(length) + 5) * U * sqrt((length / size) * convolved(sums, steps));

    let shift = 0;
    if (residuals) {
      let average = 0;
      kept.forEach((k, i) => (average += tilted[i] * residuals[k]));
      shift = steps * average - reach(tilted, (i) => average - residuals[kept[i]], steps, lost);
    }
    const offset = steps * (losses.first + h * centre) + h * drift + shift;
    const finite = delta + expm1(steps * log1p(-losses.infinite));
    if (finite <= 0) return INF;
    const target = exp(min(log(finite) - logScale, 700)), least = -min(12 / tilt, 600);
    const x = (i) => h * (from - drift + i);
    const start = max(0, ceil(least / h - from + drift));
    let above = 0, below = 0;
    for (let i = length - 1; i >= start; i--) {
      const far = x(i) > 600, pad = (error / (1 + tilt) + 2 * U * (length - start)) * exp(-tilt * x(i));
      const value = residuals ? (far ? 0 : above - pad - exp(x(i)) * below) : above + pad - (far ? 0 : exp(x(i)) * below);
      if (value > target) {
        if (i === length - 1) return residuals ? max(offset + x(i), 0) : INF;
        const padded = residuals ? above - pad : above + pad;
        const inside = below > 0 && !far ? min(max(log((padded - target) / below), x(i)), x(i + 1)) : x(i + 1);
        return max(offset + inside, 0);
      }
      const untilted = sums[wrap(from + i)] * exp(-tilt * x(i));
      above += untilted;
      below += untilted * exp(-x(i));
    }
    return offset + x(start) <= 0 ? 0 : null;
  }

  // The best that some tilt gives, from ever better guesses.
  function search(losses, steps, delta, guess, share, work) {
    const lower = Boolean(losses.residuals);
    let best = lower ? 0 : INF, near = 0, far = INF;
    for (let i = 0; i < 20; i++) {
      const found = composed(losses, steps, delta, guess, share, work);
      if (found === null || found === INF) {
        if (found === null) far = guess;
        else near = guess;
        guess = far === INF ? 2 * near : (near + far) / 2;
        if (far < 1e-9) break;
        continue;
      }
      const better = lower ? found > best : found < best, close = abs(found - guess) <= 0.02 * guess;
      if (better) best = found;
      if (close || !better) break;
      guess = found;
    }
    return best;
  }

  const EXHAUSTED = new Error("the work is spent");
  function oneSide(block, steps, delta, width, side, least, points) {
    const tail = (1e-6 * delta) / steps, top = block.top(tail), single = block.spread();
    const spread = single * sqrt(steps), z = sqrt(2 * log(1 / delta));
    let guess = spread ** 2 / 2 + spread * z, share = 1e-4, lower = 0;
    let h = sqrt((4 * allowed(guess, width) * single) / (z * sqrt(steps)));
    h = max(min(h, single, top / 100), top / 2 ** 18);
    const every = new Mixture(block.sigma, 1, block.every * steps).epsilon(delta, side) * (1 + 5e-10);
    let upper = min(every, side < 0 ? -steps * block.logNone : INF);
    if (upper <= least) return [lower, upper];
    const work = { left: points, spend(n) { if (n > this.left) throw EXHAUSTED; this.left -= n; } };
    try {
      while (top / h <= MOST_POINTS) {
        work.spend((4 + floor(block.shifts.length / 2)) * ceil(top / h));
        const step = new Step(block, h, tail);
        lower = max(lower, search(step.lower(side), steps, delta, guess, share, work));
        guess = lower || guess;
        const found = search(step.upper(side), steps, delta, guess, share, work);
        upper = min(upper, found);
        if (found !== INF) guess = upper;
        const excess = (upper - lower) / allowed(lower, width);
        if (excess <= 1 || upper <= least) break;
        h *= max(min(0.5, 0.9 / sqrt(excess)), 0.1);
        share = max(share / 10, 1e-8);
      }
    } catch (error) {
      if (error !== EXHAUSTED) throw error;
    }
    return [min(lower, upper), upper];
  }
  function best(sigma, rate, steps, delta, every, width, points) {
    if (rate === 1 || steps === every) {
      const pair = rate === 1 ? new Mixture(sigma / sqrt(steps), 1, 1) : new Mixture(sigma, rate, steps);
      const exact = pair.epsilon(delta);
      return [exact * (1 - 5e-10), exact * (1 + 5e-10)];
    }
    if (-expm1(steps * log1p(-rate)) <= delta) return [0, 0];
    const block = new Block(sigma, rate, every);
    let bounds = [0, 0];
    for (const side of [1, -1]) {
      const one = oneSide(block, steps / every, delta, width, side, bounds[0], points);
      bounds = [max(bounds[0], one[0]), max(bounds[1], one[1])];
    }
    return bounds;
  }
  // [lower, upper] of all iterates, or of each so manieth of linear losses.
  function bracket(sigma, rate, steps, delta, every = 1) {
    const rough = best(sigma, rate, steps, delta, every, undefined, ROUGH_WORK);
    const width = rough[1] < 0.1 ? 0.01 * rough[1] : 1e-3 * max(1, rough[1] / 10);
    if (rough[1] - rough[0] <= width) return rough;
    const fine = best(sigma, rate, steps, delta, every, width, FINE_WORK);
    return [max(rough[0], fine[0]), min(rough[1], fine[1])];
  }

  // All that the page shows of one training at one delta; every: 0 if the last iterate alone is released.
  function found({ noise, rate, steps, every, delta }) {
    const linear = (count) => new Mixture(noise, rate, count).epsilon(delta);
    // The adversary's records amplify each step by 1e5; later steps' noise is all that is added.
    const amplified = noise * sqrt(1 + (steps - 1) / 1e10);
    const standard = bracket(noise, rate, steps, delta)[1], last = linear(steps);
    return {
      standard,
      worst: bracket(amplified, rate, steps, delta)[0],
      released: every === 0 ? last : every === 1 ? standard : bracket(noise, rate, steps, delta, every)[1],
      last,
      forgetting: linear(1),
    };
  }
  return { bracket, found };
}
