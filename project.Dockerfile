# Servers and workers of compose.yaml: the whole project, with torch for CPUs.
FROM python:3.11.13-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends libseccomp2 && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 user && mkdir /rlm /home/user/.prefect && chown user /rlm /home/user/.prefect
WORKDIR /rlm
USER 1000
COPY --chown=1000 . .
RUN make setup setup-cluster PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
ENV PATH=/rlm/.venv/bin:$PATH
