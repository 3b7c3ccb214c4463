/* DP-SGD on a small fully connected ReLU network: LANES records side by side in a vector's lanes.
 *
 * A whole training is one call. Parameters lie as torch flattens them, each layer's weights
 * [output][input] and then its biases, and enter as broadcasts; records are transposed so that a
 * vector holds one feature of LANES records. Everything of a block of records stays on the stack.
 * The lanes' sums are added up once a step, in a fixed order.
 */
#include "clipped_sum.h"

#define AHEAD 32 /* records fetched before their turn, for they lie in random order */

INLINE float sum_of_lanes(vec v) {
  float a[LANES];
  store(a, v);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) a[i] += a[i + width];
  return a[0];
}
INLINE vec vsqrt(vec v) {
  float a[LANES];
  store(a, v);
  for (int i = 0; i < LANES; i++) a[i] = sqrtf(a[i]);
  return load(a);
}
INLINE vec magnitude(vec v) { return (vec)((ivec)v & 0x7fffffff); }

/* One record into its lane. The barriers keep the compiler from turning the copies into vector
 * gathers, which take several times as long. */
INLINE void transpose(const int N, const float *record, float *lane) {
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) {
    lane[i * LANES] = record[i];
    __asm__ volatile("" ::: "memory");
  }
}

/* The first n lanes. */
INLINE ivec lanes_below(int n) {
  int32_t a[LANES];
  for (int i = 0; i < LANES; i++) a[i] = -(i < n);
  return *(const ivec *)a;
}

/* e^x for x of at most 0: 2^n e^f with |f| <= log(2) / 2. Below -87 it stays at e^-87. */
INLINE vec vexp(vec x) {
  x = pick(x < -87.0f, splat(-87.0f), x);
  const vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
  vec shifted = x * 1.4426950408889634f + magic;
  vec n = shifted - magic;
  vec f = x - n * 0.693145751953125f; /* log(2) in two parts */
  f = f - n * 1.428606820309417e-6f;
  vec p = splat(1.0f / 720);
  p = p * f + 1.0f / 120;
  p = p * f + 1.0f / 24;
  p = p * f + 1.0f / 6;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  vec scale = (vec)(((ivec)shifted - (ivec)magic + 127) << 23);
  return p * scale;
}

/* One layer: out = act(w x + b). */
INLINE void dense(const int IN, const int OUT, const int act, const float *w, const vec *x,
                  vec *out) {
  const float *b = w + IN * OUT;
#pragma GCC unroll 16
  for (int o = 0; o < OUT; o++) {
    vec s = splat(b[o]);
#pragma GCC unroll 16
    for (int i = 0; i < IN; i++) s += w[o * IN + i] * x[i];
    out[o] = activate(act, s);
  }
}

/* Gradient by the inputs of a layer, before the ReLU that made them. */
INLINE void dense_back(const int IN, const int OUT, const float *w, const vec *g, const vec *x,
                       vec *before) {
#pragma GCC unroll 16
  for (int i = 0; i < IN; i++) {
    vec s = w[i] * g[0];
#pragma GCC unroll 16
    for (int o = 1; o < OUT; o++) s += w[o * IN + i] * g[o];
    before[i] = (vec)((x[i] > 0.0f) & (ivec)s);
  }
}

INLINE vec squares_of(const int N, const vec *x) {
  vec s = x[0] * x[0];
#pragma GCC unroll 16
  for (int i = 1; i < N; i++) s += x[i] * x[i];
  return s;
}

/* Adds a layer's gradients: the products of g, clipped already, with x. */
INLINE void add_products(const int IN, const int OUT, const vec *x, const vec *g, vec *sum) {
#pragma GCC unroll 16
  for (int o = 0; o < OUT; o++) {
#pragma GCC unroll 16
    for (int i = 0; i < IN; i++) sum[o * IN + i] += g[o] * x[i];
    sum[IN * OUT + o] += g[o];
  }
}

/* Gradient of the cross-entropy by the logits. Gradients too small to matter are zeroed, for
 * products of subnormal numbers are slow. */
INLINE void logit_gradient(const int CLASSES, const vec *logits, ivec label, vec *g) {
  vec most = logits[0], sum = splat(0);
#pragma GCC unroll 16
  for (int i = 1; i < CLASSES; i++) most = pick(logits[i] > most, logits[i], most);
#pragma GCC unroll 16
  for (int i = 0; i < CLASSES; i++) sum += g[i] = vexp(logits[i] - most);
  const vec inverse = 1.0f / sum;
#pragma GCC unroll 16
  for (int i = 0; i < CLASSES; i++) {
    g[i] = g[i] * inverse - pick(label == i, splat(1.0f), splat(0.0f));
    g[i] = (vec)((magnitude(g[i]) > 1e-20f) & (ivec)g[i]);
  }
}

/* What to multiply gradients of these squared norms by, and 0 for lanes without a record. A norm
   that overflows makes the sum no number: clipped to 0, its record would vanish. */
INLINE vec clipping_factor(vec squares, float clip, ivec present) {
  vec norm = vsqrt(squares);
  vec c = pick(norm > clip, clip / norm, splat(1.0f)) + 0.0f * norm;
  return (vec)(present & (ivec)c);
}
