/* Convolutions: forward, and the gradients by weights and input. Behind 2 x 2 max-pooling these
 * skip what lost. */
#pragma once
#include "vectors.h"

/* So many parts of at most `most`. */
INLINE int parts(const int n, const int most) { return (n + most - 1) / most; }

/* R x T neighbouring pixels, V vectors of output channels; strides of x and out by row and column.
 * With `add` the result is added to what is there. */
INLINE void conv_tile(const int R, const int T, const int V, const int KH, const int KJ,
                      const int row, const int down, const int step, const float *x,
                      const float *w, const float *bias, const int add, float *out,
                      const int out_row, const int out_step) {
  if (bias) HIDE(bias);
  vec acc[TILE][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
      for (int v = 0; v < V; v++)
        acc[r * T + t][v] = add    ? load(out + r * out_row + t * out_step + v * LANES)
                            : bias ? load(bias + v * LANES)
                                   : splat(0);
  for (int ky = 0; ky < KH; ky++, x += row)
    for (int j = 0; j < KJ; j++, w += V * LANES) {
      vec wv[2];
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) {
        wv[v] = load(w + v * LANES);
        if (KJ >= LANES) HOLD(wv[v]); /* a shorter loop is unrolled, and better left alone */
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) {
          vec b = splat(x[r * down + t * step + j]);
#pragma GCC unroll 2
          for (int v = 0; v < V; v++) acc[r * T + t][v] += b * wv[v];
        }
    }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
      for (int v = 0; v < V; v++)
        store(out + r * out_row + t * out_step + v * LANES, acc[r * T + t][v]);
}

/* R rows of N pixels, and their activation. */
INLINE void conv_rows(const int R, const int N, const int V, const int KH, const int KJ,
                      const int row, const int down, const int step, const int act,
                      const float *x, const float *w, const float *bias, const int add,
                      float *out, const int out_row, const int out_step) {
  const int tiles = parts(N, TILE / R), T = parts(N, tiles), full = N / T;
  for (int i = 0; i < full; i++)
    conv_tile(R, T, V, KH, KJ, row, down, step, x + i * T * step, w, bias, add,
              out + i * T * out_step, out_row, out_step);
  if (N % T)
    conv_tile(R, N % T ? N % T : 1, V, KH, KJ, row, down, step, x + full * T * step, w, bias,
              add, out + full * T * out_step, out_row, out_step);
  if (act != NONE)
    for (int r = 0; r < R; r++)
      for (int i = 0; i < N; i++)
        for (int v = 0; v < V; v++) {
          float *p = out + r * out_row + i * out_step + v * LANES;
          store(p, activate(act, load(p)));
        }
}

/* Tiles of H rows of N pixels, and how many rows a tile should have so that these are few. */
INLINE int tiles_of(const int R, const int H, const int N) {
  return parts(H, R) * parts(N, MAX(TILE / R, 1));
}
INLINE int rows_of(const int H, const int N) {
  const int one = tiles_of(1, H, N), two = tiles_of(2, H, N), three = tiles_of(3, H, N);
  const int most = MIN(H, MAX(TILE / N, 1)), fit = tiles_of(most, H, N);
  const int few = MIN(MIN(one, two), MIN(three, fit));
  return parts(H, parts(H, one == few ? 1 : fit == few ? most : two == few ? 2 : 3));
}

INLINE int block_of(const int CO) { return CO % (2 * LANES) ? 1 : 2; }

/* Convolution of strides SY and SX, activation. x: rows of W pixels of CI channels, its padding in
 * place; out: rows of out_row floats, pixels of out_step. */
INLINE void conv_forward(const int W, const int CI, const int SY, const int SX, const int KH,
                         const int KW, const int OH, const int OW, const int CO, const int act,
                         const int add, const int out_row, const int out_step, const float *x,
                         const float *w, const float *bias, float *out) {
  const int V = block_of(CO), KJ = KW * CI, row = W * CI, down = SY * row, step = SX * CI;
  const int R = rows_of(OH, OW), full = OH / R;
  for (int c = 0; c < CO; c += V * LANES, w += V * LANES * KH * KJ) {
    for (int y = 0; y < full; y++)
      conv_rows(R, OW, V, KH, KJ, row, down, step, act, x + y * R * down, w, bias ? bias + c : 0,
                add, out + y * R * out_row + c, out_row, out_step);
    if (OH % R)
      conv_rows(OH % R ? OH % R : 1, OW, V, KH, KJ, row, down, step, act, x + full * R * down, w,
                bias ? bias + c : 0, add, out + full * R * out_row + c, out_row, out_step);
  }
}

/* The largest of four, and which it is: the first where several are, or that is no number. */
INLINE vec largest(vec a, vec b, vec c, vec d, int32_t *winner) {
  const vec other[3] = {b, c, d};
  ivec which = {0};
  for (int k = 0; k < 3; k++) {
    ivec more = (other[k] > a) | (other[k] != other[k]);
    a = pick(more, other[k], a);
    which = (more & (k + 1)) | (~more & which);
  }
  *(ivec *)winner = which;
  return a;
}

/* Convolution and 2 x 2 max-pooling of P windows side by side, V vectors of channels. */
INLINE void pool_tile(const int P, const int V, const int KH, const int KJ, const int row,
                      const int CI, const int CO, const float *x, const float *w,
                      const float *bias, float *out, int32_t *winner) {
  float two[2][TILE * LANES]; /* rows of places, which the compiler keeps in registers */
  conv_tile(2, 2 * P, V, KH, KJ, row, row, CI, x, w, bias, 0, two[0], TILE * LANES, V * LANES);
#pragma GCC unroll 4
  for (int i = 0; i < P; i++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) {
      const float *p = two[0] + (2 * i * V + v) * LANES, *q = p + TILE * LANES;
      const int at = i * CO + v * LANES;
      store(out + at, largest(load(p), load(p + V * LANES), load(q), load(q + V * LANES),
                              winner + at));
    }
}

/* Of a row of PW windows the first, and the end of those, that may read anything but zeros. Whole
 * vectors are read, beyond the image too: what lies there can only add windows. */
INLINE void find_ink(const int W, const int CI, const int KH, const int KW, const int PW,
                     const float *x, int32_t *ink) {
  ivec lane, low, high;
  for (int l = 0; l < LANES; l++) lane[l] = l, low[l] = 2 * W * CI, high[l] = -2 * CI;
  for (int j = 0; j < W * CI; j += LANES) {
    ivec any = {0};
    for (int r = 0; r <= KH; r++) any |= load(x + r * W * CI + j) != 0.0f;
    const ivec first = any & (lane + j < low);
    low = (first & (lane + j)) | (~first & low);
    high = (any & (lane + j)) | (~any & high);
  }
  int from = low[0], to = high[0];
  for (int l = 1; l < LANES; l++) from = MIN(from, low[l]), to = MAX(to, high[l]);
  ink[1] = MIN(to / CI / 2 + 1, PW);
  ink[0] = MIN(MAX(from / CI - KW + 1, 0) / 2, ink[1]);
}

/* Convolution, 2 x 2 max-pooling, activation. winner: which of the four, [PH][PW][CO]. ink: of each
 * row of windows, where those begin and end that are computed; the others read zeros alone. */
INLINE void conv_pool_forward(const int W, const int CI, const int KH, const int KW, const int PH,
                              const int PW, const int CO, const int act, const int out_row,
                              const float *x, const float *w, const float *bias, float *out,
                              int32_t *winner, int32_t *ink) {
  const int V = block_of(CO), P = TILE / 4, KJ = KW * CI, row = W * CI;
  for (int y = 0; ink && y < PH; y++) find_ink(W, CI, KH, KW, PW, x + 2 * y * row, ink + 2 * y);
  for (int c = 0; c < CO; c += V * LANES, w += V * LANES * KH * KJ) {
    vec blank[2] = {load(bias + c), load(bias + c + (V - 1) * LANES)};
    for (int k = 0; ink && k < KH * KJ * V; k++) /* no number where a weight is none */
      blank[k % V] += 0.0f * load(w + k * LANES);
    for (int v = 0; v < V; v++) blank[v] = activate(act, blank[v]);
    for (int y = 0; y < PH; y++) {
      const int first = ink ? ink[2 * y] : 0, end = ink ? ink[2 * y + 1] : PW;
      const float *p = x + 2 * y * row;
      float *to = out + y * out_row + c;
      int32_t *won = winner + y * PW * CO + c;
      for (int i = first ? 0 : end; i < PW; i = i + 1 == first ? end : i + 1)
        for (int v = 0; v < V; v++) {
          store(to + i * CO + v * LANES, blank[v]);
          *(ivec *)(won + i * CO + v * LANES) = (ivec){0};
        }
      int i = first;
      for (; i + P <= end; i += P)
        pool_tile(P, V, KH, KJ, row, CI, CO, p + 2 * i * CI, w, bias + c, to + i * CO,
                  won + i * CO);
      for (; P > 1 && i < end; i++)
        pool_tile(1, V, KH, KJ, row, CI, CO, p + 2 * i * CI, w, bias + c, to + i * CO,
                  won + i * CO);
      for (i = first; i < end; i++)
        for (int v = 0; v < V; v++) {
          float *q = to + i * CO + v * LANES;
          store(q, activate(act, load(q)));
        }
    }
  }
}

/* Gradient before the activation, g = dout * slope; returns the squared norm of its sum, the bias's
 * gradient. a and dout lie in images of row lengths a_row and d_row, g in one of g_row. */
INLINE float before_activation(const int H, const int W, const int C, const int act,
                               const int a_row, const int d_row, const int g_row,
                               const float *a, const float *dout, float *g, float *dbias) {
  float squares = 0;
  for (int c = 0; c < C; c += LANES) {
    vec sum = splat(0);
    for (int y = 0; y < H; y++)
      for (int i = 0; i < W; i++) {
        vec d = load(dout + y * d_row + i * C + c) * slope(act, load(a + y * a_row + i * C + c));
        store(g + y * g_row + i * C + c, d);
        sum += d;
      }
    store(dbias + c, sum);
    squares += total(sum * sum);
  }
  return squares;
}

/* Weight gradient, dense: T taps (neighbouring columns) of one kernel row, V vectors. */
INLINE vec weight_tile(const int T, const int V, const int OH, const int OW, const int down,
                       const int step, const int CO, const int g_row, const float *x,
                       const float *g, float *dw, vec squares) {
  vec acc[TILE][2];
#pragma GCC unroll 16
  for (int t = 0; t < T; t++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) acc[t][v] = splat(0);
  for (int y = 0; y < OH; y++)
    for (int i = 0; i < OW; i++) {
      const float *p = x + y * down + i * step, *q = g + y * g_row + i * CO;
      vec gv[2];
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) gv[v] = load(q + v * LANES);
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) {
        vec b = splat(p[t]);
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) acc[t][v] += b * gv[v];
      }
    }
#pragma GCC unroll 16
  for (int t = 0; t < T; t++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) {
      store(dw + (t * V + v) * LANES, acc[t][v]);
      squares += acc[t][v] * acc[t][v];
    }
  return squares;
}

/* Weight gradient in the layout of the forward weights; returns its squared norm. */
INLINE float conv_weights(const int W, const int CI, const int SY, const int SX, const int KH,
                          const int KW, const int OH, const int OW, const int CO,
                          const int g_row, const float *x, const float *g, float *dw) {
  const int V = block_of(CO), B = V * LANES, KJ = KW * CI, down = SY * W * CI, step = SX * CI;
  const int tiles = (KJ + TILE - 1) / TILE, T = (KJ + tiles - 1) / tiles, full = KJ / T;
  vec squares = splat(0);
  for (int c = 0; c < CO; c += B)
    for (int ky = 0; ky < KH; ky++) {
      for (int i = 0; i < full; i++, dw += T * B)
        squares = weight_tile(T, V, OH, OW, down, step, CO, g_row, x + ky * W * CI + i * T, g + c,
                              dw, squares);
      if (KJ % T) {
        squares = weight_tile(KJ % T ? KJ % T : 1, V, OH, OW, down, step, CO, g_row,
                              x + ky * W * CI + full * T, g + c, dw, squares);
        dw += KJ % T * B;
      }
    }
  return total(squares);
}

/* Sums of `count` patches of x, each times a number: R rows of N vectors, for Q numbers at once. at:
 * where the patches begin. */
INLINE void add_patches(const int Q, const int R, const int N, const int row, const int step,
                        const int count, const float *x, const float *g, const int32_t *at,
                        vec *acc) {
  for (int i = 0; i < count; i++, g += step, at += step)
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
      const float *p = x + at[q];
      const vec s = splat(g[q]);
#pragma GCC unroll 24
      for (int k = 0; k < R * N; k++) acc[q * R * N + k] += s * load(p + k / N * row + k % N * LANES);
    }
}

/* How many kernel rows, and vectors of each, fit the registers at once. */
INLINE int tile_columns(const int N) { return parts(N, parts(N, RUN)); }
INLINE int tile_rows(const int KH, const int N) { return N <= RUN ? MIN(KH, RUN / N) : 1; }

/* Q output channels' N vectors, from the j-th float on, of R kernel rows of C channels of CI: the
 * sum over windows of gradient times input patch, and with `last` its squares. g and at: entries
 * LANES apart of every window. */
INLINE vec pooled_tile(const int Q, const int R, const int N, const int C, const int CI,
                       const int KH, const int KW, const int row, const int windows,
                       const int add, const int last, const float *x, const float *g,
                       const int32_t *at, float *dw, const int j, vec squares) {
  vec acc[RUN], lanes;
  for (int l = 0; l < LANES; l++) lanes[l] = l;
#define TAPS_OF(k) \
  (dw + ((k) / (R * N) * KH + (k) / N % R) * KW * CI + (j + (k) % N * LANES) / C * CI + \
   (j + (k) % N * LANES) % C)
#pragma GCC unroll 24
  for (int k = 0; k < Q * R * N; k++) acc[k] = splat(0);
  if (add)
#pragma GCC unroll 24
    for (int k = 0; k < Q * R * N; k++) acc[k] = load(TAPS_OF(k));
  add_patches(Q, R, N, row, LANES, windows, x + j, g, at, acc);
#pragma GCC unroll 24
  for (int k = 0; k < Q * R * N; k++) {
    vec found = acc[k];
    if (KW * C % LANES) { /* of the last vector of few channels a part is taps */
      const int taps = MIN(KW * C - j - k % N * LANES, LANES);
      found = pick(lanes < (float)taps, found, splat(0));
      memcpy(TAPS_OF(k), &found, 4 * taps);
    } else
      store(TAPS_OF(k), found);
    if (last) squares += found * found;
  }
#undef TAPS_OF
  return squares;
}

/* C channels' part of a strip of `high` rows of windows, PH at most. */
INLINE vec pooled_strip(const int W, const int C, const int CI, const int KH, const int KW,
                        const int PH, const int PW, const int CO, const int high, const int add,
                        const int last, const float *x, const float *g, const int32_t *winner,
                        const int32_t *ink, float *dw, vec squares) {
  const int KJ = KW * C, N = tile_columns(parts(KJ, LANES)), R = tile_rows(KH, N);
  const int rest = parts(KJ, LANES) % N, most = RUN / (R * N), Q = most >= 4 ? 4 : MIN(most, 2);
  float gs[PH * PW * LANES];
  int32_t at[PH * PW * LANES];
  for (int c = 0; c < CO; c += LANES) {
    int n = 0;
    for (int y = 0; y < high; y++) {
      const int first = ink ? ink[2 * y] : 0, end = ink ? ink[2 * y + 1] : PW;
      for (int i = first; i < end; i++, n += LANES) {
        const ivec k = *(const ivec *)(winner + (y * PW + i) * CO + c);
        *(ivec *)(at + n) = ((2 * y + (k >> 1)) * W + 2 * i + (k & 1)) * C;
        store(gs + n, load(g + (y * PW + i) * CO + c));
      }
    }
    const int windows = n / LANES;
    for (int l = 0; l < LANES; l += Q, dw += Q * KH * KW * CI)
      for (int ky = 0; ky < KH; ky += R)
        for (int j = 0; j < KJ; j += N * LANES) {
          const float *p = x + ky * W * C;
          float *d = dw + ky * KW * CI;
          if (rest && j + N * LANES > KJ)
            squares = pooled_tile(Q, 1, rest ? rest : 1, C, CI, KH, KW, W * C, windows, add, last,
                                  p, gs + l, at + l, d, j, squares);
          else if (KH % R && ky + R > KH)
            squares = pooled_tile(Q, KH % R ? KH % R : 1, N, C, CI, KH, KW, W * C, windows, add,
                                  last, p, gs + l, at + l, d, j, squares);
          else
            squares = pooled_tile(Q, R, N, C, CI, KH, KW, W * C, windows, add, last, p, gs + l,
                                  at + l, d, j, squares);
        }
  }
  return squares;
}

/* Floats of an input, or of windows' gradients, that stay in the first cache beside all else. */
#define NEAR_BY 4096

/* Weight gradient behind max-pooling, as rows; returns its squared norm. Only each window's winner
 * has a gradient: a quarter of the dense work; and one outside the ink meets zeros. Every output
 * channel reads the whole input, so a large one is taken by strips of rows of windows, and by
 * channels that fill the registers. Behind the last row of an input of few channels must be LANES
 * floats that may be read. */
INLINE float pooled_weights(const int W, const int CI, const int KH, const int KW, const int PH,
                            const int PW, const int CO, const float *x, const float *g,
                            const int32_t *winner, const int32_t *ink, float *dw) {
  const int short_of = NEAR_BY / (PW * LANES), small = (2 * PH + KH - 1) * W * CI <= NEAR_BY;
  const int pair = CI % (2 * LANES) == 0 && 2 * KH * KW <= RUN;
  const int C = small || CI % LANES ? CI : pair ? 2 * LANES : LANES;
  const int fit = small ? PH : (NEAR_BY / (W * C) - KH + 1) / 2;
  const int S = parts(PH, parts(PH, MAX(MIN(fit, short_of), 1))), rows = 2 * S + KH - 1;
  float part[C < CI ? rows * W * C : 1];
  vec squares = splat(0);
  for (int y = 0; y < PH; y += S)
    for (int k = 0; k < CI; k += C) {
      const int high = MIN(S, PH - y);
      const float *p = x + 2 * y * W * CI;
      for (int i = 0; C < CI && i < (2 * high + KH - 1) * W; i++)
        for (int v = 0; v < C; v += LANES) store(part + i * C + v, load(p + i * CI + k + v));
      squares = pooled_strip(W, C, CI, KH, KW, S, PW, CO, high, y > 0, y + S >= PH,
                             C < CI ? part : p, g + y * PW * CO, winner + y * PW * CO,
                             ink ? ink + 2 * y : 0, dw + k, squares);
    }
  return total(squares);
}

/* R rows of N vectors of the input gradient of a window: a patch of every channel's weights. */
INLINE void spread_tile(const int R, const int N, const int row, const int w_row, const int CO,
                        const float *w, const float *g, const int32_t *at, float *dx) {
  vec acc[RUN];
#pragma GCC unroll 24
  for (int k = 0; k < R * N; k++) acc[k] = load(dx + k / N * row + k % N * LANES);
  add_patches(1, R, N, w_row, 1, CO, w, g, at, acc);
#pragma GCC unroll 24
  for (int k = 0; k < R * N; k++) store(dx + k / N * row + k % N * LANES, acc[k]);
}

/* Input gradient behind max-pooling, added to dx, where the input's padding is in place. w: as rows,
 * with a zero at every end: a window's patch is of KH + 1 rows, and the place that won says where
 * it begins among them. at: room for where, [PH][PW][CO]. */
INLINE void pooled_input(const int W, const int CI, const int KH, const int KW, const int PH,
                         const int PW, const int CO, const float *w, const float *g,
                         const int32_t *winner, float *dx, int32_t *at) {
  const int row = (KW + 2) * CI, some = (KW + 1) * CI / LANES;
  const int N = tile_columns(some), R = tile_rows(KH + 1, N), rest = some % N, last = (KH + 1) % R;
  for (int k = 0; k < PH * PW * CO; k += LANES) {
    const ivec which = *(const ivec *)(winner + k);
    ivec channel;
    for (int l = 0; l < LANES; l++) channel[l] = k % CO + l;
    *(ivec *)(at + k) = channel * ((KH + 2) * row) + (1 - (which >> 1)) * row + (1 - (which & 1)) * CI;
  }
  for (int r = 0; r <= KH; r += R)
    for (int j = 0; j < some; j += N)
      for (int y = 0; y < PH; y++)
        for (int i = 0; i < PW; i++) {
          const float *p = w + r * row + j * LANES, *gs = g + (y * PW + i) * CO;
          const int32_t *begin = at + (y * PW + i) * CO;
          float *d = dx + ((2 * y + r) * W + 2 * i) * CI + j * LANES;
          if (rest && j + N > some)
            spread_tile(1, rest ? rest : 1, W * CI, row, CO, p, gs, begin, d);
          else if (last && r + R > KH + 1)
            spread_tile(last ? last : 1, N, W * CI, row, CO, p, gs, begin, d);
          else
            spread_tile(R, N, W * CI, row, CO, p, gs, begin, d);
        }
}
