"""Small models of transformers with random weights, of every family that uses the operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
if not transformers.utils.is_torch_available():
    pytest.skip("this transformers does not take this PyTorch", allow_module_level=True)

# Not much smaller, nor the images: then a level has one pixel, whose normalisation multiplies rounding by thousands.
CHANNELS = 64
# Before version 5 a backbone of one's own had to be asked for in as many words.
NO_DOWNLOAD: dict[str, Any] = {"backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False}
Built = tuple[nn.Module, dict[str, Tensor]]


def resnet(kind: str = "ResNetConfig", stages: tuple[str, ...] = ("stage2", "stage3", "stage4")) -> Any:
    return getattr(transformers, kind)(
        embedding_size=8,
        hidden_sizes=[8, 12, 16, 20],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=list(stages),
    )


def swin(stages: tuple[str, ...] = ("stage2", "stage3", "stage4")) -> Any:
    return transformers.SwinConfig(
        image_size=128,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 2, 2],
        window_size=4,
        drop_path_rate=0.0,
        out_features=list(stages),
    )


def image(height: int = 96, width: int = 128) -> Tensor:
    return torch.randn(2, 3, height, width)


def deformable_detr(**options: Any) -> Built:
    config = transformers.DeformableDetrConfig(
        backbone_config=resnet(),
        **NO_DOWNLOAD,
        num_queries=11,
        d_model=CHANNELS,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        encoder_n_points=3,
        decoder_n_points=2,
        dropout=0.0,
        two_stage_num_proposals=11,
        **options,
    )
    padded = torch.ones(2, 96, 128, dtype=torch.int64)
    padded[1, 70:, :] = 0
    padded[1, :, 90:] = 0
    return transformers.DeformableDetrForObjectDetection(config), {"pixel_values": image(), "pixel_mask": padded}


def text_config() -> dict[str, Any]:
    return {
        "model_type": "bert",
        "vocab_size": 1100,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
    }


def grounding_dino(kind: str = "GroundingDino") -> Built:
    config = getattr(transformers, f"{kind}Config")(
        backbone_config=swin(),
        text_config=text_config(),
        num_queries=9,
        d_model=CHANNELS,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        encoder_n_points=2,
        decoder_n_points=3,
        dropout=0.0,
        max_text_len=16,
    )
    words = torch.tensor([[101, 1037, 1012, 1038, 1039, 1012, 102]]).repeat(2, 1)
    inputs = {"pixel_values": image(128, 128), "input_ids": words, "attention_mask": torch.ones_like(words)}
    return getattr(transformers, f"{kind}ForObjectDetection")(config), inputs


def rt_detr(kind: str = "RTDetr", head: str = "ForObjectDetection", **options: Any) -> Built:
    stages = ("stage1",) if kind == "PPDocLayoutV3" else ()
    settings: dict[str, Any] = dict(
        backbone_config=resnet("RTDetrResNetConfig", (*stages, "stage2", "stage3", "stage4")),
        encoder_hidden_dim=CHANNELS,
        encoder_in_channels=[12, 16, 20],
        encoder_ffn_dim=24,
        encoder_attention_heads=4,
        d_model=CHANNELS,
        num_queries=11,
        decoder_in_channels=[CHANNELS] * 3,
        decoder_ffn_dim=24,
        decoder_layers=2,
        decoder_attention_heads=4,
        num_denoising=0,
    )
    config = getattr(transformers, f"{kind}Config")(**settings | options)
    return getattr(transformers, f"{kind}{head}")(config), {"pixel_values": image()}


def mask2former() -> Built:
    config = transformers.Mask2FormerConfig(
        backbone_config=swin(("stage1", "stage2", "stage3", "stage4")),
        feature_size=CHANNELS,
        mask_feature_size=CHANNELS,
        hidden_dim=CHANNELS,
        encoder_feedforward_dim=24,
        dim_feedforward=24,
        encoder_layers=2,
        decoder_layers=3,
        num_attention_heads=4,
        num_queries=7,
    )
    return transformers.Mask2FormerForUniversalSegmentation(config), {"pixel_values": image(128, 128)}


def oneformer() -> Built:
    config = transformers.OneFormerConfig(
        backbone_config=swin(("stage1", "stage2", "stage3", "stage4")),
        conv_dim=CHANNELS,
        mask_dim=CHANNELS,
        hidden_dim=CHANNELS,
        encoder_feedforward_dim=24,
        dim_feedforward=24,
        encoder_layers=2,
        decoder_layers=3,
        num_attention_heads=4,
        num_queries=7,
        text_encoder_width=16,
        text_encoder_num_layers=1,
        text_encoder_vocab_size=99,
        text_encoder_n_ctx=2,
        text_encoder_context_length=7,
        task_seq_len=7,
        dropout=0.0,
    )
    inputs = {"pixel_values": image(128, 128), "task_inputs": torch.randint(0, 99, (2, 7)).float()}
    return transformers.OneFormerForUniversalSegmentation(config), inputs


def lw_detr() -> Built:
    backbone = transformers.LwDetrViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=128,
        pretrain_image_size=128,
        window_block_indices=[0],
        num_windows=4,
        out_features=["stage1", "stage2"],
    )
    config = transformers.LwDetrConfig(
        backbone_config=backbone,
        projector_scale_factors=[1.0, 2.0],
        d_model=CHANNELS,
        decoder_ffn_dim=24,
        decoder_layers=2,
        decoder_self_attention_heads=4,
        decoder_cross_attention_heads=4,
        c2f_num_blocks=1,
        num_queries=9,
        group_detr=1,
    )
    return transformers.LwDetrForObjectDetection(config), {"pixel_values": image(128, 128)}


def rf_detr() -> Built:
    backbone = transformers.RfDetrDinov2Config(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        mlp_ratio=2,
        image_size=128,
        patch_size=8,
        num_windows=2,
        out_features=["stage1", "stage2"],
    )
    config = transformers.RfDetrConfig(
        backbone_config=backbone,
        d_model=CHANNELS,
        decoder_ffn_dim=24,
        decoder_layers=2,
        decoder_self_attention_heads=4,
        decoder_cross_attention_heads=4,
        c2f_num_blocks=1,
        num_queries=9,
        group_detr=1,
        dropout=0.0,
    )
    return transformers.RfDetrForObjectDetection(config), {"pixel_values": image(128, 128)}


def omdet_turbo() -> Built:
    config = transformers.OmDetTurboConfig(
        backbone_config=swin(),
        **NO_DOWNLOAD,
        text_config={
            "model_type": "clip_text_model",
            "vocab_size": 99,
            "hidden_size": 16,
            "projection_dim": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "max_position_embeddings": 16,
            "bos_token_id": 97,
            "eos_token_id": 98,
        },
        apply_layernorm_after_vision_backbone=False,
        image_size=128,
        text_projection_in_dim=16,
        text_projection_out_dim=16,
        class_embed_dim=16,
        task_encoder_hidden_dim=24,
        num_queries=9,
        encoder_hidden_dim=CHANNELS,
        vision_features_channels=[CHANNELS] * 3,
        encoder_in_channels=[16, 32, 64],
        encoder_attention_heads=4,
        encoder_dim_feedforward=24,
        decoder_hidden_dim=CHANNELS,
        decoder_num_heads=4,
        decoder_num_layers=2,
        decoder_dim_feedforward=24,
    )
    words = torch.tensor([[5, 6, 7, 98]] * 4)
    inputs = {
        "pixel_values": image(128, 128),
        "classes_input_ids": words,
        "classes_attention_mask": torch.ones_like(words),
        "tasks_input_ids": words[:2],
        "tasks_attention_mask": torch.ones_like(words[:2]),
        "classes_structure": torch.tensor([2, 2]),
    }
    model = transformers.OmDetTurboForObjectDetection(config)
    # It keeps what it computed of the words for the next pass, together with a graph that one pass uses up.
    model.language_backbone.requires_grad_(False)
    return model, inputs


@dataclass
class Case:
    build: Callable[[], Built]
    calls: int
    "How often one pass calls the operator."


CASES = {
    "deformable_detr": Case(deformable_detr, 4),
    "deformable_detr-box_refine-two_stage": Case(lambda: deformable_detr(with_box_refine=True, two_stage=True), 4),
    "grounding_dino": Case(grounding_dino, 4),
    "mm_grounding_dino": Case(lambda: grounding_dino("MMGroundingDino"), 4),
    "rt_detr": Case(rt_detr, 2),
    "rt_detr_v2": Case(lambda: rt_detr("RTDetrV2"), 2),
    "rt_detr_v2-discrete": Case(lambda: rt_detr("RTDetrV2", decoder_method="discrete"), 2),
    "d_fine": Case(lambda: rt_detr("DFine", decoder_n_points=[3, 6, 3]), 2),
    # A batch norm right before the values, which have no layer of their own.
    "d_fine-normed": Case(lambda: rt_detr("DFine", encoder_hidden_dim=32, decoder_in_channels=[32] * 3), 2),
    "d_fine-discrete": Case(lambda: rt_detr("DFine", decoder_n_points=[3, 1, 2], decoder_method="discrete"), 2),
    "deimv2": Case(lambda: rt_detr("Deimv2", decoder_n_points=[2, 4, 3]), 2),
    "pp_doclayout_v2": Case(lambda: rt_detr("PPDocLayoutV2", "Model"), 2),
    "pp_doclayout_v3": Case(lambda: rt_detr("PPDocLayoutV3", x4_feat_dim=8), 2),
    "pp_doclayout_v4": Case(lambda: rt_detr("PPDocLayoutV4"), 2),
    "mask2former": Case(mask2former, 2),
    "oneformer": Case(oneformer, 2),
    "lw_detr": Case(lw_detr, 2),
    "rf_detr": Case(rf_detr, 2),
    "omdet_turbo": Case(omdet_turbo, 2),
}
