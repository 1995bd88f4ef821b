# Build where there is a pip, run where there is none. Every package is the one of the lock file, by its digest, and so is
# the base the one that is named. It has no default, because a tag may name another image tomorrow:
#   docker build --build-arg BASE=python:3.12-slim@sha256:... .
# docs/operate/deploy.md says where the digest is found.
ARG BASE
FROM ${BASE} AS build
WORKDIR /src
RUN python -m venv /opt/idempotency-gateway
COPY requirements.lock ./
RUN /opt/idempotency-gateway/bin/python -m pip install --no-cache-dir --no-deps --require-hashes \
        --only-binary :all: --requirement requirements.lock
COPY pyproject.toml README.md ./
COPY gateway ./gateway
RUN /opt/idempotency-gateway/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/idempotency-gateway/bin/python -m pip uninstall --yes setuptools pip

FROM ${BASE}
COPY --from=build /opt/idempotency-gateway /opt/idempotency-gateway
ENV PATH="/opt/idempotency-gateway/bin:${PATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# A number, so that an orchestrator can see that it is not root. The volume belongs to it from the beginning.
RUN install -d -m 0700 -o 10001 -g 10001 /var/lib/idempotency-gateway
USER 10001:10001
VOLUME /var/lib/idempotency-gateway

# 8080 for callers; 8081 for probes and metrics, to be kept inside. The configuration has to name these ports, on 0.0.0.0:
# the defaults listen on loopback.
EXPOSE 8080 8081
# Healthy once it serves and grants new keys, so that whatever waits for that does not send to one that still refuses them.
# From then on a store that is down does not make it unhealthy.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 8081, timeout=2); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]

# Who finds the image somewhere sees what it is. Where it comes from only its builder knows:
#   --build-arg SOURCE=https://... --build-arg REVISION="$(git rev-parse HEAD)" --build-arg VERSION=...
ARG SOURCE="" REVISION="" VERSION=""
LABEL org.opencontainers.image.title="idempotency-gateway" \
      org.opencontainers.image.description="A reverse proxy that makes retries of writes safe, in front of any HTTP service" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}"

ENTRYPOINT ["idempotency-gateway"]
CMD ["run", "--config", "/etc/idempotency-gateway/gateway.yaml"]
