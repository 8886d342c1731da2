"""Compiled loops that pass once over numbers which torch's operations would pass over several times.

Gradients that were just formed are in the cache. Their sum and their squared norms are two operations in torch, and
each of them reads all the numbers; here both come from one read. Likewise for the sums over positions that the
gradients of biases are made of, and for what the gradient of a scale is made of: products and moments.

The loops use one thread. `applies` says where they are the faster way; torch's operations remain for all else.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from adamcb._jit import jit

_loop = functools.partial(jit, any_order=True)

# With more threads than this, torch's two parallel passes beat one pass in one thread.
_FEW_THREADS = 4
# As many numbers of a row at a time: the sum stays in the first-level cache.
_BLOCK = 4096


def applies(*tensors: Tensor) -> bool:
    """Tell whether the loops can read these tensors, and are faster than torch's own operations."""
    if torch.get_num_threads() > _FEW_THREADS:
        return False
    for tensor in tensors:
        if type(tensor) is not Tensor or not tensor.is_cpu or not tensor.is_contiguous():
            return False
        if tensor.dtype is not torch.float32 and tensor.dtype is not torch.float64:
            return False
    return True


def add_up(gradients: Tensor, total: Tensor, squares: Tensor, *, first: bool) -> None:
    """Add [n, size] to total[size], which is overwritten if `first`, and put the rows' squared norms in squares[n]."""
    _add_up(gradients.numpy(), total.numpy(), squares.numpy(), first)


def sum_positions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return [a] and float[K] from [K, T, a]: the sum, and the squared norms of each sample's sum over T."""
    total, squares = rows.new_empty(rows.shape[2]), rows.new_empty(len(rows))
    _sum_positions(rows.numpy(), total.numpy(), squares.numpy())
    return total, squares


def sum_products(grads: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return from two [N, C, *space] four float64[N, C]: the sums of g·x and of g, the means of x and of x²."""
    images, channels = inputs.shape[:2]
    rows = (images, channels, math.prod(inputs.shape[2:]))
    found = torch.empty(4, images, channels, dtype=torch.float64)
    _sum_products(grads.view(rows).numpy(), inputs.view(rows).numpy(), found.numpy())
    products, sums, totals, squares = found
    return products, sums, totals.div_(rows[2]), squares.div_(rows[2])


@_loop
def _sum_products(grads, inputs, found):
    for image in range(grads.shape[0]):
        for channel in range(grads.shape[1]):
            grad, row = grads[image, channel], inputs[image, channel]
            product = own = total = square = 0.0
            for t in range(len(row)):
                g, x = np.float64(grad[t]), np.float64(row[t])
                product += g * x
                own += g
                total += x
                square += x * x
            found[0, image, channel] = product
            found[1, image, channel] = own
            found[2, image, channel] = total
            found[3, image, channel] = square


@_loop
def _add_up(gradients, total, squares, first):
    samples, size = gradients.shape
    sums = np.zeros(samples)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        out = total[start:stop]
        if first:
            out[:] = 0
        k = 0
        while k + 4 <= samples:  # four at a time: the sum is read and written once for four rows
            a, b = gradients[k, start:stop], gradients[k + 1, start:stop]
            c, d = gradients[k + 2, start:stop], gradients[k + 3, start:stop]
            of_a = of_b = of_c = of_d = gradients.dtype.type(0)
            for j in range(stop - start):
                out[j] += (a[j] + b[j]) + (c[j] + d[j])
                of_a += a[j] * a[j]
                of_b += b[j] * b[j]
                of_c += c[j] * c[j]
                of_d += d[j] * d[j]
            sums[k] += of_a
            sums[k + 1] += of_b
            sums[k + 2] += of_c
            sums[k + 3] += of_d
            k += 4
        while k < samples:
            sums[k] += _add_row(gradients[k, start:stop], out)
            k += 1
    for k in range(samples):
        squares[k] = sums[k]


@_loop
def _add_row(row, out):
    square = row.dtype.type(0)
    for j in range(len(row)):
        out[j] += row[j]
        square += row[j] * row[j]
    return square


@_loop
def _sum_positions(rows, total, squares):
    samples, positions, size = rows.shape
    own = np.empty(size, rows.dtype)
    total[:] = 0
    for k in range(samples):
        own[:] = 0
        for t in range(positions):
            row = rows[k, t]
            for j in range(size):
                own[j] += row[j]
        squares[k] = _add_row(own, total)
