/* Activations, pooling, sums and group norm.
 * Tensors are images of H x W x C with rows of their own lengths. With `add` a gradient is added
 * to what is there, for a tensor that several layers read. */
#pragma once
#include "convolution.h"

/* y = act(x) */
INLINE void activation(const int H, const int W, const int C, const int act, const int x_row,
                       const int y_row, const float *x, float *y) {
  for (int r = 0; r < H; r++)
    for (int i = 0; i < W * C; i += LANES)
      store(y + r * y_row + i, activate(act, load(x + r * x_row + i)));
}

/* dx = dy * slope(a) */
INLINE void pass_back(const int H, const int W, const int C, const int act, const int add,
                      const int a_row, const int y_row, const int x_row, const float *a,
                      const float *dy, float *dx) {
  for (int r = 0; r < H; r++)
    for (int i = 0; i < W * C; i += LANES) {
      vec d = load(dy + r * y_row + i) * slope(act, load(a + r * a_row + i));
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
 * dx = scale * (v - mean of v - u * mean of u v), means over the group. room: 2 C floats. */
INLINE void norm_back(const int H, const int W, const int C, const int CR, const int SIZE,
                      const int add, const int x_row, const int y_row, const float *x,
                      const float *gain, const float *mean, const float *scale, const float *dy,
                      const float *dgain, const float *dbias, float *dx, float *room) {
  const float n = (float)SIZE * H * W;
  float *product = room, *plain = room + C;
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
