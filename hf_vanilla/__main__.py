"""`python -m hf_vanilla`, and with it `accelerate launch -m hf_vanilla`."""

from hf_vanilla_cli import main

main()
