"""`banyan train` for torchrun, which starts modules, not commands.

    torchrun --nproc-per-node 2 -m banyan_hf.train sentences.txt --output my-model

Each process entangles its share of every batch; `--batch-size` is what all of them read in a step. Only the first
prints. A killed run goes on with `--resume`, also on another number of processes.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run `banyan train` with the arguments of this module."""
    import torch.distributed

    from . import cli

    cli.console.quiet = os.environ.get("RANK", "0") != "0"
    sys.argv.insert(1, "train")
    try:
        cli.main()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
