"""Masks and biases of dense attention, against PyTorch's own in f64, and models that need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dense_reference
import numpy as np
import pytest
import reference
import torch
from dense_reference import TOLERANCE, problem
from torch import Tensor, nn
from torch.library import opcheck
from torch.nn import functional

import fourtap
from fourtap import scaled_dot_product_attention as attend

# Of 2 sequences, 4 heads, 37 queries and 53 keys.
WHOLE = (2, 4, 37, 53)
SHAPES = [
    WHOLE,
    (1, 4, 37, 53),
    (2, 1, 37, 53),
    (2, 1, 1, 53),
    (2, 4, 37, 1),
    (1, 1, 1, 1),
    (4, 1, 53),
    (37, 53),
    (1, 53),
    (53,),
    (),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"is_causal": True},
    {"window": (9, 20), "causal_alignment": "bottom_right", "scale": 0.3},
]


# As the fixture `device` says.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def seen(shape: tuple[int, ...], *, part: float = 0.6, seed: int = 0) -> Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < part).to(DEVICE)


def bias(shape: tuple[int, ...], dtype: torch.dtype, *, hidden: float = 0.2, seed: int = 0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)
    return numbers.masked_fill(seen(shape, part=hidden, seed=seed + 1), -torch.inf).to(dtype)


def assert_right(operands: Any, mask: Tensor, *, times: float = 1.0, **options: Any) -> None:
    out, lse = dense_reference.attention(*operands, mask, **options)
    found, found_lse = attend(*operands, mask, return_lse=True, **options)
    assert torch.equal(attend(*operands, mask, **options), found)
    dtype = operands[0].dtype
    reference.assert_close(found, out, times * TOLERANCE[dtype])
    found_lse, unseen = found_lse.cpu(), lse == -torch.inf
    assert torch.equal(found_lse == -torch.inf, unseen)
    tolerance = times * (1e-13 if dtype is torch.float64 else 2e-6)
    reference.assert_close(found_lse.masked_fill(unseen, 0), lse.masked_fill(unseen, 0), tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_form_of_mask(
    device: str, shape: tuple[int, ...], options: dict[str, Any], heads: tuple[int, int], dtype: torch.dtype
) -> None:
    operands = problem(1, device=device, dtype=dtype, heads=heads).operands
    options = {**options, "enable_gqa": heads[0] != heads[1]}
    assert_right(operands, seen(shape), **options)
    for of_bias in {dtype, torch.float32}:
        assert_right(operands, bias(shape, of_bias), times=4, **options)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "keys first": lambda mask: mask.transpose(-2, -1).contiguous().transpose(-2, -1),
    "every second": lambda mask: mask.repeat_interleave(2, -1)[..., ::2],
    "a part": lambda mask: functional.pad(mask, (3, 5, 1, 1))[..., 1:-1, 3:-5],
    "expanded": lambda mask: mask[:, :1].expand(mask.shape),
    "one element on": lambda mask: torch.cat([mask.flatten()[:1], mask.flatten()])[1:].view(mask.shape),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_masks_may_lie_as_they_like(device: str, name: str) -> None:
    operands = problem(2, device=device).operands
    assert_right(operands, LAYOUTS[name](seen(WHOLE)))
    assert_right(operands, LAYOUTS[name](bias(WHOLE, torch.float32)), times=4)


@pytest.mark.parametrize("sizes", [(1, 1), (300, 1), (1, 300), (130, 200)])
@pytest.mark.parametrize("group", [10, 64, 100])
def test_groups_that_do_not_see_each_other(device: str, sizes: tuple[int, int], group: int) -> None:
    queries, keys = (torch.arange(size, device=device) // group for size in sizes)
    assert_right(problem(3, device=device, sizes=sizes).operands, queries[:, None] == keys)
    assert_right(problem(3, device=device, sizes=sizes).operands, queries[:, None] > keys)


def test_queries_that_see_nothing_get_zero(device: str) -> None:
    operands = problem(4, device=device).operands
    for mask in (torch.zeros(37, 53, dtype=torch.bool, device=device), torch.full((37, 53), -torch.inf, device=device)):
        out, lse = attend(*operands, mask, return_lse=True)
        assert not out.any() and bool((lse == -torch.inf).all())


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", ["seen", "bias"])
def test_what_is_hidden_may_hold_anything(device: str, number: float, kind: str) -> None:
    query, key, value = problem(5, device=device).operands
    padding = torch.arange(53, device=device) < 40
    mask = padding if kind == "seen" else torch.zeros(53, device=device).masked_fill(~padding, -torch.inf)
    expected = attend(query, key[:, :, :40], value[:, :, :40])
    key[:, :, 40:], value[:, :, 40:] = number, number
    tolerance = TOLERANCE[query.dtype]
    reference.assert_close(attend(query, key, value, mask), expected, tolerance)
    # Here rows of one block see different keys.
    rows = padding | (torch.arange(37, device=device)[:, None] == 0)
    found = attend(query, key, value, rows)
    reference.assert_close(found[:, :, 1:], expected[:, :, 1:], tolerance)
    if number is not -torch.inf:
        assert bool(found[:, :, 0].isnan().any())


def test_biases_without_number_spoil_their_row_alone(device: str) -> None:
    operands = problem(6, device=device).operands
    expected = attend(*operands)
    for number in (torch.nan, torch.inf):
        mask = torch.zeros(37, 53, device=device)
        mask[5, 50] = number
        found = attend(*operands, mask)
        assert bool(found[:, :, 5].isnan().all())
        others = torch.arange(37, device=device) != 5
        reference.assert_close(found[:, :, others], expected[:, :, others], TOLERANCE[found.dtype])


def test_any_axes_before_the_heads(device: str) -> None:
    operands = problem(7, device=device, batch=(3, 2)).operands
    for shape in ((3, 2, 4, 37, 53), (3, 1, 1, 1, 53), (1, 2, 4, 37, 1), (2, 1, 37, 53), (37, 53)):
        assert_right(operands, seen(shape))
    with pytest.raises(fourtap.InputError, match=r"attn_mask: expected shape broadcasting to \[3, 2, 4, 37, 53\]"):
        attend(*operands, seen((3, 3, 1, 1, 53)))
    query, key, value = problem(7, device=device).operands
    assert_right((query, key[:1], value[:1]), seen((2, 1, 37, 53)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_have_masks_too(dtype: Any) -> None:
    tensors = problem(8, device="cpu", dtype=torch.float64).operands
    arrays = [tensor.numpy().astype(dtype) for tensor in tensors]
    masks = seen((2, 1, 1, 53)), bias((37, 53), torch.float32), bias(WHOLE, arrays_dtype(dtype))
    for mask in (mask.cpu() for mask in masks):
        found = attend(*arrays, mask.numpy())
        expected = attend(*map(torch.from_numpy, arrays), mask)
        np.testing.assert_array_equal(found, expected.numpy())


def arrays_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.zeros(1, dtype)).dtype


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("shape", [(2, 1, 1, 53), (37, 53)], ids=str)
def test_compiled_and_exported_calls_are_the_same(device: str, backend: str, shape: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    operands = problem(9, device=device).operands

    class Layer(nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, added: Tensor) -> Tensor:
            return attend(query, key[:1], value, mask) + attend(query, key, value, added * 2, is_causal=True)

    arguments = (*operands, seen(shape), bias(shape, torch.float32))
    expected = Layer()(*arguments)
    tolerance = TOLERANCE[expected.dtype]
    reference.assert_close(torch.compile(Layer(), fullgraph=True, backend=backend)(*arguments), expected, tolerance)
    program = torch.export.export(Layer(), arguments)
    assert "fourtap.dense" in program.graph_module.code
    reference.assert_close(program.module()(*arguments), expected, tolerance)


def test_the_registered_operator_passes_opcheck_with_a_mask(device: str) -> None:
    operands = problem(10, device=device, sizes=(5, 6), channels=(8, 8)).operands
    wanted = (None, None, None, False, False, True)
    for mask in (seen((5, 6)), bias((2, 1, 1, 6), torch.float32)):
        opcheck(torch.ops.fourtap.dense.default, (*operands, *wanted, mask))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_takes_masks(device: str, dtype: torch.dtype) -> None:
    operands = problem(11, device=device).operands
    for mask in (seen((37, 53)), bias((37, 53), torch.float32), bias((37, 53), torch.float16)):
        with torch.autocast(device, dtype):
            found = attend(*operands, mask)
        assert found.dtype is dtype
        reference.assert_close(found, dense_reference.attention(*operands, mask)[0], 4 * TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(36, 53), ValueError, "attn_mask: expected shape broadcasting to [2, 4, 37, 53], found [36, 53]"),
        (torch.ones(3, 1, 1, 53), ValueError, "attn_mask: expected shape broadcasting to [2, 4, 37, 53], found [3, 1"),
        (torch.ones(1, 1, 1, 1, 53), ValueError, "attn_mask: expected shape broadcasting to [2, 4, 37, 53], found"),
        (torch.ones(37, 53, dtype=torch.int64), TypeError, "attn_mask: expected element type bool, f32"),
        (torch.ones(37, 53, dtype=torch.float64), TypeError, "attn_mask: expected element type f32 (that of query)"),
        (torch.ones(37, 53, dtype=torch.complex64), TypeError, "attn_mask: expected element type bool, f32"),
        (torch.ones(37, 53).to_sparse(), ValueError, "attn_mask: expected a dense tensor"),
        (np.ones((37, 53), np.float32), ValueError, "attn_mask: expected a PyTorch tensor, like the others"),
    ],
)
def test_a_wrong_mask_is_named(device: str, mask: Any, error: type[Exception], message: str) -> None:
    operands = problem(12, device=device, dtype=torch.float32).operands
    with pytest.raises(error) as caught:
        attend(*operands, mask.to(device) if isinstance(mask, Tensor) else mask)
    assert isinstance(caught.value, fourtap.Error) and message in str(caught.value)


# Models, with PyTorch's function replaced by ours.


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Call this list's last element, so to speak, to replace; then it has an entry for each call of ours."""
    seen: list[Any] = []

    def ours(*operands: Any, **options: Any) -> Tensor:
        seen.append(options.get("attn_mask", operands[3] if len(operands) > 3 else None))
        return attend(*operands, **options)

    seen.append(lambda: monkeypatch.setattr(functional, "scaled_dot_product_attention", ours))
    return seen


def assert_same_when_replaced(calls: list[Any], run: Callable[[], Tensor]) -> None:
    with torch.no_grad():
        expected = run()
        calls.pop()()
        found = run()
    assert calls, "the model has not called the function"
    reference.assert_close(found, expected, 1e-5)


def words(batch: int = 2, length: int = 17) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    padding = torch.ones(batch, length, dtype=torch.int64)
    padding[0, 11:] = 0
    return {"input_ids": torch.randint(5, 90, (batch, length), generator=generator), "attention_mask": padding}


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.mark.parametrize("name", ["Bert", "GPT2", "ViT"])
def test_models_of_transformers_give_the_same(device: str, name: str, calls: list[Any]) -> None:
    transformers = pytest.importorskip("transformers")
    if not transformers.utils.is_torch_available():
        pytest.skip("this transformers does not take this PyTorch")
    torch.manual_seed(0)
    given: dict[str, Tensor] = words()
    if name == "Bert":
        config = transformers.BertConfig(vocab_size=100, **SMALL)
    elif name == "GPT2":
        config = transformers.GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    else:
        config = transformers.ViTConfig(image_size=32, patch_size=8, **SMALL)
        given = {"pixel_values": torch.randn(2, 3, 32, 32)}
    config._attn_implementation = "sdpa"
    model = getattr(transformers, f"{name}Model")(config).eval().to(device)
    given = {name: tensor.to(device) for name, tensor in given.items()}
    assert_same_when_replaced(calls, lambda: model(**given).last_hidden_state)


@pytest.mark.parametrize("masked", ["nothing", "keys", "pairs", "bias", "causal"])
def test_multihead_attention_gives_the_same(device: str, masked: str, calls: list[Any]) -> None:
    torch.manual_seed(0)
    # Trained so far: in evaluation PyTorch has a fused path of its own.
    module = nn.MultiheadAttention(32, 4, batch_first=True).train().to(device)
    tokens = torch.randn(2, 17, 32, device=device)
    options: dict[str, Any] = {
        "nothing": {},
        "keys": {"key_padding_mask": torch.arange(17) > torch.tensor([[11], [20]])},
        "pairs": {"attn_mask": torch.rand(17, 17) > 0.8},
        "bias": {"attn_mask": torch.randn(8, 17, 17)},
        "causal": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(17), "is_causal": True},
    }[masked]
    options = {name: option.to(device) if isinstance(option, Tensor) else option for name, option in options.items()}
    assert_same_when_replaced(calls, lambda: module(tokens, tokens, tokens, need_weights=False, **options)[0])
