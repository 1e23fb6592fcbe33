"""BEVFormer's own autograd function, which hands the tensors of its gradients to mmcv's extension."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

ext_module = importlib.import_module("mmcv._ext")


class MultiScaleDeformableAttnFunction_fp32(Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor, step: int
    ) -> Any:
        ctx.save_for_backward(value, shapes, starts, locations, weights)
        ctx.step = step
        return ext_module.ms_deform_attn_forward(value, shapes, starts, locations, weights, im2col_step=step)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        value, shapes, starts, locations, weights = ctx.saved_tensors
        gradients = [torch.zeros_like(tensor) for tensor in (value, locations, weights)]
        ext_module.ms_deform_attn_backward(
            value, shapes, starts, locations, weights, grad_output.contiguous(), *gradients, im2col_step=ctx.step
        )
        of_value, of_locations, of_weights = gradients
        return of_value, None, None, of_locations, of_weights, None
