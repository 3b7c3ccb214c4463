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

/* The largest of four, and which it is: the first where several are. */
INLINE vec largest(vec a, vec b, vec c, vec d, int32_t *winner) {
  const vec other[3] = {b, c, d};
  ivec which = {0};
  for (int k = 0; k < 3; k++) {
    ivec more = other[k] > a;
    a = pick(more, other[k], a);
    which = (more & (k + 1)) | (~more & which);
  }
  *(ivec *)winner = which;
  return a;
}

/* Convolution, 2 x 2 max-pooling, activation. winner: which of the four, [PH][PW][CO]. */
INLINE void conv_pool_forward(const int W, const int CI, const int KH, const int KW, const int PH,
                              const int PW, const int CO, const int act, const int out_row,
                              const float *x, const float *w, const float *bias, float *out,
                              int32_t *winner) {
  const int V = block_of(CO), B = V * LANES, row = W * CI, R = rows_of(2, 2 * PW);
  float two[2][2 * PW * B];
  for (int c = 0; c < CO; c += B)
    for (int y = 0; y < PH; y++) {
      for (int half = 0; half < 2; half += R)
        conv_rows(R, 2 * PW, V, KH, KW * CI, row, row, CI, NONE, x + (2 * y + half) * row,
                  w + c * KH * KW * CI, bias + c, 0, two[half], 2 * PW * B, B);
      for (int i = 0; i < PW; i++)
        for (int v = 0; v < V; v++) {
          const float *p = two[0] + 2 * i * B + v * LANES, *q = p + 2 * PW * B;
          const int at = i * CO + c + v * LANES;
          vec best = largest(load(p), load(p + B), load(q), load(q + B),
                             winner + y * PW * CO + at);
          store(out + y * out_row + at, activate(act, best));
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

/* The same behind max-pooling for an input of few channels, whose kernel has too few columns for
 * the tile above: T taps of the whole kernel from tap FROM on, one vector of output channels. */
INLINE vec few_taps(const int T, const int FROM, const int W, const int CI, const int KJ,
                    const int PH, const int PW, const int CO, const float *x, const float *g,
                    const int32_t *winner, float *dw, const int dw_step, vec squares) {
  vec acc[RUN + 2];
#pragma GCC unroll 32
  for (int t = 0; t < T; t++) acc[t] = splat(0);
  for (int y = 0; y < PH; y++)
    for (int i = 0; i < PW; i++) {
      vec all = load(g + (y * PW + i) * CO);
      ivec which = *(const ivec *)(winner + (y * PW + i) * CO);
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++) {
        const float *p = x + ((2 * y + k / 2) * W + 2 * i + k % 2) * CI;
        vec gk = (vec)((which == k) & (ivec)all);
#pragma GCC unroll 32
        for (int t = 0; t < T; t++)
          acc[t] += p[(FROM + t) / KJ * W * CI + (FROM + t) % KJ] * gk;
      }
    }
#pragma GCC unroll 32
  for (int t = 0; t < T; t++) {
    store(dw + (FROM + t) * dw_step, acc[t]);
    squares += acc[t] * acc[t];
  }
  return squares;
}

/* The same where the processor looks up each lane's own entry of two rows: of a window's four
 * products with a tap it then makes the winner's alone. N columns from FROM on, of all kernel rows;
 * a row of the windows' inputs fits a vector. */
#if defined(__AVX512F__)
#define LOOKS_UP 1
INLINE vec first_floats(const int n, const float *p) {
  return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
INLINE vec look_up(ivec at, vec low, vec high) {
  return (vec)_mm512_permutex2var_ps((__m512)low, (__m512i)at, (__m512)high);
}
#elif defined(__AVX2__)
#define LOOKS_UP 1
INLINE vec first_floats(const int n, const float *p) {
  const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return (vec)_mm256_maskload_ps(p, (__m256i)(lane < n));
}
INLINE vec look_up(ivec at, vec low, vec high) { /* the fourth bit says which row */
  __m256 one = _mm256_permutevar8x32_ps((__m256)low, (__m256i)at);
  __m256 other = _mm256_permutevar8x32_ps((__m256)high, (__m256i)at);
  return (vec)_mm256_blendv_ps(one, other, (__m256)(at << 28));
}
#else
#define LOOKS_UP 0
INLINE vec first_floats(const int n, const float *p) { return load(p); }
INLINE vec look_up(ivec at, vec low, vec high) { return low; }
#endif
INLINE void winning_taps(const int N, const int FROM, const int W, const int CI, const int KH,
                         const int KJ, const int PH, const int PW, const int CO, const float *x,
                         const float *g, const int32_t *winner, float *dw, const int dw_step) {
  vec acc[RUN];
#pragma GCC unroll 24
  for (int t = 0; t < KH * N; t++) acc[t] = splat(0);
  for (int y = 0; y < PH; y++)
    for (int i = 0; i < PW; i++) {
      const float *p = x + (2 * y * W + 2 * i) * CI;
      const vec d = load(g + (y * PW + i) * CO);
      const ivec which = *(const ivec *)(winner + (y * PW + i) * CO);
      const ivec at = (which >> 1) * LANES + (which & 1) * CI + FROM;
      vec row = first_floats(KJ + CI, p);
#pragma GCC unroll 24
      for (int ky = 0; ky < KH; ky++) {
        const vec next = first_floats(KJ + CI, p + (ky + 1) * W * CI);
#pragma GCC unroll 24
        for (int n = 0; n < N; n++) acc[ky * N + n] += look_up(at + n, row, next) * d;
        row = next;
      }
    }
#pragma GCC unroll 24
  for (int ky = 0; ky < KH; ky++)
#pragma GCC unroll 24
    for (int n = 0; n < N; n++) store(dw + (ky * KJ + FROM + n) * dw_step, acc[ky * N + n]);
}

/* FROM must be a constant in every call of few_taps, hence the unrolled loop. */
INLINE float few_channels_weights(const int W, const int CI, const int KH, const int KW,
                                  const int PH, const int PW, const int CO, const float *x,
                                  const float *g, const int32_t *winner, float *dw) {
  const int V = block_of(CO), KJ = KW * CI, K = KH * KJ, T = parts(K, parts(K, RUN + 2));
  const int N = parts(KJ, parts(KJ, MAX(RUN / KH, 1)));
  vec squares = splat(0);
  for (int c = 0; c < CO; c += LANES) {
    float *d = dw + c / (V * LANES) * K * V * LANES + c % (V * LANES);
    if (LOOKS_UP && KJ + CI <= LANES && KH <= RUN) {
      for (int j = 0; j + N <= KJ; j += N)
        winning_taps(N, j, W, CI, KH, KJ, PH, PW, CO, x, g + c, winner + c, d, V * LANES);
      if (KJ % N)
        winning_taps(KJ % N ? KJ % N : 1, KJ - KJ % N, W, CI, KH, KJ, PH, PW, CO, x, g + c,
                     winner + c, d, V * LANES);
      for (int k = 0; k < K; k++) {
        const vec found = load(d + k * V * LANES);
        squares += found * found;
      }
      continue;
    }
#pragma GCC unroll 16
    for (int k = 0; k + T <= K; k += T)
      squares = few_taps(T, k, W, CI, KJ, PH, PW, CO, x, g + c, winner + c, d, V * LANES,
                         squares);
    if (K % T)
      squares = few_taps(K % T ? K % T : 1, K - K % T, W, CI, KJ, PH, PW, CO, x, g + c,
                         winner + c, d, V * LANES, squares);
  }
  return total(squares);
}

/* N vectors of R kernel rows of C channels of CI: the sum over windows of gradient times input
 * patch, and with `last` its squares. g and at: entries LANES and CO apart of every window. */
INLINE vec pooled_tile(const int R, const int N, const int C, const int CI, const int row,
                       const int windows, const int CO, const int add, const int last,
                       const float *x, const float *g, const int32_t *at, float *dw, const int j,
                       const int dw_row, vec squares) {
  vec acc[RUN];
#define TAPS_OF(r, n) (dw + (r) * dw_row + (j + (n) * LANES) / C * CI + (j + (n) * LANES) % C)
#pragma GCC unroll 24
  for (int r = 0; r < R; r++)
#pragma GCC unroll 24
    for (int n = 0; n < N; n++) acc[r * N + n] = add ? load(TAPS_OF(r, n)) : splat(0);
  for (int i = 0; i < windows; i++) {
    const float *p = x + at[i * LANES];
    vec s = splat(g[i * CO]);
#pragma GCC unroll 24
    for (int r = 0; r < R; r++)
#pragma GCC unroll 24
      for (int n = 0; n < N; n++) acc[r * N + n] += s * load(p + r * row + n * LANES);
  }
#pragma GCC unroll 24
  for (int r = 0; r < R; r++)
#pragma GCC unroll 24
    for (int n = 0; n < N; n++) {
      store(TAPS_OF(r, n), acc[r * N + n]);
      if (last) squares += acc[r * N + n] * acc[r * N + n];
    }
#undef TAPS_OF
  return squares;
}

/* How many kernel rows, and vectors of each, fit the registers at once. */
INLINE int tile_columns(const int N) {
  const int parts = (N + RUN - 1) / RUN;
  return (N + parts - 1) / parts;
}
INLINE int tile_rows(const int KH, const int N) { return N <= RUN ? MIN(KH, RUN / N) : 1; }

/* C channels' part of a strip of PH rows of windows. */
INLINE vec pooled_strip(const int W, const int C, const int CI, const int KH, const int KW,
                        const int PH, const int PW, const int CO, const int add, const int last,
                        const float *x, const float *g, const int32_t *winner, float *dw,
                        vec squares) {
  const int KJ = KW * C, N = tile_columns(KJ / LANES), R = tile_rows(KH, N);
  const int rest = KJ / LANES % N, dw_row = KW * CI;
  int32_t at[PH * PW * LANES];
  for (int c = 0; c < CO; c += LANES) {
    for (int y = 0; y < PH; y++)
      for (int i = 0; i < PW; i++) {
        const ivec k = *(const ivec *)(winner + (y * PW + i) * CO + c);
        *(ivec *)(at + (y * PW + i) * LANES) = ((2 * y + (k >> 1)) * W + 2 * i + (k & 1)) * C;
      }
    for (int l = 0; l < LANES; l++, dw += KH * dw_row)
      for (int ky = 0; ky < KH; ky += R)
        for (int j = 0; j < KJ; j += N * LANES) {
          const float *p = x + ky * W * C + j;
          float *d = dw + ky * dw_row;
          if (rest && j + N * LANES > KJ)
            squares = pooled_tile(1, rest ? rest : 1, C, CI, W * C, PH * PW, CO, add, last, p,
                                  g + c + l, at + l, d, j, dw_row, squares);
          else if (KH % R && ky + R > KH)
            squares = pooled_tile(KH % R ? KH % R : 1, N, C, CI, W * C, PH * PW, CO, add, last, p,
                                  g + c + l, at + l, d, j, dw_row, squares);
          else
            squares = pooled_tile(R, N, C, CI, W * C, PH * PW, CO, add, last, p, g + c + l, at + l,
                                  d, j, dw_row, squares);
        }
  }
  return squares;
}

/* Floats of an input that stay in the first cache beside all else. */
#define NEAR_BY 4096

/* Weight gradient behind max-pooling, as rows; returns its squared norm. Only each window's winner
 * has a gradient: a quarter of the dense work. Every output channel reads the whole input, so a
 * large one is taken by strips of rows of windows, and by channels that fill the registers. */
INLINE float pooled_weights(const int W, const int CI, const int KH, const int KW, const int PH,
                            const int PW, const int CO, const float *x, const float *g,
                            const int32_t *winner, float *dw) {
  const int small = (2 * PH + KH - 1) * W * CI <= NEAR_BY;
  const int pair = CI % (2 * LANES) == 0 && 2 * KH * KW <= RUN;
  const int C = small ? CI : pair ? 2 * LANES : LANES;
  const int fit = MAX((NEAR_BY / (W * C) - KH + 1) / 2, 1);
  const int S = small ? PH : parts(PH, parts(PH, fit)), rows = 2 * S + KH - 1;
  float part[C < CI ? rows * W * C : 1];
  vec squares = splat(0);
  for (int y = 0; y < PH; y += S)
    for (int k = 0; k < CI; k += C) {
      const float *p = x + 2 * y * W * CI;
      const int32_t *won = winner + y * PW * CO;
      if (C < CI) {
        const int there = 2 * MIN(S, PH - y) + KH - 1;
        for (int i = 0; i < there * W; i++)
          for (int v = 0; v < C; v += LANES) store(part + i * C + v, load(p + i * CI + k + v));
        p = part;
      }
      const float *gs = g + y * PW * CO;
      if (y + S >= PH && y)
        squares = pooled_strip(W, C, CI, KH, KW, PH % S ? PH % S : S, PW, CO, 1, 1, p, gs, won,
                               dw + k, squares);
      else if (y)
        squares = pooled_strip(W, C, CI, KH, KW, S, PW, CO, 1, 0, p, gs, won, dw + k, squares);
      else
        squares = pooled_strip(W, C, CI, KH, KW, S, PW, CO, 0, S == PH, p, gs, won, dw + k,
                               squares);
    }
  return total(squares);
}

/* N vectors of R kernel rows of the input gradient at one place, from the channels that won it. */
INLINE void spread_tile(const int R, const int N, const int row, const int KJ, const int K,
                        const int count, const int32_t *channels, const float *g,
                        const float *w, float *dx) {
  vec acc[RUN];
#pragma GCC unroll 24
  for (int r = 0; r < R; r++)
#pragma GCC unroll 24
    for (int n = 0; n < N; n++) acc[r * N + n] = load(dx + r * row + n * LANES);
  for (int i = 0; i < count; i++) {
    const float *p = w + channels[i] * K;
    vec s = splat(g[channels[i]]);
#pragma GCC unroll 24
    for (int r = 0; r < R; r++)
#pragma GCC unroll 24
      for (int n = 0; n < N; n++) acc[r * N + n] += s * load(p + r * KJ + n * LANES);
  }
#pragma GCC unroll 24
  for (int r = 0; r < R; r++)
#pragma GCC unroll 24
    for (int n = 0; n < N; n++) store(dx + r * row + n * LANES, acc[r * N + n]);
}

/* A window's channels in the order of the places that won them, and how many each place won. May
 * write LANES entries beyond. */
INLINE void sort_channels(const int CO, const int32_t *winner, int32_t *won, int32_t *count) {
#if defined(__AVX512F__)
  const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int k = 0; k < 4; k++) {
    const int32_t *first = won;
    for (int c = 0; c < CO; c += LANES) {
      const __m512i which = _mm512_loadu_si512(winner + c), channels = (__m512i)(lane + c);
      const __mmask16 has = _mm512_cmpeq_epi32_mask(which, _mm512_set1_epi32(k));
      _mm512_storeu_si512(won, _mm512_maskz_compress_epi32(has, channels));
      won += __builtin_popcount(has);
    }
    count[k] = won - first;
  }
#else
  int next[4] = {0, 0, 0, 0};
  for (int k = 0; k < 4; k++) {
    int n = 0;
    for (int c = 0; c < CO; c++) n += winner[c] == k;
    count[k] = n;
    if (k < 3) next[k + 1] = next[k] + n;
  }
  for (int c = 0; c < CO; c++) won[next[winner[c]]++] = c;
#endif
}

/* Input gradient behind max-pooling, added to dx. rows: the weights as rows. dx: the input's
 * padding is in place. won: every window's channels by the place that won them, [PH][PW][CO], and
 * room for LANES more; counts: how many each place won, [PH][PW][4]. */
INLINE void pooled_input(const int W, const int CI, const int KH, const int KW, const int PH,
                         const int PW, const int CO, const float *rows, const float *g,
                         const int32_t *winner, float *dx, int32_t *won, int32_t *counts) {
  const int KJ = KW * CI, N = tile_columns(KJ / LANES), R = tile_rows(KH, N);
  const int rest = KJ / LANES % N;
  for (int i = 0; i < PH * PW; i++)
    sort_channels(CO, winner + i * CO, won + i * CO, counts + i * 4);
  for (int ky = 0; ky < KH; ky += R)
    for (int j = 0; j < KJ; j += N * LANES)
      for (int y = 0; y < PH; y++)
        for (int i = 0; i < PW; i++) {
          const float *gs = g + (y * PW + i) * CO, *w = rows + ky * KJ + j;
          const int32_t *channels = won + (y * PW + i) * CO, *count = counts + (y * PW + i) * 4;
          for (int k = 0; k < 4; channels += count[k++]) {
            float *d = dx + ((2 * y + k / 2 + ky) * W + 2 * i + k % 2) * CI + j;
            if (rest && j + N * LANES > KJ)
              spread_tile(1, rest ? rest : 1, W * CI, KJ, KH * KJ, count[k], channels, gs, w, d);
            else if (KH % R && ky + R > KH)
              spread_tile(KH % R ? KH % R : 1, N, W * CI, KJ, KH * KJ, count[k], channels, gs, w,
                          d);
            else
              spread_tile(R, N, W * CI, KJ, KH * KJ, count[k], channels, gs, w, d);
          }
        }
}
