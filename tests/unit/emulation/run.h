// Launches the kernel. Fibers are scheduled in an order that changes from pass to pass.

namespace emulation {
static const ARGUMENT* argument;
static void enter() {
  KERNEL(*argument);
  fiber->done = true;
  yield();
}
}  // namespace emulation

// 0, or 1 when the threads deadlock.
extern "C" int run(const ARGUMENT* kernel_argument, int grid, unsigned seed) {
  using namespace emulation;
  constexpr size_t STACK = 48 << 10, SHARED_BYTES = 256 << 10;
  emulation::argument = kernel_argument;
  grid_size.x = grid;
  std::vector<emulation::Block> all(grid);
  for (emulation::Block& one : all) one.memory.assign(SHARED_BYTES, 0xEE);
  blocks = all.data();
  std::vector<emulation::Fiber> fibers(grid * BLOCK_THREADS);
  std::vector<char> stacks(fibers.size() * STACK);
  for (size_t i = 0; i < fibers.size(); ++i) {
    emulation::Fiber& one = fibers[i];
    one.thread.x = i % BLOCK_THREADS;
    one.block.x = i / BLOCK_THREADS;
    one.started = one.done = false;
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = stacks.data() + i * STACK;
    one.context.uc_stack.ss_size = STACK;
    makecontext(&one.context, enter, 0);
  }
  srand(seed);
  size_t left = fibers.size();
  for (long pass = 0; left; ++pass) {
    if (pass == 1000000) return 1;
    const size_t start = rand() % fibers.size();
    for (size_t i = 0; i < fibers.size(); ++i) {
      emulation::Fiber& one = fibers[(start + i) % fibers.size()];
      if (one.done || rand() % 8 == 0) continue;
      fiber = &one;
      resume();
      left -= one.done;
    }
  }
  return 0;
}
