/* Sum of clipped per-sample gradients of a feed-forward network, one record at a time.
 *
 * A record's activations and gradient stay in the cache. Layers with more weights than that take
 * RECORDS at once, whose tensors lie MORE floats apart. Four facts make this fast:
 *   - channels are the innermost dimension, so that a vector holds LANES of them;
 *   - max-pooling passes one of four gradients on, so that three quarters of the multiplications
 *     of a pooled convolution's backward pass are of zeros and need not be executed;
 *   - tanh and ReLU ascend, so that they can follow the pooling, on a quarter of the values;
 *   - Winograd's algorithm does a 3 x 3 convolution with a quarter of its multiplications, zeros
 *     or not.
 *
 * Every function is inlined into a driver that is generated for one architecture and calls them
 * with constants, so that the compiler unrolls the tiles into registers. Channel counts are
 * multiples of LANES (the caller pads with zeros), except for the input's. Padding channels are zero in
 * every tensor and gradient.
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
#define NOINLINE __attribute__((noinline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Keeps a vector in a register: the compiler would load it again for every use. */
#if defined(__AVX__)
#define HOLD(v) __asm__("" : "+v"(v))
#else
#define HOLD(v)
#endif
/* Hides where a pointer is from: the compiler would keep what it reads there in registers that are
 * wanted for sums. */
#define HIDE(p) __asm__("" : "+r"(p))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
enum { NONE, TANH, RELU };

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
/* Written, or added to what is there. */
INLINE void put(const int add, float *p, vec v) {
  if (add) v += load(p);
  store(p, v);
}
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

/* --- Winograd's convolution -----------------------------------------------------------------
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

/* --- Layers between -------------------------------------------------------------------------
 * Tensors are images of H x W x C with rows of their own lengths. With `add` a gradient is added
 * to what is there, for a tensor that several layers read. */

/* y = act(x) */
INLINE void activation(const int H, const int W, const int C, const int act, const int x_row,
                       const int y_row, const float *x, float *y) {
  for (int r = 0; r < H; r++)
    for (int i = 0; i < W * C; i += LANES)
      store(y + r * y_row + i, activate(act, load(x + r * x_row + i)));
}

/* dx = dy * slope(y) */
INLINE void pass_back(const int H, const int W, const int C, const int act, const int add,
                      const int y_row, const int x_row, const float *y, const float *dy,
                      float *dx) {
  for (int r = 0; r < H; r++)
    for (int i = 0; i < W * C; i += LANES) {
      vec d = load(dy + r * y_row + i) * slope(act, load(y + r * y_row + i));
      put(add, dx + r * x_row + i, d);
    }
}

INLINE void add_tensors(const int H, const int W, const int C, const int a_row, const int b_row,
                        const int y_row, const float *a, const float *b, float *y) {
  for (int r = 0; r < H; r++)
    for (int i = 0; i < W * C; i += LANES)
      store(y + r * y_row + i, load(a + r * a_row + i) + load(b + r * b_row + i));
}

/* 2 x 2 max-pooling to H x W; winner: which of the four, [H][W][C]. */
INLINE void max_pool(const int H, const int W, const int C, const int x_row, const int y_row,
                     const float *x, float *y, int32_t *winner) {
  for (int r = 0; r < H; r++)
    for (int i = 0; i < W; i++)
      for (int c = 0; c < C; c += LANES) {
        const float *p = x + 2 * r * x_row + 2 * i * C + c, *q = p + x_row;
        store(y + r * y_row + i * C + c, largest(load(p), load(p + C), load(q), load(q + C),
                                                 winner + (r * W + i) * C + c));
      }
}

/* Its input gradient. */
INLINE void max_pool_back(const int H, const int W, const int C, const int add, const int y_row,
                          const int x_row, const int32_t *winner, const float *dy, float *dx) {
  for (int r = 0; r < H; r++)
    for (int i = 0; i < W; i++)
      for (int c = 0; c < C; c += LANES) {
        const ivec d = (ivec)load(dy + r * y_row + i * C + c);
        const ivec which = *(const ivec *)(winner + (r * W + i) * C + c);
        for (int k = 0; k < 4; k++) {
          const int at = (2 * r + k / 2) * x_row + (2 * i + k % 2) * C + c;
          put(add, dx + at, (vec)((which == k) & d));
        }
      }
}

/* Means over windows of KH x KW, SY and SX apart, to H x W. */
INLINE void average(const int KH, const int KW, const int SY, const int SX, const int H,
                    const int W, const int C, const int x_row, const int y_row, const float *x,
                    float *y) {
  for (int r = 0; r < H; r++)
    for (int i = 0; i < W; i++)
      for (int c = 0; c < C; c += LANES) {
        vec sum = splat(0);
        for (int ky = 0; ky < KH; ky++)
          for (int kx = 0; kx < KW; kx++)
            sum += load(x + (SY * r + ky) * x_row + (SX * i + kx) * C + c);
        store(y + r * y_row + i * C + c, sum * (1.0f / (KH * KW)));
      }
}

/* Their input gradient, added to dx. */
INLINE void average_back(const int KH, const int KW, const int SY, const int SX, const int H,
                         const int W, const int C, const int y_row, const int x_row,
                         const float *dy, float *dx) {
  for (int r = 0; r < H; r++)
    for (int i = 0; i < W; i++)
      for (int c = 0; c < C; c += LANES) {
        const vec d = load(dy + r * y_row + i * C + c) * (1.0f / (KH * KW));
        for (int ky = 0; ky < KH; ky++)
          for (int kx = 0; kx < KW; kx++)
            put(1, dx + (SY * r + ky) * x_row + (SX * i + kx) * C + c, d);
      }
}

/* A vector of parameters, or of what stands for them where the layer has none. */
INLINE vec or_else(const float *p, const int at, const float otherwise) {
  return p ? load(p + at) : splat(otherwise);
}

/* Every channel's entry becomes the sum over its group of SIZE channels, divided by n. Padding
 * channels, from CR on, are of no group. */
INLINE void over_groups(const int CR, const int SIZE, const float n, float *v) {
  for (int c = 0; c < CR; c += SIZE) {
    float sum = 0;
    for (int i = 0; i < SIZE; i++) sum += v[c + i];
    for (int i = 0; i < SIZE; i++) v[c + i] = sum / n;
  }
}

/* Group norm, by groups of SIZE of the CR channels that are no padding. mean and scale (one over
 * the standard deviation) are kept by channel; both stay 0 for padding, whose x is 0. No gain: 1.*/
INLINE void norm_forward(const int H, const int W, const int C, const int CR, const int SIZE,
                         const float eps, const int x_row, const int y_row, const float *x,
                         const float *gain, const float *bias, float *y, float *mean,
                         float *scale) {
  const float n = (float)SIZE * H * W;
  for (int c = 0; c < C; c += LANES) {
    vec sum = splat(0);
    for (int r = 0; r < H; r++)
      for (int i = 0; i < W; i++) sum += load(x + r * x_row + i * C + c);
    store(mean + c, sum);
  }
  over_groups(CR, SIZE, n, mean);
  for (int c = 0; c < C; c += LANES) {
    const vec m = load(mean + c);
    vec sum = splat(0);
    for (int r = 0; r < H; r++)
      for (int i = 0; i < W; i++) {
        vec d = load(x + r * x_row + i * C + c) - m;
        sum += d * d;
      }
    store(scale + c, sum);
  }
  over_groups(CR, SIZE, n, scale);
  for (int c = 0; c < CR; c++) scale[c] = 1.0f / sqrtf(scale[c] + eps);
  for (int c = 0; c < C; c += LANES) {
    const vec m = load(mean + c), s = load(scale + c) * or_else(gain, c, 1);
    const vec b = or_else(bias, c, 0);
    for (int r = 0; r < H; r++)
      for (int i = 0; i < W; i++)
        store(y + r * y_row + i * C + c, (load(x + r * x_row + i * C + c) - m) * s + b);
  }
}

/* Its gradients by gain and bias. */
INLINE void norm_gradients(const int H, const int W, const int C, const int x_row,
                           const int y_row, const float *x, const float *mean,
                           const float *scale, const float *dy, float *dgain, float *dbias) {
  for (int c = 0; c < C; c += LANES) {
    const vec m = load(mean + c), s = load(scale + c);
    vec dg = splat(0), db = splat(0);
    for (int r = 0; r < H; r++)
      for (int i = 0; i < W; i++) {
        vec d = load(dy + r * y_row + i * C + c);
        dg += d * ((load(x + r * x_row + i * C + c) - m) * s);
        db += d;
      }
    store(dgain + c, dg);
    store(dbias + c, db);
  }
}

/* Its input's gradient: with u = (x - mean) * scale and v = dy * gain,
 * dx = scale * (v - mean of v - u * mean of u v), means over the group. */
INLINE void norm_back(const int H, const int W, const int C, const int CR, const int SIZE,
                      const int add, const int x_row, const int y_row, const float *x,
                      const float *gain, const float *mean, const float *scale, const float *dy,
                      const float *dgain, const float *dbias, float *dx) {
  const float n = (float)SIZE * H * W;
  float product[C], plain[C];
  for (int c = 0; c < C; c += LANES) {
    const vec w = or_else(gain, c, 1);
    store(product + c, w * load(dgain + c));
    store(plain + c, w * load(dbias + c));
  }
  over_groups(CR, SIZE, n, product);
  over_groups(CR, SIZE, n, plain);
  for (int c = 0; c < C; c += LANES) {
    const vec m = load(mean + c), s = load(scale + c), w = or_else(gain, c, 1);
    const vec p = load(product + c), q = load(plain + c);
    for (int r = 0; r < H; r++)
      for (int i = 0; i < W; i++) {
        vec u = (load(x + r * x_row + i * C + c) - m) * s;
        vec d = s * (load(dy + r * y_row + i * C + c) * w - q - u * p);
        put(add, dx + r * x_row + i * C + c, d);
      }
  }
}

/* --- Fully connected layers -------------------------------------------------------------- */

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

INLINE float squared_norm(const int N, const float *x) {
  float s = 0;
  for (int i = 0; i < N; i++) s += x[i] * x[i];
  return s;
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
