"""A job whose data fill most of its lease: `torch_turns.py SEED GIB STEPS`. Every other step is a replayed CUDA graph."""

import sys

import torch
from torch import nn
from torch.nn import functional as F


def main(seed, gib, steps):
    torch.manual_seed(seed)
    rows = (gib << 30) // (4 * 1024)
    data = torch.empty(rows, 1024, device="cuda")
    for start in range(0, rows, 1 << 18):
        data[start : start + (1 << 18)].normal_()
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=True)
    batch = torch.empty(1024, 1024, device="cuda")

    def step():
        # The gradients stay what they are: those of a captured step belong to its graph, and `cudaMallocAsync` frees nobody's graph.
        optimizer.zero_grad(set_to_none=False)
        loss = F.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        batch.copy_(data[:1024])
        for _ in range(3):
            step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    generator = torch.Generator().manual_seed(seed)
    for number in range(steps):
        picks = torch.randint(0, rows, (1024,), generator=generator).cuda()
        batch.copy_(data[picks])
        if number % 2:
            graph.replay()
            loss = captured
        else:
            loss = step()
        # All of the data change, a little at a time.
        data[number % 64 :: 64].mul_(1.0001)
    # In small pieces: a sum in double precision of all the data at once would need twice their room.
    total = sum(piece.sum(dtype=torch.float64).item() for piece in data.split(1 << 14))
    print(f"result loss={loss.item().hex()} data={total.hex()}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
