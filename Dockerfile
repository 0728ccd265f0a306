# The environment's server alone: no torch, no model, no key. Builds from the project's root and,
# unchanged, from the tree that `deploy.target: space` pushes (dist/space).
# docs/deployment.md has the command that pins this image by its digest.
ARG BASE_IMAGE=python:3.11.13-slim-bookworm
FROM ${BASE_IMAGE}

# The sandbox's system-call filter.
RUN apt-get update && apt-get install --yes --no-install-recommends libseccomp2 && rm -rf /var/lib/apt/lists/*
# Spaces run containers as this user too.
RUN useradd --create-home --uid 1000 user

WORKDIR /app
COPY env/requirements.txt constraints.txt ./
RUN pip install --no-cache-dir --no-compile --requirement requirements.txt --constraint constraints.txt
COPY openenv.yaml params.yaml ./
COPY rewards rewards/
COPY env env/

ENV PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 RLM_SETTINGS=/app/params.yaml
USER 1000
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=90s --retries=3 CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
CMD ["python", "-m", "env.server.app", "--host", "0.0.0.0", "--port", "8000"]
