/* Sum of clipped per-sample gradients of a plain feed-forward network, one record at a time.
 *
 * A record's activations and gradient stay in the cache. Three facts make this fast:
 *   - channels are the innermost dimension, so that a vector holds LANES of them;
 *   - max-pooling passes one of four gradients on, so that three quarters of the multiplications
 *     of a pooled convolution's backward pass are of zeros and are never executed;
 *   - tanh and ReLU ascend, so that they can follow the pooling, on a quarter of the values.
 *
 * Every function is inlined into a driver that is generated for one architecture and calls them
 * with constants, so that the compiler unrolls the tiles into registers. Channel counts are
 * multiples of LANES (the caller pads with zeros), but for the input's.
 *
 * Layouts: image [y][x][channel] with its padding in place; forward weights [output block][ky]
 * [kx, input channel][channel in block]; "rows" [output channel][ky][kx, input channel].
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define TILE 12   /* pixels, or taps, of a tile: TILE x 2 accumulators of 32 registers */
#define RUN 24    /* accumulators of a one-dimensional tile */
#else
#define LANES 8
#define TILE 6
#define RUN 12
#endif
#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
enum { NONE, TANH, RELU };

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec pick(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }
INLINE float total(vec v) {
  float s = 0;
  for (int i = 0; i < LANES; i++) s += v[i];
  return s;
}

/* tanh(x) = u / (u + 2) with u = e^(2x) - 1, whose relative error stays small near 0. */
INLINE vec vtanh(vec x) {
  x = pick(x > 9.0f, splat(9.0f), x);
  x = pick(x < -9.0f, splat(-9.0f), x);
  const vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
  vec y = x * 2.885390081777927f;
  vec shifted = y + magic;
  vec f = (y - (shifted - magic)) * 0.6931471805599453f;
  vec p = splat(1.0f / 5040);
  p = p * f + 1.0f / 720;
  p = p * f + 1.0f / 120;
  p = p * f + 1.0f / 24;
  p = p * f + 1.0f / 6;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f;
  vec scale = (vec)(((ivec)shifted - (ivec)magic + 127) << 23);
  vec u = scale * p + (scale - 1.0f);
  return u / (u + 2.0f);
}
INLINE vec activate(const int kind, vec x) {
  if (kind == TANH) return vtanh(x);
  if (kind == RELU) return pick(x > 0.0f, x, splat(0.0f));
  return x;
}
/* Derivative of the activation, from its value. */
INLINE vec slope(const int kind, vec a) {
  if (kind == TANH) return 1.0f - a * a;
  if (kind == RELU) return pick(a > 0.0f, splat(1.0f), splat(0.0f));
  return splat(1.0f);
}

/* --- Convolution ------------------------------------------------------------------------- */

/* T neighbouring pixels of one row, V vectors of output channels. */
INLINE void conv_tile(const int T, const int V, const int KH, const int KJ, const int row,
                      const int step, const float *x, const float *w, const float *bias,
                      float *out, const int out_step) {
  vec acc[TILE][2];
#pragma GCC unroll 16
  for (int t = 0; t < T; t++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) acc[t][v] = bias ? load(bias + v * LANES) : splat(0);
  for (int ky = 0; ky < KH; ky++, x += row)
    for (int j = 0; j < KJ; j++, w += V * LANES) {
      vec wv[2];
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) wv[v] = load(w + v * LANES);
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) {
        vec b = splat(x[t * step + j]);
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) acc[t][v] += b * wv[v];
      }
    }
#pragma GCC unroll 16
  for (int t = 0; t < T; t++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) store(out + t * out_step + v * LANES, acc[t][v]);
}

/* N pixels of one row. */
INLINE void conv_row(const int N, const int V, const int KH, const int KJ, const int row,
                     const int step, const float *x, const float *w, const float *bias,
                     float *out, const int out_step) {
  const int tiles = (N + TILE - 1) / TILE, T = (N + tiles - 1) / tiles, full = N / T;
  for (int i = 0; i < full; i++)
    conv_tile(T, V, KH, KJ, row, step, x + i * T * step, w, bias, out + i * T * out_step,
              out_step);
  if (N % T)
    conv_tile(N % T ? N % T : 1, V, KH, KJ, row, step, x + full * T * step, w, bias,
              out + full * T * out_step, out_step);
}

INLINE int block_of(const int CO) { return CO % (2 * LANES) ? 1 : 2; }

/* Convolution, activation. x: [H][W][CI] padded. out: rows of out_row floats. */
INLINE void conv_forward(const int W, const int CI, const int KH, const int KW, const int OH,
                         const int OW, const int CO, const int act, const float *x,
                         const float *w, const float *bias, float *out, const int out_row) {
  const int V = block_of(CO), B = V * LANES;
  for (int c = 0; c < CO; c += B)
    for (int y = 0; y < OH; y++) {
      float *o = out + y * out_row + c;
      conv_row(OW, V, KH, KW * CI, W * CI, CI, x + y * W * CI, w + c * KH * KW * CI,
               bias ? bias + c : 0, o, CO);
      if (act != NONE)
        for (int i = 0; i < OW; i++)
          for (int v = 0; v < V; v++)
            store(o + i * CO + v * LANES, activate(act, load(o + i * CO + v * LANES)));
    }
}

/* Convolution, 2 x 2 max-pooling, activation. winner: which of the four, [PH][PW][CO]. */
INLINE void conv_pool_forward(const int W, const int CI, const int KH, const int KW, const int PH,
                              const int PW, const int CO, const int act, const float *x,
                              const float *w, const float *bias, float *out, const int out_row,
                              int32_t *winner) {
  const int V = block_of(CO), B = V * LANES;
  float two[2][2 * PW * B];
  for (int c = 0; c < CO; c += B)
    for (int y = 0; y < PH; y++) {
      for (int half = 0; half < 2; half++)
        conv_row(2 * PW, V, KH, KW * CI, W * CI, CI, x + (2 * y + half) * W * CI,
                 w + c * KH * KW * CI, bias + c, two[half], B);
      for (int i = 0; i < PW; i++)
        for (int v = 0; v < V; v++) {
          const int at = 2 * i * B + v * LANES;
          vec best = load(two[0] + at);
          ivec which = {0};
          vec other[3] = {load(two[0] + at + B), load(two[1] + at), load(two[1] + at + B)};
          for (int k = 0; k < 3; k++) {
            ivec more = other[k] > best;
            best = pick(more, other[k], best);
            which = (more & (k + 1)) | (~more & which);
          }
          store(out + y * out_row + i * CO + c + v * LANES, activate(act, best));
          *(ivec *)(winner + (y * PW + i) * CO + c + v * LANES) = which;
        }
    }
}

/* Gradient before the activation, g = dout * slope; returns the squared norm of its sum, the bias's
 * gradient. a and dout lie in images of row lengths a_row and d_row, g in one of g_row. */
INLINE float before_activation(const int H, const int W, const int C, const int act,
                               const float *a, const int a_row, const float *dout,
                               const int d_row, float *g, const int g_row, float *dbias) {
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
INLINE vec weight_tile(const int T, const int V, const int OH, const int OW, const int row,
                       const int step, const int CO, const float *x, const float *g,
                       const int g_row, float *dw, vec squares) {
  vec acc[TILE][2];
#pragma GCC unroll 16
  for (int t = 0; t < T; t++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) acc[t][v] = splat(0);
  for (int y = 0; y < OH; y++)
    for (int i = 0; i < OW; i++) {
      const float *p = x + y * row + i * step, *q = g + y * g_row + i * CO;
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
INLINE float conv_weights(const int W, const int CI, const int KH, const int KW, const int OH,
                          const int OW, const int CO, const float *x, const float *g,
                          const int g_row, float *dw) {
  const int V = block_of(CO), B = V * LANES, KJ = KW * CI;
  const int tiles = (KJ + TILE - 1) / TILE, T = (KJ + tiles - 1) / tiles, full = KJ / T;
  vec squares = splat(0);
  for (int c = 0; c < CO; c += B)
    for (int ky = 0; ky < KH; ky++) {
      for (int i = 0; i < full; i++, dw += T * B)
        squares = weight_tile(T, V, OH, OW, W * CI, CI, CO, x + ky * W * CI + i * T, g + c,
                              g_row, dw, squares);
      if (KJ % T) {
        squares = weight_tile(KJ % T ? KJ % T : 1, V, OH, OW, W * CI, CI, CO,
                              x + ky * W * CI + full * T, g + c, g_row, dw, squares);
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

/* FROM must be a constant in every call, hence the unrolled loop. */
INLINE float few_channels_weights(const int W, const int CI, const int KH, const int KW,
                                  const int PH, const int PW, const int CO, const float *x,
                                  const float *g, const int32_t *winner, float *dw) {
  const int V = block_of(CO), K = KH * KW * CI, most = RUN + 2;
  const int tiles = (K + most - 1) / most, T = (K + tiles - 1) / tiles;
  vec squares = splat(0);
  for (int c = 0; c < CO; c += LANES) {
    float *d = dw + c / (V * LANES) * K * V * LANES + c % (V * LANES);
#pragma GCC unroll 16
    for (int k = 0; k + T <= K; k += T)
      squares = few_taps(T, k, W, CI, KW * CI, PH, PW, CO, x, g + c, winner + c, d, V * LANES,
                         squares);
    if (K % T)
      squares = few_taps(K % T ? K % T : 1, K - K % T, W, CI, KW * CI, PH, PW, CO, x, g + c,
                         winner + c, d, V * LANES, squares);
  }
  return total(squares);
}

/* N vectors of R kernel rows: the sum over windows of gradient times input patch. */
INLINE vec pooled_tile(const int R, const int N, const int row, const int windows, const float *x,
                       const float *g, const int32_t *at, float *dw, const int dw_row,
                       vec squares) {
  vec acc[RUN];
#pragma GCC unroll 24
  for (int r = 0; r < R; r++)
#pragma GCC unroll 24
    for (int n = 0; n < N; n++) acc[r * N + n] = splat(0);
  for (int i = 0; i < windows; i++) {
    const float *p = x + at[i];
    vec s = splat(g[i]);
#pragma GCC unroll 24
    for (int r = 0; r < R; r++)
#pragma GCC unroll 24
      for (int n = 0; n < N; n++) acc[r * N + n] += s * load(p + r * row + n * LANES);
  }
#pragma GCC unroll 24
  for (int r = 0; r < R; r++)
#pragma GCC unroll 24
    for (int n = 0; n < N; n++) {
      store(dw + r * dw_row + n * LANES, acc[r * N + n]);
      squares += acc[r * N + n] * acc[r * N + n];
    }
  return squares;
}

/* How many kernel rows, and vectors of each, fit the registers at once. */
INLINE int tile_columns(const int N) {
  const int parts = (N + RUN - 1) / RUN;
  return (N + parts - 1) / parts;
}
INLINE int tile_rows(const int KH, const int N) { return N <= RUN ? MIN(KH, RUN / N) : 1; }

/* Weight gradient behind max-pooling, as rows; returns its squared norm. Only each window's winner
 * has a gradient: a quarter of the dense work. */
INLINE float pooled_weights(const int W, const int CI, const int KH, const int KW, const int PH,
                            const int PW, const int CO, const float *x, const float *g,
                            const int32_t *winner, float *dw) {
  const int KJ = KW * CI, N = tile_columns(KJ / LANES), R = tile_rows(KH, N);
  const int rest = KJ / LANES % N;
  float gs[LANES][PH * PW];
  int32_t at[LANES][PH * PW];
  vec squares = splat(0);
  for (int c = 0; c < CO; c += LANES) {
    for (int y = 0; y < PH; y++)
      for (int i = 0; i < PW; i++) {
        const int window = y * PW + i;
        ivec k = *(const ivec *)(winner + window * CO + c);
        ivec place = ((2 * y + (k >> 1)) * W + 2 * i + (k & 1)) * CI;
        for (int l = 0; l < LANES; l++) {
          gs[l][window] = g[window * CO + c + l];
          at[l][window] = place[l];
        }
      }
    for (int l = 0; l < LANES; l++, dw += KH * KJ)
      for (int ky = 0; ky < KH; ky += R)
        for (int j = 0; j < KJ; j += N * LANES) {
          const float *p = x + ky * W * CI + j;
          float *d = dw + ky * KJ + j;
          if (rest && j + N * LANES > KJ)
            squares = pooled_tile(1, rest ? rest : 1, W * CI, PH * PW, p, gs[l], at[l], d, KJ,
                                  squares);
          else if (KH % R && ky + R > KH)
            squares = pooled_tile(KH % R ? KH % R : 1, N, W * CI, PH * PW, p, gs[l], at[l], d,
                                  KJ, squares);
          else
            squares = pooled_tile(R, N, W * CI, PH * PW, p, gs[l], at[l], d, KJ, squares);
        }
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

/* Input gradient behind max-pooling. rows: the weights as rows. dx: padded [H][W][CI]. */
INLINE void pooled_input(const int H, const int W, const int CI, const int KH, const int KW,
                         const int PH, const int PW, const int CO, const float *rows,
                         const float *g, const int32_t *winner, float *dx) {
  const int KJ = KW * CI, N = tile_columns(KJ / LANES), R = tile_rows(KH, N);
  const int rest = KJ / LANES % N;
  memset(dx, 0, sizeof(float) * H * W * CI);
  int32_t won[4][CO];
  for (int ky = 0; ky < KH; ky += R)
    for (int j = 0; j < KJ; j += N * LANES)
      for (int y = 0; y < PH; y++)
        for (int i = 0; i < PW; i++) {
          const int32_t *which = winner + (y * PW + i) * CO;
          const float *gs = g + (y * PW + i) * CO;
          int count[4] = {0, 0, 0, 0};
          for (int c = 0; c < CO; c++) won[which[c]][count[which[c]]++] = c;
          for (int k = 0; k < 4; k++) {
            const float *w = rows + ky * KJ + j;
            float *d = dx + ((2 * y + k / 2 + ky) * W + 2 * i + k % 2) * CI + j;
            if (rest && j + N * LANES > KJ)
              spread_tile(1, rest ? rest : 1, W * CI, KJ, KH * KJ, count[k], won[k], gs, w, d);
            else if (KH % R && ky + R > KH)
              spread_tile(KH % R ? KH % R : 1, N, W * CI, KJ, KH * KJ, count[k], won[k], gs, w,
                          d);
            else
              spread_tile(R, N, W * CI, KJ, KH * KJ, count[k], won[k], gs, w, d);
          }
        }
}

/* --- Fully connected layers -------------------------------------------------------------- */

/* N vectors of x w (+ bias); w: [IN] rows of `step` floats. */
INLINE void linear_tile(const int N, const int IN, const int step, const float *x, const float *w,
                        const float *bias, const int act, float *out) {
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
    store(out + n * LANES, activate(act, sum));
  }
}

INLINE void linear(const int IN, const int OUT, const int act, const float *x, const float *w,
                   const float *bias, float *out) {
  const int N = MIN(OUT / LANES, 8), rest = OUT / LANES % N;
  for (int o = 0; o + N * LANES <= OUT; o += N * LANES)
    linear_tile(N, IN, OUT, x, w + o, bias ? bias + o : 0, act, out + o);
  if (rest)
    linear_tile(rest ? rest : 1, IN, OUT, x, w + OUT - rest * LANES,
                bias ? bias + OUT - rest * LANES : 0, act, out + OUT - rest * LANES);
}

INLINE float squared_norm(const int N, const float *x) {
  float s = 0;
  for (int i = 0; i < N; i++) s += x[i] * x[i];
  return s;
}

INLINE void add_outer(const int IN, const int OUT, const float c, const float *x, const float *g,
                      float *sum) {
  for (int i = 0; i < IN; i++) {
    const vec s = splat(c * x[i]);
    for (int o = 0; o < OUT; o += LANES)
      store(sum + i * OUT + o, load(sum + i * OUT + o) + s * load(g + o));
  }
}

INLINE void add_scaled(const int N, const float c, const float *x, float *sum) {
  for (int i = 0; i < N; i += LANES) store(sum + i, load(sum + i) + c * load(x + i));
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
