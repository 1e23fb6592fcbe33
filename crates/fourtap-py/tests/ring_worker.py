"""One process of test_distributed_tensors.py: ring attention over parts of a sequence, against the whole sequence.

On the CPU by gloo; on GPUs by NCCL if each process can have one of its own, else all on the first, through host memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

import fourtap
from fourtap.distributed import ring_attention, shard_sequence, unshard_sequence

BATCH, HEADS, LENGTH, CHANNELS, VALUE_CHANNELS = 2, 4, 96, 32, 24
NAMES = ("out", "grad query", "grad key", "grad value")
# Parts are rounded once more than the whole, and summed in another order.
TIMES_THE_ERROR_OF_ONE_PROCESS = 3.0
LEAST_ERROR = {torch.float16: 1e-4, torch.bfloat16: 1e-3, torch.float32: 1e-7, torch.float64: 1e-15}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Those of which there are gradients.
DTYPES = (torch.float16, torch.bfloat16) if DEVICE.type == "cuda" else (torch.float32, torch.bfloat16, torch.float64)


def problem(dtype: torch.dtype, key_heads: int = HEADS) -> list[Tensor]:
    """Query, key, value, and the gradient of the result; heads together in memory, as linear layers put them out."""
    torch.manual_seed(0)
    sizes = [(HEADS, CHANNELS), (key_heads, CHANNELS), (key_heads, VALUE_CHANNELS), (HEADS, VALUE_CHANNELS)]
    return [torch.randn(BATCH, LENGTH, *size).to(DEVICE, dtype).transpose(1, 2) for size in sizes]


def results(attend: Callable[..., Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The result, and the gradients by query, key and value."""
    *operands, grad_out = tensors
    leaves = [tensor.detach().requires_grad_() for tensor in operands]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def whole_of(parts: Sequence[Tensor], group: distributed.ProcessGroup | None = None) -> list[Tensor]:
    return [unshard_sequence(part, group) for part in parts]


def check_accuracy(dtype: torch.dtype, is_causal: bool, key_heads: int) -> None:
    options = {"is_causal": is_causal, "scale": 0.3, "enable_gqa": key_heads != HEADS}
    tensors = problem(dtype, key_heads)
    exact = results(
        lambda *operands: functional.scaled_dot_product_attention(*operands, **options),
        [tensor.double() for tensor in tensors],
    )
    alone = results(lambda *operands: fourtap.scaled_dot_product_attention(*operands, **options), tensors)
    parts = [shard_sequence(tensor) for tensor in tensors]
    assert parts[0].shape[2] == LENGTH // distributed.get_world_size()
    of_parts = results(lambda *operands: ring_attention(*operands, **options), parts)
    for name, part, of_part in zip(NAMES, [parts[0], *parts[:3]], of_parts, strict=True):
        assert of_part.shape[:3] == part.shape[:3], name
        assert of_part.dtype is dtype, name
    again = results(lambda *operands: ring_attention(*operands, **options), parts)
    assert all(torch.equal(one, other) for one, other in zip(of_parts, again, strict=True)), (
        "other bits in a second run"
    )
    for name, found, one, expected in zip(NAMES, whole_of(of_parts), alone, exact, strict=True):
        allowed = TIMES_THE_ERROR_OF_ONE_PROCESS * max(error(one, expected), LEAST_ERROR[dtype])
        label = f"{name}, {dtype}, causal {is_causal}, {key_heads} key heads"
        assert error(found, expected) <= allowed, f"{label}: error {error(found, expected)}, allowed {allowed}"
        # What would pass although nothing was exchanged would prove nothing.
        without = results(lambda *operands: fourtap.scaled_dot_product_attention(*operands, **options), parts)
        assert error(whole_of(without)[NAMES.index(name)], expected) > 10 * allowed, f"{label}: passes without exchange"
    # Autograd records nothing where it is off, and the bits stay the same.
    with torch.no_grad():
        assert torch.equal(ring_attention(*parts[:3], **options), of_parts[0])


def check_compiled() -> None:
    parts = [shard_sequence(tensor) for tensor in problem(torch.float32)]

    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ring_attention(query * 2, key + 1, value, is_causal=True).sin()

    expected = results(layer, parts)
    found = results(torch.compile(layer, backend="aot_eager"), parts)
    for name, one, other in zip(NAMES, found, expected, strict=True):
        assert torch.equal(one, other), f"{name}: other bits compiled"


def check_cross_attention() -> None:
    """Queries of another length, split in any way."""
    size, rank = distributed.get_world_size(), distributed.get_rank()
    _, key, value, _ = problem(torch.float64)
    query, grad_out = (torch.randn(BATCH, HEADS, 7 * size, n, dtype=torch.float64) for n in (CHANNELS, VALUE_CHANNELS))
    exact = results(functional.scaled_dot_product_attention, [query, key, value, grad_out])
    mine = [
        query.chunk(size, dim=2)[rank],
        shard_sequence(key),
        shard_sequence(value),
        grad_out.chunk(size, dim=2)[rank],
    ]
    out, by_query, by_key, by_value = results(ring_attention, mine)
    torch.testing.assert_close(out, exact[0].chunk(size, dim=2)[rank])
    torch.testing.assert_close(by_query, exact[1].chunk(size, dim=2)[rank])
    torch.testing.assert_close(whole_of([by_key, by_value]), exact[2:])


def check_rings_of_a_mesh() -> None:
    """Two rings side by side: each has a batch of its own."""
    mesh = init_device_mesh("cpu", (2, distributed.get_world_size() // 2), mesh_dim_names=("dp", "cp"))
    group = mesh.get_group("cp")
    tensors = [tensor[mesh.get_local_rank("dp")].unsqueeze(0) for tensor in problem(torch.float64)]
    exact = results(lambda *operands: functional.scaled_dot_product_attention(*operands, is_causal=True), tensors)
    parts = [shard_sequence(tensor, group) for tensor in tensors]
    found = results(lambda *operands: ring_attention(*operands, group, is_causal=True), parts)
    for name, one, other in zip(NAMES, whole_of(found, group), exact, strict=True):
        torch.testing.assert_close(one, other, msg=f"{name} on a mesh")


def check_refusals() -> None:
    """What does not fit other processes is refused in all of them, by name."""
    size, rank = distributed.get_world_size(), distributed.get_rank()
    is_last = rank == size - 1
    query, key, value, _ = (shard_sequence(tensor) for tensor in problem(torch.bfloat16))

    def refused(call: Callable[[], object]) -> str:
        try:
            call()
        except fourtap.errors.InputError as refusal:
            return str(refusal)
        raise AssertionError("not refused")

    shorter = slice(0, key.shape[2] - 2) if is_last else slice(None)
    found = refused(lambda: ring_attention(query, key[:, :, shorter], value[:, :, shorter]))
    expected, shape = list(key.shape), [*key.shape[:2], key.shape[2] - 2, key.shape[3]]
    assert found == f"key: expected {expected} as in process 0 of the group, found {shape} in process {size - 1}", found
    tensors = [tensor.double() if is_last else tensor for tensor in (query, key, value)]
    found = refused(lambda: ring_attention(*tensors))
    assert found.startswith("key: expected torch.bfloat16 as in process 0"), found
    found = refused(lambda: ring_attention(query, key, value, is_causal=is_last))
    assert found.startswith("is_causal: expected False as in process 0"), found
    found = refused(lambda: ring_attention(query.detach().requires_grad_(is_last), key, value))
    assert found.startswith("requires_grad: expected False as in process 0"), found
    group = distributed.new_group([0])
    if rank > 0:
        found = refused(lambda: ring_attention(query, key, value, group))
        assert found == f"group: expected one with process {rank} in it, found one without", found
    found = refused(lambda: shard_sequence(torch.zeros(2 * size + 1), dim=0))
    assert found.startswith(f"tensor: expected a multiple of {2 * size} positions"), found


def check_layout() -> None:
    """Sequences are split as PyTorch's context_parallel splits them, and put together again."""
    size, rank = distributed.get_world_size(), distributed.get_rank()
    positions = torch.arange(4 * size, device=DEVICE)
    part = shard_sequence(positions, dim=0)
    late = 4 * size - 2 * rank
    assert part.tolist() == [2 * rank, 2 * rank + 1, late - 2, late - 1]
    assert torch.equal(unshard_sequence(part, dim=0), positions)
    buffer = positions.clone()
    with context_parallel(init_device_mesh(DEVICE.type, (size,)), buffers=[buffer], buffer_seq_dims=[0]):
        assert torch.equal(buffer, part)


class ThroughHost:
    """What batch_isend_irecv gives for two tensors, by their copies in host memory: gloo sends nothing of a GPU's."""

    def __init__(self, operations: list[distributed.P2POp]) -> None:
        self.copies = [one.tensor.cpu() for one in operations]
        self.received = operations[1].tensor
        self.works = [
            one.op(copy, one.peer, one.group, one.tag) for one, copy in zip(operations, self.copies, strict=True)
        ]

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.received.copy_(self.copies[1])


def join() -> None:
    if DEVICE.type == "cpu":
        distributed.init_process_group("gloo")
        torch.set_num_threads(1)
    elif torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl")
    else:
        distributed.init_process_group("gloo")
        distributed.batch_isend_irecv = lambda operations: [ThroughHost(operations)]


def main() -> None:
    join()
    check_layout()
    check_refusals()
    for dtype in DTYPES:
        for is_causal in (False, True):
            check_accuracy(dtype, is_causal, HEADS)
    check_accuracy(torch.bfloat16, is_causal=True, key_heads=2)
    check_accuracy(DTYPES[0], is_causal=False, key_heads=1)
    if DEVICE.type == "cpu":
        check_cross_attention()
        check_compiled()
        if distributed.get_world_size() == 4:
            check_rings_of_a_mesh()
    distributed.destroy_process_group()


main()
