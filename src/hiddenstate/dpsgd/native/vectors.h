/* Vectors of floats, the activations on them, and how the compiler is kept from spoiling them. */
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
enum { NONE, TANH, RELU, SILU, GELU, GELU_TANH };

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

/* e^x - 1, whose relative error stays small near 0, or e^x; x from -87 to 88. */
INLINE vec exponential(const float minus, vec x) {
  const vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
  vec y = x * 1.4426950408889634f;
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
  return scale * p + (scale - minus);
}
INLINE vec within(const float most, vec x) {
  x = pick(x > most, splat(most), x);
  return pick(x < -most, splat(-most), x);
}
/* tanh(x) = u / (u + 2) with u = e^(2x) - 1 */
INLINE vec vtanh(vec x) {
  vec u = exponential(1, 2.0f * within(9, x));
  return u / (u + 2.0f);
}

/* SiLU and GELU are x times a gate: a sigmoid, or the normal distribution function, which is
 * e^(-x^2 / 2) times a polynomial in 1 / (1 + |x| / 4) below 0, to 7e-9. With `slopes` the
 * derivative of x * gate. Gates far out are small, but not so small that products are slow. */
INLINE vec gated(const int kind, const int slopes, vec x) {
  const vec y = within(kind == SILU ? 40 : 9, x);
  vec gate, rise; /* rise: y times the gate's derivative */
  if (kind == GELU) {
    const vec t = 1.0f / (1.0f + 0.25f * pick(y < 0.0f, -y, y));
    const vec bell = exponential(0, -0.5f * y * y);
    vec p = splat(-0.0930885746f);
    p = p * t + 0.348324159f;
    p = p * t - 0.279393263f;
    p = p * t + 0.293120609f;
    p = p * t + 0.0184786864f;
    p = p * t + 0.113931971f;
    p = p * t + 0.0986264053f;
    p = p * t * bell;
    gate = pick(y < 0.0f, p, 1.0f - p);
    rise = 0.3989422804f * y * bell;
  } else {
    const float cubic = kind == SILU ? 0 : 0.044715f, unit = kind == SILU ? 1 : 1.595769122f;
    const vec e = exponential(0, -unit * y * (1.0f + cubic * y * y));
    gate = 1.0f / (1.0f + e);
    rise = unit * y * (1.0f + 3 * cubic * y * y) * e * gate * gate; /* e * gate is 1 - gate */
  }
  return slopes ? gate + rise : pick(x < 0.0f, y, x) * gate;
}

INLINE vec activate(const int kind, vec x) {
  if (kind == TANH) return vtanh(x);
  if (kind == RELU) return pick(x <= 0.0f, splat(0.0f), x); /* NaN stays */
  return kind == NONE ? x : gated(kind, 0, x);
}
/* Derivative of the activation, from its value; of SiLU and GELU from what they read. */
INLINE vec slope(const int kind, vec a) {
  if (kind == TANH) return 1.0f - a * a;
  if (kind == RELU) return pick(a > 0.0f, splat(1.0f), splat(0.0f));
  return kind == NONE ? splat(1.0f) : gated(kind, 1, a);
}
