# flux-node-manager in a container next to a Flux instance. The image contains flux-core, whose Python bindings must have
# exactly the instance's version. With another version the manager exits at its start and names both versions.
#   docker build --build-arg FLUX_VERSION=0.88.0 --tag flux-node-manager .
ARG FLUX_VERSION=0.88.0
ARG FLUX_IMAGE=fluxrm/flux-core:bookworm-v${FLUX_VERSION}

FROM ${FLUX_IMAGE} AS build
# Only /opt/flux-node-manager is copied out of this stage.
# hadolint ignore=DL3002
USER 0
# No versions are pinned, because Debian keeps only one version of a package.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY LICENSE MANIFEST.in README.md pyproject.toml setup.py ./
COPY bin bin
COPY config config
COPY doc/man doc/man
COPY nodemanager nodemanager
COPY requirements requirements
# Every dependency has the version and the hash in the lock file (bin/lock).
RUN python3 -m venv /opt/flux-node-manager \
 && /opt/flux-node-manager/bin/pip install --no-cache-dir --require-hashes --requirement requirements/service.txt \
 && /opt/flux-node-manager/bin/pip install --no-cache-dir --no-deps .

FROM ${FLUX_IMAGE}
ARG FLUX_VERSION
USER 0
# curl runs the health check; ssh is for instances whose uri begins with ssh://.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates curl openssh-client \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/flux-node-manager /opt/flux-node-manager
ENV PATH=/opt/flux-node-manager/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Check that the bindings can be imported and have the requested version.
RUN python3 -c "from nodemanager.flux.handles import direct, far_side as f; direct.load(); assert f.version() == '${FLUX_VERSION}', f.version()"
# The user that owns the instance, because no other user may drain a rank. To change it, use --build-arg; or use --user
# and mount a folder that this user owns.
ARG UID=1000
ARG GID=1000
RUN install --directory --owner=${UID} --group=${GID} --mode=0700 /var/lib/flux-node-manager
USER ${UID}:${GID}
WORKDIR /var/lib/flux-node-manager
VOLUME /var/lib/flux-node-manager
# /healthz answers 503 if the last decision is late or a source is stale. The site must keep [Web] listen = unix.
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m \
    CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "--unix-socket", "/var/lib/flux-node-manager/web.sock", "http://localhost/healthz"]
ENTRYPOINT ["flux-node-manager"]
CMD ["run", "--config", "/etc/flux-node-manager/site.ini"]
