// Launches the kernel of cuda.h: fibers take turns in an order that changes from round to round.

static const Step* argument;
static void enter() {
  decode_step(*argument);
  fiber->done = true;
  look_again();
}

// 0, or 1 when the threads wait for each other for good.
extern "C" int run(const Step* step, unsigned seed) {
  constexpr size_t STACK = 48 << 10;
  argument = step;
  std::vector<Block> grid(BLOCKS);
  for (Block& one : grid) one.memory.assign(SHARED_BYTES, 0xEE);
  blocks = grid.data();
  std::vector<Fiber> fibers(BLOCKS * BLOCK_THREADS);
  std::vector<char> stacks(fibers.size() * STACK);
  for (size_t i = 0; i < fibers.size(); ++i) {
    Fiber& one = fibers[i];
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
      Fiber& one = fibers[(start + i) % fibers.size()];
      if (one.done || rand() % 8 == 0) continue;
      fiber = &one;
      go_on();
      left -= one.done;
    }
  }
  return 0;
}
