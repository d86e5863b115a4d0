"""The mean loss of all tokens of a global batch, whichever ranks and accumulated batches they lie on."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from shardline.losses import token_mean

ROWS, LENGTH = 8, 6
COUNTS = torch.tensor(
    [6, 1, 2, 0, 5, 1, 1, 3]
)  # tokens of each row: 9, 6, 4 in halves and quarters
MASK = torch.arange(LENGTH) < COUNTS[:, None]


def model_and_inputs() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 1).double(), torch.randn(ROWS, LENGTH, 4, dtype=torch.float64)


def gradient_of_all() -> list[torch.Tensor]:
    """Return the gradients of the mean over all tokens that count."""
    model, inputs = model_and_inputs()
    model(inputs).squeeze(-1).square()[MASK].mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def gradient_of_ranks(rank: int, ranks: int, accumulate: int, is_told: bool) -> list[torch.Tensor]:
    """Return a rank's gradients after a step, as DDP and Lightning make them."""
    model, inputs = model_and_inputs()
    wrapped = DistributedDataParallel(model)
    size = ROWS // ranks // accumulate
    for part in range(accumulate):
        rows = slice((rank * accumulate + part) * size, (rank * accumulate + part + 1) * size)
        told: Any = {"mean_count": int(MASK.sum()) / ranks / accumulate} if is_told else {}
        loss = token_mean(wrapped(inputs[rows]).squeeze(-1).square(), MASK[rows], **told)
        with wrapped.no_sync() if part < accumulate - 1 else torch.enable_grad():
            (loss / accumulate).backward()
    return [parameter.grad for parameter in model.parameters()]


def run_rank(rank: int, ranks: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    found = {
        "counted": gradient_of_ranks(rank, ranks, 1, is_told=False),
        "told": gradient_of_ranks(rank, ranks, 1, is_told=True),
        "accumulated": gradient_of_ranks(rank, ranks, 2, is_told=True),
    }
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_ranks_have_the_gradient_of_the_mean_over_all_tokens(tmp_path: Path) -> None:
    start_processes(run_rank, (2, str(tmp_path)), nprocs=2, start_method="spawn")
    wanted = gradient_of_all()
    for rank in range(2):
        for way, found in torch.load(tmp_path / f"{rank}.pt").items():
            for one, other in zip(found, wanted, strict=True):
                assert torch.allclose(one, other, rtol=0, atol=1e-12), (rank, way)


def test_a_masked_loss_counts_nothing_even_if_it_is_no_number() -> None:
    losses = torch.tensor([1.0, float("nan"), 3.0], requires_grad=True)
    loss = token_mean(losses, torch.tensor([True, False, True]))
    loss.backward()
    assert loss == 2
    assert losses.grad is not None
    assert losses.grad.tolist() == [0.5, 0, 0.5]


def test_weights_count_as_they_are_and_no_mask_counts_all() -> None:
    losses = torch.tensor([1.0, 2.0, 6.0])
    assert token_mean(losses, torch.tensor([0.5, 0.0, 1.5])) == 4.75
    assert token_mean(losses) == 3
    assert token_mean(losses, mean_count=torch.tensor(9)) == 1
    assert token_mean(losses, torch.tensor([0.5, 0.0, 1.5]), mean_count=4.75) == 2


def test_a_batch_without_a_token_has_no_loss() -> None:
    losses = torch.ones(2, requires_grad=True)
    mask = torch.zeros(2, dtype=torch.bool)
    token_mean(losses, mask).backward()
    token_mean(losses, mask, mean_count=0).backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == [0, 0]


def test_the_sum_is_of_float32_where_losses_are_of_less() -> None:
    losses = torch.full((4096,), 1.01, dtype=torch.bfloat16)
    loss = token_mean(losses)
    assert loss.dtype == torch.float32
    assert loss == losses[0].float()


def test_another_shape_of_the_mask_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \[2, 3\] and mask has shape \[3\]"):
        token_mean(torch.ones(2, 3), torch.ones(3))
