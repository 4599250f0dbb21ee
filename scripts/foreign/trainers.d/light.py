"""Lightning's Trainer by DDP on processors, in the environment that it takes for torchrun's."""

import os

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.callbacks import ModelCheckpoint

RANK, LOCAL_RANK, NODE, WORLD, EACH, NODES = (
    int(os.environ[name])
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
)


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(RANK)
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, _):
        self.seen += batch[:, 0].int().tolist()
        loss = ((self.layer(batch / 32) - batch) ** 2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.arange(32.0).reshape(32, 1), batch_size=2, shuffle=True)


def trainer(epochs=1, devices=EACH):
    return Trainer(
        strategy="ddp", accelerator="cpu", devices=devices, num_nodes=NODES, max_epochs=epochs, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[ModelCheckpoint("out", save_last=True)],
    )


def everywhere(value):
    values = [None] * WORLD
    dist.all_gather_object(values, value)
    return values


def test_world():
    t = trainer()
    assert isinstance(t.strategy.cluster_environment, TorchElasticEnvironment), t.strategy.cluster_environment
    assert (t.world_size, t.global_rank, t.local_rank, t.node_rank) == (WORLD, RANK, LOCAL_RANK, NODE)
    assert t.is_global_zero == (RANK == 0)


def test_wrong_size():
    try:
        trainer(devices=EACH + 1).fit(Line())
    except ValueError as e:
        assert "devices" in str(e), e
    else:
        raise AssertionError("a world of another size was taken")


def test_fit():
    t, model = trainer(), Line()
    t.fit(model)
    assert t.global_step == 32 // 2 // WORLD
    seen = everywhere(model.seen)
    assert sorted(sum(seen, [])) == list(range(32)), seen
    weights = everywhere([p.item() for p in model.parameters()])
    assert all(w == weights[0] for w in weights), weights


def test_resume():
    t = trainer(epochs=2)
    t.fit(Line(), ckpt_path="out/last.ckpt")
    assert t.current_epoch == 2 and t.global_step == 2 * (32 // 2 // WORLD)


def main():
    test_world()
    test_wrong_size()
    test_fit()
    test_resume()
    dist.destroy_process_group()
