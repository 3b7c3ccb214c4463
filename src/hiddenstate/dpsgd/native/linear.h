/* Fully connected layers, the loss, and sums of gradients. */
#pragma once
#include "vectors.h"

/* N vectors of x w (+ bias), or of that added to out; w: [IN] rows of them. */
INLINE void linear_tile(const int N, const int IN, const int act, const int add, const float *x,
                        const float *w, const float *bias, float *out) {
  const int step = N * LANES;
  const int U = N > 4 ? 1 : N > 2 ? 2 : 4; /* independent sums that hide the latency */
  vec acc[8];
#pragma GCC unroll 24
  for (int u = 0; u < U; u++)
#pragma GCC unroll 24
    for (int n = 0; n < N; n++) acc[u * N + n] = bias && u == 0 ? load(bias + n * LANES) : splat(0);
  int i = 0;
  for (; i + U <= IN; i += U)
#pragma GCC unroll 4
    for (int u = 0; u < U; u++)
#pragma GCC unroll 24
      for (int n = 0; n < N; n++) acc[u * N + n] += x[i + u] * load(w + (i + u) * step + n * LANES);
  for (; i < IN; i++)
#pragma GCC unroll 24
    for (int n = 0; n < N; n++) acc[n] += x[i] * load(w + i * step + n * LANES);
#pragma GCC unroll 24
  for (int n = 0; n < N; n++) {
    vec sum = acc[n];
#pragma GCC unroll 4
    for (int u = 1; u < U; u++) sum += acc[u * N + n];
    put(add, out + n * LANES, activate(act, sum));
  }
}

/* The same of RECORDS vectors x, MORE floats apart, which read the weights once: V of the N. Every
 * sum has the terms and the order of a tile's. */
INLINE void linear_slice(const int RECORDS, const int MORE, const int V, const int N,
                         const int IN, const int act, const int add, const float *x,
                         const float *w, const float *bias, float *out) {
  const int step = N * LANES;
  const int U = N > 4 ? 1 : N > 2 ? 2 : 4;
  vec acc[RECORDS][8];
#pragma GCC unroll 16
  for (int r = 0; r < RECORDS; r++)
#pragma GCC unroll 8
    for (int k = 0; k < U * V; k++) acc[r][k] = bias && k < V ? load(bias + k * LANES) : splat(0);
  int i = 0;
  for (; i + U <= IN; i += U)
#pragma GCC unroll 8
    for (int k = 0; k < U * V; k++) {
      const vec wv = load(w + (i + k / V) * step + k % V * LANES);
#pragma GCC unroll 16
      for (int r = 0; r < RECORDS; r++) acc[r][k] += x[r * MORE + i + k / V] * wv;
    }
  for (; i < IN; i++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++)
#pragma GCC unroll 16
      for (int r = 0; r < RECORDS; r++)
        acc[r][v] += x[r * MORE + i] * load(w + i * step + v * LANES);
#pragma GCC unroll 16
  for (int r = 0; r < RECORDS; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      vec sum = acc[r][v];
#pragma GCC unroll 4
      for (int u = 1; u < U; u++) sum += acc[r][u * V + v];
      put(add, out + r * MORE + v * LANES, activate(act, sum));
    }
}

/* N vectors of outputs of all records. */
INLINE void linear_block(const int RECORDS, const int MORE, const int N, const int IN,
                         const int act, const int add, const float *x, const float *w,
                         const float *bias, float *out) {
  const int V = N > 4 ? 2 : 1, rest = N % V;
  if (RECORDS == 1) {
    linear_tile(N, IN, act, add, x, w, bias, out);
    return;
  }
  for (int n = 0; n + V <= N; n += V)
    linear_slice(RECORDS, MORE, V, N, IN, act, add, x, w + n * LANES, bias ? bias + n * LANES : 0,
                 out + n * LANES);
  if (rest) {
    const int at = (N - rest) * LANES;
    linear_slice(RECORDS, MORE, 1, N, IN, act, add, x, w + at, bias ? bias + at : 0, out + at);
  }
}

/* w: blocks of eight vectors of outputs, and one of the rest. */
INLINE void linear(const int RECORDS, const int MORE, const int IN, const int OUT, const int act,
                   const int add, const float *x, const float *w, const float *bias, float *out) {
  const int N = MIN(OUT / LANES, 8), rest = OUT / LANES % N, most = OUT - rest * LANES;
  for (int o = 0; o < most; o += N * LANES)
    linear_block(RECORDS, MORE, N, IN, act, add, x, w + IN * o, bias ? bias + o : 0, out + o);
  if (rest)
    linear_block(RECORDS, MORE, rest ? rest : 1, IN, act, add, x, w + IN * most,
                 bias ? bias + most : 0, out + most);
}

/* Four sums of vectors: one alone would wait for every addition. */
INLINE float squared_norm(const int N, const float *x) {
  vec sums[4] = {{0}};
  float rest = 0;
  int i = 0;
  for (; i + 4 * LANES <= N; i += 4 * LANES)
    for (int k = 0; k < 4; k++) sums[k] += load(x + i + k * LANES) * load(x + i + k * LANES);
  for (; i + LANES <= N; i += LANES) sums[0] += load(x + i) * load(x + i);
  for (; i < N; i++) rest += x[i] * x[i];
  return total(sums[0] + sums[1] + (sums[2] + sums[3])) + rest;
}

/* To the sum, which is read and written once for all records. */
INLINE void add_outer(const int RECORDS, const int MORE, const int IN, const int OUT,
                      const float *c, const float *x, const float *g, float *sum) {
  for (int i = 0; i < IN; i++) {
    vec s[RECORDS];
#pragma GCC unroll 16
    for (int r = 0; r < RECORDS; r++) s[r] = splat(c[r * MORE] * x[r * MORE + i]);
    for (int o = 0; o < OUT; o += LANES) {
      vec found = load(sum + i * OUT + o);
#pragma GCC unroll 16
      for (int r = 0; r < RECORDS; r++) found += s[r] * load(g + r * MORE + o);
      store(sum + i * OUT + o, found);
    }
  }
}

INLINE void add_scaled(const int RECORDS, const int MORE, const int N, const float *c,
                       const float *x, float *sum) {
  for (int i = 0; i < N; i += LANES) {
    vec found = load(sum + i);
#pragma GCC unroll 16
    for (int r = 0; r < RECORDS; r++) found += c[r * MORE] * load(x + r * MORE + i);
    store(sum + i, found);
  }
}

/* Place of the first of the largest, or of the first that is no number. */
INLINE int argmax(const int N, const float *x) {
  int found = 0;
  for (int i = 1; i < N; i++)
    if (x[found] == x[found] && !(x[i] <= x[found])) found = i;
  return found;
}

/* Cross-entropy loss; g: its gradient by the logits. Gradients too small to matter are zeroed,
 * for products of subnormal numbers are slow. */
INLINE float cross_entropy(const int CLASSES, const int OUT, const float *logits, const int label,
                           float *g) {
  float most = logits[0], sum = 0;
  for (int i = 1; i < CLASSES; i++) most = logits[i] > most ? logits[i] : most;
  for (int i = 0; i < CLASSES; i++) sum += g[i] = expf(logits[i] - most);
  for (int i = 0; i < CLASSES; i++) {
    g[i] = g[i] / sum - (i == label);
    if (fabsf(g[i]) < 1e-20f) g[i] = 0;
  }
  for (int i = CLASSES; i < OUT; i++) g[i] = 0;
  return logf(sum) + most - logits[label];
}
