// Launches the kernel: fibers take turns in an order that changes from round to round.

namespace emulation {
static const ARGUMENT* argument;
static void enter() {
  KERNEL(*argument);
  fiber->done = true;
  look_again();
}
}  // namespace emulation

// 0, or 1 when the threads wait for each other for good.
extern "C" int run(const ARGUMENT* of_the_kernel, int grid, unsigned seed) {
  using namespace emulation;
  constexpr size_t STACK = 48 << 10, SHARED_BYTES = 256 << 10;
  emulation::argument = of_the_kernel;
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
    one.begun = one.done = false;
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = stacks.data() + i * STACK;
    one.context.uc_stack.ss_size = STACK;
    makecontext(&one.context, enter, 0);
  }
  srand(seed);
  size_t left = fibers.size();
  for (long round = 0; left; ++round) {
    if (round == 1000000) return 1;
    const size_t start = rand() % fibers.size();
    for (size_t i = 0; i < fibers.size(); ++i) {
      emulation::Fiber& one = fibers[(start + i) % fibers.size()];
      if (one.done || rand() % 8 == 0) continue;
      fiber = &one;
      go_on();
      left -= one.done;
    }
  }
  return 0;
}
