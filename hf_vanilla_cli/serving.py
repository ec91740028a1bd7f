"""A model over HTTP."""

import gc

import click

from .shared import model_argument, warn, working
from .streams import (
    device_option,
    dtype_option,
    load_translator,
    max_source_length_option,
    max_tokens_option,
    prefix_option,
)


@click.command()
@model_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at; 0.0.0.0 is all.")
@click.option("--port", type=click.IntRange(0, 65535), default=5000, show_default=True, help="0 is any that is free.")
@click.option("--source-language", help="Such as en; if not given, what RUN's recipe or card says, or auto.")
@click.option("--target-language", help="Such as de; if not given, what RUN's recipe or card says, or xx.")
@click.option("--num-beams", type=click.IntRange(1), help="The width of the search, if not the run's own.")
@click.option(
    "--max-characters", type=click.IntRange(1), default=10_000, show_default=True, help="Of a request's texts."
)
@click.option(
    "--max-waiting",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Requests that wait for their turn; others are told to try again (status 429).",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="That a request may take (then: status 503).",
)
@prefix_option
@max_source_length_option
@max_tokens_option
@dtype_option
@device_option
def serve(
    run: str,
    host: str,
    port: int,
    source_language: str | None,
    target_language: str | None,
    num_beams: int | None,
    max_characters: int,
    max_waiting: int,
    seconds: float,
    prefix: str,
    max_source_length: int | None,
    max_tokens: int | None,
    dtype: str,
    device: str | None,
) -> None:
    """
    Serve translations over HTTP, to programs in the form of LibreTranslate, and to people with a page.

    RUN is a directory with a model, such as a run or an export, or its name on the Hub: user/name or
    user/name@revision.

    \b
    curl http://127.0.0.1:5000/translate -H 'Content-Type: application/json' \\
      -d '{"q": "Hello", "source": "en", "target": "de", "alternatives": 3}'

    Requests that arrive together are translated together. There are /languages, /health and /metrics (Prometheus), too.
    SIGTERM and Ctrl-C let it finish what it has accepted, and stop. Everybody who reaches the address can use it: there
    are neither keys nor encryption, so put a proxy that has them before it if it is not 127.0.0.1. Pages of other sites
    cannot use it. At 127.0.0.1 it also refuses requests for other names (Host), which a proxy must not pass on.
    """
    with working():
        from hf_vanilla.hub_name import folder_of
        from hf_vanilla.memory import share_one_arena

        try:
            from hf_vanilla.serving.app import Server, make_app
            from hf_vanilla.serving.browsers import LOOPBACK
            from hf_vanilla.serving.listening import address_of, bound_socket, run_until_stopped
        except ModuleNotFoundError as error:
            raise click.ClickException(f"{error.name} is missing: pip install 'hf_vanilla[serve]'") from None
        from hf_vanilla.inference.languages import languages_of
        from hf_vanilla.serving.engine import Engine
        from hf_vanilla.serving.limits import Limits

        share_one_arena()
        with bound_socket(host, port) as opened:
            folder, lengths = folder_of(run), {"max_tokens": max_tokens, "max_source_length": max_source_length}
            translator = load_translator(folder, dtype, device, **lengths)
            engine = Engine(translator, prefix, **({"num_beams": num_beams} if num_beams else {}))
            limits = Limits(max_characters=max_characters, max_waiting=max_waiting, seconds=seconds)
            languages = languages_of(folder, source_language, target_language)
            names = LOOPBACK if host in LOOPBACK else ()
            app = make_app(Server(engine, languages, limits, translator.columns, names))
            gc.collect()
            gc.freeze()  # libraries and model stay: to look through them again holds up all requests for 0.2 s
            if host not in LOOPBACK:
                warn(f"Everybody who reaches {host} can use this server: there are neither keys nor encryption.")
            run_until_stopped(app, opened, limits, lambda: warn(f"{run}: {address_of(opened)} (Ctrl-C stops it)"))
