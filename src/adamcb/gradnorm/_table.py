"""The table of operations: how each moves the samples, and what each use of a parameter in it adds to the gradients.

An operation without a rule is replayed sample by sample (`_replay.py`); one that is missing altogether is probed to
find out what it does to the samples (`_probe.py`). Both are exact, and slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adamcb.gradnorm import (
    _convolution,
    _elementwise_rules,
    _indexing,
    _layouts,
    _lookup_rules,
    _matrix_rules,
    _norm_rules,
    _packed,
    _recurrence,
)
from adamcb.gradnorm._call import Use
from adamcb.gradnorm._layouts import Layout

Rule = Callable[..., "list[Use] | None"]
"""A function with the operation's own signature behind a `Call`.

It returns a `Use` for each argument that may be a parameter, or None where it does not apply.
"""


class Operation(NamedTuple):
    """What is known of an operation; None stands for what has to be found out."""

    layout: Layout | None
    rule: Rule | None = None


def register_rule(operation: Callable | str, rule: Rule) -> None:
    """Let `PerSampleNorms` measure parameters in an operation by a rule, faster than it would by itself.

    The guard compares the rule's results with autograd's, so a mistake in it is found in the first batches.

    Args:
        operation: A function of torch, or its name.
        rule: A function with the operation's own arguments behind a `Call`. It returns a `Use` for each argument that
            may be a parameter, or None where it does not apply.

    Example:
        >>> import torch
        >>> from adamcb.gradnorm import Dense, Use
        >>> def addcmul(call, input, first, second, *, value=1):  # the parameter is added, one for each feature
        ...     return [Use(input, lambda grad: Dense(call.rows(grad).sum(1)))] if input.dim() == 1 else None
        >>> register_rule(torch.addcmul, addcmul)
    """
    name = operation if isinstance(operation, str) else getattr(operation, "__name__", None)
    if not isinstance(name, str) or not name:
        raise TypeError(f"`operation` must be a function or its name, got operation={operation!r}.")
    if not callable(rule):
        raise TypeError(f"`rule` must be a function, got rule of type {type(rule).__name__}.")
    OPERATIONS[name] = Operation(OPERATIONS.get(name, Operation(None)).layout, rule)


def operation_of(name: str) -> Operation:
    """Return what is known of an operation."""
    found = OPERATIONS.get(name)
    if found is None and name.endswith("_") and not name.endswith("__"):
        found = OPERATIONS.get(name[:-1])  # in place
        if found is not None:
            found = Operation(found.layout)
    return found or _UNKNOWN


_UNKNOWN = Operation(None)
_ARITHMETIC = """
    sub __sub__ __rsub__ __isub__ sub_ rsub subtract __imul__ mul_ div __truediv__ __rtruediv__ __itruediv__ div_
    __div__ __rdiv__ __idiv__ true_divide divide pow __pow__ __rpow__ __ipow__ pow_ maximum minimum lerp addcmul
    addcdiv atan2 fmax fmin hypot xlogy clamp_min clamp_max float_power logaddexp copysign remainder __mod__ fmod
    floor_divide __floordiv__
"""
_FUNCTIONS = """
    relu relu_ relu6 gelu silu mish elu selu celu leaky_relu leaky_relu_ sigmoid tanh softplus softsign hardtanh
    hardswish hardsigmoid logsigmoid tanhshrink hardshrink softshrink threshold rrelu exp expm1 log log1p log2 log10
    sqrt rsqrt square abs absolute __abs__ neg __neg__ negative __pos__ positive reciprocal sin cos tan sinh cosh asin
    acos atan asinh acosh atanh erf erfc erfinv sign sgn floor ceil round trunc frac sinc digamma lgamma logit
    nan_to_num dropout feature_dropout alpha_dropout bernoulli angle real imag conj conj_physical resolve_conj
    data detach clone contiguous float double half bfloat16 long int bool short type cpu cuda __invert__ logical_not
    bitwise_not isnan isinf isfinite zeros_like ones_like empty_like rand_like randn_like full_like requires_grad_
    fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_ view_as_real view_as_complex alias lift_fresh
    scale_grad dropout_ masked_fill masked_fill_ tril triu
"""
_COMPARISONS = """
    eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ logical_and logical_or logical_xor bitwise_and
    bitwise_or bitwise_xor __and__ __or__ __xor__ __rand__ __ror__ __rxor__ isclose
"""
_RESHAPES = "reshape view flatten unflatten squeeze unsqueeze ravel"
_VIEWS = """
    transpose permute movedim moveaxis swapaxes swapdims t T mT H mH adjoint select narrow tensor_split expand
    broadcast_to diagonal hsplit vsplit dsplit
"""
_REDUCTIONS = """
    sum mean nansum nanmean prod amax amin max min argmax argmin median nanmedian mode var std var_mean std_mean
    logsumexp norm vector_norm linalg_vector_norm any all count_nonzero
"""
_IMAGES = """
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d interpolate
    upsample dropout1d dropout2d dropout3d pixel_shuffle pixel_unshuffle channel_shuffle grid_sample affine_grid
    local_response_norm _max_pool2d _max_pool1d boolean_dispatch fn fold
"""
_LOSSES = """
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
    gaussian_nll_loss poisson_nll_loss soft_margin_loss hinge_embedding_loss margin_ranking_loss
"""
_L, _M, _E = _layouts, _matrix_rules, _elementwise_rules
_ROWS: list[tuple[str, Layout, Rule | None]] = [
    ("linear", _L.dense, _M.linear),
    ("matmul __matmul__ mm bmm", _L.matrix_product, _M.matmul),
    ("addmm", _L.matrix_product, _M.addmm),
    ("baddbmm", _L.matrix_product, _M.baddbmm),
    ("grouped_mm _grouped_mm transformers.grouped_mm_fallback", _L.leading, _M.grouped_mm),
    ("mv dot __rmatmul__", _L.matrix_product, None),
    ("einsum", _L.einsum, _M.einsum),
    ("tensordot", _L.tensordot, None),
    ("cdist", _L.distances, None),
    ("scaled_dot_product_attention", _L.attention, _M.attention),
    ("bilinear", _L.bilinear, None),
    ("lstm_scan", _L.lined_up, _recurrence.lstm_rule),
    ("conv1d conv2d conv3d", _L.convolved, _convolution.convolution),
    ("conv_transpose1d conv_transpose2d conv_transpose3d", _L.convolved, _convolution.transposed_convolution),
    (_IMAGES, _L.leading, None),
    ("embedding", _indexing.embedded, _lookup_rules.embedding),
    ("embedding_bag", _L.bags, _lookup_rules.embedding_bag),
    ("one_hot", _L.appended, None),
    ("layer_norm", _L.normalized, _norm_rules.layer_norm),
    ("rms_norm", _L.normalized, _norm_rules.rms_norm),
    ("group_norm", _L.leading, _norm_rules.group_norm),
    ("instance_norm", _L.leading, _norm_rules.instance_norm),
    ("batch_norm", _L.leading, _norm_rules.batch_norm),
    ("prelu", _L.by_channel, _E.prelu),
    ("add __add__ __radd__ __iadd__ add_", _L.lined_up, _E.added),
    ("mul __mul__ __rmul__ multiply", _L.lined_up, _E.multiplied),
    (_ARITHMETIC, _L.lined_up, _E.elementwise),
    ("where", _L.chosen, _E.elementwise),
    (_FUNCTIONS, _L.kept, None),
    ("sigmoid tanh exp relu gelu silu softplus clamp", _L.kept, _E.elementwise),
    (_COMPARISONS, _L.lined_up, None),
    ("to type_as", _L.of_first(_L.kept), None),
    ("copy_", _L.copied, None),
    ("expand_as", _L.expanded_like, _E.expand_as),
    ("softmax log_softmax softmin cumsum cumprod logcumsumexp cummax cummin", _L.along(1, None), None),
    ("sort argsort", _L.along(1, -1), None),
    ("topk", _L.along(2, -1), None),
    ("msort", _L.along(1, 0), None),
    ("normalize", _L.along(2, 1), None),
    ("glu", _L.shrunk(1, -1), None),
    ("kthvalue", _L.shrunk(2, -1), None),
    ("cosine_similarity pairwise_distance", _L.paired, None),
    (_LOSSES, _L.loss, None),
    ("cross_entropy nll_loss multi_margin_loss", _L.loss_of_rows, None),
    ("cosine_embedding_loss triplet_margin_loss", _L.loss_of_rows, None),
    (_REDUCTIONS, _L.reduced, None),
    (_RESHAPES, _L.reshaped, None),
    ("view_as reshape_as", _L.of_first(_L.reshaped), None),
    (_VIEWS, _L.viewed, None),
    ("unbind chunk split split_with_sizes", _L.pieces, None),
    ("unfold", _L.unfolded, None),
    ("cat concat concatenate", _L.joined, _E.cat),
    ("stack", _L.stacked, None),
    ("repeat tile", _L.repeated, None),
    ("repeat_interleave", _L.interleaved, None),
    ("flip roll", _indexing.moved_along, None),
    ("__getitem__", _indexing.picked, _lookup_rules.getitem),
    ("__setitem__", _indexing.written(2), _E.setitem),
    ("index_select", _indexing.selected, _lookup_rules.index_select),
    ("gather", _indexing.gathered, None),
    ("take_along_dim", _indexing.taken_along, None),
    ("masked_select take", _indexing.indexed, None),
    ("index_put index_put_", _indexing.put, None),
    ("index_copy scatter", _indexing.written(3), None),
    ("pad constant_pad_nd", _L.padded, None),
    ("_pack_padded_sequence", _packed.packed, None),
    ("_pad_packed_sequence", _packed.padded_back, None),
    ("pad_sequence", _packed.padded_rows, None),
    ("index_add scatter_add", _indexing.added_at, None),
    ("fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn fft_fft fft_ifft fft_fft2", _L.transformed, None),
    ("fft_ifft2 fft_fftn fft_ifftn", _L.transformed, None),
]
OPERATIONS: dict[str, Operation] = {
    name: Operation(layout, rule) for names, layout, rule in _ROWS for name in names.split()
}

# What returns no tensor that could hold samples: seen many times in a forward pass, and let through at once.
PLAIN = frozenset(
    """
    shape device dtype requires_grad is_cuda is_leaf ndim grad_fn layout names is_sparse is_quantized is_meta is_nested
    is_mkldnn itemsize nbytes output_nr is_cpu is_xla is_mps is_xpu is_mtia is_maia is_ipu is_vulkan is_ort
    size dim numel stride is_contiguous __len__ is_floating_point is_complex element_size storage_offset item tolist
    numpy __bool__ __int__ __float__ __index__ __hash__ __repr__ __format__ is_same_size nelement ndimension
    data_ptr get_device is_inference __contains__ allclose equal register_hook retain_grad is_shared untyped_storage
    _set_grad_enabled has_names is_signed
    """.split()
)
TENSOR_ATTRIBUTES = frozenset("T mT H mH data real imag grad".split())
"""Attributes that give tensors."""
