// One product of bf16 tiles on tensor cores, by a warp. Part of batch.cu and prompt.cu.

// c += a * b with a [16, 16], b [16, 8] in bf16, in the lane layout of mma.m16n8k16. Turing has no such instruction for
// bf16.
__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800 && !defined(NO_TENSOR_CORES)
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  const int lane = threadIdx.x & 31, row = lane & ~3, column = (lane & 3) * 8;  // first lanes of a's row, b's columns
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    const u32 top[2] = {__shfl_sync(~0u, a0, row + k), __shfl_sync(~0u, a2, row + k)};
    const u32 bottom[2] = {__shfl_sync(~0u, a1, row + k), __shfl_sync(~0u, a3, row + k)};
    const u32 left[2] = {__shfl_sync(~0u, b0, column + k), __shfl_sync(~0u, b1, column + k)};
    const u32 right[2] = {__shfl_sync(~0u, b0, column + 4 + k), __shfl_sync(~0u, b1, column + 4 + k)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      c[0] = fmaf(high(top[i]), high(left[i]), fmaf(low(top[i]), low(left[i]), c[0]));
      c[1] = fmaf(high(top[i]), high(right[i]), fmaf(low(top[i]), low(right[i]), c[1]));
      c[2] = fmaf(high(bottom[i]), high(left[i]), fmaf(low(bottom[i]), low(left[i]), c[2]));
      c[3] = fmaf(high(bottom[i]), high(right[i]), fmaf(low(bottom[i]), low(right[i]), c[3]));
    }
  }
#endif
}
