/* Winograd's algorithm.
 *
 * Convolution of K x K taps and stride 1, in tiles of 4 x 4 places that read 6 x 6 inputs where K is
 * 3, and 7 x 7 where it is 4. In one dimension inputs d_j, weights w_j and places y_i = w_0 d_i +
 * w_1 d_(i+1) + ... are taken for polynomials' coefficients: six (seven) products of values at
 * points replace twelve (sixteen). In both dimensions it is 36 instead of 144 (49 instead of 256),
 * and with many channels each of these is a matrix product. Both gradients are the same, transposed:
 * products of gradients with weights make the input's, and with inputs the weights'. The points are
 * 0, NEAR, -NEAR, FAR, -FAR and infinity: with NEAR = 2 / 3 and FAR = 3 / 2 rounding errors are half
 * of what they are with 1 and 2, and NEAR FAR = 1 spares multiplications. The seventh is -1, beside
 * which 1 / 2 and 2 are better.
 * Source: Lavin and Gray 2016. Transformed tensors are [point][tile][channel], transformed weights
 * [output block][point][input channel][channel in block]. */
#pragma once
#include "convolution.h"

/* INPUTS: values of inputs at points; SPREAD: transposed. VALUES: of the polynomial whose
 * coefficients are gradients or weights; SCALED: those by which the products are divided too; SUMS:
 * transposed, to places or taps. */
enum { INPUTS, SPREAD, VALUES, SCALED, SUMS };
#define EDGE 4 /* places of a tile's side */
#define MOST 7 /* points, at most */
#define AT_ONCE 16 /* tiles that are transformed before they are multiplied, to stay in the cache */

/* Points, and inputs of a tile's side. */
INLINE int side_of(const int K) { return EDGE + K - 1; }
INLINE float near_of(const int K) { return K == 3 ? 2.0f / 3 : 0.5f; }

/* The inputs' transform of a column: products with (x^2 - NEAR^2) (x^2 - FAR^2) less the point's own
 * factor. Those with seven points have the factor x + 1 too. */
INLINE void column_of_inputs(const int K, vec a[MOST][MOST], const int i, vec b[MOST]) {
  const float near = near_of(K), far = 1 / near, both = near * near + far * far;
  vec d[MOST];
#pragma GCC unroll 6
  for (int k = 0; k < 6; k++) {
    d[k] = a[k][i];
    if (K == 4) d[k] += a[k + 1][i];
  }
  vec even_near = d[4] - far * far * d[2], odd_near = near * d[3] - far * d[1];
  vec even_far = d[4] - near * near * d[2], odd_far = far * d[3] - near * d[1];
  b[0] = d[0] + d[4] - both * d[2];
  b[1] = even_near + odd_near;
  b[2] = even_near - odd_near;
  b[3] = even_far + odd_far;
  b[4] = even_far - odd_far;
  b[5] = d[1] + d[5] - both * d[3];
  if (K == 4) b[6] = a[1][i] + a[5][i] - both * a[3][i];
}
/* The same, transposed. */
INLINE void spread_column(const int K, vec a[MOST][MOST], const int i, vec b[MOST]) {
  const float near = near_of(K), far = 1 / near, both = near * near + far * far;
  vec even_near = a[1][i] + a[2][i], odd_near = a[1][i] - a[2][i];
  vec even_far = a[3][i] + a[4][i], odd_far = a[3][i] - a[4][i];
  b[0] = a[0][i];
  b[1] = a[5][i] - far * odd_near - near * odd_far;
  b[2] = -both * a[0][i] - far * far * even_near - near * near * even_far;
  b[3] = near * odd_near + far * odd_far - both * a[5][i];
  b[4] = a[0][i] + even_near + even_far;
  b[5] = a[5][i];
  if (K == 4) {
    b[6] = b[5];
#pragma GCC unroll 5
    for (int k = 5; k > 0; k--) b[k] += b[k - 1];
    b[1] += a[6][i];
    b[3] -= both * a[6][i];
    b[5] += a[6][i];
  }
}
/* By what the products at a point are divided: the product of its distances from the others. */
INLINE float scale_of(const int K, const int point) {
  const float near = near_of(K), far = 1 / near;
  if (point == 6) return -1 / ((1 - near * near) * (1 - far * far));
  if (point == 0 || point == 5) return 1;
  const float p = point < 3 ? near : far, x = point % 2 ? p : -p;
  return 0.5f / (p * p - 1 / (p * p)) / (p * p) / (K == 3 ? 1 : x + 1);
}
/* Values of a polynomial of n coefficients at the points. */
INLINE void values(const int K, const int n, const int scaled, vec a[MOST][MOST], const int i,
                   vec b[MOST]) {
  const float near = near_of(K), far = 1 / near;
  vec even_near = a[0][i] + near * near * a[2][i], odd_near = near * a[1][i];
  vec even_far = a[0][i] + far * far * a[2][i], odd_far = far * a[1][i];
  if (n == 4) {
    odd_near += near * near * near * a[3][i];
    odd_far += far * far * far * a[3][i];
  }
  b[0] = a[0][i];
  b[1] = even_near + odd_near;
  b[2] = even_near - odd_near;
  b[3] = even_far + odd_far;
  b[4] = even_far - odd_far;
  b[5] = a[n - 1][i];
  if (K == 4) b[6] = a[0][i] - a[1][i] + a[2][i] - a[3][i];
  if (scaled)
#pragma GCC unroll 7
    for (int k = 0; k < side_of(K); k++) b[k] *= scale_of(K, k);
}
/* The same, transposed: n sums over the points. */
INLINE void sums(const int K, const int n, vec a[MOST][MOST], const int i, vec b[MOST]) {
  const float near = near_of(K), far = 1 / near;
  vec even_near = a[1][i] + a[2][i], odd_near = a[1][i] - a[2][i];
  vec even_far = a[3][i] + a[4][i], odd_far = a[3][i] - a[4][i];
  b[0] = a[0][i] + even_near + even_far;
  b[1] = near * odd_near + far * odd_far;
  b[2] = near * near * even_near + far * far * even_far;
  if (n == 4) b[3] = near * near * near * odd_near + far * far * far * odd_far;
  if (K == 4)
#pragma GCC unroll 4
    for (int k = 0; k < n; k++) b[k] += k % 2 ? -a[6][i] : a[6][i];
  b[n - 1] += a[5][i];
}

/* Transforms `some` columns, which become rows. n: coefficients, places or taps. */
INLINE void columns(const int kind, const int K, const int n, const int some, vec a[MOST][MOST],
                    vec to[MOST][MOST]) {
#pragma GCC unroll 7
  for (int i = 0; i < some; i++) {
    if (kind == INPUTS) column_of_inputs(K, a, i, to[i]);
    if (kind == SPREAD) spread_column(K, a, i, to[i]);
    if (kind == VALUES || kind == SCALED) values(K, n, kind == SCALED, a, i, to[i]);
    if (kind == SUMS) sums(K, n, a, i, to[i]);
  }
}
INLINE void transform(const int kind, const int K, const int n, vec a[MOST][MOST]) {
  vec turned[MOST][MOST];
  columns(kind, K, n, kind == VALUES || kind == SCALED ? n : side_of(K), a, turned);
  columns(kind, K, n, kind == SUMS ? n : side_of(K), turned, a);
}

/* n x n vectors, `apart` floats apart. */
INLINE void read_tile(const int n, const int apart, const float *from, vec a[MOST][MOST]) {
#pragma GCC unroll 49
  for (int k = 0; k < n * n; k++) a[k / n][k % n] = load(from + k * apart);
}
INLINE void write_tile(const int n, const int apart, vec a[MOST][MOST], float *to) {
#pragma GCC unroll 49
  for (int k = 0; k < n * n; k++) store(to + k * apart, a[k / n][k % n]);
}

INLINE void winograd_weights(const int K, const int CI, const int CO, const float *w, float *to) {
  const int block = block_of(CO) * LANES, each = CI * block, side = side_of(K);
  for (int c = 0; c < CO; c += block, w += K * K * each, to += side * side * each)
    for (int j = 0; j < each; j += LANES) {
      vec u[MOST][MOST];
      read_tile(K, each, w + j, u);
      transform(SCALED, K, K, u);
      write_tile(side, each, u, to + j);
    }
}

/* A tile: its first place, how many there are (fewer at an edge), and where its record begins. */
typedef struct {
  int y, i, high, wide;
  ptrdiff_t record;
} Tile;
INLINE Tile tile_at(const int t, const int OH, const int OW, const int MORE) {
  const int across = parts(OW, EDGE), each = parts(OH, EDGE) * across;
  const int y = EDGE * (t % each / across), i = EDGE * (t % each % across);
  return (Tile){y, i, OH % EDGE ? MIN(OH - y, EDGE) : EDGE, OW % EDGE ? MIN(OW - i, EDGE) : EDGE,
                t / each * (ptrdiff_t)MORE};
}
/* Tiles of so many records, and how many are taken at once. */
INLINE int all_tiles(const int RECORDS, const int OH, const int OW) {
  return RECORDS * parts(OH, EDGE) * parts(OW, EDGE);
}
INLINE int at_once(const int tiles) { return parts(tiles, parts(tiles, AT_ONCE)); }
/* Floats between transforms of so many: a cache line more, so that not all want one place. */
INLINE int apart_of(const int floats) { return floats + 16; }

/* Transforms C channels of the tiles from FIRST to END: inputs, or gradients of the places. What a
 * tile reads beyond its image is zero, and of pooled ones what lost. */
INLINE void winograd_tiles(const int kind, const int MORE, const int K, const int pooled,
                           const int OH, const int OW, const int C, const int row,
                           const int step, const int apart, const int first, const int end, const float *x, const int32_t *winner,
                           float *to) {
  const int beyond = kind == INPUTS ? K - 1 : 0, n = EDGE + beyond;
  for (int t = first; t < end; t++) {
    const Tile tile = tile_at(t, OH, OW, MORE);
    for (int c = 0; c < C; c += LANES, to += LANES) {
      const float *p = x + tile.record + c;
      vec a[MOST][MOST];
#pragma GCC unroll 7
      for (int k = 0; k < n; k++)
#pragma GCC unroll 7
        for (int l = 0; l < n; l++) {
          const int y = pooled ? (tile.y + k) / 2 : tile.y + k;
          const int at = y * row + (pooled ? (tile.i + l) / 2 : tile.i + l) * step;
          a[k][l] = k < tile.high + beyond && l < tile.wide + beyond ? load(p + at) : splat(0);
          if (pooled && k < tile.high && l < tile.wide)
            a[k][l] = pick(*(const ivec *)(winner + tile.record + c + at) == k % 2 * 2 + l % 2,
                           a[k][l], splat(0));
        }
      transform(kind, K, EDGE, a);
      write_tile(side_of(K), apart, a, to);
    }
  }
}

/* At all points the products of S tiles' C channels with the weights of V vectors of others. */
INLINE void multiply(const int K, const int S, const int C, const int V, const float *x,
                     const float *w, float *out) {
  for (int k = 0; k < side_of(K) * side_of(K); k++)
    conv_rows(1, S, V, 1, C, 0, 0, C, NONE, x + k * apart_of(S * C), w + k * C * V * LANES, 0, 0,
              out + k * apart_of(S * V * LANES), 0, V * LANES);
}

/* Convolution to OH x OW places, 2 x 2 max-pooling or none, activation. w: transformed. */
INLINE void winograd_forward(const int RECORDS, const int MORE, const int K, const int pooled,
                             const int W, const int CI, const int OH, const int OW, const int CO,
                             const int act, const int out_row, const float *x, const float *w,
                             const float *bias, float *out, int32_t *winner, float *room) {
  const int V = block_of(CO), block = V * LANES, side = side_of(K);
  const int tiles = all_tiles(RECORDS, OH, OW), S = at_once(tiles);
  const int step = pooled ? 2 : 1; /* places of a side that make one of the output */
  float *products = room + side * side * apart_of(S * CI);
  for (int first = 0; first < tiles; first += S) {
    const int end = MIN(first + S, tiles);
    winograd_tiles(INPUTS, MORE, K, 0, OH, OW, CI, W * CI, CI, apart_of(S * CI), first, end, x, 0,
                   room);
    for (int c = 0; c < CO; c += block) {
      /* The last tiles may be fewer than S: what is multiplied in their place is not read. */
      multiply(K, S, CI, V, room, w + side * side * CI * c, products);
      for (int t = first; t < end; t++) {
        const Tile tile = tile_at(t, OH, OW, MORE);
        for (int v = 0; v < block; v += LANES) {
          const vec b = load(bias + c + v);
          vec m[MOST][MOST];
          read_tile(side, apart_of(S * block), products + (t - first) * block + v, m);
          transform(SUMS, K, EDGE, m);
#pragma GCC unroll 4
          for (int k = 0; k < EDGE; k += step)
#pragma GCC unroll 4
            for (int l = 0; l < EDGE; l += step) {
              if (k >= tile.high || l >= tile.wide) continue;
              const int y = (tile.y + k) / step, i = (tile.i + l) / step;
              vec best = m[k][l];
              if (pooled)
                best = largest(best, m[k][l + 1], m[k + 1][l], m[k + 1][l + 1],
                               winner + tile.record + (y * (OW / 2) + i) * CO + c + v);
              store(out + tile.record + y * out_row + i * CO + c + v, activate(act, best + b));
            }
        }
      }
    }
  }
}

/* Input gradient, added to dx, where the input's padding is in place: the forward pass's adjoint.
 * w: transformed, with inputs for outputs. g: of the pooled places, if they are. */
INLINE void winograd_back(const int RECORDS, const int MORE, const int K, const int pooled,
                          const int W, const int CI, const int OH, const int OW, const int CO, const int g_row,
                          const float *g, const int32_t *winner, const float *w, float *dx,
                          float *room) {
  const int V = block_of(CI), block = V * LANES, side = side_of(K);
  const int tiles = all_tiles(RECORDS, OH, OW), S = at_once(tiles);
  float *products = room + side * side * apart_of(S * CO);
  for (int first = 0; first < tiles; first += S) {
    const int end = MIN(first + S, tiles);
    winograd_tiles(VALUES, MORE, K, pooled, OH, OW, CO, g_row, CO, apart_of(S * CO), first, end, g, winner,
                   room);
    for (int c = 0; c < CI; c += block) {
      multiply(K, S, CO, V, room, w + side * side * CO * c, products);
      for (int t = first; t < end; t++) {
        const Tile tile = tile_at(t, OH, OW, MORE);
        for (int v = 0; v < block; v += LANES) {
          float *d = dx + tile.record + (tile.y * W + tile.i) * CI + c + v;
          vec m[MOST][MOST];
          read_tile(side, apart_of(S * block), products + (t - first) * block + v, m);
          transform(SPREAD, K, side, m);
#pragma GCC unroll 7
          for (int k = 0; k < side; k++)
#pragma GCC unroll 7
            for (int l = 0; l < side; l++)
              if (k < tile.high + K - 1 && l < tile.wide + K - 1)
                put(1, d + (k * W + l) * CI, m[k][l]);
        }
      }
    }
  }
}

/* Weight gradient, dense, in the layout of the forward weights; returns its squared norm. */
INLINE float winograd_gradient(const int K, const int W, const int CI, const int OH, const int OW,
                               const int CO, const int g_row, const float *x, const float *g,
                               float *dw, float *room) {
  const int V = block_of(CO), block = V * LANES, each = CI * block, side = side_of(K);
  const int tiles = all_tiles(1, OH, OW), all = side * side;
  const int some = LANES / 2; /* input channels at once: their products stay in the cache */
  const int inputs = apart_of(tiles * CI), gradients = apart_of(tiles * block);
  const int after = apart_of(some * block);
  float *gs = room + all * inputs, *products = gs + all * gradients;
  vec squares = splat(0);
  winograd_tiles(INPUTS, 0, K, 0, OH, OW, CI, W * CI, CI, inputs, 0, tiles, x, 0, room);
  for (int c = 0; c < CO; c += block, dw += K * K * each) {
    winograd_tiles(SCALED, 0, K, 0, OH, OW, block, g_row, CO, gradients, 0, tiles, g + c, 0, gs);
    for (int j = 0; j < CI; j += some) {
      for (int k = 0; k < all; k++)
        weight_tile(some, V, 1, tiles, 0, CI, block, 0, room + k * inputs + j, gs + k * gradients,
                    products + k * after, squares);
      for (int i = 0; i < some * block; i += LANES) {
        vec taps[MOST][MOST];
        read_tile(side, after, products + i, taps);
        transform(SUMS, K, K, taps);
#pragma GCC unroll 16
        for (int k = 0; k < K * K; k++) {
          store(dw + k * each + j * block + i, taps[k / K][k % K]);
          squares += taps[k / K][k % K] * taps[k / K][k % K];
        }
      }
    }
  }
  return total(squares);
}
