# syntax=docker/dockerfile:1
# Two images from one file:
#
#     docker build --target api    --tag lethe-api:0.1.0 .       API, sweep and migrations, without torch
#     docker build --target worker --tag lethe-worker:0.1.0 .    workers
#
# By default pip installs torch with CUDA, for GPU workers. The far smaller CPU build comes from PyTorch's index of CPU
# wheels: --build-arg TORCH_INDEX_URL=...

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

# torch has its own layer before the sources: it is most of the image and seldom changes.
FROM build AS build-worker
ARG TORCH_INDEX_URL=
# pip ignores the variable if it is empty.
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
# A numeric user, so that Kubernetes can check that it is not root. A new volume inherits the folder's owner.
RUN groupadd --gid 10001 lethe \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin lethe \
    && install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/lethe
USER 10001:10001
WORKDIR /var/lib/lethe
# No shell in between: SIGTERM reaches Lethe, and a worker finishes or releases its batch.
ENTRYPOINT ["lethe"]

FROM runtime AS worker
COPY --from=build-worker /opt/lethe /opt/lethe
CMD ["worker"]
# A process other than the one that computes answers, so a long batch does not look unhealthy. The URL, which has a
# password, is not on the command line, which any process on the host can read.
HEALTHCHECK --interval=60s --timeout=15s --start-period=60s --retries=3 \
    CMD ["sh", "-c", "CELERY_BROKER_URL=\"$REDIS_URL\" celery inspect ping --destination \"celery@$HOSTNAME\" --timeout 10"]

# Last, so that a build without --target yields the small image.
FROM runtime AS api
COPY --from=build-api /opt/lethe /opt/lethe
EXPOSE 8000
CMD ["api", "--host", "0.0.0.0"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
