"""One node's container, and files for one, as the engine's API takes them."""

import io
import tarfile
from collections.abc import Mapping
from typing import Any

from lab.transport.containers import LABEL, Container, LabSpec, memory_limit


def container_config(
    api: Any, spec: LabSpec, container: Container, labels: Mapping[str, str]
) -> dict[str, Any]:
    """What to create it from; `labels` are those of all that is made with it.

    `api` is the SDK's low-level client, which fits it to the engine's version.
    """
    from docker.types import DeviceRequest, Mount

    config_label = {f"{LABEL}.config": spec.configs[container.node]}
    memory = memory_limit(container.memory)
    devices = []
    if container.gpus is not None:
        count = -1 if container.gpus == "all" else int(container.gpus)
        devices = [DeviceRequest(count=count, capabilities=[["gpu"]])]
    endpoint = api.create_endpoint_config(
        aliases=[container.node, *container.aliases], ipv4_address=container.ip
    )
    config: dict[str, Any] = api.create_container_config(
        image=container.image,
        command=list(container.command),
        hostname=container.node,
        working_dir=container.workdir,
        environment=dict(container.env),
        labels={**labels, **container.labels, **config_label},
        networking_config=api.create_networking_config({spec.lab_id: endpoint}),
        host_config=api.create_host_config(
            network_mode=spec.lab_id,
            mounts=[Mount(container.workdir, container.workdir, type="bind")],
            init=True,
            cap_drop=["ALL"],
            cap_add=list(container.cap_add),
            # label:disable lets nodes into the working directory where SELinux is on.
            security_opt=["no-new-privileges", "label:disable"],
            nano_cpus=int(container.cpus * 1e9) if container.cpus is not None else None,
            mem_limit=memory,
            memswap_limit=memory,  # the limit is one: no swap on top
            shm_size=memory_limit(container.shm),
            device_requests=devices,
        ),
    )
    return config


def archive_of(files: Mapping[str, bytes], *, mode: int, uid: int = 0) -> bytes:
    """A tar file, as `put_archive` takes it, of files that belong to a user of the container."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid, member.gid = len(data), mode, uid, uid
            archive.addfile(member, io.BytesIO(data))
    return raw.getvalue()
