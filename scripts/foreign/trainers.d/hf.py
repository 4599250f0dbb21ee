"""Transformers' Trainer: a GPT of random weights learns a line by heart on all ranks, stops, and goes on from a checkpoint."""

import os

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.training_args import ParallelMode

RANK, LOCAL_RANK, WORLD = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))


class Lines(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count, self.seen = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.seen.append(index)
        line = torch.arange(8) % 7
        return {"input_ids": line, "labels": line}


def trainer(steps=4, count=64):
    torch.manual_seed(RANK)  # so that equal weights later come from the others
    args = TrainingArguments(
        output_dir="out", use_cpu=True, max_steps=steps, save_steps=4, per_device_train_batch_size=2,
        per_device_eval_batch_size=2, learning_rate=1e-2, report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    return Trainer(model=model, args=args, train_dataset=Lines(count), eval_dataset=Lines(4 * WORLD + 1))


def everywhere(value):
    values = [None] * WORLD
    dist.all_gather_object(values, value)
    return values


def same_weights(model):
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    sums = everywhere([weights.sum().item(), weights.abs().sum().item()])
    assert all(s == sums[0] for s in sums), sums


def test_world():
    args = trainer().args
    assert (args.world_size, args.process_index, args.local_process_index) == (WORLD, RANK, LOCAL_RANK), args
    assert args.parallel_mode == ParallelMode.DISTRIBUTED, args.parallel_mode
    assert dist.get_backend() == "gloo", dist.get_backend()
    assert args.should_save == (RANK == 0) and args.should_log == (LOCAL_RANK == 0)  # log_on_each_node


def test_train():
    before = trainer().evaluate()["eval_loss"]  # by another: one that has evaluated trains without DDP
    t = trainer()
    t.train()
    assert t.state.global_step == 4
    assert t.evaluate()["eval_loss"] < before
    same_weights(t.model)
    seen = [set(s[: 2 * 4]) for s in everywhere(t.train_dataset.seen)]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 2 * 4 * WORLD, seen


def test_resume():
    assert os.path.exists("out/checkpoint-4/trainer_state.json")
    dist.barrier()
    t = trainer(steps=8)
    t.train(resume_from_checkpoint=True)
    assert t.state.global_step == 8
    same_weights(t.model)


def test_predict():
    t = trainer()
    assert len(t.predict(t.eval_dataset).predictions) == 4 * WORLD + 1  # no multiple of the ranks


def main():
    test_world()
    test_train()
    test_resume()
    test_predict()
    dist.destroy_process_group()
