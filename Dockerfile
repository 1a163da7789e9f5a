# The index of all architectures. How to move to a newer one: docs/operate/upgrades.md.
FROM python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

# CPU that kernels are compiled for, whatever machine builds the image; all processes of a deployment
# need the same one. Use generic for older processors and for arm64.
ARG DUALSTREAM_CPU=x86-64-v3
ENV DUALSTREAM_CPU=$DUALSTREAM_CPU \
    PYTHONUNBUFFERED=1

WORKDIR /app
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY dualstream dualstream
COPY client client
COPY consume consume
COPY wire wire
COPY solvers solvers
COPY service service
# Extras of pyproject.toml: server,otel for traces; server,kafka for consumers of Kafka.
ARG EXTRAS=server
# For a private package index: --secret id=pip,src=pip.conf. No layer keeps the secret.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir --no-compile -c constraints.txt ".[$EXTRAS]" \
    && rm -r build dualstream.egg-info \
    && find "$(python -P -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
       -type d -name tests -prune -exec rm -r {} +

# Compile the kernels here, and to bytecode what a server imports: it only reads them. -P imports the
# installed files and not those of this folder.
ENV DUALSTREAM_CACHE_DIR=/opt/kernels
RUN python -P -m dualstream.service.server.compile_kernels \
    && python -P -c "import dualstream.service.cli.serve, dualstream.service.server.workers"

COPY deploy/healthcheck.py /usr/local/bin/dualstream-healthcheck
COPY deploy/entrypoint.sh /usr/local/bin/dualstream-entrypoint
RUN useradd --system --uid 10001 --home-dir /data dualstream \
    && install -d -o dualstream -g dualstream /data
USER dualstream
WORKDIR /data
VOLUME /data
EXPOSE 8000

HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["dualstream-healthcheck"]

ARG REVISION=unknown
LABEL org.opencontainers.image.title="Dualstream" \
      org.opencontainers.image.description="A server that learns from a stream of labelled samples" \
      org.opencontainers.image.version="0.1.0.dev0" \
      org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11.16-slim-bookworm" \
      org.opencontainers.image.base.digest="sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b"

ENTRYPOINT ["dualstream-entrypoint"]
CMD ["serve"]
