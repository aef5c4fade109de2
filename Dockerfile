# flux-node-manager in a container beside a Flux instance: it comes with that instance's own flux-core, whose Python
# bindings must be of exactly the instance's version. Another one is refused at the start, by name.
#   docker build --build-arg FLUX_VERSION=0.88.0 --tag flux-node-manager .
ARG FLUX_VERSION=0.88.0
ARG FLUX_IMAGE=fluxrm/flux-core:bookworm-v${FLUX_VERSION}

FROM ${FLUX_IMAGE} AS build
# This stage is thrown away.
# hadolint ignore=DL3002
USER 0
# Debian keeps one version of a package at a time, so none can be named.
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
RUN python3 -m venv /opt/flux-node-manager \
 && /opt/flux-node-manager/bin/pip install --no-cache-dir '.[flux]'

FROM ${FLUX_IMAGE}
ARG FLUX_VERSION
USER 0
# curl asks for its health; ssh is for instances whose uri begins with ssh://.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates curl openssh-client \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/flux-node-manager /opt/flux-node-manager
ENV PATH=/opt/flux-node-manager/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# The bindings can be imported, and are of the version that was asked for.
RUN python3 -c "from nodemanager.flux import bindings as b; b.load(); assert b.version() == '${FLUX_VERSION}', b.version()"
# Whoever owns the instance: nobody else may drain a rank. Another one: --build-arg, or --user and a folder of its own.
ARG UID=1000
ARG GID=1000
RUN install --directory --owner=${UID} --group=${GID} --mode=0700 /var/lib/flux-node-manager
USER ${UID}:${GID}
WORKDIR /var/lib/flux-node-manager
VOLUME /var/lib/flux-node-manager
# 503 where the last decision is late or a source stale. The site's [Web] listen is the socket in its state_dir.
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m \
    CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "--unix-socket", "/var/lib/flux-node-manager/web.sock", "http://localhost/healthz"]
ENTRYPOINT ["flux-node-manager"]
CMD ["run", "--config", "/etc/flux-node-manager/site.ini"]
