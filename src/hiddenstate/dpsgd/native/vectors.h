/* Vectors of floats, the activations on them, and how the compiler is kept from spoiling them. */
#pragma once
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
