"""The services that `make up` keeps running: Prefect server and worker, MLflow server."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import typer

from env import variables
from flows.runtime import BusyError, exclusive, set_environment
from flows.services import processes, server_objects
from flows.services.password import password
from tasks.errors import PipelineError
from tasks.tracking import runs

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command()
def up() -> None:
    """Start the services that do not run; create the work pool, deployments and automations."""
    runs.require_here(runs.STORE)
    with runs.answering():  # a store that can't be opened is told in one line
        pass
    for service in (processes.SERVER, processes.TRACKING):
        processes.require_port(service)
    processes.start(processes.SERVER)
    # The pool comes first: deploying to a missing pool prints a message and succeeds.
    server_objects.apply()
    processes.deploy()
    from flows.chain import clean_after_killed_run  # with Prefect, which now finds the password

    with suppress(BusyError), exclusive():
        # A run that was killed while no server watched it would hold the pool's only slot for ever.
        if clean_after_killed_run():
            typer.echo("A run that was killed has ended: Crashed")
    processes.start(processes.WORKER)
    if keys := ", ".join(processes.withheld()):
        typer.echo(f"The worker has no {keys}; name what runs need in {variables.WORKER_KEYS}")
    processes.start(processes.TRACKING)
    ui(open_pages=False)


@app.command()
def down() -> None:
    """Stop the services that `up` started."""
    for service in (processes.TRACKING, processes.WORKER, processes.SERVER):
        processes.stop(service)


@app.command()
def ui(open_pages: bool = True) -> None:
    """Print the addresses of the pages and Prefect's password; open them if a display exists."""
    import webbrowser

    for name, service in (("Prefect", processes.SERVER), ("MLflow", processes.TRACKING)):
        health = processes.where_it_runs(service).health or ""
        url = health.removesuffix("/health").removesuffix("/api")
        healthy = processes.running(service) is not None and processes.answers(health)
        asks = f"   (password: {password()})" if service == processes.SERVER else ""
        url += "/#/experiments/1/runs?compareRunsMode=CHART" if name == "MLflow" else ""
        typer.echo(f"{name:8} {url}{asks if healthy else '   (not running: make up)'}")
        if open_pages and healthy and (sys.platform == "darwin" or os.environ.get("DISPLAY")):
            webbrowser.open(url)
    typer.echo("Report   reports/index.html")


if __name__ == "__main__":
    set_environment()
    try:
        app(prog_name="python -m flows.services")
    except PipelineError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
