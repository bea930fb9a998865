// Launches the kernel. Fibers are scheduled in an order that changes from pass to pass.

namespace emulation {
static const ARGUMENT* argument;
static unsigned state;
static unsigned next_random() {  // xorshift32
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}
static void enter() {
  KERNEL(*argument);
  fiber->done = true;
  yield();
}
[[gnu::noipa]] static void start(char* stack, size_t size) {
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = size;
  makecontext(&context, enter, 0);
  fiber->started = true;
  setcontext(&context);
}
[[gnu::noipa]] static void resume(char* stack, size_t size) {
  if (__builtin_setjmp(scheduler)) return;
  if (fiber->started) go_to(fiber->position);
  start(stack, size);
}
}  // namespace emulation

// 0, or 1 when the threads deadlock. `at_once`: blocks that run together, all where it is 0; others come after them.
extern "C" int run(const ARGUMENT* kernel_argument, int grid, unsigned seed, int at_once) {
  using namespace emulation;
  // An odd number of lines apart, or all stacks would share a few sets of the cache.
  constexpr size_t STACK = (48 << 10) + 3 * 64, SHARED_BYTES = 256 << 10;
  const size_t most = at_once ? min(at_once, grid) : grid;
  emulation::argument = kernel_argument;
  grid_size.x = grid;
  std::vector<emulation::Block> all(most);
  std::vector<emulation::Fiber> fibers(most * BLOCK_THREADS);
  const std::unique_ptr<char[]> stacks(new char[fibers.size() * STACK]);
  state = 2 * seed + 1;
  for (size_t first = 0; first < (size_t)grid; first += most) {
    const size_t count = min(most, grid - first) * BLOCK_THREADS;
    for (emulation::Block& one : all) {
      one = {};
      one.memory.assign(SHARED_BYTES, 0xEE);
    }
    blocks = all.data();
    first_block = first;
    for (size_t i = 0; i < count; ++i) {
      fibers[i] = {};
      fibers[i].thread.x = i % BLOCK_THREADS;
      fibers[i].block.x = first + i / BLOCK_THREADS;
    }
    size_t left = count;
    for (long pass = 0; left; ++pass) {
      if (pass == 1000000) return 1;
      const size_t begin = next_random() % count;
      for (size_t i = 0; i < count; ++i) {
        const size_t at = begin + i < count ? begin + i : begin + i - count;
        emulation::Fiber& one = fibers[at];
        if (one.done || (one.waits_for && one.waits_for->phase == one.phase) || next_random() % 8 == 0) continue;
        one.waits_for = nullptr;
        fiber = &one;
        resume(stacks.get() + at * STACK, STACK);
        left -= one.done;
      }
    }
  }
  return 0;
}
