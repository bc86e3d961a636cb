# syntax=docker/dockerfile:1
# Two images out of one file:
#
#     docker build --target api    --tag lethe-api:0.1.0 .       API, sweep and migrations; no torch in it
#     docker build --target worker --tag lethe-worker:0.1.0 .    workers
#
# pip's own torch for Linux brings CUDA along, which GPU workers want. For the far smaller one that knows only the CPU,
# name the index of PyTorch's CPU wheels: --build-arg TORCH_INDEX_URL=...

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/lethe/bin:$PATH
WORKDIR /source
RUN python -m venv /opt/lethe
COPY deploy/constraints.txt ./

FROM build AS build-api
COPY pyproject.toml README.md LICENSE ./
COPY lethe lethe
COPY service service
COPY worker worker
COPY ml ml
COPY vocabulary vocabulary
COPY migrations migrations
RUN pip install --no-cache-dir --constraint constraints.txt '.[s3]'

# torch in a layer of its own, ahead of the sources: they change often, it does not, and it is most of the image.
FROM build AS build-worker
ARG TORCH_INDEX_URL=
# pip passes over a variable that is empty.
RUN PIP_INDEX_URL="$TORCH_INDEX_URL" pip install --no-cache-dir --constraint constraints.txt torch torchvision
COPY pyproject.toml README.md LICENSE ./
COPY lethe lethe
COPY service service
COPY worker worker
COPY ml ml
COPY vocabulary vocabulary
COPY migrations migrations
RUN pip install --no-cache-dir --constraint constraints.txt '.[worker,s3]'

FROM python:3.11.14-slim-bookworm AS runtime
LABEL org.opencontainers.image.title="Lethe" \
      org.opencontainers.image.description="Makes Bayesian models forget people, and proves it." \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/lethe/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    LETHE_DATA_DIR=/var/lib/lethe
# By number, so that Kubernetes can see that it is not root. A new volume takes over the owner of the folder.
RUN groupadd --gid 10001 lethe \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin lethe \
    && install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/lethe
USER 10001:10001
WORKDIR /var/lib/lethe
# No shell in between: SIGTERM reaches Lethe, and a worker finishes its batch or gives it back.
ENTRYPOINT ["lethe"]

FROM runtime AS worker
COPY --from=build-worker /opt/lethe /opt/lethe
CMD ["worker"]
# The process that answers is not the one that computes, so a long batch does not look like an illness.
HEALTHCHECK --interval=60s --timeout=15s --start-period=60s --retries=3 \
    CMD ["sh", "-c", "celery --broker \"$REDIS_URL\" inspect ping --destination \"celery@$HOSTNAME\" --timeout 10"]

# Last, so that a build without --target makes the small one.
FROM runtime AS api
COPY --from=build-api /opt/lethe /opt/lethe
EXPOSE 8000
CMD ["api", "--host", "0.0.0.0"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
