# One node of a lab: Python, torch for the CPU, tc and setpriv, and lab itself.
#
# Built with BuildKit. Whatever the building machine has to hand in (a wheel folder, a CA bundle, a
# pip configuration) lies in docker/local, which is mounted while a step runs and is in no layer.
# Layers go from what changes least to what changes most: a change of lab's code costs seconds.
FROM debian:bookworm-slim

# iproute2 has tc, for the links; setpriv (util-linux) is in the base already.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates iproute2 python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv \
    && echo /opt/lab > /opt/venv/lib/python3.11/site-packages/multinode-lab.pth \
    # Working directories keep their host path here, and some lie below /root.
    && chmod 755 /root

ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1

ARG TORCH_INDEX_URL=
COPY docker/install-torch docker/requirements.txt /opt/build/
RUN --mount=type=bind,source=docker/local,target=/local \
    if [ -e /local/ca.crt ]; then export PIP_CERT=/local/ca.crt; fi \
    && if [ -e /local/pip.conf ]; then export PIP_CONFIG_FILE=/local/pip.conf; fi \
    && export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    && PIP_FIND_LINKS=/local/wheels sh /opt/build/install-torch /opt/venv/bin/python \
    && pip install -r /opt/build/requirements.txt

# What `lab build --requirements FILE` adds; a file with nothing but a comment otherwise.
RUN --mount=type=bind,source=docker/local,target=/local \
    --mount=type=bind,source=docker/user-requirements.txt,target=/user-requirements.txt \
    if [ -e /local/ca.crt ]; then export PIP_CERT=/local/ca.crt; fi \
    && if [ -e /local/pip.conf ]; then export PIP_CONFIG_FILE=/local/pip.conf; fi \
    && export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    && if grep -qv '^ *\(#.*\)\?$' /user-requirements.txt; then \
        pip install -r /user-requirements.txt -c /opt/build/requirements.txt; fi

COPY docker/node-entrypoint /usr/local/bin/node-entrypoint
COPY lab /opt/lab/lab
# Ranks cannot write here, so the bytecode is made now; and the builder's umask may be strict.
RUN chmod -R a+rX /opt/lab && chmod 755 /usr/local/bin/node-entrypoint \
    && python -m compileall -q /opt/lab

ENTRYPOINT ["/usr/local/bin/node-entrypoint"]
CMD ["sleep", "infinity"]
