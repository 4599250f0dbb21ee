"""DeepSpeed: what init_distributed expects of the environment, and ZeRO's stages on a model of random weights."""

import os

import deepspeed
import torch

RANK, LOCAL_RANK, WORLD = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))


def test_init_distributed():
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    assert (deepspeed.comm.get_rank(), deepspeed.comm.get_local_rank(), deepspeed.comm.get_world_size()) == (RANK, LOCAL_RANK, WORLD)


def test_all_reduce():
    ranks = torch.tensor([float(RANK)])
    deepspeed.comm.all_reduce(ranks)
    assert ranks.item() == WORLD * (WORLD - 1) / 2, ranks


def test_zero(stage):
    torch.manual_seed(RANK)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    model = torch.nn.Linear(4, 1)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    assert engine.train_batch_size() == 2 * WORLD
    losses = []
    for _ in range(4):
        loss = (engine(torch.full((2, 4), RANK + 1.0)) ** 2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses


def main():
    test_init_distributed()
    test_all_reduce()
    for stage in range(3):
        test_zero(stage)
    torch.distributed.destroy_process_group()
