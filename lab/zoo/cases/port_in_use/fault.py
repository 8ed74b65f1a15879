import os
import socketserver
import threading

import torch
import torch.distributed as dist


class Metrics(socketserver.BaseRequestHandler):
    """Answers whoever asks how training goes."""

    def handle(self):
        self.request.sendall(b"step 0")


def main():
    rank = int(os.environ["RANK"])
    if rank == 0:
        port = int(os.environ["MASTER_PORT"])
        server = socketserver.TCPServer(("", port), Metrics)  # <- fault
        threading.Thread(target=server.serve_forever, daemon=True).start()
    dist.init_process_group("gloo")  # <- fault
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"rank {rank}: {total.item():.0f} ranks")
    dist.destroy_process_group()


main()
