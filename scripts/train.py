"""For launchers that want a file: `accelerate launch scripts/train.py RECIPE` is `hf-vanilla train RECIPE`."""

import sys

from hf_vanilla_cli import main

main(["train", *sys.argv[1:]])
