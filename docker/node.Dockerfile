# One node of a lab: Python, torch for the CPU, tc and setpriv, and lab itself.
#
# Built with BuildKit. Whatever the building machine has to hand in (a wheel folder, a CA bundle, a
# pip configuration) lies in docker/local, which is mounted while a step runs and is in no layer.
# Layers go from what changes least to what changes most: a change of lab's code costs seconds.
FROM debian:bookworm-slim AS torch

# iproute2 has tc, for the links; setpriv (util-linux) is in the base already. /root is opened since
# working directories keep their host path here, and some lie below it.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates iproute2 python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv \
    && echo /opt/lab > /opt/venv/lib/python3.11/site-packages/multinode-lab.pth \
    && chmod 755 /root

ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1
WORKDIR /opt/build

ARG TORCH_INDEX_URL=
COPY docker/with-local docker/install-torch docker/requirements.txt ./
RUN --mount=type=bind,source=docker/local,target=/mnt/local \
    ./with-local ./install-torch /opt/venv/bin/python
RUN --mount=type=bind,source=docker/local,target=/mnt/local \
    ./with-local pip install -r requirements.txt

# A host of the Slurm cluster that `make slurm-lab` starts. No lab in it, as on anybody's cluster.
FROM torch AS slurm
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        munge slurm-client slurmctld slurmd \
    && rm -rf /var/lib/apt/lists/* /etc/munge/munge.key
COPY docker/slurm-entrypoint /usr/local/bin/
RUN chmod 755 /usr/local/bin/slurm-entrypoint
ENTRYPOINT ["/usr/local/bin/slurm-entrypoint"]

FROM torch AS node
# What --requirements FILE adds; nothing but a comment otherwise. torch stays as it is. The file is
# not copied: the address of an index may have a password in it.
RUN --mount=type=bind,source=docker/local,target=/mnt/local \
    --mount=type=bind,source=docker/user-requirements.txt,target=/mnt/user-requirements.txt \
    pip list --format=freeze | grep '^torch==' >torch.txt \
    && ./with-local pip install -r /mnt/user-requirements.txt -c torch.txt

COPY docker/node-entrypoint /usr/local/bin/
COPY lab /opt/lab/lab
# Ranks cannot write here, so the bytecode is made now; and the builder's umask may be strict.
RUN chmod -R a+rX /opt/lab && chmod 755 /usr/local/bin/node-entrypoint \
    && python -m compileall -q /opt/lab

WORKDIR /
ENTRYPOINT ["/usr/local/bin/node-entrypoint"]
CMD ["sleep", "infinity"]
