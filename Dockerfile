FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY kvplan kvplan
COPY profiles profiles
COPY tests/papers/experiments tests/papers/experiments
RUN python -m venv /opt/kvplan && /opt/kvplan/bin/pip install --no-cache-dir .

FROM python:3.12-slim
COPY --from=build /opt/kvplan /opt/kvplan
RUN useradd --uid 10001 --create-home kvplan
# by number, which Kubernetes' runAsNonRoot can tell from root
USER 10001
# keeps the compiled loops, which would take each container seconds
RUN ["/opt/kvplan/bin/kvplan", "analyze", "llama-3.1-8b-rtx4090", "-o", "/dev/null"]
WORKDIR /work
ENTRYPOINT ["/opt/kvplan/bin/kvplan"]
