"""A compiled extension, as mmcv has one that is not mmcv-lite."""

from __future__ import annotations

from typing import Any


def ms_deform_attn_forward(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("the original was called")


ms_deform_attn_backward = ms_deform_attn_forward


def nms(*arguments: Any) -> str:
    return "theirs"


get_compiler_version = get_compiling_cuda_version = nms
