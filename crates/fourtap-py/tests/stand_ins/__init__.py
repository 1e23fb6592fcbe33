"""Modules of other projects in a few lines each, to be patched where the projects themselves are not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

GROUNDING_DINO = {"groundingdino.models.GroundingDINO.ms_deform_attn": "groundingdino_ms_deform_attn"}
ULTRALYTICS = {
    "ultralytics.nn.modules.utils": "ultralytics_utils",
    "ultralytics.nn.modules.transformer": "ultralytics_transformer",
}
RF_DETR = {"rfdetr.models.ops.modules.ms_deform_attn": "rfdetr_ms_deform_attn"}
# As packages are: without their compiled parts, and mmcv with it.
MMCV_LITE = {
    "mmcv.ops.multi_scale_deform_attn": "mmcv_multi_scale_deform_attn",
    "mmcv.ops.nms": "mmcv_nms",
    "bevformer.multi_scale_deformable_attn_function": "bevformer_function",
}
MMCV = {**MMCV_LITE, "mmcv._ext": "mmcv_ext"}
DETREX = {
    "detrex.layers.multi_scale_deform_attn": "detrex_multi_scale_deform_attn",
    "detrex.layers.transformer": "detrex_user",
}
DETREX_BUILT = {**DETREX, "detrex._C": "mmcv_ext"}
# No package has this name; repositories call theirs ``src`` or ``engine``.
REPOSITORY = {
    "repository.zoo.utils": "rtdetr_utils",
    "repository.zoo.rtdetr_decoder": "rtdetr_decoder",
    "repository.zoo.rtdetrv2_decoder": "rtdetrv2_decoder",
    "repository.zoo.dfine_decoder": "dfine_decoder",
}


@contextmanager
def installed(files: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Modules of these names can be imported, from a package in ``folder``; none is imported yet."""
    packages = {name.partition(".")[0] for name in files}
    with pytest.MonkeyPatch.context() as patch:
        for name in list(sys.modules):
            if name.partition(".")[0] in packages:
                patch.delitem(sys.modules, name)
        for name, file in files.items():
            path = folder.joinpath(*name.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Path(__file__).with_name(f"{file}.py").read_text())
            for package in path.relative_to(folder).parents:
                if package.name:
                    (folder / package / "__init__.py").touch()
        patch.syspath_prepend(folder)
        yield
        for name in list(sys.modules):
            if name.partition(".")[0] in packages:
                del sys.modules[name]
