"""A PyTorch job on two cards: `torch_cards.py together FILE | rank RANK FILE | copies`.

`together` starts both ranks, each on its card; `rank` is one of them, on the first card that it sees; they meet by a
file that is not there yet. `copies` is one process that computes on both cards and copies between them.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS, WORLD = 20, 2


def train(rank, device, meeting):
    """The same as its neighbour's at each step but for the data: gradients are averaged by NCCL."""
    import torch.distributed as dist

    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    torch.manual_seed(rank)
    kept = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        x = torch.randn(256, 1024, device="cuda")
        loss = F.mse_loss(parallel(x), x)
        loss.backward()
        optimizer.step()
        kept.append(loss.item().hex())
    # Large enough to be seen, and to go over the line in many pieces.
    ballast = torch.full((1 << 28,), float(rank + 1), device="cuda")
    dist.all_reduce(ballast)
    gathered = [torch.empty(1 << 20, device="cuda") for _ in range(WORLD)]
    dist.all_gather(gathered, torch.full((1 << 20,), float(rank), device="cuda"))
    torch.cuda.synchronize()
    time.sleep(2.5)
    sums = [ballast.double().sum().item(), *(piece.sum().item() for piece in gathered)]
    weights = sum(parameter.double().sum().item() for parameter in model.parameters())
    dist.destroy_process_group()
    return f"rank={rank} losses={','.join(kept)} weights={weights.hex()} sums={sums}"


def rank(number, meeting):
    print(f"note total_bytes={torch.cuda.mem_get_info(0)[1]} devices={torch.cuda.device_count()}")
    # Both see both cards where nobody hides one.
    device = int(number) if torch.cuda.device_count() > 1 else 0
    print("result " + train(int(number), device, meeting), flush=True)


def one_of_two(number, meeting, out):
    out.put((number, train(number, number, meeting)))


def together(meeting):
    context = torch.multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    started = [context.Process(target=one_of_two, args=(number, meeting, out)) for number in range(WORLD)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    codes = [process.exitcode for process in started]
    print(f"result codes={codes}")
    if any(codes):
        sys.exit(1)
    for _, said in sorted(out.get() for _ in codes):
        print("result " + said, flush=True)


def copies():
    """Tensors go from card to card, whole, in strips, and as arguments of a kernel where cards reach one another."""
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    for device in (first, second):
        print(f"note total_bytes={torch.cuda.mem_get_info(device)[1]}")
    print(f"note peers={torch.cuda.can_device_access_peer(0, 1)}")
    torch.manual_seed(7)
    x = torch.randn(1 << 14, 1 << 14, device=first)
    there = x.to(second)
    print(f"result whole={bool((there.to(first) == x).all())}")
    strips = x[:, ::2].to(second)
    print(f"result strips={bool((strips.to(first) == x[:, ::2]).all())}")
    turned = torch.empty(1 << 14, 1 << 14, device=second)
    turned.copy_(x.t())
    print(f"result turned={bool((turned == there.t()).all())}")
    front, back = nn.Linear(1 << 14, 256).to(first), nn.Linear(256, 16).to(second)
    loss = back(front(x[:64]).to(second)).square().mean()
    loss.backward()
    print(f"result loss={loss.item().hex()} gradient={front.weight.grad.double().sum().item().hex()}")
    time.sleep(2.5)
    print(f"result ends={there[-1, -1].item().hex()}", flush=True)


if __name__ == "__main__":
    {"together": together, "rank": rank, "copies": copies}[sys.argv[1]](*sys.argv[2:])
