# A machine for `make ssh-lab`: Debian, its Python, and an SSH server that runs as a plain user.
# Nothing of lab or torch is in it: that is what `lab deploy` brings.
#
# RELEASE other than the base's own takes the packages, and with them Python, from that release of
# Debian: a machine whose Python is another minor version.
FROM debian:bookworm-slim

ARG RELEASE=bookworm
RUN find /etc/apt -name '*.list' -o -name '*.sources' | xargs sed -i "s/bookworm/$RELEASE/g" \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        openssh-server python3 \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && useradd --create-home --shell /bin/bash trainer

# The keys of each machine come when it starts; none is in the image.
USER trainer
WORKDIR /home/trainer
RUN mkdir -m 700 .ssh .sshd
CMD ["/usr/sbin/sshd", "-D", "-e", "-f", "/home/trainer/.sshd/config"]
