/* Winograd's algorithm.
 *
 * Convolution of K x K taps and stride 1, in tiles that read 6 x 6 inputs: of 4 x 4 places where K
 * is 3, of 3 x 3 where it is 4. In one dimension inputs d_j, weights w_j and places y_i = w_0 d_i +
 * w_1 d_(i+1) + ... are taken for polynomials' coefficients: six products of values at six points
 * replace twelve. In both dimensions it is 36 instead of 144, and with many channels each of the
 * 36 is a matrix product. The weights' gradient is the same, transposed: 36 products of inputs and
 * gradients. The points are 0, NEAR, -NEAR, FAR, -FAR and infinity: with NEAR = 2 / 3 and FAR =
 * 3 / 2 rounding errors are half of what they are with 1 and 2, and NEAR FAR = 1 spares
 * multiplications.
 * Source: Lavin and Gray 2016. Transformed tensors are [one of 36][tile][channel], transformed
 * weights [output block][one of 36][input channel][channel in block]. */
#pragma once
#include "convolution.h"

enum { INPUTS, WEIGHTS, PLACES, GRADIENTS, TAPS };
#define SIDE 6 /* inputs of a tile's side */
#define AT_ONCE 16 /* tiles that are transformed before they are multiplied, to stay in the cache */
#define NEAR (2.0f / 3)
#define FAR (3.0f / 2)

/* How many places a tile's side has with K taps. */
INLINE int edge_of(const int K) { return SIDE + 1 - K; }
/* How many entries a side has before and after a transform. */
INLINE int taken(const int kind, const int K) {
  return kind == GRADIENTS ? edge_of(K) : kind == WEIGHTS ? K : SIDE;
}
INLINE int given(const int kind, const int K) {
  return kind == PLACES ? edge_of(K) : kind == TAPS ? K : SIDE;
}

/* The inputs' transform of a column. */
INLINE void column_of_inputs(vec a[SIDE][SIDE], const int i, vec b[SIDE]) {
  vec even_near = a[4][i] - FAR * FAR * a[2][i], odd_near = NEAR * a[3][i] - FAR * a[1][i];
  vec even_far = a[4][i] - NEAR * NEAR * a[2][i], odd_far = FAR * a[3][i] - NEAR * a[1][i];
  b[0] = a[0][i] + a[4][i] - (NEAR * NEAR + FAR * FAR) * a[2][i];
  b[1] = even_near + odd_near;
  b[2] = even_near - odd_near;
  b[3] = even_far + odd_far;
  b[4] = even_far - odd_far;
  b[5] = a[1][i] + a[5][i] - (NEAR * NEAR + FAR * FAR) * a[3][i];
}
/* Values of a polynomial of n coefficients at the points, those at NEAR and FAR scaled. */
INLINE void values(const int n, const float near, const float far, vec a[SIDE][SIDE],
                   const int i, vec b[SIDE]) {
  vec even_near = near * (a[0][i] + NEAR * NEAR * a[2][i]), odd_near = near * NEAR * a[1][i];
  vec even_far = far * (a[0][i] + FAR * FAR * a[2][i]), odd_far = far * FAR * a[1][i];
  if (n == 4) {
    odd_near += near * NEAR * NEAR * NEAR * a[3][i];
    odd_far += far * FAR * FAR * FAR * a[3][i];
  }
  b[0] = a[0][i];
  b[1] = even_near + odd_near;
  b[2] = even_near - odd_near;
  b[3] = even_far + odd_far;
  b[4] = even_far - odd_far;
  b[5] = a[n - 1][i];
}
/* The same, transposed: n sums over the points, those at NEAR and FAR scaled. */
INLINE void sums(const int n, const float near, const float far, vec a[SIDE][SIDE], const int i,
                 vec b[SIDE]) {
  vec even_near = a[1][i] + a[2][i], odd_near = a[1][i] - a[2][i];
  vec even_far = a[3][i] + a[4][i], odd_far = a[3][i] - a[4][i];
  b[0] = a[0][i] + near * even_near + far * even_far;
  b[1] = near * NEAR * odd_near + far * FAR * odd_far;
  b[2] = near * NEAR * NEAR * even_near + far * FAR * FAR * even_far;
  if (n == 4) b[3] = near * NEAR * NEAR * NEAR * odd_near + far * FAR * FAR * FAR * odd_far;
  b[n - 1] += a[5][i];
}

/* Transforms n columns, which become rows. */
INLINE void columns(const int kind, const int K, const int n, vec a[SIDE][SIDE],
                    vec to[SIDE][SIDE]) {
  /* The weights' values are divided by p^2 (p^2 - q^2), with p one of the two and q the other, and
   * halved. */
  const float near = 0.5f / (NEAR * NEAR - FAR * FAR) / (NEAR * NEAR);
  const float far = 0.5f / (FAR * FAR - NEAR * NEAR) / (FAR * FAR);
#pragma GCC unroll 6
  for (int i = 0; i < n; i++) {
    if (kind == INPUTS) column_of_inputs(a, i, to[i]);
    if (kind == WEIGHTS) values(K, near, far, a, i, to[i]);
    if (kind == GRADIENTS) values(edge_of(K), 1, 1, a, i, to[i]);
    if (kind == PLACES) sums(edge_of(K), 1, 1, a, i, to[i]);
    if (kind == TAPS) sums(K, near, far, a, i, to[i]);
  }
}
INLINE void transform(const int kind, const int K, vec a[SIDE][SIDE], vec to[SIDE][SIDE]) {
  vec turned[SIDE][SIDE];
  columns(kind, K, taken(kind, K), a, turned);
  columns(kind, K, given(kind, K), turned, to);
}

/* Entries `apart` floats apart, transformed. */
INLINE void read_tile(const int kind, const int K, const int apart, const float *from,
                      vec to[SIDE][SIDE]) {
  const int n = taken(kind, K);
  vec a[SIDE][SIDE];
#pragma GCC unroll 36
  for (int k = 0; k < n * n; k++) a[k / n][k % n] = load(from + k * apart);
  transform(kind, K, a, to);
}
INLINE void write_tile(const int apart, vec from[SIDE][SIDE], float *to) {
#pragma GCC unroll 36
  for (int k = 0; k < SIDE * SIDE; k++) store(to + k * apart, from[k / SIDE][k % SIDE]);
}

INLINE void winograd_weights(const int K, const int CI, const int CO, const float *w, float *to) {
  const int block = block_of(CO) * LANES, each = CI * block;
  for (int c = 0; c < CO; c += block, w += K * K * each, to += SIDE * SIDE * each)
    for (int j = 0; j < each; j += LANES) {
      vec u[SIDE][SIDE];
      read_tile(WEIGHTS, K, each, w + j, u);
      write_tile(each, u, to + j);
    }
}

/* Transforms C channels of the tiles from FIRST to END of images of H x W pixels, MORE floats
 * apart. What a tile reads beyond its image, where the last tiles stand out, is zero. */
INLINE void winograd_tiles(const int kind, const int K, const int H, const int W, const int C,
                           const int TW, const int tiles, const int more, const int row,
                           const int step, const int apart, const int first, const int end,
                           const float *x, float *to) {
  const int n = taken(kind, K), edge = edge_of(K);
  const int over_y = (H - n) % edge, over_i = (W - n) % edge;
  for (int t = first; t < end; t++, to += C) {
    const int y = edge * (t % tiles / TW), i = edge * (t % tiles % TW);
    const float *image = x + t / tiles * (ptrdiff_t)more;
    for (int c = 0; c < C; c += LANES) {
      const float *p = image + y * row + i * step + c;
      vec a[SIDE][SIDE], b[SIDE][SIDE];
#pragma GCC unroll 6
      for (int k = 0; k < n; k++)
#pragma GCC unroll 6
        for (int l = 0; l < n; l++)
          a[k][l] = (over_y && y + k >= H) || (over_i && i + l >= W)
                        ? splat(0)
                        : load(p + k * row + l * step);
      transform(kind, K, a, b);
      write_tile(apart, b, to + c);
    }
  }
}

/* Floats between transforms of so many: a cache line more, so that not all 36 want one place. */
INLINE int apart_of(const int floats) { return floats + 16; }

/* Convolution to OH x OW places; with a winner, and an even edge, 2 x 2 max-pooling; activation.
 * w: transformed weights. */
INLINE void winograd(const int RECORDS, const int MORE, const int K, const int W, const int CI,
                     const int OH, const int OW, const int CO, const int act, const int add,
                     const int out_row, const int out_step, const float *x, const float *w,
                     const float *bias, float *out, int32_t *winner, float *room) {
  const int V = block_of(CO), block = V * LANES, all = SIDE * SIDE;
  const int edge = edge_of(K), TW = parts(OW, edge), each = parts(OH, edge) * TW;
  const int tiles = RECORDS * each, S = parts(tiles, parts(tiles, AT_ONCE));
  const int before = apart_of(S * CI), after = apart_of(S * block);
  const int step = winner ? 2 : 1; /* places of a side that make one of the output */
  float *products = room + all * before;
  for (int first = 0; first < tiles; first += S) {
    const int end = MIN(first + S, tiles);
    winograd_tiles(INPUTS, K, OH + K - 1, OW + K - 1, CI, TW, each, MORE, W * CI, CI, before, first,
                   end, x, room);
    for (int c = 0; c < CO; c += block) {
      /* The last tiles may be fewer than S: what is multiplied in their place is not read. */
      for (int k = 0; k < all; k++)
        conv_rows(1, S, V, 1, CI, 0, 0, CI, NONE, room + k * before, w + (all * c + k * block) * CI,
                  0, 0, products + k * after, 0, block);
      for (int t = first; t < end; t++)
        for (int v = 0; v < block; v += LANES) {
          const vec b = bias ? load(bias + c + v) : splat(0);
          vec m[SIDE][SIDE];
          read_tile(PLACES, K, after, products + (t - first) * block + v, m);
#pragma GCC unroll 4
          for (int k = 0; k < edge; k += step)
#pragma GCC unroll 4
            for (int l = 0; l < edge; l += step) {
              const int y = (edge * (t % each / TW) + k) / step;
              const int i = (edge * (t % each % TW) + l) / step;
              const ptrdiff_t record = t / each * (ptrdiff_t)MORE;
              if ((OH % edge && y * step >= OH) || (OW % edge && i * step >= OW)) continue;
              vec best = m[k][l];
              if (winner)
                best = largest(best, m[k][l + 1], m[k + 1][l], m[k + 1][l + 1],
                               winner + record + (y * (OW / 2) + i) * CO + c + v);
              put(add, out + record + y * out_row + i * out_step + c + v, activate(act, best + b));
            }
        }
    }
  }
}
INLINE void winograd_forward(const int RECORDS, const int MORE, const int K, const int W,
                             const int CI, const int OH, const int OW, const int CO,
                             const int act, const int add, const int out_row, const int out_step,
                             const float *x, const float *w, const float *bias, float *out,
                             float *room) {
  winograd(RECORDS, MORE, K, W, CI, OH, OW, CO, act, add, out_row, out_step, x, w, bias, out, 0,
           room);
}
INLINE void winograd_pool_forward(const int RECORDS, const int MORE, const int K, const int W,
                                  const int CI, const int PH, const int PW, const int CO,
                                  const int act, const int out_row, const float *x,
                                  const float *w, const float *bias, float *out, int32_t *winner,
                                  float *room) {
  winograd(RECORDS, MORE, K, W, CI, 2 * PH, 2 * PW, CO, act, 0, out_row, CO, x, w, bias, out,
           winner, room);
}

/* Weight gradient, dense, in the layout of the forward weights; returns its squared norm. */
INLINE float winograd_gradient(const int K, const int W, const int CI, const int OH, const int OW,
                               const int CO, const int g_row, const float *x, const float *g,
                               float *dw, float *room) {
  const int V = block_of(CO), block = V * LANES, each = CI * block, all = SIDE * SIDE;
  const int edge = edge_of(K), TW = parts(OW, edge), tiles = parts(OH, edge) * TW;
  const int some = LANES / 2; /* input channels at once: their products stay in the cache */
  const int inputs = apart_of(tiles * CI), gradients = apart_of(tiles * block);
  const int after = apart_of(some * block);
  float *gs = room + all * inputs, *products = gs + all * gradients;
  vec squares = splat(0);
  winograd_tiles(INPUTS, K, OH + K - 1, OW + K - 1, CI, TW, tiles, 0, W * CI, CI, inputs, 0, tiles,
                 x, room);
  for (int c = 0; c < CO; c += block, dw += K * K * each) {
    winograd_tiles(GRADIENTS, K, OH, OW, block, TW, tiles, 0, g_row, CO, gradients, 0, tiles, g + c,
                   gs);
    for (int j = 0; j < CI; j += some) {
      for (int k = 0; k < all; k++)
        weight_tile(some, V, 1, tiles, 0, CI, block, 0, room + k * inputs + j, gs + k * gradients,
                    products + k * after, squares);
      for (int i = 0; i < some * block; i += LANES) {
        vec taps[SIDE][SIDE];
        read_tile(TAPS, K, after, products + i, taps);
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
