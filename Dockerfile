# flux-node-manager in a container next to a Flux instance. The image contains flux-core, whose Python bindings must have
# exactly the instance's version. With another version the manager exits at its start and names both versions.
#   docker build --build-arg FLUX_VERSION=0.88.0 --tag flux-node-manager .
# A release names its base by digest, because a tag may be moved: with REVISION the build refuses any other base.
#   docker build --build-arg FLUX_IMAGE=fluxrm/flux-core@sha256:DIGEST --build-arg REVISION=$(git rev-parse HEAD) ...
# Without flux-core, for an instance that the manager reaches by ssh ([Flux] uri = ssh://HOST/PATH), of any version:
#   docker build --build-arg FLUX_IMAGE=debian:bookworm-slim --build-arg FLUX_VERSION= --tag flux-node-manager:ssh .
ARG FLUX_VERSION=0.88.0
ARG FLUX_IMAGE=fluxrm/flux-core:bookworm-v${FLUX_VERSION}

FROM ${FLUX_IMAGE} AS build
# Only /opt/flux-node-manager is copied out of this stage.
# hadolint ignore=DL3002
USER 0
ARG FLUX_IMAGE
ARG REVISION=unknown
RUN case "${REVISION} ${FLUX_IMAGE}" in "unknown "* | *@sha256:*) ;; \
        *) echo "FLUX_IMAGE=${FLUX_IMAGE}: a release needs a base by digest: IMAGE@sha256:DIGEST" >&2; exit 1 ;; esac
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
# Every dependency has the version and the hash in a lock file (bin/lock), and so has what builds the wheel. pip itself
# stays in an environment of its own. The tests in libcloud's wheel are left out, and the bytecode of modules that the
# service does not import.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/pip \
 && /opt/pip/bin/pip install --require-hashes --requirement requirements/build.txt \
 && /opt/pip/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /opt/wheel . \
 && python3 -m venv --without-pip /opt/flux-node-manager \
 && into="--python /opt/flux-node-manager/bin/python install" \
 && /opt/pip/bin/pip $into --no-compile --require-hashes --requirement requirements/service.txt \
 && /opt/pip/bin/pip $into --no-deps --no-index /opt/wheel/*.whl \
 && rm -rf /opt/flux-node-manager/lib/python3*/site-packages/libcloud/test
RUN cd / && for part in cloud.azure cloud.ec2 cloud.gce cloud.openstack; do \
        /opt/flux-node-manager/bin/python -c "import nodemanager.$part.port, nodemanager.service.service" || exit 1; \
    done && /opt/flux-node-manager/bin/python -c "import nodemanager.join.server, nodemanager.web.app"

FROM ${FLUX_IMAGE}
ARG FLUX_VERSION
ARG FLUX_IMAGE
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="flux-node-manager" \
      org.opencontainers.image.description="Cloud nodes for a Flux instance, when its jobs need them" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.base.name="${FLUX_IMAGE}" \
      org.opencontainers.image.revision="${REVISION}"
USER 0
# curl runs the health check; ssh is for instances whose uri begins with ssh://. flux-core's image has python3 already.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates curl openssh-client python3 \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/flux-node-manager /opt/flux-node-manager
ENV PATH=/opt/flux-node-manager/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Check that the bindings can be imported and have the requested version, if there are any.
RUN [ -z "${FLUX_VERSION}" ] || python3 -c "from nodemanager.flux.handles import direct, far_side as f; direct.load(); assert f.version() == '${FLUX_VERSION}', f.version()"
# The user that owns the instance, because no other user may drain a rank. To change it, use --build-arg; or use --user
# and mount a folder that this user owns.
ARG UID=1000
ARG GID=1000
# ssh runs only for a user with an entry in the list of users.
RUN set -e; \
    getent group "${GID}" >/dev/null || groupadd --gid "${GID}" flux-node-manager; \
    getent passwd "${UID}" >/dev/null || useradd --uid "${UID}" --gid "${GID}" --no-create-home --no-log-init \
        --home-dir /var/lib/flux-node-manager --shell /usr/sbin/nologin flux-node-manager; \
    install --directory --owner=${UID} --group=${GID} --mode=0700 /var/lib/flux-node-manager
USER ${UID}:${GID}
WORKDIR /var/lib/flux-node-manager
VOLUME /var/lib/flux-node-manager
# /healthz answers 503 if the last decision is late or a source is stale. The site must keep [Web] listen = unix.
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m \
    CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "--unix-socket", "/var/lib/flux-node-manager/web.sock", "http://localhost/healthz"]
ENTRYPOINT ["flux-node-manager"]
CMD ["run", "--config", "/etc/flux-node-manager/site.ini"]
