"""The services that `make up` keeps running: Prefect server and worker, MLflow server."""

from __future__ import annotations

import os
import sys

import typer

from env import variables
from flows.runtime import settle
from flows.services import automations
from flows.services.password import password
from flows.services.processes import (
    POOL,
    SERVER,
    TRACKING,
    WORKER,
    answers,
    require_port,
    run_prefect,
    running,
    start,
    stop,
    where_it_runs,
    withheld,
)
from tasks.errors import PipelineError
from tasks.tracking import runs

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command()
def up() -> None:
    """Start the services that do not run; create the work pool, deployments and automations."""
    runs.require_here(runs.STORE)
    for service in (SERVER, TRACKING):
        require_port(service)
    start(SERVER)
    # The pool comes first: deploying to a missing pool prints a message and succeeds.
    run_prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
    run_prefect("work-pool", "inspect", POOL)
    # One run at a time, of any deployment: they all work in this folder.
    run_prefect("work-pool", "set-concurrency-limit", POOL, "1")
    run_prefect("--no-prompt", "deploy", "--all")
    automations.apply()
    start(WORKER)
    if keys := ", ".join(withheld()):
        typer.echo(f"The worker has no {keys}; name what runs need in {variables.WORKER_KEYS}")
    start(TRACKING)
    ui(open_pages=False)


@app.command()
def down() -> None:
    """Stop the services that `up` started."""
    for service in (TRACKING, WORKER, SERVER):
        stop(service)


@app.command()
def ui(open_pages: bool = True) -> None:
    """Print the addresses of the pages and Prefect's password; open them if a display exists."""
    import webbrowser

    for name, service in (("Prefect", SERVER), ("MLflow", TRACKING)):
        health = where_it_runs(service).health or ""
        url = health.removesuffix("/health").removesuffix("/api")
        healthy = running(service) is not None and answers(health)
        asks = f"   (password: {password()})" if service == SERVER else ""
        url += "/#/experiments/1/runs" if service == TRACKING else ""  # not MLflow's start page
        typer.echo(f"{name:8} {url}{asks if healthy else '   (not running: make up)'}")
        display = sys.platform == "darwin" or os.environ.get("DISPLAY")
        if open_pages and healthy and display:
            webbrowser.open(url)
    typer.echo("Report   reports/index.html")


if __name__ == "__main__":
    settle()
    try:
        app(prog_name="python -m flows.services")
    except PipelineError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
