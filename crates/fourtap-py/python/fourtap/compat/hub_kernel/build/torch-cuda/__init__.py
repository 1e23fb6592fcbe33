"""fourtap in place of the kernel ``kernels-community/deformable-detr``, for the ``kernels`` package of Hugging Face."""

# The layer that transformers asks for is looked up as ``layers.MultiScaleDeformableAttention``.
from fourtap.compat import transformers as layers
from fourtap.compat.deformable_detr import ms_deform_attn_backward, ms_deform_attn_forward

__all__ = ["layers", "ms_deform_attn_backward", "ms_deform_attn_forward"]
