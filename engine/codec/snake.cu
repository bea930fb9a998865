// The codec's activation: out = x + sin(alpha * x)^2 / (alpha + 1e-9), alpha per channel; 0 beyond a clip's sound.
// Each block takes every blocks_per_row-th chunk of blockDim.x samples of one row.

struct SnakeArgs {
  const float* x;      // [rows, length], one row per clip and channel
  const float* alpha;  // [channels]
  float* out;          // [rows, length]
  const int* lengths;  // [rows / channels], length of each clip's sound, in units of `unit` samples; null: all
  int channels;        // row r is channel r % channels
  int length, unit;
  int blocks_per_row;
};
static_assert(sizeof(SnakeArgs) == SIZEOF_SnakeArgs, "snake.py fills another structure");

extern "C" __global__ void snake(const SnakeArgs s) {
  const int row = blockIdx.x / s.blocks_per_row, block = blockIdx.x % s.blocks_per_row;
  const float alpha = s.alpha[row % s.channels], scale = 1.0f / (alpha + 1e-9f);
  const float* x = s.x + (long long)row * s.length;
  float* out = s.out + (long long)row * s.length;
  const int valid = s.lengths ? s.lengths[row / s.channels] * s.unit : s.length;
  for (int i = block * blockDim.x + threadIdx.x; i < s.length; i += s.blocks_per_row * blockDim.x) {
    const float wave = sinf(alpha * x[i]);
    out[i] = i < valid ? x[i] + scale * (wave * wave) : 0.0f;
  }
}
