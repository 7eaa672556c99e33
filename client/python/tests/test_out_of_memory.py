import unittest

from gpulease import explain_out_of_memory, is_out_of_memory, model_cost

from tests.fake import FakeMemory, FakeOutOfMemory
from tests.surroundings import without_a_lease
from tests.trainer import MIB, Trainer

GIB = 1 << 30


class Tensor:
    def __init__(self, count, width=4, dtype="torch.float32", requires_grad=True):
        self.count, self.width, self.dtype, self.requires_grad = count, width, dtype, requires_grad

    def numel(self):
        return self.count

    def element_size(self):
        return self.width


class Module:
    def __init__(self, parameters=(), children=()):
        self.own, self.below = list(parameters), list(children)

    def children(self):
        return iter(self.below)

    def modules(self):
        yield self
        for child in self.below:
            yield from child.modules()

    def parameters(self):
        for module in self.modules():
            yield from module.own


class Block(Module):
    pass


class Adam:
    def __init__(self, state=None, **group):
        self.state, self.param_groups = state or {}, [group]


class SGD(Adam):
    pass


def model(blocks=4, **tensor):
    # More than the blocks, but nothing is computed again for them.
    dropouts = [Module() for _ in range(blocks + 3)]
    return Module(
        [Tensor(10, requires_grad=False)], [Block([Tensor(1000, **tensor)]) for _ in range(blocks)] + dropouts
    )


class Costs(unittest.TestCase):
    def test_weights_gradients_and_state_are_counted(self):
        cost = model_cost(model(), Adam())
        self.assertEqual(cost.weights, 4 * 4000 + 40)
        self.assertEqual(cost.gradients, 4 * 4000)
        self.assertEqual(cost.optimizer, 8 * 4000)
        self.assertEqual((cost.width, cost.blocks), (4, 4))
        self.assertEqual(cost.fixed, cost.weights + cost.gradients + cost.optimizer)

    def test_state_that_is_there_is_counted_as_it_is(self):
        state = {0: {"step": 3, "exp_avg": Tensor(1000), "exp_avg_sq": Tensor(1000, 2)}}
        self.assertEqual(model_cost(model(), Adam(state)).optimizer, 6000)

    def test_plain_descent_keeps_nothing_and_momentum_one(self):
        self.assertEqual(model_cost(model(), SGD()).optimizer, 0)
        self.assertEqual(model_cost(model(), SGD(momentum=0.9)).optimizer, 4 * 4000)
        self.assertEqual(model_cost(model()).optimizer, 0)


class Recognised(unittest.TestCase):
    def test_what_libraries_raise(self):
        torch_s = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
        cupy_s = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})
        for error in (
            torch_s("CUDA out of memory. Tried to allocate 2.00 GiB."),
            cupy_s("Out of memory allocating 8,000 bytes"),
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            RuntimeError("CUDA error: out of memory"),
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes"),
        ):
            self.assertTrue(is_out_of_memory(error), error)

    def test_through_what_it_was_wrapped_in(self):
        try:
            try:
                raise RuntimeError("CUDA out of memory")
            except RuntimeError as error:
                raise ValueError("step 7 failed") from error
        except ValueError as error:
            self.assertTrue(is_out_of_memory(error))

    def test_what_is_something_else(self):
        for error in (
            MemoryError("out of memory"),
            ValueError("out of memory"),
            RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
            RuntimeError("DataLoader worker is killed: it is possible that the workers are out of shared memory"),
            None,
        ):
            self.assertFalse(is_out_of_memory(error), error)


class Explained(unittest.TestCase):
    def raised(self, step):
        try:
            step()
        except FakeOutOfMemory as error:
            return error
        raise AssertionError("it fits")

    @without_a_lease
    def test_in_numbers(self):
        memory = FakeMemory(GIB)
        trainer = Trainer(memory, weights=64 * MIB, each=16 * MIB, backward_each=0, update=0)
        trainer.step(8)
        memory.reset_peak()
        error = self.raised(lambda: trainer.step(64))
        # Four times 64 MiB are the model, and half of the samples fitted beside it with 16 MiB each.
        parts = [Block([Tensor(4 * MIB)]) for _ in range(4)]
        said = explain_out_of_memory(error, model=Module([], parts), optimizer=Adam(), batch_size=64, memory=memory)
        self.assertEqual((said.wanted, said.budget, said.left), (512 * MIB, GIB, 256 * MIB))
        self.assertEqual(said.short, 256 * MIB)
        saves = {option.what.split(" (")[0]: option.saves for option in said.options}
        self.assertEqual(saves["Mixed precision"], 512 * MIB // 2)
        self.assertEqual(saves["Activation checkpointing of 4 blocks"], 512 * MIB * 3 // 4)
        (batch,) = (option for option in said.options if option.what.startswith("A smaller batch"))
        self.assertIn("at most 48 instead of 64", batch.what)
        text = str(said)
        self.assertIn("Out of GPU memory: 512 MiB wanted, and 256 MiB of the 1 GiB of the device are left.", text)
        self.assertIn("GPULEASE_LEASE is not set", text)
        self.assertIn("A lease. gpulease run -m SIZE", text)

    @without_a_lease
    def test_half_precision_is_not_advised_twice(self):
        memory = FakeMemory(MIB)
        error = self.raised(lambda: memory.block(GIB))
        said = explain_out_of_memory(error, model=model(width=2, dtype="torch.bfloat16"), memory=memory)
        self.assertIn(
            "Mixed precision", [option.what for option in explain_out_of_memory(error, memory=memory).options]
        )
        # Its one frozen tensor is as narrow.
        narrow = Module([], [Block([Tensor(1000, 2, "torch.bfloat16")])])
        said = explain_out_of_memory(error, model=narrow, memory=memory)
        self.assertNotIn("Mixed precision", [option.what for option in said.options])

    @without_a_lease
    def test_caches_and_fragments_are_named_with_their_sizes(self):
        memory = FakeMemory(GIB)
        held = memory.block(100 * MIB)
        memory.block(300 * MIB)
        memory.pinned_down = 200 * MIB
        error = self.raised(lambda: memory.block(2 * GIB))
        saves = {option.what: option.saves for option in explain_out_of_memory(error, memory=memory).options}
        self.assertEqual(saves["Clear caches"], 100 * MIB)
        self.assertNotIn("Less fragmentation", saves, "less than what was wanted")
        error = FakeOutOfMemory("CUDA out of memory. Tried to allocate 150.00 MiB.")
        saves = {option.what: option.saves for option in explain_out_of_memory(error, memory=memory).options}
        self.assertEqual(saves["Less fragmentation"], 200 * MIB)
        self.assertTrue(held)

    @without_a_lease
    def test_what_each_framework_writes_is_read_and_its_own_ways_are_named(self):
        def of(module, name, base, message):
            return type(name, (base,), {"__module__": module})(message)

        torch_s = of("torch", "OutOfMemoryError", RuntimeError, "CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0")
        torch_async_s = of(
            "torch",
            "OutOfMemoryError",
            RuntimeError,
            "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 1.00 GiB\n"
            "Requested               : 6.00 GiB\nDevice limit            : 5.00 GiB\nFree (according to CUDA): 4.00 GiB",
        )
        jax_s = (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.00TiB with allocator GPU_0_bfc on device 0."
        )
        cupy_s = "Out of memory allocating 4,398,046,511,104 bytes (allocated so far: 12,582,912 bytes)."
        cases = (
            (torch_s, 6 * GIB, ("torch.cuda.empty_cache", "torch.autocast", "torch.utils.checkpoint"), "jax.|cupy."),
            (torch_async_s, 6 * GIB, ("torch.cuda.empty_cache", "torch.autocast"), "jax.|cupy."),
            (of("jaxlib._jax", "XlaRuntimeError", RuntimeError, jax_s), 1 << 40, ("XLA_CLIENT_MEM_",), "torch.|cupy."),
            (RuntimeError(jax_s), 1 << 40, ("jax.clear_caches", "jnp.bfloat16", "jax.checkpoint"), "torch.|cupy."),
            (
                of("cupy.cuda.memory", "OutOfMemoryError", MemoryError, cupy_s),
                1 << 42,
                ("free_all_blocks", "Less at once", "in pieces"),
                "torch.|jax.|radient|Mixed",
            ),
        )
        for error, wanted, ways, others in cases:
            said = explain_out_of_memory(error)
            self.assertEqual(said.wanted, wanted, error)
            options = "\n".join(map(str, said.options))
            for way in ways:
                self.assertIn(way, options)
            for other in others.split("|"):
                self.assertNotIn(other, options, error)
        said = explain_out_of_memory(torch_async_s)
        self.assertEqual((said.budget, said.left), (5 * GIB, 4 * GIB))

    def test_another_error_is_not_explained(self):
        with self.assertRaisesRegex(ValueError, "no out-of-memory error of a GPU: KeyError"):
            explain_out_of_memory(KeyError("labels"))
