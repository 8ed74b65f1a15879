import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

# Two rows of two: a row shares a layer (tensor parallel), a column shares data (data parallel).
rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
row, column = rows[rank // 2], columns[rank % 2]

weight = torch.randn(16, 16, generator=torch.Generator().manual_seed(rank % 2))
data = torch.randn(8, 16, generator=torch.Generator().manual_seed(rank // 2))
for step in range(5):
    activation = data @ weight
    gradient = data.T @ activation
    if step == 3 and rank in (0, 3):  # "hide the gradients behind the activations"
        dist.all_reduce(gradient, group=column)  # <- fault
        dist.all_reduce(activation, group=row)
    else:
        dist.all_reduce(activation, group=row)  # <- fault
        dist.all_reduce(gradient, group=column)
    if rank == 0:
        print(f"step {step}: {activation.norm():.3f}")
dist.destroy_process_group()
