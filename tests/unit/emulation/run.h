// Launches the kernel. Fibers are scheduled in an order that changes from pass to pass.

namespace emulation {
static const ARGUMENT* argument;
static void enter() {
  KERNEL(*argument);
  fiber->done = true;
  yield();
}
}  // namespace emulation

// 0, or 1 when the threads deadlock. `at_once`: blocks that run together, all where it is 0; others come after them.
extern "C" int run(const ARGUMENT* kernel_argument, int grid, unsigned seed, int at_once) {
  using namespace emulation;
  constexpr size_t STACK = 48 << 10, SHARED_BYTES = 256 << 10;
  const size_t most = at_once ? min(at_once, grid) : grid;
  emulation::argument = kernel_argument;
  grid_size.x = grid;
  std::vector<emulation::Block> all(most);
  std::vector<emulation::Fiber> fibers(most * BLOCK_THREADS);
  std::vector<char> stacks(fibers.size() * STACK);
  srand(seed);
  for (size_t first = 0; first < (size_t)grid; first += most) {
    const size_t count = min(most, grid - first) * BLOCK_THREADS;
    for (emulation::Block& one : all) {
      one = {};
      one.memory.assign(SHARED_BYTES, 0xEE);
    }
    blocks = all.data();
    first_block = first;
    for (size_t i = 0; i < count; ++i) {
      emulation::Fiber& one = fibers[i];
      one.thread.x = i % BLOCK_THREADS;
      one.block.x = first + i / BLOCK_THREADS;
      one.started = one.done = false;
      getcontext(&one.context);
      one.context.uc_stack.ss_sp = stacks.data() + i * STACK;
      one.context.uc_stack.ss_size = STACK;
      makecontext(&one.context, enter, 0);
    }
    size_t left = count;
    for (long pass = 0; left; ++pass) {
      if (pass == 1000000) return 1;
      const size_t start = rand() % count;
      for (size_t i = 0; i < count; ++i) {
        emulation::Fiber& one = fibers[(start + i) % count];
        if (one.done || rand() % 8 == 0) continue;
        fiber = &one;
        resume();
        left -= one.done;
      }
    }
  }
  return 0;
}
