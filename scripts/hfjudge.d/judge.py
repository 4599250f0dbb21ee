"""Judges a cache by huggingface_hub, without a network: judge.py ORG/NAME SNAPSHOT"""

import os
import sys

import huggingface_hub
from huggingface_hub import scan_cache_dir, snapshot_download, try_to_load_from_cache

repo, snapshot = sys.argv[1:]
assert os.environ["HF_HUB_OFFLINE"] == "1"
for got in (
    snapshot_download(repo, local_files_only=True),
    snapshot_download(repo),
    snapshot_download(repo, revision=os.path.basename(snapshot), local_files_only=True),
):
    assert os.path.realpath(got) == os.path.realpath(snapshot), got
assert try_to_load_from_cache(repo, "config.json") == os.path.join(snapshot, "config.json")

info = scan_cache_dir()
assert not info.warnings, info.warnings
(held,) = info.repos
(revision,) = held.revisions
files = sum(len(names) for _, _, names in os.walk(snapshot))
assert (held.repo_id, len(revision.files), set(revision.refs)) == (repo, files, {"main"}), held
said = "scanned, found offline"
try:
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError:
    said += "; no transformers here"
else:
    ids = AutoTokenizer.from_pretrained(repo)("a b c", return_tensors="pt").input_ids
    out = AutoModelForCausalLM.from_pretrained(repo)(ids)
    assert out.logits.shape == (1, 3, 4), out.logits.shape
    said += ", from_pretrained answers"
print(f"huggingface_hub {huggingface_hub.__version__}: {files} files {said}")
