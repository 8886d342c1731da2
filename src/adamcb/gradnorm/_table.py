"""The table of operations: how each moves the samples, and what each use of a parameter in it adds to the gradients.

Whatever else depends on the operation is in its entry, an `Operation`: no other file of the engine names operations.

An operation without a rule is replayed sample by sample (`_replay.py`); one that is missing altogether is probed to
find out what it does to the samples (`_probe.py`). Both are exact, and slow.
"""

from __future__ import annotations

from collections.abc import Callable

from adamcb.gradnorm import (
    _composite,
    _convolution,
    _elementwise_rules,
    _indexing,
    _layouts,
    _lookup_rules,
    _matrix_rules,
    _norm_rules,
    _origins,
    _packed,
    _product_layouts,
    _recurrence,
)
from adamcb.gradnorm._call import UNKNOWN, Operation, Rule


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
    OPERATIONS[name] = OPERATIONS.get(name, UNKNOWN)._replace(rule=rule)


def operation_of(name: str) -> Operation:
    """Return what is known of an operation."""
    return OPERATIONS.get(name) or _unlisted(name)


def _unlisted(name: str) -> Operation:
    """Return what is known of an operation without an entry: in place, it moves samples as its other form does."""
    other = OPERATIONS.get(name[:-1]) if name.endswith("_") and not name.endswith("__") else None
    return UNKNOWN if other is None else Operation(other.layout)


def table_of(rows: list[tuple[str, Operation]]) -> dict[str, Operation]:
    """Return the operations by name, from rows of names with blanks in between.

    Raises:
        ValueError: If a name stands twice.
    """
    table: dict[str, Operation] = {}
    for names, operation in rows:
        for name in names.split():
            if name in table:
                raise ValueError(f"`{name}` must stand once in the table of operations, and stands there twice.")
            table[name] = operation
    return table


_ARITHMETIC = """
    sub __sub__ __rsub__ __isub__ sub_ rsub subtract __imul__ mul_ div __truediv__ __rtruediv__ __itruediv__ div_
    __div__ __rdiv__ __idiv__ true_divide divide pow __pow__ __rpow__ __ipow__ pow_ maximum minimum lerp addcmul
    addcdiv atan2 fmax fmin hypot xlogy clamp_min clamp_max float_power logaddexp copysign remainder __mod__ fmod
    floor_divide __floordiv__
"""
_FUNCTIONS = """
    relu_ relu6 mish elu selu celu leaky_relu leaky_relu_ softsign hardtanh
    hardswish hardsigmoid logsigmoid tanhshrink hardshrink softshrink threshold rrelu expm1 log log1p log2 log10
    sqrt rsqrt square abs absolute __abs__ neg __neg__ negative __pos__ positive reciprocal sin cos tan sinh cosh asin
    acos atan asinh acosh atanh erf erfc erfinv sign sgn floor ceil round trunc frac sinc digamma lgamma logit
    nan_to_num dropout feature_dropout alpha_dropout bernoulli angle real imag conj conj_physical resolve_conj
    data clone contiguous float double half bfloat16 long int bool short type cpu cuda __invert__ logical_not
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
    movedim moveaxis H mH adjoint select narrow diagonal hsplit vsplit dsplit
"""
_REDUCTIONS = """
    prod amax amin max min argmax argmin median nanmedian mode var std var_mean std_mean
    logsumexp any all count_nonzero
"""
_IMAGES = """
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d interpolate
    upsample dropout1d dropout2d dropout3d pixel_shuffle pixel_unshuffle channel_shuffle grid_sample affine_grid
    local_response_norm _max_pool2d _max_pool1d boolean_dispatch fn fold
"""
_LOSSES = """
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
    poisson_nll_loss soft_margin_loss hinge_embedding_loss margin_ranking_loss
"""
_L, _P, _M, _E, _O, _C = _layouts, _product_layouts, _matrix_rules, _elementwise_rules, _origins, _composite
OPERATIONS = table_of(
    [
        ("linear", Operation(_P.dense, _M.linear)),
        ("matmul __matmul__ mm bmm", Operation(_P.matrix_product, _M.matmul)),
        ("addmm", Operation(_P.added_product, _M.addmm)),
        ("baddbmm", Operation(_P.added_product, _M.baddbmm)),
        ("grouped_mm _grouped_mm transformers.grouped_mm_fallback", Operation(_L.leading, _M.grouped_mm)),
        ("mv dot", Operation(_P.matrix_product)),
        ("__rmatmul__", Operation(_P.swapped_product)),
        ("einsum", Operation(_P.einsum, _M.einsum)),
        ("tensordot", Operation(_P.tensordot)),
        ("cdist", Operation(_P.distances)),
        ("scaled_dot_product_attention", Operation(_P.attention, _M.attention)),
        ("bilinear", Operation(_P.bilinear)),
        ("lstm_scan", Operation(_L.lined_up, _recurrence.lstm_rule)),
        ("conv1d", Operation(_L.convolved_1d, _convolution.convolution)),
        ("conv2d", Operation(_L.convolved_2d, _convolution.convolution)),
        ("conv3d", Operation(_L.convolved_3d, _convolution.convolution)),
        ("conv_transpose1d", Operation(_L.convolved_1d, _convolution.transposed_convolution)),
        ("conv_transpose2d", Operation(_L.convolved_2d, _convolution.transposed_convolution)),
        ("conv_transpose3d", Operation(_L.convolved_3d, _convolution.transposed_convolution)),
        (_IMAGES, Operation(_L.leading)),
        ("embedding", Operation(_indexing.embedded, _lookup_rules.embedding, origin=_O.looked_up)),
        ("embedding_bag", Operation(_L.bags, _lookup_rules.embedding_bag)),
        ("one_hot", Operation(_L.appended)),
        ("layer_norm", Operation(_L.normalized, _norm_rules.layer_norm)),
        ("rms_norm", Operation(_L.normalized, _norm_rules.rms_norm)),
        ("group_norm", Operation(_L.leading, _norm_rules.group_norm)),
        ("instance_norm", Operation(_L.leading, _norm_rules.instance_norm)),
        ("batch_norm", Operation(_L.leading, _norm_rules.batch_norm, ties=_norm_rules.ties_samples)),
        ("prelu", Operation(_L.by_channel, _E.prelu)),
        ("add __add__ __radd__", Operation(_L.lined_up, _E.added, origin=_O.summed)),
        ("__iadd__ add_", Operation(_L.lined_up, _E.added)),
        ("mul __mul__ __rmul__ multiply", Operation(_L.lined_up, _E.multiplied)),
        (_ARITHMETIC, Operation(_L.lined_up, _E.elementwise)),
        ("where", Operation(_L.chosen, _E.elementwise)),
        (_FUNCTIONS, Operation(_L.kept)),
        ("sigmoid tanh exp relu gelu silu softplus clamp", Operation(_L.kept, _E.elementwise)),
        (_COMPARISONS, Operation(_L.lined_up)),
        ("detach", Operation(_L.kept, origin=_O.detached)),
        ("to type_as", Operation(_L.of_first(_L.kept), converts=True)),
        ("copy_", Operation(_L.copied)),
        ("expand_as", Operation(_L.expanded_like, _E.expand_as, origin=_O.expanded)),
        ("softmax log_softmax softmin cumsum cumprod logcumsumexp cummax cummin", Operation(_L.along(1, None))),
        ("sort argsort", Operation(_L.along(1, -1))),
        ("topk", Operation(_L.along(2, -1))),
        ("msort", Operation(_L.along(1, 0))),
        ("normalize", Operation(_L.along(2, 1))),
        ("glu", Operation(_L.shrunk(1, -1))),
        ("kthvalue", Operation(_L.shrunk(2, -1))),
        ("cosine_similarity", Operation(_L.paired_along)),
        ("pairwise_distance", Operation(_L.paired)),
        (_LOSSES, Operation(_L.loss, is_loss=True)),
        ("gaussian_nll_loss", Operation(_L.gaussian_loss, is_loss=True)),
        ("cross_entropy nll_loss", Operation(_L.loss_of_classes(2), is_loss=True)),
        ("multi_margin_loss", Operation(_L.loss_of_classes(4), is_loss=True)),
        ("cosine_embedding_loss", Operation(_L.loss_of_rows, is_loss=True)),
        ("triplet_margin_loss", Operation(_L.loss_of_distances, is_loss=True)),
        ("sum mean nansum nanmean", Operation(_L.reduced(1), pools=True)),
        (_REDUCTIONS, Operation(_L.reduced(1))),
        ("norm vector_norm linalg_vector_norm", Operation(_L.reduced(2))),
        (_RESHAPES, Operation(_L.reshaped)),
        ("view_as reshape_as", Operation(_L.of_first(_L.reshaped))),
        (_VIEWS, Operation(_L.viewed)),
        ("transpose permute swapaxes swapdims t T mT", Operation(_L.viewed, origin=_O.transposed)),
        ("expand broadcast_to", Operation(_L.viewed, origin=_O.expanded)),
        ("tensor_split", Operation(_L.viewed, cuts=True)),
        ("unbind", Operation(_L.pieces(1), cuts=True)),
        ("chunk split split_with_sizes", Operation(_L.pieces(2), cuts=True)),
        ("unfold", Operation(_L.unfolded)),
        ("cat concat concatenate", Operation(_L.joined, _E.cat)),
        ("stack", Operation(_L.stacked)),
        ("repeat", Operation(_L.repeated, origin=_O.repeated)),
        ("tile", Operation(_L.repeated)),
        ("repeat_interleave", Operation(_L.interleaved)),
        ("flip", Operation(_indexing.moved_along(1))),
        ("roll", Operation(_indexing.moved_along(2))),
        ("__getitem__", Operation(_indexing.picked, _lookup_rules.getitem)),
        ("__setitem__", Operation(_indexing.written(2), _E.setitem, assigns=True)),
        ("index_select", Operation(_indexing.selected, _lookup_rules.index_select)),
        ("gather", Operation(_indexing.gathered)),
        ("take_along_dim", Operation(_indexing.taken_along)),
        ("masked_select take", Operation(_indexing.indexed)),
        ("index_put index_put_", Operation(_indexing.put)),
        ("index_copy scatter", Operation(_indexing.written(3))),
        ("index_add scatter_add", Operation(_indexing.added_at)),
        ("pad constant_pad_nd", Operation(_L.padded)),
        ("_pack_padded_sequence", Operation(_packed.packed)),
        ("_pad_packed_sequence", Operation(_packed.padded_back)),
        ("pad_sequence", Operation(_packed.padded_rows)),
        ("fft_fft fft_ifft fft_rfft fft_irfft", Operation(_L.transformed(-1))),
        ("fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2", Operation(_L.transformed(-2, -1))),
        ("fft_fftn fft_ifftn fft_rfftn fft_irfftn", Operation(_L.transformed())),
        ("multi_head_attention_forward", Operation(None, composite=_C.attention)),
        ("lstm", Operation(None, composite=_C.recurrent(_C.lstm_step), recurrent=True)),
        ("gru", Operation(None, composite=_C.recurrent(_C.gru_step), recurrent=True)),
        ("rnn_tanh", Operation(None, composite=_C.recurrent(_C.tanh_step), recurrent=True)),
        ("rnn_relu", Operation(None, composite=_C.recurrent(_C.relu_step), recurrent=True)),
        ("lstm_cell", Operation(None, composite=_C.cell(_C.lstm_step), recurrent=True)),
        ("gru_cell", Operation(None, composite=_C.cell(_C.gru_step), recurrent=True)),
        ("rnn_tanh_cell", Operation(None, composite=_C.cell(_C.tanh_step), recurrent=True)),
        ("rnn_relu_cell", Operation(None, composite=_C.cell(_C.relu_step), recurrent=True)),
    ]
)

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
BACKWARD = frozenset("grad backward".split())
"""What goes backward itself."""
