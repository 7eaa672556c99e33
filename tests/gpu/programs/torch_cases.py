"""Small PyTorch programs that know nothing of a broker: `torch_cases.py CASE`.

Each prints `result KEY=VALUE` lines that two runs can be compared by, and `note` lines. In the midst of its work each
asks for more than there is, and goes on.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 20
DEVICE = "cuda"


def main(case):
    torch.manual_seed(7)
    free, total = torch.cuda.mem_get_info()
    print(f"note total_bytes={total} free_bytes={free} properties_bytes={torch.cuda.get_device_properties(0).total_memory}")
    CASES[case]()
    # Large enough to tell leased memory from a context, and there long enough to be looked at.
    ballast = torch.ones(2 << 30, dtype=torch.uint8, device=DEVICE)
    torch.cuda.synchronize()
    time.sleep(2.5)
    print(f"result ballast={int(ballast[:: 1 << 20].sum())}")
    print(f"note reserved_bytes={torch.cuda.memory_reserved()}", flush=True)


def losses(values):
    print("result losses=" + ",".join(float(value).hex() for value in values))


def refused():
    """More than there is, which the framework's own exception says."""
    _, total = torch.cuda.mem_get_info()
    try:
        torch.empty(total, dtype=torch.uint8, device=DEVICE)
        return "over=none"
    except torch.OutOfMemoryError as error:
        print("note " + str(error).splitlines()[0][:150])
        return f"over={type(error).__name__}"


class Transformer(nn.Module):
    def __init__(self, checkpoint=False):
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        layer = lambda: nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(4))
        self.head = nn.Linear(256, 1000)
        self.checkpoint = checkpoint

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(x)


def tokens(batch=16, length=128):
    return torch.randint(0, 1000, (batch, length), device=DEVICE)


def train(model, step_loss, steps=STEPS):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = []
    for number in range(steps):
        if number == steps // 2:
            print("result " + refused())
        optimizer.zero_grad(set_to_none=True)
        loss = step_loss(model)
        loss.backward()
        optimizer.step()
        kept.append(loss.item())
    losses(kept)


def next_token(model, batch=None):
    batch = tokens() if batch is None else batch
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def transformer():
    train(Transformer().to(DEVICE), next_token)


def amp():
    import torch.utils.checkpoint  # noqa: F401 (the module is loaded by need)

    def step_loss(model):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return next_token(model)

    train(Transformer(checkpoint=True).to(DEVICE), step_loss)


def compiled():
    """A compiled model whose graphs are captured as CUDA graphs."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(DEVICE)
    fast = torch.compile(model, mode="reduce-overhead")

    def step_loss(_):
        x = torch.randn(128, 512, device=DEVICE)
        return F.mse_loss(fast(x), x)

    train(model, step_loss)


def graph():
    """A whole training step in one CUDA graph."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(128, 512, device=DEVICE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = step()
    kept = []
    for number in range(STEPS):
        if number == STEPS // 2:
            print("result " + refused())
        captured.replay()
        kept.append(loss.item())
    losses(kept)


def cudnn():
    torch.backends.cudnn.benchmark = True
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.Conv2d(128, 128, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    ).to(DEVICE)

    def step_loss(net):
        images = torch.randn(64, 3, 64, 64, device=DEVICE)
        return F.cross_entropy(net(images), torch.randint(0, 10, (64,), device=DEVICE))

    train(model, step_loss)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64 * STEPS

    def __getitem__(self, index):
        x = torch.linspace(index, index + 1, 512)
        return torch.sin(x), index % 10


def loader():
    """Batches from four forked workers, over pinned memory."""
    data = torch.utils.data.DataLoader(
        Numbers(), batch_size=64, num_workers=4, pin_memory=True, multiprocessing_context="fork"
    )
    model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    for images, labels in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(DEVICE, non_blocking=True)), labels.to(DEVICE, non_blocking=True))
        loss.backward()
        optimizer.step()
        kept.append(loss.item())
        if len(kept) == STEPS // 2:
            print("result " + refused())
    losses(kept)


def forked():
    """Field case 47 (pytorch#40403): a child of a fork that calls CUDA gets the normal error, and the parent goes on."""
    import os

    x = torch.ones(1 << 20, device=DEVICE)
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device=DEVICE)
            os._exit(1)
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) or "initializ" in str(error) else 2)
    _, status = os.waitpid(child, 0)
    print("result " + refused())
    print(f"result child={os.waitstatus_to_exitcode(status)} sum={float(x.sum()).hex()}")


def worker(rank, world, port, out):
    """One of several processes of a job: data of its own, gradients averaged with the others'."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for number in range(STEPS):
        if number == STEPS // 2:
            over = refused()
        optimizer.zero_grad(set_to_none=True)
        x = torch.randn(64, 256, device=DEVICE)
        loss = F.mse_loss(model(x), x)
        loss.backward()
        for parameter in model.parameters():
            mean = parameter.grad.cpu()
            dist.all_reduce(mean)
            parameter.grad.copy_(mean / world)
        optimizer.step()
    out.put((rank, f"{loss.item().hex()} {over}"))
    dist.destroy_process_group()


def workers(world=2):
    """Processes of one job that share its lease, as torchrun's do."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    started = [context.Process(target=worker, args=(rank, world, port, out)) for rank in range(world)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    codes = [process.exitcode for process in started]
    print(f"result codes={codes} losses=" + ",".join(loss for _, loss in sorted(out.get() for code in codes if code == 0)))


def nccl():
    """A job of one process whose gradients pass NCCL, with the memory that it takes for itself."""
    import tempfile

    import torch.distributed as dist

    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("nccl", init_method=f"file://{file.name}", rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(Transformer().to(DEVICE))
        train(model, next_token)
        dist.destroy_process_group()


def over_budget():
    """Field case 10 (HAMi-core#55): more than there is is the framework's own exception, and there is life after it."""
    kept = torch.ones(1 << 28, device=DEVICE)
    print("result " + refused())
    del kept
    torch.cuda.empty_cache()
    train(Transformer().to(DEVICE), next_token, steps=5)


CASES = {
    case.__name__: case
    for case in (transformer, amp, compiled, graph, cudnn, loader, forked, workers, nccl, over_budget)
}

if __name__ == "__main__":
    main(sys.argv[1])
