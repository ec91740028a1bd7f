"""`python -m hf_vanilla`, and with it `accelerate launch -m hf_vanilla`."""

from .cli import main

main()
