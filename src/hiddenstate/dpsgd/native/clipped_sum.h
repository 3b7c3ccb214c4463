/* Sum of clipped per-sample gradients of a feed-forward network, one record at a time.
 *
 * A record's activations and gradient stay in the cache. Layers with more weights than that take
 * RECORDS at once, whose tensors lie MORE floats apart. Five facts make this fast:
 *   - channels are the innermost dimension, so that a vector holds LANES of them;
 *   - max-pooling passes one of four gradients on, so that three quarters of the multiplications
 *     of a pooled convolution's backward pass are of zeros and need not be executed;
 *   - tanh and ReLU ascend, so that they can follow the pooling, on a quarter of the values;
 *   - Winograd's algorithm does a 3 x 3 convolution with a quarter of its multiplications, zeros
 *     or not;
 *   - where a record is blank, a pooled first convolution is known without being computed.
 *
 * Every function is inlined into a driver that is generated for one architecture and calls them
 * with constants, so that the compiler unrolls the tiles into registers. Channel counts are
 * multiples of LANES (the caller pads with zeros), except for the input's. Padding channels are zero in
 * every tensor and gradient.
 *
 * Layouts: image [y][x][channel] with its padding in place; forward weights [output block][ky]
 * [kx, input channel][channel in block]; "rows" [output channel][ky][kx, input channel].
 */
#pragma once
#include "convolution.h"
#include "winograd.h"
#include "other_layers.h"
#include "linear.h"
