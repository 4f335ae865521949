"""The same induction and the same two passes as `induction.py` and `message_passing.py`, as numba kernels for CPUs.

A sentence's working set stays in cache, equal nodes are found in one hash table, and nothing is done per node in
Python. Values are composed with the same float32 operations in the same order as in torch, so both backends make the
same bits. `numba_backend.py` calls these functions with torch's memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:  # outside of `try`, transformers would take numba for a requirement of every model on the Hub
    from numba import njit
except ImportError as error:
    raise ImportError("These kernels need numba: pip install numba. Without it the torch backend runs.") from error

from .counter_dropout import BLOCK, GOLDEN, LANES, MIX_1, MIX_2

STRUCTURES = {"greedy": 0, "left": 1, "right": 2, "balanced": 3, "random": 4}

_M1, _M2, _GOLDEN = np.uint64(MIX_1), np.uint64(MIX_2), np.uint64(GOLDEN)
_LANE = np.uint64(0xFFFF)


def _jit(**options: Any) -> Any:
    """`numba.njit` that releases the GIL and caches on disk, or compiles anew where no folder can be written."""

    def decorate(function: Any) -> Any:
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # "no locator available": neither beside this file nor in a user cache
            return njit(nogil=True, **options)(function)

    return decorate


@_jit(inline="always")
def _mix(x):
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    return x ^ (x >> np.uint64(31))


@_jit(fastmath={"reassoc", "nsz", "contract"})
def _dot(a, b):
    """Sum of products in float64; its order may change, since the result is rounded to float32 afterwards."""
    total = 0.0
    for k in range(a.shape[0]):
        total += np.float64(a[k]) * np.float64(b[k])
    return total


@_jit(fastmath={"reassoc", "nsz", "contract"})
def _dots(values, node, before, after):
    """Products of one row with itself and with two others, read once; sums as in `_dot`."""
    square, with_before, with_after = 0.0, 0.0, 0.0
    for k in range(values.shape[1]):
        value = np.float64(values[node, k])
        square += value * value
        with_before += value * np.float64(values[before, k])
        with_after += value * np.float64(values[after, k])
    return square, with_before, with_after


@_jit()
def _score(structure, index, left, right, dot, norms, keys, heights):
    """Score of merging two neighbours, `dot` the product of their vectors; see `induction.SCORES`."""
    if structure == 0:
        return np.float32(dot / max(norms[left] * norms[right], 1e-30))
    if structure == 1:
        return np.float32(-index)
    if structure == 2:
        return np.float32(index)
    if structure == 3:
        return np.float32(-max(heights[left], heights[right]))
    return np.float32((_mix(_mix(keys[left]) + keys[right]) >> np.uint64(40)) & np.uint64(0xFFFFFF))


@_jit()
def _copy(source, target):
    """A loop, which the compiler turns into a copy; assigning a slice takes five times as long."""
    for k in range(target.shape[0]):
        target[k] = source[k]


@_jit()
def _compose(out, left, right, left_scale, right_scale, bias):
    for k in range(out.shape[0]):
        out[k] = left[k] * left_scale[k] + right[k] * right_scale[k] + bias[k]


@_jit()
def _drop(vector, first, key, stream, threshold, scale, bits):
    """Multiply a slice of a vector by its dropout mask, in place; see `CounterDropout`.

    `first` is the coordinate at which the slice begins, a multiple of BLOCK. `bits` is scratch for BLOCK / LANES
    hashes: they, and then each lane of them, are plain loops that the compiler turns into vector instructions.
    """
    zero = vector.dtype.type(0)
    hashes = BLOCK // LANES
    for start in range(0, vector.shape[0], BLOCK):
        counter = np.uint64((first + start) // LANES + 1)
        for g in range(hashes):
            bits[g] = _mix((key ^ stream) + (counter + np.uint64(g)) * _GOLDEN)
        for lane in range(LANES):
            shift, begin = np.uint64(16 * lane), start + lane * hashes
            for g in range(min(hashes, vector.shape[0] - begin)):
                drop = ((bits[g] >> shift) & _LANE) < threshold
                vector[begin + g] = zero if drop else vector[begin + g] * scale


@_jit()
def induce(
    values, keys, n_leaves, token_leaf, offsets, left_scale, right_scale, bias,
    share, structure, stream, threshold, scale, left, right, roots,
):  # fmt: skip
    """Fill left, right, roots, and the rows of values and keys behind the leaves; returns the number of nodes."""
    n_nodes, bits = n_leaves, np.empty(BLOCK // LANES, np.uint64)
    norms = np.empty(values.shape[0], np.float64)
    heights = np.zeros(values.shape[0], np.int64)
    for node in range(n_leaves):
        norms[node] = np.sqrt(_dot(values[node], values[node]))
    longest = 0
    for b in range(roots.shape[0]):
        longest = max(longest, offsets[b + 1] - offsets[b])
    frontier, score = np.empty(longest, np.int64), np.empty(longest, np.float32)
    # Open addressing: a pair of children -> their node + 1 (0 is free). At most half full.
    size = 1
    while share and size < 2 * left.shape[0]:
        size *= 2
    table = np.zeros(size, np.int64)

    for b in range(roots.shape[0]):
        length = offsets[b + 1] - offsets[b]
        if length == 0:
            roots[b] = -1
            continue
        for i in range(length):
            frontier[i] = token_leaf[offsets[b] + i]
        for i in range(length - 1):
            l, r = frontier[i], frontier[i + 1]  # noqa: E741
            score[i] = _score(structure, i, l, r, _dot(values[l], values[r]), norms, keys, heights)
        while length > 1:
            best = 0
            for i in range(1, length - 1):
                if score[i] > score[best]:  # strictly: the leftmost of equals wins
                    best = i
            l, r = frontier[best], frontier[best + 1]  # noqa: E741
            key = _mix(_mix(keys[l]) + keys[r])
            node = -1
            slot = key & np.uint64(size - 1)
            while share and table[slot] != 0:
                known = table[slot] - 1
                if left[known - n_leaves] == l and right[known - n_leaves] == r:
                    node = known
                    break
                slot = (slot + np.uint64(1)) & np.uint64(size - 1)
            if node < 0:
                node = n_nodes
                n_nodes += 1
                table[slot] = node + 1
                left[node - n_leaves], right[node - n_leaves] = l, r
                keys[node] = key
                heights[node] = max(heights[l], heights[r]) + 1
                _compose(values[node], values[l], values[r], left_scale, right_scale, bias)
                if threshold > 0:
                    _drop(values[node], 0, key, stream, threshold, scale, bits)
            frontier[best] = node
            length -= 1
            for i in range(best + 1, length):
                frontier[i] = frontier[i + 1]
                score[i - 1] = score[i]
            if length == 1:
                break  # a root has no neighbours
            # At an end of the frontier the node stands in for the neighbour it lacks; that score is not looked at.
            before = frontier[best - 1] if best > 0 else node
            after = frontier[best + 1] if best < length - 1 else node
            square, with_before, with_after = _dots(values, node, before, after)
            norms[node] = np.sqrt(square)
            if best > 0:
                score[best - 1] = _score(structure, best - 1, before, node, with_before, norms, keys, heights)
            score[best] = _score(structure, best, node, after, with_after, norms, keys, heights)
        roots[b] = frontier[0]
    return n_nodes


@_jit()
def encode(table, ids, mask, numbers, structure, neutral, roots):
    """Only the roots, (B, D): one sentence at a time through `induce`, in scratch memory that stays in cache.

    Returns whether all ids lie in the table; it stops at the first that does not.
    """
    width, dims = ids.shape[1], table.shape[1]
    values, keys = np.empty((2 * width, dims), table.dtype), np.empty(2 * width, np.uint64)
    left, right, root = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(1, np.int64)
    leaves, span = np.arange(width), np.zeros(2, np.int64)
    coefficients = np.empty((3, dims), table.dtype)  # tiled here: in torch that takes as long as a dozen sentences
    for row in range(3):
        for k in range(dims):
            coefficients[row, k] = numbers[row, k % numbers.shape[1]]
    no, one = np.uint64(0), table.dtype.type(1)
    for b in range(roots.shape[0]):
        n = 0
        for i in range(width):
            if mask[b, i]:
                token = ids[b, i]
                if token < 0 or token >= table.shape[0]:
                    return False
                _copy(table[token], values[n])
                keys[n] = _mix(np.uint64(token + 1))
                n += 1
        if n == 0:
            roots[b] = neutral
            continue
        span[1] = n
        induce(
            values[: 2 * n], keys, n, leaves[:n], span, coefficients[0], coefficients[1], coefficients[2],
            False, structure, no, no, one, left, right, root,
        )  # fmt: skip
        _copy(values[root[0]], roots[b])
    return True


# The passes take the coordinates `first .. last-1` only: coordinates never meet, so threads can share the work. Rows
# are sliced once per node and loops hold no branches, which lets the compiler vectorise them.


@_jit()
def upward(first, last, up, left, right, left_scale, right_scale, bias, keys, stream, threshold, scale):
    """Children before parents: ids ascend. Fills the rows of `up` behind the leaves."""
    n_leaves, bits = up.shape[0] - left.shape[0], np.empty(BLOCK // LANES, np.uint64)
    left_scale, right_scale, bias = left_scale[first:last], right_scale[first:last], bias[first:last]
    for i in range(left.shape[0]):
        parent = up[n_leaves + i, first:last]
        _compose(parent, up[left[i], first:last], up[right[i], first:last], left_scale, right_scale, bias)
        if threshold > 0:
            _drop(parent, first, keys[n_leaves + i], stream, threshold, scale, bits)


@_jit()
def downward(
    first, last, up, down, edges, left, right, scales, biases, keys, streams, threshold, scale
):  # fmt: skip
    """Parents before children: ids descend. `down` (zeros) gathers the sums of the messages, then holds the values."""
    n_leaves, bits = up.shape[0] - left.shape[0], np.empty(BLOCK // LANES, np.uint64)
    message = np.empty(last - first, up.dtype)
    for node in range(up.shape[0] - 1, -1, -1):
        value = down[node, first:last]
        if edges[node] > 0:
            count = edges[node]
            for k in range(value.shape[0]):
                value[k] /= count
        else:
            _copy(up[node, first:last], value)
        if node < n_leaves:
            continue
        for side in range(2):
            factor, bias = scales[side, first:last], biases[side, first:last]
            for k in range(message.shape[0]):
                message[k] = value[k] * factor[k] + bias[k]
            if threshold > 0:
                _drop(message, first, keys[node], streams[side], threshold, scale, bits)
            child = down[left[node - n_leaves] if side == 0 else right[node - n_leaves], first:last]
            for k in range(message.shape[0]):
                child[k] += message[k]


@_jit()
def downward_backward(
    first, last, grad_down, grad_up, down, edges, left, right, scales, grad_scales, grad_biases,
    keys, streams, threshold, scale,
):  # fmt: skip
    """Children before parents: ids ascend. Turns the gradient of `down` into that of `up` and of the coefficients."""
    n_leaves, bits = down.shape[0] - left.shape[0], np.empty(BLOCK // LANES, np.uint64)
    grad = np.empty(last - first, down.dtype)
    for node in range(down.shape[0]):
        mine = grad_down[node, first:last]
        if node >= n_leaves:
            value = down[node, first:last]
            for side in range(2):
                factor = scales[side, first:last]
                grad_factor, grad_bias = grad_scales[side, first:last], grad_biases[side, first:last]
                _copy(grad_down[left[node - n_leaves] if side == 0 else right[node - n_leaves], first:last], grad)
                if threshold > 0:
                    _drop(grad, first, keys[node], streams[side], threshold, scale, bits)
                for k in range(grad.shape[0]):
                    mine[k] += grad[k] * factor[k]
                for k in range(grad.shape[0]):
                    grad_factor[k] += grad[k] * value[k]
                for k in range(grad.shape[0]):
                    grad_bias[k] += grad[k]
        if edges[node] > 0:
            count = edges[node]
            for k in range(mine.shape[0]):
                mine[k] /= count  # from here on: gradient of every message this node received
        else:
            upper = grad_up[node, first:last]
            for k in range(mine.shape[0]):
                upper[k] += mine[k]


@_jit()
def upward_backward(
    first, last, grad_up, up, left, right, left_scale, right_scale,
    grad_left_scale, grad_right_scale, grad_bias, keys, stream, threshold, scale,
):  # fmt: skip
    """Parents before children: ids descend. Afterwards the leaf rows of grad_up are the gradient of the leaves."""
    n_leaves, bits = up.shape[0] - left.shape[0], np.empty(BLOCK // LANES, np.uint64)
    left_scale, right_scale, grad_bias = left_scale[first:last], right_scale[first:last], grad_bias[first:last]
    grad_left_scale, grad_right_scale = grad_left_scale[first:last], grad_right_scale[first:last]
    for i in range(left.shape[0] - 1, -1, -1):
        grad = grad_up[n_leaves + i, first:last]
        if threshold > 0:
            _drop(grad, first, keys[n_leaves + i], stream, threshold, scale, bits)
        grad_left, value_left = grad_up[left[i], first:last], up[left[i], first:last]
        grad_right, value_right = grad_up[right[i], first:last], up[right[i], first:last]
        for k in range(grad.shape[0]):
            grad_left[k] += grad[k] * left_scale[k]
        for k in range(grad.shape[0]):
            grad_right[k] += grad[k] * right_scale[k]
        for k in range(grad.shape[0]):
            grad_left_scale[k] += grad[k] * value_left[k]
        for k in range(grad.shape[0]):
            grad_right_scale[k] += grad[k] * value_right[k]
        for k in range(grad.shape[0]):
            grad_bias[k] += grad[k]
