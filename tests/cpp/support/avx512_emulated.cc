// The AVX512 table once more, over portable code instead of AVX512 instructions.
#define HASTEN_EMULATE_AVX512
#include "kernels/isa_avx512.cc"
