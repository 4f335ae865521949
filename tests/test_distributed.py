"""Two processes (gloo) train as one does; killed, they are resumed by one."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace

import psutil
import pytest
import torch
import yaml
from accelerate import PartialState
from support import ROOT, TINY, grammar_sentences

from banyan_hf import BanyanForPreTraining
from banyan_hf.training.run import last_complete_checkpoint, train
from banyan_hf.training.trainer import processes

# Nothing random, so that what is left is the order in which floats are added.
PLAIN = replace(TINY, epochs=6, batch_size=8, dropout=0.0, num_negatives=None, learning_rate=0.01)
TOLERANCE = 1e-3  # of a logged loss, relative: two processes against one that entangles the same two halves
WHOLE_BATCH = 0.05  # the same against one process that entangles the whole batch


def curve(folder):
    state = json.loads((last_complete_checkpoint(folder / "checkpoints") / "trainer_state.json").read_text())
    return {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}


@pytest.fixture
def halves(monkeypatch):
    """One process entangles each half of a batch by itself, as two processes do, and takes the mean of the losses."""
    whole = BanyanForPreTraining.forward

    def forward(self, input_ids, attention_mask=None, **options):
        cut = (len(input_ids) + 1) // 2
        parts = [
            whole(self, input_ids[rows], attention_mask[rows], **options) for rows in (slice(cut), slice(cut, None))
        ]
        parts[0].loss = (parts[0].loss + parts[1].loss) / 2
        return parts[0]

    monkeypatch.setattr(BanyanForPreTraining, "forward", forward)


@pytest.mark.timeout(1800)  # three starts of Python and three short runs: half a minute where nothing else runs
def test_two_processes_train_as_one_and_one_resumes_them(tmp_path, monkeypatch, request):
    text, recipe = tmp_path / "text.txt", tmp_path / "recipe.yaml"
    text.write_text("\n".join(grammar_sentences(160, seed=3)) + "\n")
    recipe.write_text(yaml.safe_dump(asdict(PLAIN)))
    options = {"recipe": PLAIN, "save_steps": 10, "say": lambda line: None}
    train([str(text)], tmp_path / "whole", **options)

    output, log = tmp_path / "two", (tmp_path / "log").open("w")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command += ["banyan_hf.train", str(text), "--output", str(output), "--recipe", str(recipe), "--save-steps", "10"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    process = psutil.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        while not (reached := last_complete_checkpoint(output / "checkpoints")) or reached.name == "checkpoint-10":
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.02)
    finally:
        everyone = [process, *process.children(recursive=True)]  # torchrun gives each worker a session of its own
        for victim in everyone:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        psutil.wait_procs(everyone)
    assert not (output / "config.json").exists()
    reached = last_complete_checkpoint(output / "checkpoints")
    assert {path.name for path in reached.glob("rng_state_*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    assert torch.load(reached / "training_args.bin", weights_only=False).per_device_train_batch_size == 4

    request.getfixturevalue("halves")
    train([str(text)], output, resume=True, **options)
    train([str(text)], tmp_path / "halves", **options)
    monkeypatch.undo()
    two, one, whole = (curve(tmp_path / name) for name in ("two", "halves", "whole"))
    assert list(two) == list(one) == list(whole)
    assert len(two) == 12
    assert one[10] > 1.3 * one[120]  # it learns: equal curves say something
    for step in two:
        assert two[step] == pytest.approx(one[step], rel=TOLERANCE)
        assert two[step] == pytest.approx(whole[step], rel=WHOLE_BATCH)
    assert max(abs(two[step] / whole[step] - 1) for step in two) > TOLERANCE  # entangling per process is no detail


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("a b c d e\n" * 20)
    processes()  # makes the state that is changed here
    monkeypatch.setitem(PartialState._shared_state, "num_processes", 3)
    with pytest.raises(ValueError, match="batch_size=8 cannot be shared by 3 processes"):
        train([str(tmp_path / "text.txt")], tmp_path / "out", recipe=PLAIN, say=lambda line: None)
    assert not (tmp_path / "out").exists()
